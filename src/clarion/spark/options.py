"""The options of `format("clarion")`, checked before anything is asked of a broker: pure.

Spark hands options over as text under names in lower case. A name that is not known is an error, so that a slip of
the pen is not a setting that was silently left out.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

import msgspec

from clarion import limits
from clarion.client import address
from clarion.core.patterns import is_pattern, parse_pattern
from clarion.core.wellknown import receivable, sendable
from clarion.errors import BadArgument
from clarion.message import check_name
from clarion.selector import compile_selector
from clarion.spark import schema

ROWS_PER_BATCH = 1_000_000
PARTITIONS = 2
PARTITIONS_MAX = 10_000
RECONNECT_S = 60.0
EXPIRES_S = limits.PREPARED_MS_DEFAULT / 1000

_Seconds = TypeVar("_Seconds", float, None)

_SPARK = frozenset({"checkpointlocation", "path", "queryname", "outputmode"})
"""Names of Spark's own that a source or sink is told as well."""
_COMMON = ("url", "destination", "reconnectTimeout")
_SOURCE = (
    *("selector", "subscription", "startingSequence", "startingTime", "maxRowsPerBatch", "partitions", "columns"),
    *("format", "mode", "newCheckpoint", "filters"),
)
_SINK_HEADERS = ("priority", "type", "contentType", "replyTo", "correlationId", "groupId", "ttl")
_SINK = ("expires", "sinkKey", "sinkVersion", *_SINK_HEADERS)


class SourceOptions(msgspec.Struct, frozen=True):
    """What is read, and how."""

    url: str
    destination: str
    subscription: str | None = None
    selector: str | None = None
    starting_sequence: int | None = None
    starting_time: datetime | None = None
    rows_max: int = ROWS_PER_BATCH
    partitions: int = PARTITIONS
    columns: tuple[str, ...] = schema.DEFAULT
    format: Literal["messages", "json", "cloudevents"] = "messages"
    failfast: bool = False
    continue_without_checkpoint: bool = False
    push_filters: bool = False
    reconnect_s: float = RECONNECT_S

    @property
    def is_queue(self) -> bool:
        """It is written as one: only topics have patterns."""
        return self.destination.startswith("queue:")

    def described(self) -> dict[str, str | None]:
        """Of whom an offset is: without a password, as it goes into checkpoints."""
        return {
            "url": str(address.parse(self.url)),
            "destination": self.destination,
            "subscription": self.subscription,
        }


class SinkOptions(msgspec.Struct, frozen=True):
    """Where rows go to."""

    url: str
    destination: str | None = None
    expires_s: float = EXPIRES_S
    key: str | None = None
    version: int | None = None
    headers: dict[str, Any] = {}
    """What rows have that do not say otherwise: by names of columns."""
    reconnect_s: float = RECONNECT_S


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Options of `readStream` or `read`. Raises `BadArgument`, `BadUrl`, `BadName`, `BadPattern`, `BadSelector`."""
    said = _Said(options, (*_COMMON, *_SOURCE))
    destination = said.text("destination") or said.text("path")
    if destination is None:
        raise BadArgument(argument="destination", detail="it is missing: a name, topic:…, queue:…, glob:… or regex:…")
    if is_pattern(destination):
        parse_pattern(destination)
    else:
        receivable(destination)
    form = said.choice("format", ("messages", "json", "cloudevents"))
    columns = said.text("columns")
    made = SourceOptions(
        url=said.url(),
        destination=destination,
        subscription=None if streaming and destination.startswith("queue:") else said.text("subscription"),
        selector=said.text("selector"),
        starting_sequence=said.whole("startingSequence", None, 1, (1 << 63) - 1),
        starting_time=said.time("startingTime"),
        rows_max=said.whole("maxRowsPerBatch", ROWS_PER_BATCH, 1, 1 << 40) or ROWS_PER_BATCH,
        partitions=said.whole("partitions", PARTITIONS, 1, PARTITIONS_MAX) or PARTITIONS,
        columns=schema.DEFAULT if columns is None else schema.checked(name.strip() for name in columns.split(",")),
        format=form,  # type: ignore[arg-type]
        failfast=said.choice("mode", ("permissive", "failfast")) == "failfast",
        continue_without_checkpoint=said.choice("newCheckpoint", ("refuse", "continue")) == "continue",
        push_filters=said.choice("filters", ("none", "push")) == "push",
        reconnect_s=said.seconds("reconnectTimeout", RECONNECT_S),
    )
    _check_source(made, streaming)
    return made


def _check_source(made: SourceOptions, streaming: bool) -> None:
    if made.selector is not None:
        compile_selector(made.selector)
    if made.subscription is not None:
        check_name(made.subscription)
        if not streaming:
            detail = "a batch reads what is kept, whoever has confirmed it, and subscribes to nothing"
            raise BadArgument(argument="subscription", detail=detail)
    elif streaming and not made.is_queue:
        detail = (
            f"a stream of {made.destination} needs the name of a durable subscription, which is made on first use; "
            "for a queue write queue:NAME"
        )
        raise BadArgument(argument="subscription", detail=detail)
    started = made.starting_sequence is not None or made.starting_time is not None
    if made.starting_sequence is not None and made.starting_time is not None:
        raise BadArgument(argument="startingTime", detail="give it or startingSequence, not both")
    if started and streaming and made.is_queue:
        detail = "a stream of a queue begins with its first message; use a selector to leave some out"
        raise BadArgument(argument="startingSequence", detail=detail)
    if made.starting_sequence is not None and is_pattern(made.destination):
        raise BadArgument(argument="startingSequence", detail="each topic of a pattern has its own: use startingTime")
    if streaming and made.push_filters:
        raise BadArgument(argument="filters", detail="Spark pushes filters to batch readers only: use a selector")


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Options of `writeStream` or `write`. Raises `BadArgument`, `BadUrl`, `BadName`."""
    said = _Said(options, (*_COMMON, *_SINK))
    destination = said.text("destination") or said.text("path")
    if destination is not None:
        sendable(destination)
    headers: dict[str, Any] = {
        _column(name): said.text(name) for name in _SINK_HEADERS if name not in ("priority", "ttl")
    }
    headers["priority"] = said.whole("priority", None, 0, limits.PRIORITY_MAX)
    headers["ttl"] = said.seconds("ttl", None)
    key, version = said.text("sinkKey"), said.whole("sinkVersion", None, 1, (1 << 63) - 1)
    if version is not None and key is None:
        raise BadArgument(argument="sinkVersion", detail="it is a version of sinkKey, which is missing")
    return SinkOptions(
        url=said.url(),
        destination=destination,
        expires_s=said.seconds("expires", EXPIRES_S, limits.PREPARED_MS_MAX / 1000),
        key=key,
        version=version,
        headers={name: value for name, value in headers.items() if value is not None},
        reconnect_s=said.seconds("reconnectTimeout", RECONNECT_S),
    )


def _column(option: str) -> str:
    """`contentType` as a column: `content_type`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in option)


class _Said:
    """What a user wrote, by the names of one kind of use."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...]) -> None:
        known = {name.lower(): name for name in names}
        self._values = {name.lower(): value for name, value in options.items()}
        for name in self._values:
            if name not in known and name not in _SPARK:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {known[close[0]]}?" if close else f"there are {', '.join(names)}"
                raise BadArgument(argument=name, detail=f"there is no such option here; {hint}")

    def text(self, name: str) -> str | None:
        """None if it is not there, or blank."""
        value = self._values.get(name.lower(), "").strip()
        return value or None

    def url(self) -> str:
        value = self.text("url")
        if value is None:
            raise BadArgument(argument="url", detail="it is missing: clarion://host:port")
        address.parse(value)
        return value

    def whole(self, name: str, default: int | None, least: int, most: int) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            raise BadArgument(argument=name, detail=f"{value[:80]!r} is not a whole number") from None
        if not least <= number <= most:
            raise BadArgument(argument=name, detail=f"{number} is not between {least} and {most}")
        return number

    def seconds(self, name: str, default: _Seconds, most: float = limits.POLICY_MS_MAX / 1000) -> float | _Seconds:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            raise BadArgument(argument=name, detail=f"{value[:80]!r} is not a number of seconds") from None
        if not math.isfinite(number) or not 0 < number <= most:
            raise BadArgument(argument=name, detail=f"{value[:80]} is not between 0 and {most:.0f} seconds")
        return number

    def time(self, name: str) -> datetime | None:
        """ISO 8601 with an offset, or Unix seconds."""
        value = self.text(name)
        if value is None:
            return None
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            try:
                return datetime.fromtimestamp(float(value), UTC)
            except (ValueError, OverflowError, OSError):
                detail = f"{value[:80]!r} is neither a time like 2026-01-31T12:00:00Z nor Unix seconds"
                raise BadArgument(argument=name, detail=detail) from None
        if found.tzinfo is None:
            raise BadArgument(argument=name, detail=f"{value} does not say its offset from UTC: append Z, or +01:00")
        return found

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of these, in any case; the first is the default."""
        value = (self.text(name) or choices[0]).lower()
        if value not in choices:
            raise BadArgument(argument=name, detail=f"{value[:80]!r} is none of {', '.join(choices)}")
        return value
