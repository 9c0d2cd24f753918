"""A web hook as a recipient: each event is an HTTP POST of a CloudEvent.

    Webhook("https://example.com/events", headers={"Authorization": "Bearer …"})

Guarantees
    1. A status of 2xx confirms, and nothing else does. 4xx is permanent (the same request will fail again), except
       408, 425 and 429, which are a matter of time, as is everything else: 3xx, 5xx, no connection, no answer.
    2. Each request says the id of its event (`Idempotency-Key`), by which the other side can drop what comes twice.
    3. A whole exchange takes at most `timeout_s`, even if the other side sends a byte now and then.
    4. Neither headers nor the user and query of the address appear in any error.

One connection is kept open between events. Redirections are not followed: a POST must not go where nobody sent it.
"""

from __future__ import annotations

import asyncio
import email.utils
import http.client
import re
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from clarion import limits
from clarion.errors import BadArgument, NotDelivered
from clarion.events import cloudevents
from clarion.events.recipients.base import Blocking, Progress

if TYPE_CHECKING:
    from clarion.events.event import Event

PASSING = frozenset((408, 425, 429))
"""Answers of 4xx that may be others next time."""
ANSWER_BYTES_MAX = 64 * limits.KIB
"""How much of an answer is read; a longer one costs its connection."""
RETRY_AFTER_S_MAX = 86_400.0
_OURS = frozenset(("content-type", "content-length", "idempotency-key", "host", "transfer-encoding"))


class Webhook(Blocking):
    """POSTs to `url`: one event each, in `mode` structured (JSON) or binary (headers beside the data)."""

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        filter: str = "",
        mode: Literal["structured", "binary"] = "structured",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        certificates: str | None = None,
        batch_events_max: int = limits.EVENT_BATCH_EVENTS_DEFAULT,
    ) -> None:
        """`certificates`: a file of those to trust, instead of the system's."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise BadArgument(argument="url", detail=str(error)) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadArgument(argument="url", detail="it is not http://… or https://…")
        if mode not in ("structured", "binary"):
            raise BadArgument(argument="mode", detail=f"{mode!r} is neither structured nor binary")
        if not timeout_s > 0:
            raise BadArgument(argument="timeout_s", detail=f"{timeout_s} is not more than 0")
        super().__init__(name if name is not None else parts.hostname.replace(":", "."), filter, batch_events_max)
        self._host, self._port = parts.hostname, port or (443 if parts.scheme == "https" else 80)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._address = f"{parts.scheme}://{self._host}:{self._port}{parts.path}"
        self._mode = mode
        self._headers = _checked({**_authorization(parts.username, parts.password), **(headers or {})})
        self._timeout_s = timeout_s
        self._tls = _tls(certificates) if parts.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None
        self._deadline = float("inf")
        """Of the exchange under way, by the monotonic clock."""

    # --- in the recipient's own thread ----------------------------------------------------------------

    def process(self, events: Sequence[Event]) -> None:
        progress = Progress(events)
        for index, event in enumerate(events):
            if progress.due(index):
                try:
                    self._post(event)
                except NotDelivered as error:
                    progress.failed(index, error)
                else:
                    progress.done(index)
        progress.finish()

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def abort(self) -> None:
        """Whoever waits for the other side sees the end of the connection."""
        connection = self._connection
        sock = connection.sock if connection is not None else None
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _post(self, event: Event) -> None:
        headers = {**self._headers, "Idempotency-Key": cloudevents.encode_header(event.id)}
        if self._mode == "structured":
            body = cloudevents.to_structured(event)
            headers["Content-Type"] = f"{cloudevents.CONTENT_STRUCTURED}; charset=utf-8"
        else:
            more, body = cloudevents.to_binary(event)
            headers.update(more)
        headers["Content-Length"] = str(len(body))
        answer, said = self._exchange(headers, body)
        if 200 <= answer.status < 300:
            return
        raise NotDelivered(
            reason=f"{self._address} answered {answer.status} {answer.reason}{said}",
            permanent=400 <= answer.status < 500 and answer.status not in PASSING,
            status=answer.status,
            retry_after_s=_retry_after_s(answer),
        )

    def _exchange(self, headers: Mapping[str, str], body: bytes) -> tuple[http.client.HTTPResponse, str]:
        """One request and its answer. A kept connection that the other side closed meanwhile is replaced once."""
        kept = self._connection is not None
        self._deadline = time.monotonic() + self._timeout_s
        try:
            while True:
                try:
                    return self._once(headers, body)
                except (OSError, http.client.HTTPException) as error:
                    self.stop()
                    late = isinstance(error, TimeoutError) or time.monotonic() >= self._deadline
                    if kept and not late and isinstance(error, ConnectionError | http.client.BadStatusLine):
                        kept = False
                        continue
                    detail = f"no answer within {self._timeout_s} s" if late else f"{type(error).__name__}: {error}"
                    raise NotDelivered(reason=f"{self._address}: {detail}", permanent=False) from error
        finally:
            self._deadline = float("inf")

    def _once(self, headers: Mapping[str, str], body: bytes) -> tuple[http.client.HTTPResponse, str]:
        connection = self._connection
        if connection is None:
            if self._tls is not None:
                connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=self._timeout_s, context=self._tls
                )
            else:
                connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
            self._connection = connection
        connection.request("POST", self._target, body, dict(headers))
        answer = connection.getresponse()
        said = answer.read(ANSWER_BYTES_MAX)
        if time.monotonic() >= self._deadline:  # cut off from here: headers that end in the middle look complete
            raise TimeoutError
        if not answer.isclosed():  # there is more than anybody wants to know
            self.stop()
        text = " ".join(said[:300].decode("utf-8", "replace").split())
        return answer, f": {text}" if text.isprintable() and text else ""

    # --- in the loop ----------------------------------------------------------------------------------

    async def deliver(self, events: Sequence[Event]) -> None:
        watching = asyncio.ensure_future(self._watch())
        try:
            await super().deliver(events)
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        """Time limits of a socket are per piece that is read: the whole is watched from here."""
        while True:
            await asyncio.sleep(min(self._timeout_s, max(0.01, self._deadline - time.monotonic())))
            if time.monotonic() >= self._deadline:
                self.abort()


def _authorization(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Authorization": f"Basic {b64encode(pair).decode()}"}


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """Raises `BadArgument` for what cannot be a header; its value is not shown."""
    for header, value in headers.items():
        is_name = isinstance(header, str) and re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", header)
        if not is_name or header.lower().startswith("ce-") or header.lower() in _OURS:
            raise BadArgument(argument="headers", detail=f"{header!r} is no header, or one that is set here")
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise BadArgument(argument="headers", detail=f"the value of {header} is not printable ASCII")
    return dict(headers)


def _tls(certificates: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=certificates)
    except (OSError, ssl.SSLError) as error:
        raise BadArgument(argument="certificates", detail=f"{certificates}: {error}") from None


def _retry_after_s(answer: http.client.HTTPResponse) -> float | None:
    """What the other side asks for, in seconds or as a date."""
    said = answer.getheader("Retry-After")
    if said is None:
        return None
    try:
        seconds = float(said) if said.strip().isdecimal() else _until_s(said)
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), RETRY_AFTER_S_MAX)


def _until_s(date: str) -> float:
    return email.utils.parsedate_to_datetime(date).timestamp() - time.time()
