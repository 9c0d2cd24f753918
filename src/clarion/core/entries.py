"""Log entries: everything that changes what must survive, as facts in bytes.

An entry is written only after it was admitted, so applying one never fails and never decides: it carries
sequences, numbers and names that were fixed when it was ordered. The head is stored twice in the
journal, the body (a batch) once; a head alone says which messages a damaged body held.

Kinds 32 and up belong to the log; the numbers are part of the journal's format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Self

import msgspec

from clarion.wire.batch import Batch, Buffer


class Kind(IntEnum):
    """What an entry says."""

    PUBLISH = 32
    CONFIRM = 33
    RETURN = 34
    MARK = 35
    CREATE = 36
    DROP = 37
    SUBSCRIBE = 38
    UNSUBSCRIBE = 39
    DISCARD = 40
    PRODUCERS_CLOSED = 41


_PUBLISH = struct.Struct("<IIQQ16s")
_RANGES = struct.Struct("<II")
_RANGE = struct.Struct("<QQ")
_MARK = struct.Struct("<IIQ")


class Publish(NamedTuple):
    """A batch became messages [first, first + messages) of a destination."""

    destination: int
    messages: int
    first: int
    floor: int
    first_id: int

    def encode(self) -> bytes:
        """The head; the batch itself is the body."""
        return _PUBLISH.pack(self.destination, self.messages, self.first, self.floor, self.first_id.to_bytes(16, "big"))

    @classmethod
    def decode(cls, head: bytes) -> Publish:
        destination, messages, first, floor, first_id = _PUBLISH.unpack(head)
        return cls(destination, messages, first, floor, int.from_bytes(first_id, "big"))


class Ranges(NamedTuple):
    """CONFIRM, RETURN and DISCARD: sequences of one subscription (DISCARD: of all of them)."""

    destination: int
    subscription: int
    ranges: list[tuple[int, int]]

    def encode(self) -> bytes:
        pack = _RANGE.pack
        return b"".join(
            (_RANGES.pack(self.destination, self.subscription), *(pack(first, end) for first, end in self.ranges))
        )

    @classmethod
    def decode(cls, head: bytes) -> Ranges:
        destination, subscription = _RANGES.unpack_from(head)
        return cls(destination, subscription, list(_RANGE.iter_unpack(memoryview(head)[_RANGES.size :])))


class Mark(NamedTuple):
    """Everything of a subscription below `mark` may have been delivered."""

    destination: int
    subscription: int
    mark: int

    def encode(self) -> bytes:
        return _MARK.pack(*self)

    @classmethod
    def decode(cls, head: bytes) -> Mark:
        return cls(*_MARK.unpack(head))


class _Packed(msgspec.Struct, array_like=True):
    """Entries that are rare: MessagePack arrays, fields only ever added at the end."""

    def encode(self) -> bytes:
        """The head."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, head: bytes) -> Self:
        """The inverse of `encode`."""
        return msgspec.msgpack.decode(head, type=cls)


class Create(_Packed):
    """A destination with this number came to be."""

    destination: int
    kind: str
    name: str
    quota_bytes: int


class Drop(_Packed):
    """A destination and everything in it is gone."""

    destination: int


class Subscribe(_Packed):
    """A durable subscription, from sequence `start` on."""

    destination: int
    subscription: int
    name: str
    shared: bool
    start: int


class Unsubscribe(_Packed):
    """A durable subscription is gone."""

    destination: int
    subscription: int


class ProducersClosed(_Packed):
    """A producer will not send again: these destinations may forget it."""

    producer: bytes
    destinations: Sequence[int]


_MOVED = struct.Struct("<IQ")
_MOVED_BATCH = struct.Struct("<Q")


def encode_moved(destination: int, page_first: int, batches: Sequence[tuple[int, Batch]]) -> tuple[bytes, bytes]:
    """Head and body of a MOVED record: a whole page, copied by compaction. Not an entry of the log."""
    parts: list[Buffer] = []
    for first, batch in batches:
        parts += [_MOVED_BATCH.pack(first), batch.buffer[: batch.size]]
    return _MOVED.pack(destination, page_first), b"".join(parts)


def decode_moved(head: bytes, body: memoryview) -> tuple[int, int, list[tuple[int, memoryview]]]:
    """(destination, first sequence of the page, [(first sequence, batch) …])."""
    destination, page_first = _MOVED.unpack(head)
    batches: list[tuple[int, memoryview]] = []
    at = 0
    while at < len(body):
        first = int(_MOVED_BATCH.unpack_from(body, at)[0])
        at += _MOVED_BATCH.size
        size = Batch(body[at:]).size
        batches.append((first, body[at : at + size]))
        at += size
    return destination, page_first, batches
