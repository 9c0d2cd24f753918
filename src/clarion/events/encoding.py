"""An event as the two sections of a record, made also when there is no memory.

Guarantees
    1. `Encoder.encode` and `Encoder.encode_without_memory` make bytes that decode to the same event.
    2. `encode_without_memory` writes into a buffer that exists from the start, in pieces so small that the objects it
       needs come from the interpreter's own pools (`clarion.events.memory.ballast` keeps some).
    3. An event that is too large or wrong raises `EventTooLarge` or `BadEvent`; nothing of it is anywhere then.

Rules
    1. Never `msgspec`'s `encode`: without memory it ended the process. `encode_into` a new buffer that is large enough
       for any event is safe: if there is no memory, making the buffer says so.
    2. What `encode_without_memory` returns is valid until it is called again: the caller holds `lock` for so long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from clarion import limits
from clarion.errors import BadEvent, EventTooLarge
from clarion.events.event import (
    CONTENT_BYTES,
    CONTENT_JSON,
    CONTENT_TEXT,
    PROPERTY_SEVERITY,
    PROPERTY_SOURCE,
    PROPERTY_TIME,
    SECONDS_CHARACTERS,
    TIME_NS_MAX,
    Severity,
    check_attributes,
    check_source,
    check_type,
    is_json,
)
from clarion.events.small_pieces import SmallPieces
from clarion.message import Headers, PropertyValue

HEADERS_BYTES_MAX = (1 << 16) - 1
"""A record's head has two bytes for it."""
_KNOWN_MAX = 256
_HEADERS_SLACK_BYTES = 1024
"""Type, source, severity and time with their names have at most this together."""
_BODY_SLACK_BYTES = 64
_SECOND_NS = 1_000_000_000
_TIME_BYTES = 27
"""Of the text of a time, with which the headers of an event without attributes end."""

_headers_into = msgspec.msgpack.Encoder().encode_into
_json_into = msgspec.json.Encoder().encode_into
_TEXTS = {int(severity): severity.text for severity in Severity}

Attributes = dict[str, PropertyValue]


class Encoded(msgspec.Struct, gc=False):
    """An event ready to be recorded."""

    time_ns: int
    severity: int
    headers: bytes | bytearray | memoryview
    body: bytes | bytearray | memoryview


class Encoder:
    """Makes `Encoded`s of up to `event_bytes_max` bytes of headers and body."""

    def __init__(self, event_bytes_max: int = limits.EVENT_BYTES_MAX_DEFAULT) -> None:
        self.event_bytes_max = event_bytes_max
        self.lock = threading.RLock()
        """Held while what `encode_without_memory` returned is used."""
        self.owned: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]
        self._pieces = SmallPieces(event_bytes_max)
        self._kept_bytes = event_bytes_max + _HEADERS_SLACK_BYTES
        self._kept_headers = bytearray(self._kept_bytes)
        self._kept_body = bytearray(self._kept_bytes)
        self._zeros = memoryview(bytes(self._kept_bytes))
        self._body_bytes = event_bytes_max + _BODY_SLACK_BYTES
        self._types: set[str] = set()
        self._sources: set[str] = set()
        self._second = (-1, "")
        self._starts: dict[tuple[str, str, int, str], bytes] = {}
        """Headers without attributes up to the time, by type, source, severity and content type, which are checked."""

    def encode(
        self,
        type_: str,
        source: str,
        severity: int,
        time_ns: int,
        data: Any = None,
        attributes: Attributes | None = None,
        content_type: str = "",
    ) -> Encoded:
        """The event, in buffers of its own. Raises `MemoryError`, `BadEvent` or `EventTooLarge`."""
        body: bytes | bytearray
        if data.__class__ is dict:
            content_type, body = content_type or CONTENT_JSON, bytearray(self._body_bytes)
            _json(data, body)
        else:
            content_type, body = self._body_of(data, content_type)
        start = None
        if not attributes and type_.__class__ is str and source.__class__ is str:
            start = self._starts.get((type_, source, severity, content_type))
        if start is None:
            headers = self._headers_of(type_, source, severity, time_ns, attributes, content_type)
        else:
            _check_time(time_ns)
            headers = start + self.time_text(time_ns).encode()
        self._check_size(len(headers), len(body))
        # A copy, for the buffer stays as large as it was made, and somebody may keep many events.
        return Encoded(time_ns, severity, headers, bytes(body))

    def _headers_of(
        self, type_: str, source: str, severity: int, time_ns: int, attributes: Attributes | None, content_type: str
    ) -> bytes:
        self._check(type_, source, severity, time_ns)
        properties: dict[str, Any] = {
            PROPERTY_SOURCE: source,
            PROPERTY_SEVERITY: _TEXTS[severity],
            PROPERTY_TIME: self.time_text(time_ns),
        }
        room = _HEADERS_SLACK_BYTES
        if attributes:
            properties.update(check_attributes(attributes))
            room = self.event_bytes_max + _HEADERS_SLACK_BYTES
        buffer = bytearray(room)
        _headers_into(Headers(type=type_, content_type=content_type or None, properties=properties), buffer)
        headers = bytes(buffer)
        plain = type_.__class__ is str and source.__class__ is str
        if plain and not attributes and len(self._starts) < _KNOWN_MAX:
            self._starts[type_, source, severity, content_type] = headers[:-_TIME_BYTES]
        return headers

    def _body_of(self, data: Any, content_type: str) -> tuple[str, bytes | bytearray]:
        """With its content type."""
        if data is None:
            return content_type, b""
        if isinstance(data, bytes | bytearray):
            return content_type or CONTENT_BYTES, data
        if isinstance(data, memoryview):
            return content_type or CONTENT_BYTES, data.tobytes()
        if isinstance(data, str) and not is_json(content_type):
            return content_type or CONTENT_TEXT, _utf8(data)
        body = bytearray(self._body_bytes)
        _json(data, body)
        return content_type or CONTENT_JSON, body

    def encode_without_memory(
        self,
        type_: str,
        source: str,
        severity: int,
        time_ns: int,
        data: Any = None,
        attributes: Attributes | None = None,
        content_type: str = "",
    ) -> Encoded:
        """The same event, in the encoder's only buffer."""
        self._check(type_, source, severity, time_ns)
        if attributes:
            check_attributes(attributes)
        if data is not None and not content_type:
            if isinstance(data, bytes | bytearray | memoryview):
                content_type = CONTENT_BYTES
            else:
                content_type = CONTENT_TEXT if isinstance(data, str) else CONTENT_JSON
        try:
            return self._encode_kept(type_, source, severity, time_ns, data, attributes, content_type)
        except (MemoryError, BufferError):
            return self._encode_in_pieces(type_, source, severity, time_ns, data, attributes, content_type)

    def _encode_kept(
        self,
        type_: str,
        source: str,
        severity: int,
        time_ns: int,
        data: Any,
        attributes: Attributes | None,
        content_type: str,
    ) -> Encoded:
        """By `msgspec` into buffers that are kept: fast, so that others have hardly a chance to run meanwhile.

        What it makes may have more than 512 bytes (text that is not ASCII, many attributes); then it fails.
        """
        headers, body = self._kept_headers, self._kept_body
        # `encode_into` has made them shorter without giving up memory; so they grow again without taking any.
        if len(headers) < self._kept_bytes:
            headers += self._zeros[len(headers) :]
        if len(body) < self._kept_bytes:
            body += self._zeros[len(body) :]
        properties: dict[str, Any] = {
            PROPERTY_SOURCE: source,
            PROPERTY_SEVERITY: _TEXTS[severity],
            PROPERTY_TIME: self.time_text(time_ns),
        }
        if attributes:
            properties.update(attributes)
        found: bytes | bytearray | memoryview = body
        if data is None:
            found = b""
        elif isinstance(data, bytes | bytearray):
            found = data
        elif isinstance(data, memoryview) or (isinstance(data, str) and not is_json(content_type)):
            raise MemoryError
        else:
            _json(data, body)
        _headers_into(Headers(type=type_, content_type=content_type or None, properties=properties), headers)
        self._check_size(len(headers), len(found))
        return Encoded(time_ns, severity, headers, found)

    def _encode_in_pieces(
        self,
        type_: str,
        source: str,
        severity: int,
        time_ns: int,
        data: Any,
        attributes: Attributes | None,
        content_type: str,
    ) -> Encoded:
        """Whatever it is, with small objects only."""
        pieces = self._pieces
        pieces.begin()
        pieces.headers(type_, content_type, source, _TEXTS[severity], self.time_text(time_ns), attributes)
        middle = pieces.at
        body: bytes | bytearray | memoryview | None = None
        if data is None or isinstance(data, bytes | bytearray):
            body = data or b""
        elif isinstance(data, memoryview):
            pieces.raw(data.cast("B"))
        elif isinstance(data, str) and not is_json(content_type):
            pieces.text(data)
        else:
            pieces.json(data)
        if body is None:
            body = pieces.view[middle : pieces.at]
        self._check_size(middle, len(body))
        return Encoded(time_ns, severity, pieces.view[:middle], body)

    def time_text(self, time_ns: int) -> str:
        """RFC 3339 with microseconds; the part before them is remembered, for it costs more than all the rest."""
        second, rest = divmod(time_ns, _SECOND_NS)
        known, text = self._second
        if known != second:
            # `strftime` wants 4 KiB in one piece: without memory, that used up the ballast when a second was over.
            text = datetime.fromtimestamp(second, UTC).isoformat()[:SECONDS_CHARACTERS]
            self._second = second, text
        return f"{text}.{rest // 1000:06d}Z"

    def _check(self, type_: str, source: str, severity: int, time_ns: int) -> None:
        if type_.__class__ is not str or type_ not in self._types:
            check_type(type_)
            if len(self._types) < _KNOWN_MAX:
                self._types.add(type_)
        if source.__class__ is not str or source not in self._sources:
            check_source(source)
            if len(self._sources) < _KNOWN_MAX:
                self._sources.add(source)
        if severity not in _TEXTS:
            Severity.of(severity)
        _check_time(time_ns)

    def _check_size(self, headers: int, body: int) -> None:
        if headers + body > self.event_bytes_max:
            raise EventTooLarge(size=headers + body, limit=self.event_bytes_max)
        if headers > HEADERS_BYTES_MAX:
            raise EventTooLarge(size=headers, limit=HEADERS_BYTES_MAX)


def _json(data: Any, buffer: bytearray) -> None:
    """Into a buffer that is large enough for any event."""
    try:
        _json_into(data, buffer)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadEvent(what="data", detail=f"it cannot be JSON: {error}"[:200]) from None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except ValueError as error:
        raise BadEvent(what="data", detail=f"it is not text: {error}"[:200]) from None


def _check_time(time_ns: int) -> None:
    if time_ns.__class__ is not int or not 0 <= time_ns <= TIME_NS_MAX:
        raise BadEvent(what=PROPERTY_TIME, detail="it is not within 1970 and 2262")
