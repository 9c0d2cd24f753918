"""Log entries: everything that changes what must survive, as facts in bytes.

An entry is written only after it was admitted, so applying one never fails and never decides: it carries
sequences, numbers, names and times that were fixed when it was ordered. The head is stored twice in the
journal, the body (a batch) once; a head alone says which messages a damaged body held.

Kinds 32 and up belong to the log; the numbers are part of the journal's format. docs/formats/log.md has
every entry byte by byte.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Self

import msgspec

from clarion import limits
from clarion.wire.batch import Batch, Buffer

Range = tuple[int, int]


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
    STAGE = 42
    OUTCOME = 43
    DUE = 44
    PREPARED = 45
    TRANSFER = 46
    POLICY = 47
    PATTERN = 48
    RETURNED = 49
    RETAIN = 50
    FRAGMENT = 51
    LARGE = 52
    STREAM_DROPPED = 53
    LEASE = 54


_PUBLISH = struct.Struct("<IIQQ16s")
_PUBLISH_MORE = struct.Struct("<qqqBBHI")
"""Stored, earliest and latest expiry (ms), priority, until, zero, zero. Absent in the first logs."""
_PUBLISH_BYTES = _PUBLISH.size + _PUBLISH_MORE.size
_STAGE = struct.Struct("<Qq24s")
_FRAGMENT = struct.Struct("<IQ24sQIIq")
_LARGE = struct.Struct("<QQ")
_RANGES = struct.Struct("<II")
_RANGE = struct.Struct("<QQ")
_MARK = struct.Struct("<IIQ")

UNTIL_ANY, UNTIL_EVERY = 1, 2
"""`until` of a batch: its producer wants to know when one subscription, or every one, has confirmed."""


class Publish(NamedTuple):
    """A batch became messages [first, first + messages) of a destination."""

    destination: int
    messages: int
    first: int
    floor: int
    first_id: int
    stored_ms: int = 0
    expiry_first_ms: int = 0
    expiry_last_ms: int = 0
    priority: int = limits.PRIORITY_DEFAULT
    until: int = 0
    runs: bytes = b""
    """Of a sparse batch its sequences (`clarion.core.sparse`); empty: they follow each other. Never in a STAGE."""

    def encode(self) -> bytes:
        """The head; the batch itself is the body."""
        destination, messages, first, floor, first_id, stored, expiry_first, expiry_last, priority, until, runs = self
        head = _PUBLISH.pack(
            destination, messages, first, floor, first_id.to_bytes(16, "big")
        ) + _PUBLISH_MORE.pack(stored, expiry_first, expiry_last, priority, until, 0, 0)  # fmt: skip
        return head + runs if runs else head

    @classmethod
    def decode(cls, head: Buffer) -> Publish:
        destination, messages, first, floor, first_id = _PUBLISH.unpack_from(head)
        identity = int.from_bytes(first_id, "big")
        if len(head) == _PUBLISH.size:
            return cls(destination, messages, first, floor, identity)
        stored, expiry_first, expiry_last, priority, until, _, _ = _PUBLISH_MORE.unpack_from(head, _PUBLISH.size)
        return cls(
            destination, messages, first, floor, identity, stored, expiry_first, expiry_last, priority, until,
            bytes(head[_PUBLISH_BYTES:]),
        )  # fmt: skip


class Stage(NamedTuple):
    """A batch is stored and not visible yet: delayed until `due_ms`, or part of a transaction, or both."""

    batch: Publish
    """`first` is 0: it gets its sequence when it becomes visible."""
    number: int
    """Unique within its destination."""
    due_ms: int
    transaction: bytes
    """24 bytes; empty for none."""

    def encode(self) -> bytes:
        return self.batch.encode() + _STAGE.pack(self.number, self.due_ms, self.transaction or bytes(24))

    @classmethod
    def decode(cls, head: Buffer) -> Stage:
        number, due_ms, transaction = _STAGE.unpack_from(head, _PUBLISH_BYTES)
        return cls(Publish.decode(head[:_PUBLISH_BYTES]), number, due_ms, transaction if any(transaction) else b"")


class Fragment(NamedTuple):
    """Some bytes of a large body were stored; they are the body of the record."""

    destination: int
    number: int
    """Of the stream: the first fragment gives it."""
    stream: bytes
    """24 bytes."""
    offset: int
    size: int
    checksum: int
    """CRC32C of the large body from its first byte to the last of this fragment."""
    stored_ms: int

    def encode(self) -> bytes:
        """The head."""
        return _FRAGMENT.pack(*self)

    @classmethod
    def decode(cls, head: Buffer) -> Fragment:
        return cls(*_FRAGMENT.unpack_from(head))


class Large(NamedTuple):
    """The message of a large body was stored: PUBLISH (stage number 0) or STAGE, and the number of its stream."""

    stage: Stage
    stream: int
    size: int
    """Bytes of the large body."""

    def encode(self) -> bytes:
        return self.stage.encode() + _LARGE.pack(self.stream, self.size)

    @classmethod
    def decode(cls, head: Buffer) -> Large:
        stage = Stage.decode(head)
        return cls(stage, *_LARGE.unpack_from(head, len(head) - _LARGE.size))


class Ranges(NamedTuple):
    """CONFIRM, RETURN and DISCARD: sequences of one subscription (DISCARD: of all of them)."""

    destination: int
    subscription: int
    ranges: list[Range]

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
    patterns: list[int] = []
    """Durable patterns that it matches, and gets a subscription of."""


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
    selector: str = ""
    pattern: int = 0
    """The pattern that it belongs to; 0 for none."""
    no_local: bool | None = None
    """Whether it leaves out what the connection of its consumer sends; None: not known."""


class Unsubscribe(_Packed):
    """A durable subscription is gone."""

    destination: int
    subscription: int


class ProducersClosed(_Packed):
    """A producer will not send again: these destinations may forget it."""

    producer: bytes
    destinations: Sequence[int]


class Change(_Packed):
    """What an outcome does to one destination."""

    destination: int
    visible: list[Range] = []
    """Runs of stages [number, end) that become visible, in this order …"""
    first: int = 0
    """… from this sequence on."""
    delayed: list[Range] = []
    """Runs of stages that leave their transaction and wait for their time."""
    dropped: list[Range] = []
    """Runs of stages that nobody will ever see."""
    confirmed: list[tuple[int, list[Range]]] = []
    """(subscription, ranges)."""
    returned: list[tuple[int, list[Range]]] = []
    """(subscription, ranges): they come again, counted."""


class Outcome(_Packed):
    """One or several transactions are decided, all in this one entry."""

    transactions: list[bytes]
    committed: bool
    time_ms: int
    changes: list[Change]
    key: str = ""
    version: int = 0
    reason: str = ""


class Due(_Packed):
    """The time of delayed batches has come."""

    time_ms: int
    change: Change


class Prepared(_Packed):
    """A transaction survives its session from now on, until it is decided or expires."""

    transaction: bytes
    time_ms: int
    expires_ms: int
    consumed: list[tuple[int, int, list[Range]]]
    """(destination, subscription, ranges): reserved for this transaction."""


class Transfer(_Packed):
    """Messages left one destination for another in one step: dead ones, and dead ones sent back."""

    destination: int
    first: int
    messages: int
    stored_ms: int
    priority: int
    expiry_first_ms: int
    expiry_last_ms: int
    subscription: int
    """The only subscription of the target that is to have them; 0 for all."""
    source: int
    source_subscription: int
    ranges: list[Range]
    streams: list[tuple[int, int]] = []
    """Messages with a large body: (place among these messages, number of the stream)."""


class SetPolicy(_Packed):
    """A policy for the destinations of a pattern; None removes it."""

    pattern: str
    policy: dict[str, Any] | None


class SetPattern(_Packed):
    """A durable subscription to all topics of a pattern, present and future; `name` empty: it is gone."""

    number: int
    pattern: str
    name: str
    shared: bool
    selector: str = ""
    no_local: bool | None = None
    """As of SUBSCRIBE."""


class Returned(_Packed):
    """RETURN with its story: kept for the history of a message that dies."""

    destination: int
    subscription: int
    ranges: list[Range]
    time_ms: int
    reason: str


class Retain(_Packed):
    """Confirmed messages from `first` on are kept; 0: none are."""

    destination: int
    first: int


class StreamDropped(_Packed):
    """Large bodies that never got their message are given up."""

    streams: list[int]


class SetLease(_Packed):
    """A lease has this holder from now on; an empty one: it is over."""

    name: str
    holder: str
    epoch: int
    ttl_ms: int
    time_ms: int
    """By the clock of leases: what the process has lived, from the Unix time of its start on."""


_MOVED = struct.Struct("<IQ")
_MOVED_FRAGMENT = struct.Struct("<IQQ")
_MOVED_BATCH = struct.Struct("<Q")
STAGED_PAGE = 1 << 63
"""Set in the first sequence of a MOVED record whose batch is not visible yet: the rest is its stage."""


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


def encode_moved_fragment(stream: int, offset: int) -> bytes:
    """Head of a MOVED record whose body is a fragment: that of the stream which begins at `offset`."""
    return _MOVED_FRAGMENT.pack(0, stream, offset)


def decode_moved_fragment(head: bytes) -> tuple[int, int] | None:
    """(stream, offset); None for the head of any other MOVED record."""
    return _MOVED_FRAGMENT.unpack(head)[1:] if len(head) == _MOVED_FRAGMENT.size else None


def runs_of(numbers: Sequence[int]) -> list[Range]:
    """Ascending integers as runs [first, end)."""
    runs: list[Range] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs
