"""What an event is: its fields, their rules, and how it reads as a Clarion message.

    event = Event(event_id(producer, 7), time_ns, source="volume/7", type="disk.full", severity=Severity.ERROR,
                  data={"free_bytes": 0})
    event.message_headers(), event.body      # what a record, a batch and a broker hold

Guarantees
    1. An `Event` cannot be changed, and one that was made by its constructor has valid fields: else `BadEvent`.
    2. `data` is decoded when it is first looked at, once; what cannot be decoded as its content type says stays bytes.
    3. `Event.from_recorded` never raises: what persistent memory holds is delivered, readable or not.

Rules
    1. Pure: no clock, no file. Time is Unix nanoseconds of the system that recognised the event.
    2. Not for the emit path, which must work without memory: objects are made freely here.
"""

from __future__ import annotations

import enum
import re
from calendar import timegm
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn, Protocol

import msgspec

from clarion import ids, limits
from clarion.errors import BadArgument, BadBatch, BadEvent
from clarion.message import Headers, PropertyValue, check_properties, decode_headers

PROPERTY_SOURCE: Final = "source"
PROPERTY_SEVERITY: Final = "severity"
PROPERTY_TIME: Final = "time"
PROPERTY_SEVERITY_LEVEL: Final = "severity_level"
"""Only filters see it: the number of the severity."""
PROPERTIES_RESERVED: Final = frozenset((PROPERTY_SOURCE, PROPERTY_SEVERITY, PROPERTY_TIME, PROPERTY_SEVERITY_LEVEL))
"""Names that an event's own attributes cannot have."""
ATTRIBUTES_MAX: Final = limits.PROPERTIES_MAX - len(PROPERTIES_RESERVED)

CONTENT_JSON: Final = "application/json"
CONTENT_TEXT: Final = "text/plain;charset=utf-8"
CONTENT_BYTES: Final = "application/octet-stream"

SECONDS_CHARACTERS: Final = len("1970-01-01T00:00:00")
"""Of a time, up to its fraction."""
TYPE_UNREADABLE: Final = "event.unreadable"
"""The type of an event whose headers cannot be decoded; its data are those headers and the body, as they are."""
SOURCE_UNKNOWN: Final = "unknown"

TIME_NS_MAX: Final = (1 << 63) - 1
"""In the year 2262."""

_TYPE = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,30}))?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
_UTF_8 = frozenset(("", "utf-8", "utf8", "us-ascii", "ascii"))


class Severity(enum.IntEnum):
    """How bad it is. The numbers are those of `logging` where it has them, so that they compare."""

    DEBUG = 10
    INFO = 20
    NOTICE = 25
    WARNING = 30
    ERROR = 40
    CRITICAL = 50
    ALERT = 60
    EMERGENCY = 70

    @property
    def text(self) -> str:
        """The name as events and filters have it: lower case."""
        return _TEXTS[self]

    @classmethod
    def of(cls, value: Severity | str | int) -> Severity:
        """The severity of this name, in any case, or of exactly this number. Raises `BadEvent`."""
        try:
            return _BY_TEXT[value.lower()] if isinstance(value, str) else cls(value)
        except (KeyError, ValueError):
            detail = f"{_shown(value)} is none of {', '.join(_BY_TEXT)}"
            raise BadEvent(what=PROPERTY_SEVERITY, detail=detail) from None

    @classmethod
    def at_most(cls, level: int) -> Severity:
        """The highest severity that is not above a level of `logging` or a recorded number; DEBUG below all."""
        return _AT_MOST[min(max(level, 0), len(_AT_MOST) - 1)]


_TEXTS = {each: each.name.lower() for each in Severity}
_BY_TEXT = {text: each for each, text in _TEXTS.items()}
_AT_MOST = [max((each for each in Severity if each <= level), default=Severity.DEBUG) for level in range(71)]


class RecordedEvent(Protocol):
    """What `Event.from_recorded` looks at of a record of persistent memory."""

    @property
    def producer(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def time_ns(self) -> int: ...
    @property
    def severity(self) -> int: ...
    @property
    def headers(self) -> memoryview | bytes: ...
    @property
    def body(self) -> memoryview | bytes: ...


def headers_of(recorded: RecordedEvent) -> Headers:
    """The headers of a record; none if they cannot be read. Never raises."""
    try:
        return decode_headers(recorded.headers)
    except BadBatch:
        return Headers()


# --- ids ------------------------------------------------------------------------------------------


def event_id(producer: int, sequence: int) -> str:
    """The id of an event, which is its message id at a broker: 32 hexadecimal digits."""
    return ids.format_id(producer + sequence)


def parse_event_id(text: str) -> tuple[int, int]:
    """Producer id and sequence of an event. Raises `BadEvent` for an id that no event system of ours gave."""
    if not re.fullmatch("[0-9a-f]{32}", text):
        raise BadEvent(what="id", detail=f"{_shown(text)} is not 32 hexadecimal digits")
    identity = int(text, 16)
    return ids.producer_of(identity), ids.sequence_of(identity)


# --- checks ---------------------------------------------------------------------------------------


def check_type(type_: str) -> str:
    """`type_` itself. Raises `BadEvent` unless it is 1 to 200 ASCII letters, digits, `.`, `-` and `_`."""
    if not isinstance(type_, str) or not _TYPE.fullmatch(type_):
        raise BadEvent(what="type", detail=f"{_shown(type_)} is not made of letters, digits, '.', '-' and '_'")
    if len(type_) > limits.EVENT_TYPE_BYTES_MAX:
        raise BadEvent(what="type", detail=f"{len(type_)} bytes, the limit is {limits.EVENT_TYPE_BYTES_MAX}")
    return type_


def check_source(source: str) -> str:
    """`source` itself. Raises `BadEvent` unless it is 1 to 255 bytes of printable UTF-8."""
    if not isinstance(source, str) or not source or not source.isprintable():
        raise BadEvent(what=PROPERTY_SOURCE, detail=f"{_shown(source)} is not printable text of at least one character")
    size = len(source.encode())  # printable text has no lone surrogates
    if size > limits.EVENT_SOURCE_BYTES_MAX:
        raise BadEvent(what=PROPERTY_SOURCE, detail=f"{size} bytes, the limit is {limits.EVENT_SOURCE_BYTES_MAX}")
    return source


def check_content_type(content_type: str) -> str:
    """`content_type` without blanks around it. Raises `BadEvent` unless it is printable ASCII: it becomes a header."""
    if not isinstance(content_type, str) or not content_type.isascii() or not content_type.isprintable():
        raise BadEvent(what="content type", detail=f"{_shown(content_type)} is not printable ASCII")
    return content_type.strip()


def check_attributes(attributes: dict[str, PropertyValue]) -> dict[str, PropertyValue]:
    """`attributes` itself. Raises `BadEvent` for a reserved name, or for what cannot be a property."""
    try:
        check_properties(attributes)
        for name, value in attributes.items():
            name.encode()
            if isinstance(value, str):
                value.encode()
    except BadArgument as error:
        raise BadEvent(what="attributes", detail=f"{error.facts['argument']}: {error.facts['detail']}") from None
    except UnicodeEncodeError as error:
        raise BadEvent(what="attributes", detail=f"{_shown(error.object)} is not valid Unicode") from None
    if not PROPERTIES_RESERVED.isdisjoint(attributes):
        taken = min(PROPERTIES_RESERVED & attributes.keys())
        raise BadEvent(what="attributes", detail=f"{taken} is a field of every event, not an attribute")
    if len(attributes) > ATTRIBUTES_MAX:
        raise BadEvent(what="attributes", detail=f"{len(attributes)}, the limit is {ATTRIBUTES_MAX}")
    return attributes


def _shown(value: object) -> str:
    """A value in an error text: short, and with nothing that a terminal obeys."""
    text = ascii(value) if isinstance(value, str | int | float | bytes) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:79] + "…"


# --- time -----------------------------------------------------------------------------------------


def format_time(time_ns: int, digits: int = 6) -> str:
    """Unix nanoseconds as RFC 3339 in UTC with so many digits of a second (at most 9), cut and not rounded."""
    seconds, fraction = divmod(time_ns, 1_000_000_000)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return f"{moment.isoformat()[:SECONDS_CHARACTERS]}.{f'{fraction:09d}'[:digits]}Z"


def parse_time(text: str) -> int:
    """Unix nanoseconds of an RFC 3339 time. Raises `BadEvent`; a leap second is the second after it."""
    found = _TIME.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise BadEvent(what=PROPERTY_TIME, detail=f"{_shown(text)} is not a time like 2025-01-31T12:00:00.000000Z")
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    try:
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)
        offset_minutes = int(found[9] or 0) * 60 + int(found[10] or 0)
        if second > 60 or offset_minutes >= 24 * 60 or int(found[10] or 0) > 59:
            raise ValueError("out of range")
    except ValueError as error:
        raise BadEvent(what=PROPERTY_TIME, detail=f"{_shown(text)}: {error}") from None
    seconds = timegm(moment.timetuple()) + (second - min(second, 59))
    seconds += -60 * offset_minutes if found[8] != "-" else 60 * offset_minutes
    time_ns = seconds * 1_000_000_000 + int((found[7] or "0")[:9].ljust(9, "0"))
    if not 0 <= time_ns <= TIME_NS_MAX:
        raise BadEvent(what=PROPERTY_TIME, detail=f"{_shown(text)} is not within 1970 and 2262")
    return time_ns


# --- data -----------------------------------------------------------------------------------------


def is_json(content_type: str) -> bool:
    """Whether a content type says that the data are JSON: `…/json`, `…/…+json`."""
    return content_type.partition(";")[0].rstrip().lower().endswith(("/json", "+json"))


def is_text(content_type: str) -> bool:
    """Whether a content type says that the data are text, in UTF-8."""
    media, _, parameters = content_type.lower().partition(";")
    if not media.strip().startswith("text/"):
        return False
    charset = re.search(r"""(?:^|;)\s*charset\s*=\s*["']?([^;"'\s]*)""", parameters)
    return (charset[1] if charset else "") in _UTF_8


def encode_data(data: Any, content_type: str = "") -> tuple[str, bytes]:
    """Content type and bytes of data: bytes are as they are, text is UTF-8, None is nothing, the rest is JSON.

    A content type that is given is kept, and decides between text and JSON. Raises `BadEvent` for what is no JSON.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return content_type or CONTENT_BYTES, bytes(data)
    if data is None and not content_type:
        return "", b""
    try:
        if isinstance(data, str) and not is_json(content_type):
            return content_type or CONTENT_TEXT, data.encode()
        return content_type or CONTENT_JSON, msgspec.json.encode(data)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadEvent(what="data", detail=f"it cannot be JSON: {error}"[:200]) from None


def decode_data(body: bytes, content_type: str) -> Any:
    """The data that a body holds; the body itself where it is not what its content type says."""
    try:
        if is_json(content_type):
            return msgspec.json.decode(body) if body else None
        if is_text(content_type):
            return body.decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return body
    return body if content_type else None


# --- the event ------------------------------------------------------------------------------------

_UNDECODED: Final = object()


class Event:
    """One event. `data` of a content type of JSON are objects, of text a str, else bytes; None if there are none."""

    __slots__ = ("_data", "attributes", "body", "content_type", "id", "severity", "source", "time_ns", "type")

    id: str
    """Unique: (system id, sequence) as 32 hexadecimal digits. Events from other systems have any text."""
    time_ns: int
    """When it was recognised, in Unix nanoseconds."""
    source: str
    """The element that the event is about."""
    type: str
    """Its nature."""
    severity: Severity
    content_type: str
    """Of `body`; empty if there are no data."""
    attributes: dict[str, PropertyValue]
    """What else its producer said of it. Not to be changed."""
    body: bytes
    """The data as they were recorded."""

    def __init__(
        self,
        id: str,
        time_ns: int,
        source: str,
        type: str,
        severity: Severity | str | int = Severity.INFO,
        data: Any = None,
        content_type: str = "",
        attributes: dict[str, PropertyValue] | None = None,
    ) -> None:
        """Raises `BadEvent`. `data` that are bytes are the body as it is; else they are encoded here, once."""
        if not isinstance(id, str) or not id or not id.isprintable():
            raise BadEvent(what="id", detail=f"{_shown(id)} is not printable text of at least one character")
        if not isinstance(time_ns, int) or not 0 <= time_ns <= TIME_NS_MAX:
            raise BadEvent(what=PROPERTY_TIME, detail=f"{_shown(time_ns)} is not within 1970 and 2262")
        content_type, body = encode_data(data, check_content_type(content_type))
        self._fill(
            id,
            time_ns,
            check_source(source),
            check_type(type),
            Severity.of(severity),
            content_type,
            check_attributes(dict(attributes) if attributes else {}),
            body,
        )

    def _fill(
        self,
        id: str,
        time_ns: int,
        source: str,
        type: str,
        severity: Severity,
        content_type: str,
        attributes: dict[str, PropertyValue],
        body: bytes,
    ) -> None:
        put = object.__setattr__
        put(self, "id", id)
        put(self, "time_ns", time_ns)
        put(self, "source", source)
        put(self, "type", type)
        put(self, "severity", severity)
        put(self, "content_type", content_type)
        put(self, "attributes", attributes)
        put(self, "body", body)
        put(self, "_data", _UNDECODED)

    @classmethod
    def from_recorded(cls, recorded: RecordedEvent) -> Event:
        """The event of a record. Never raises: one whose headers cannot be read has the type `event.unreadable`."""
        headers, body = bytes(recorded.headers), bytes(recorded.body)
        try:
            decoded = decode_headers(headers)
        except BadBatch:
            decoded, body = Headers(type=TYPE_UNREADABLE, content_type=CONTENT_BYTES), headers + body
        properties = decoded.properties or {}
        source = properties.get(PROPERTY_SOURCE)
        event = cls.__new__(cls)
        event._fill(
            event_id(recorded.producer, recorded.sequence),
            recorded.time_ns,
            source if isinstance(source, str) and source else SOURCE_UNKNOWN,
            decoded.type or TYPE_UNREADABLE,
            Severity.at_most(recorded.severity),
            decoded.content_type or (CONTENT_BYTES if body else ""),
            {name: value for name, value in properties.items() if name not in PROPERTIES_RESERVED},
            body,
        )
        return event

    @property
    def data(self) -> Any:
        """The data, decoded once. Not to be changed: others see the same objects."""
        data = self._data
        if data is _UNDECODED:
            data = decode_data(self.body, self.content_type)
            object.__setattr__(self, "_data", data)
        return data

    _data: Any

    @property
    def time(self) -> str:
        """When it was recognised, as RFC 3339 in UTC with microseconds."""
        return format_time(self.time_ns)

    def message_headers(self) -> Headers:
        """What is recorded and sent beside the body."""
        return Headers(
            type=self.type,
            content_type=self.content_type or None,
            properties={
                PROPERTY_SOURCE: self.source,
                PROPERTY_SEVERITY: self.severity.text,
                PROPERTY_TIME: self.time,
                **self.attributes,
            },
        )

    def _key(self) -> tuple[object, ...]:
        return (
            self.id,
            self.time_ns,
            self.source,
            self.type,
            self.severity,
            self.content_type,
            self.attributes,
            self.body,
        )

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Event) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"an event cannot be changed: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"an event cannot be changed: {name}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, self._key()

    def __repr__(self) -> str:
        return f"<Event {self.id} {self.type} of {self.source!r}, {self.severity.text}, {self.time}>"


def _rebuild(*fields: Any) -> Event:
    event = Event.__new__(Event)
    event._fill(*fields)
    return event
