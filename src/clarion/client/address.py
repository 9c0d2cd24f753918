"""Addresses of servers: `clarion://[user:password@]host[:port][,host[:port]…]`.

Rules: whatever is not such an address raises `BadUrl`; a password never appears in an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from clarion.errors import BadUrl

SCHEME = "clarion://"
PORT = 7750


class Address(NamedTuple):
    """Where to connect to, and as whom."""

    hosts: tuple[tuple[str, int], ...]
    user: str | None = None
    password: str | None = None

    def __str__(self) -> str:
        """The address without its password."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{SCHEME}{self.user}@{hosts}" if self.user else f"{SCHEME}{hosts}"

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    @property
    def authentication(self) -> dict[str, Any]:
        """What HELLO says of the user."""
        if self.user is None:
            return {"mechanism": "none"}
        return {"mechanism": "password", "user": self.user, "password": self.password or ""}


def parse(url: str | Sequence[str]) -> Address:
    """One address from one URL or several; the user is that of the first that names one."""
    parsed = [_parse_one(one) for one in ([url] if isinstance(url, str) else url)]
    if not parsed:
        raise BadUrl(url="", detail="there is none")
    named = next((one for one in parsed if one.user is not None), parsed[0])
    return Address(tuple(host for one in parsed for host in one.hosts), named.user, named.password)


def _parse_one(url: str) -> Address:
    if not isinstance(url, str) or not url.startswith(SCHEME):
        raise BadUrl(url=_redacted(str(url)), detail=f"it does not begin with {SCHEME}")
    credentials, at, places = url[len(SCHEME) :].rpartition("@")
    user: str | None = None
    password: str | None = None
    if at:
        name, colon, secret = credentials.partition(":")
        if not name:
            raise BadUrl(url=_redacted(url), detail="the user has no name")
        user, password = unquote(name), unquote(secret) if colon else None
    return Address(tuple(_host(url, place) for place in places.removesuffix("/").split(",")), user, password)


def _host(url: str, place: str) -> tuple[str, int]:
    if place.startswith("["):
        host, bracket, rest = place[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        if not bracket or colon not in ("", ":"):
            raise BadUrl(url=_redacted(url), detail=f"{place!r} is not [address]:port")
    else:
        host, colon, port = place.partition(":")
    if not host or any(not character.isprintable() or character in " /?#@[]" for character in host):
        raise BadUrl(url=_redacted(url), detail=f"{host!r} is not a host")
    if not colon:
        return host, PORT
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadUrl(url=_redacted(url), detail=f"{port!r} is not a port")
    return host, int(port)


def _redacted(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    credentials, at, places = rest.rpartition("@")
    if not at:
        return url
    return f"{scheme}{mark}{credentials.partition(':')[0]}:…@{places}"
