"""Messages: typed headers and properties, names of destinations, and what a reader gets.

A message travels only inside a batch (`clarion.wire.batch`). `Headers` is what is encoded beside a
body; `Message` is a reader's view of one record, decoded when it is looked at and not before.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c

from clarion import ids, limits
from clarion.errors import BadArgument, BadBatch, BadName
from clarion.wire.batch import Batch

PropertyValue = bool | int | float | str | bytes | None


_SHORT = {
    "reply_to": "r",
    "correlation_id": "c",
    "group": "g",
    "type": "t",
    "content_type": "m",
    "expires_at_ms": "x",
    "properties": "p",
    "dead": "d",
    "large": "l",
}


class Headers(msgspec.Struct, omit_defaults=True, rename=_SHORT):
    """Everything that a sender may say of a message besides its body. Absent fields cost nothing."""

    reply_to: str | None = None
    correlation_id: str | None = None
    group: str | None = None
    type: str | None = None
    content_type: str | None = None
    expires_at_ms: int = 0
    properties: dict[str, Any] | None = None
    """`PropertyValue`s; the decoder cannot say so, `check_properties` does."""
    dead: dict[str, Any] | None = None
    """The story of a dead message, written by the broker: why, when, where it was, what happened before."""
    large: tuple[bytes, int, int] | None = None
    """Of a message whose body is streamed: the id of the stream, its bytes, their CRC32C."""


_NONE = Headers()
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Headers)


def encode_headers(headers: Headers) -> bytes:
    """Headers as bytes. Raises `BadArgument` for a property that has no type here or is too large."""
    if headers.properties:
        check_properties(headers.properties)
    try:
        encoded = _encoder.encode(headers)
    except UnicodeEncodeError as error:
        raise BadArgument(argument="headers", detail=f"{error.object[:40]!a} is not valid Unicode") from None
    if len(encoded) > limits.HEADERS_BYTES_MAX:
        raise BadArgument(argument="headers", detail=f"{len(encoded)} bytes, the limit is {limits.HEADERS_BYTES_MAX}")
    return encoded if len(encoded) > 1 else b""


def decode_headers(data: memoryview | bytes) -> Headers:
    """The inverse of `encode_headers`. Raises `BadBatch` for bytes that no sender of ours made."""
    if not data:
        return _NONE
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadBatch(detail=f"headers: {error}") from None


def group_hash(group: str) -> int:
    """What the column of group hashes has for a message of this group; never 0, which is no group."""
    return crc32c(group.encode()) or 1


def check_properties(properties: dict[str, PropertyValue]) -> None:
    """Raises `BadArgument` unless every property has a name and a value of a known type."""
    if not isinstance(properties, dict):
        raise BadArgument(argument="properties", detail=f"it is a {type(properties).__name__}, not a dict")
    if len(properties) > limits.PROPERTIES_MAX:
        raise BadArgument(argument="properties", detail=f"{len(properties)}, the limit is {limits.PROPERTIES_MAX}")
    for name, value in properties.items():
        if not isinstance(name, str) or not name:
            raise BadArgument(argument="properties", detail=f"{name!r} is not a name")
        if value.__class__ not in _ANY_VALUE:  # most are: 0.1 µs saved
            _check_value(name, value)


_ANY_VALUE = frozenset({bool, str, bytes, type(None)})
"""Types whose every value may be a property's."""


def _check_value(name: str, value: PropertyValue) -> None:
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(1 << 63) <= value < 1 << 63:
            raise BadArgument(argument=name, detail="an integer property has at most 64 bits")
    elif isinstance(value, float):
        if math.isnan(value):
            raise BadArgument(argument=name, detail="a property cannot be NaN")
    elif value is not None and not isinstance(value, bool | str | bytes):
        raise BadArgument(argument=name, detail=f"a property cannot be a {type(value).__name__}")


# --- names ----------------------------------------------------------------------------------------


class DestinationName(NamedTuple):
    """A destination as somebody wrote it: `kind` is None for a bare name."""

    kind: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.kind else self.name


def parse_destination(text: str, *, system: bool = False) -> DestinationName:
    """`queue:NAME`, `topic:NAME` or a bare `NAME`. Raises `BadName`; `_` names only with `system`."""
    kind, colon, name = text.partition(":")
    if not colon:
        kind, name = "", text
    elif kind not in ("queue", "topic"):
        raise BadName(name=text[:300], detail="a kind is queue or topic")
    check_name(name)
    if name.startswith("_") and not system:
        raise BadName(name=name, detail="names that begin with _ belong to the system")
    return DestinationName(kind or None, name)


def check_name(name: str) -> None:
    """Raises `BadName` unless `name` is 1 to 255 bytes of printable UTF-8 without space or colon."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise BadName(name=ascii(name), detail="it is not valid Unicode") from None
    if not name:
        raise BadName(name=name, detail="it is empty")
    if size > limits.NAME_BYTES_MAX:
        raise BadName(name=name[:40] + "…", detail=f"{size} bytes, the limit is {limits.NAME_BYTES_MAX}")
    if not name.isprintable() or any(character in " :*?/\\\"'" for character in name):
        raise BadName(name=name, detail="it has a space, control character, quote, slash, colon, * or ?")


# --- reading --------------------------------------------------------------------------------------


class Message:
    """One received message: a view into its batch, decoded on demand."""

    __slots__ = ("_batch", "_headers", "_index", "delivery_count", "redelivered", "sequence")

    def __init__(
        self, batch: Batch, index: int, sequence: int, delivery_count: int = 1, redelivered: bool = False
    ) -> None:
        self._batch = batch
        self._index = index
        self._headers: Headers | None = None
        self.sequence = sequence
        """Its number within the destination."""
        self.delivery_count = delivery_count
        self.redelivered = redelivered
        """A consumer may have seen it before."""

    @property
    def headers(self) -> Headers:
        """All headers. Raises `BadBatch` if the sender encoded them wrongly; the body stays readable."""
        if self._headers is None:
            self._headers = decode_headers(self._batch.record(self._index)[0])
        return self._headers

    @property
    def body(self) -> bytes:
        """The body, copied out of the batch. Raises `BadArgument` for a large one: `stream` and `save` read it."""
        return bytes(self._batch.record(self._index)[1]) or self._no_body()

    def _no_body(self) -> bytes:
        if self.is_large:
            raise BadArgument(argument="body", detail=f"it has {self.size} bytes: read it by stream() or save()")
        return b""

    @property
    def is_large(self) -> bool:
        """The body is not here: it is read from the broker while the message is not confirmed."""
        try:
            return self.headers.large is not None
        except BadBatch:
            return False

    @property
    def size(self) -> int:
        """Bytes of the body, of a large one too."""
        size = len(self._batch.record(self._index)[1])
        return self.headers.large[1] if not size and self.is_large and self.headers.large else size

    @property
    def body_view(self) -> memoryview:
        """The body without a copy; it keeps the whole batch in memory."""
        return self._batch.record(self._index)[1]

    @property
    def id(self) -> str:
        """Unique over all brokers and time: 32 hexadecimal digits."""
        return ids.format_id(self._batch.id_of(self._index))

    @property
    def destination(self) -> str:
        """Where it was sent to, as the sender wrote it."""
        return self._batch.destination.decode()

    @property
    def priority(self) -> int:
        return self._batch.priority

    @property
    def timestamp_ms(self) -> int:
        """When the sender handed it over, in Unix milliseconds of the sender's clock."""
        return self._batch.time_ms(self._index)

    @property
    def deliver_at_ms(self) -> int:
        """Not delivered before this time, in Unix milliseconds; 0: at once."""
        return self._batch.deliver_at_ms

    @property
    def properties(self) -> dict[str, PropertyValue]:
        return self.headers.properties or {}

    @property
    def dead(self) -> dict[str, Any] | None:
        """Of a dead one: `reason`, `destination`, `subscription`, `time_ms`, `sequence`, `deliveries`, `history`."""
        return self.headers.dead

    @property
    def reply_to(self) -> str | None:
        return self.headers.reply_to

    @property
    def correlation_id(self) -> str | None:
        return self.headers.correlation_id

    @property
    def group(self) -> str | None:
        return self.headers.group

    @property
    def type(self) -> str | None:
        return self.headers.type

    @property
    def content_type(self) -> str | None:
        return self.headers.content_type

    @property
    def expires_at_ms(self) -> int:
        """0: never."""
        return self.headers.expires_at_ms

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sequence} of {self.destination}, {len(self.body_view)} bytes>"
