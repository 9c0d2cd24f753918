"""Records: the smallest thing the journal writes, and the only way to read one back.

Guarantees
    A record that `parse` returns is, byte for byte, one that was appended in that generation of
    that segment: the checksum covers every byte after itself, head and body included.

Rules
    1. Pure: bytes in, bytes out. No file, no clock.
    2. A record starts at a multiple of `ALIGN_BYTES`, so that a reader that lost its way finds the
       next one by looking at every eighth byte only.
    3. Local kinds (below `ENTRY_KIND_MIN`) belong to the journal of one node; all others are
       entries of the log, defined by the caller, and carry the log's index.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
from crc32c import crc32c

ALIGN_BYTES = 8
MAGIC = 0xC1A7
ENTRY_KIND_MIN = 32
ENTRY_KIND_MAX = 255

# What the checksum covers of the fixed part: magic, kind, flags, generation, incarnation, size of
# head, size of body, index.
FIELDS = struct.Struct("<HBBQIIIQ")
CHECKSUM = struct.Struct("<I")
HEADER_BYTES = CHECKSUM.size + FIELDS.size
_HEADER = struct.Struct("<IHBBQIIIQ")
PADDING = tuple(bytes(count) for count in range(ALIGN_BYTES))

Buffer = bytes | bytearray | memoryview


class Kind(enum.IntEnum):
    """Local records. They have index 0."""

    TRAILER = 1
    INCARNATION = 2
    CHECKPOINT_BEGIN = 3
    CHECKPOINT_PART = 4
    CHECKPOINT_END = 5
    MOVED = 6


@dataclass(slots=True)
class Record:
    """One record as read. A body of None is lost: only its metadata could be rebuilt."""

    kind: int
    index: int
    position: int
    span: int
    head: bytes
    body: memoryview | None


class Location(msgspec.Struct, gc=False):
    """Where an appended record lies, and the index it was given (0 for a local record).

    A `msgspec.Struct`, for one is made with every record: 0.1 us instead of 0.4.
    """

    position: int
    span: int
    index: int


@dataclass(slots=True)
class Raw:
    """A valid record inside a buffer, before anything is copied out of it."""

    kind: int
    generation: int
    incarnation: int
    index: int
    head: bytes
    body_from: int
    body_to: int
    end: int


EMPTY = memoryview(b"")


def span_of(head_bytes: int, body_bytes: int) -> int:
    """The bytes of log that a record with such a head and body takes."""
    return (HEADER_BYTES + head_bytes + body_bytes + ALIGN_BYTES - 1) & -ALIGN_BYTES


def parse(data: memoryview, offset: int, generation: int) -> Raw | None:
    """The record at `offset` if it is whole, undamaged and of this generation; otherwise None."""
    limit = len(data)
    if offset + HEADER_BYTES > limit:
        return None
    checksum, magic, kind, _flags, found, incarnation, head_bytes, body_bytes, index = _HEADER.unpack_from(data, offset)
    if magic != MAGIC or found != generation:
        return None
    head_from = offset + HEADER_BYTES
    body_from = head_from + head_bytes
    body_to = body_from + body_bytes
    if body_to > limit or crc32c(data[offset + CHECKSUM.size : body_to]) != checksum:
        return None
    end = (body_to + ALIGN_BYTES - 1) & -ALIGN_BYTES
    head = bytes(data[head_from:body_from])
    return Raw(kind, found, incarnation, index, head, body_from, body_to, end)


def parse_any(data: memoryview, offset: int) -> Raw | None:
    """Like `parse`, for a segment whose generation is not known because its header is damaged."""
    if offset + HEADER_BYTES > len(data):
        return None
    generation = _HEADER.unpack_from(data, offset)[4]
    return parse(data, offset, generation)


def candidates(data: memoryview, offset: int, kind: int | None = None) -> Iterator[int]:
    """Offsets from `offset` on at which a record (of this kind) may start, by its magic.

    Costs 0.3 ms per MiB: one comparison in numpy per eight bytes.
    """
    first = (offset + ALIGN_BYTES - 1) & -ALIGN_BYTES
    count = (len(data) - first) // ALIGN_BYTES
    if count <= 0:
        return
    words = np.frombuffer(data, dtype="<u4", count=2 * count, offset=first)[1::2]
    hits = words == (MAGIC | kind << 16) if kind is not None else (words & 0xFFFF) == MAGIC
    for hit in np.flatnonzero(hits).tolist():
        yield first + hit * ALIGN_BYTES


def salvage(data: memoryview, offset: int, generation: int) -> Iterator[tuple[int, Raw]]:
    """The records from `offset` on that check, whatever lies between them."""
    reached = offset
    for candidate in candidates(data, offset):
        if candidate < reached:
            continue
        raw = parse(data, candidate, generation)
        if raw is not None:
            yield candidate, raw
            reached = raw.end


def to_record(data: memoryview, raw: Raw, position: int) -> Record:
    """The record that callers see; its body is a view into `data`."""
    start = raw.body_from - len(raw.head) - HEADER_BYTES
    body = data[raw.body_from : raw.body_to]
    return Record(raw.kind, raw.index, position, raw.end - start, raw.head, body)


def is_visible(kind: int) -> bool:
    """Whether callers see records of this kind: entries, and what compaction moved."""
    return kind >= ENTRY_KIND_MIN or kind == Kind.MOVED
