"""A recipient from a table of TOML.

    [[events.recipients]]
    type = "log"                            # statistics, command, webhook, people, clarion, multiplexer
    path = "/var/log/events.jsonl"
    bytes_max = "100 MiB"
    filter = "severity_level >= 30"

Guarantee: a table becomes a recipient, or raises `BadSetting` that names the file, the table and the key. Nothing that
is written is ignored.

Keys are the arguments of the class; durations end in `_ms` there and take units ("30 s"), sizes take units ("1 MiB").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from clarion import limits
from clarion.errors import BadArgument, BadName, BadSelector, BadSetting, BadUrl
from clarion.events.recipients.base import Named
from clarion.units import parse_unit

_Events = Annotated[int, msgspec.Meta(ge=1, le=limits.BATCH_MESSAGES_MAX)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=86_400_000)]
_Interval = Annotated[int, msgspec.Meta(ge=0, le=86_400_000)]
_Words = Annotated[list[str], msgspec.Meta(min_length=1)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What every type has. Keys that are not given are left to the class, so that its defaults stand in one place."""

    name: str | None = None
    filter: str = ""
    batch_events_max: _Events | None = None


class _Log(_Table, frozen=True, tag="log"):
    path: str
    format: Literal["json", "text"] = "json"
    bytes_max: int | None = None
    daily: bool = False
    keep: int | None = None
    sync: bool = True


class _Statistics(_Table, frozen=True, tag="statistics"):
    path: str | None = None


class _Command(_Table, frozen=True, tag="command"):
    command: _Words
    per: Literal["event", "batch"] = "event"
    timeout_ms: _Milliseconds | None = None
    environment: dict[str, str] = {}
    directory: str | None = None


class _Webhook(_Table, frozen=True, tag="webhook"):
    url: str
    mode: Literal["structured", "binary"] = "structured"
    headers: dict[str, str] = {}
    timeout_ms: _Milliseconds | None = None
    certificates: str | None = None


class _People(_Table, frozen=True, tag="people"):
    addresses: _Words
    title: str | None = None
    title_many: str | None = None
    line: str | None = None
    interval_ms: _Interval | None = None


class _Clarion(_Table, frozen=True, tag="clarion"):
    url: str | list[str]
    destination: str | None = None
    timeout_ms: _Milliseconds | None = None


class _Multiplexer(_Table, frozen=True, tag="multiplexer"):
    address: str
    timeout_ms: _Milliseconds | None = None


_Any = _Log | _Statistics | _Command | _Webhook | _People | _Clarion | _Multiplexer
TYPES = ("clarion", "command", "log", "multiplexer", "people", "statistics", "webhook")


def from_table(table: Mapping[str, Any], file: str = "code", place: str = "[[events.recipients]]") -> Named:
    """The recipient that a table describes. Raises `BadSetting`, or `MissingExtra`.

    `place` is where the table stands, for the text of an error.
    """
    kind = table.get("type")
    if kind not in TYPES:
        said = "there is none" if kind is None else f"{kind!r} is not known"
        raise BadSetting(file=file, detail=f"{place} type: {said}; types are {', '.join(TYPES)}")
    place = f"{place} {kind}"
    plain: dict[str, object] = {}
    for key, value in table.items():
        try:
            plain[key] = parse_unit(key, value)
        except ValueError as error:
            raise BadSetting(file=file, detail=f"{place} {key}: {error}") from None
    try:
        described: _Any = msgspec.convert(plain, _Any)
    except msgspec.ValidationError as error:
        raise BadSetting(file=file, detail=f"{place} {_placed(str(error))}") from None
    try:
        return _made(described)
    except BadArgument as error:
        raise BadSetting(file=file, detail=f"{place} {error.facts['argument']}: {error.facts['detail']}") from None
    except (BadSelector, BadName, BadUrl) as error:
        key = {BadSelector: "filter", BadUrl: "url"}.get(type(error), "destination")
        raise BadSetting(file=file, detail=f"{place} {key}: {error}") from None


def _made(described: _Any) -> Named:
    from clarion.events import recipients

    given = {
        field: getattr(described, field)
        for field in described.__struct_fields__
        if getattr(described, field) is not None
    }
    for field in [field for field in given if field.endswith("_ms")]:
        given[f"{field.removesuffix('_ms')}_s"] = given.pop(field) / 1000
    kinds: dict[type, tuple[Callable[..., Named], str | None]] = {
        _Log: (recipients.LogFile, "path"),
        _Statistics: (recipients.Statistics, None),
        _Command: (recipients.Command, "command"),
        _Webhook: (recipients.Webhook, "url"),
        _People: (recipients.People, "addresses"),
        _Clarion: (recipients.ClarionServer, "url"),
        _Multiplexer: (recipients.Multiplexing, "address"),
    }
    make, first = kinds[type(described)]
    return make(given.pop(first), **given) if first else make(**given)


def _placed(text: str) -> str:
    """msgspec's "… - at `$.path`" as "path: …"."""
    what, _, key = text.partition(" - at `$.")
    what = what.replace("Object contains unknown field", "there is no setting")
    what = what.replace("Object missing required field", "there must be a setting")
    return f"{key.rstrip('`')}: {what}" if key else what
