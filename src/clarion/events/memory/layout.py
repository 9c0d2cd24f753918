"""Where things lie in the file of a section, and what a record of it looks like.

    0      header, three copies: at 0, 2048 and 6144       who the section is; never changes but for its owner
    4096   state, two sectors written in turn              how far everything is released
    8192   the ring                                        records of `clarion.journal.record`

    NAME.mark beside it, one page in shared memory: what is durable and what is released *now*. It is never synced:
    it saves other processes from guessing, and the ring's own syncs from writing one page more (140 us became 350).

Guarantees
    Everything carries a checksum; what does not check is None. A record is found only in the lap, and the ring, that
    it was written in: its generation has the number of the lap and a salt of the ring.

Rules
    1. Pure: bytes in, bytes out.
    2. The ring is one space of bytes without end: position = lap * ring bytes + offset, laps count from 1. A record
       never lies across the end of a lap.
    3. With durability "power" a group begins at a sector: one that may be durable is never written again with other
       bytes until it is released. With "process" records follow each other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from clarion.errors import NewerFormat
from clarion.journal.options import Durability
from clarion.journal.record import ALIGN_BYTES, HEADER_BYTES, Raw, candidates, parse_any

FORMAT_VERSION = 1
SECTOR_BYTES = 512
PAGE_BYTES = 4096
HEADER_OFFSETS = (0, 2048, PAGE_BYTES + 2048)
STATE_OFFSETS = (PAGE_BYTES, PAGE_BYTES + SECTOR_BYTES)
RING_OFFSET = 2 * PAGE_BYTES
MARK_BYTES = PAGE_BYTES
FIRST_LAP = 1

# Words of the mark.
MARK_DURABLE = 0
MARK_RELEASED_SEQUENCE = 1
MARK_RELEASED_POSITION = 2
MARK_RELEASED_CHECK = 3
MARK_REFUSED = 4

KIND_OWN = 64
KIND_FOREIGN = 65
FLAG_UNDECIDED = 1
FLAG_REPLAYED = 2

KINDS = ("normal", "initialisation", "nested", "partner", "state", "multiplex")
DURABILITIES: tuple[Durability, ...] = ("power", "process")

# time_ns, durable, recipients, routing epoch, bytes of the header section, severity, flags
HEAD = struct.Struct("<QQQIHBB")
# producer (big endian, like ids are shown) and sequence of a foreign event, before its HEAD
ORIGIN = struct.Struct("<16sQ")
# A whole fixed part at once: checksum, magic, kind, flags, generation, incarnation, bytes of head and body, index.
OWN_RECORD = struct.Struct("<IHBBQIIIQ" + HEAD.format[1:])
FOREIGN_RECORD = struct.Struct("<IHBBQIIIQ" + ORIGIN.format[1:] + HEAD.format[1:])
OWN_BYTES = OWN_RECORD.size
FOREIGN_BYTES = FOREIGN_RECORD.size

_HEADER_MAGIC = b"CLNERNG1"
_STATE_MAGIC = b"CLNESTA1"
# magic, version, kind, durability, producer, ring bytes, event bytes, incarnation, pid, its start, created; then CRC32C
_HEADER = struct.Struct("<8sIBB2x16sQIIIQQ")
TORN_MAX = 24
# magic, number, head sequence, head position, torn ranges; then a CRC32C
_STATE = struct.Struct(f"<8sQQQ{2 * TORN_MAX}Q")
_ZEROS = (0,) * (2 * TORN_MAX)
_CHECKSUM = struct.Struct("<I")
_RELEASED = struct.Struct("<QQ")


Range = tuple[int, int]


class Recorded(msgspec.Struct, gc=False):
    """One event as persistent memory has it. `headers` and `body` are copies: the ring may be used again."""

    producer: int
    """Of the event system where it was emitted, like `sequence`: together they are the event's id."""
    sequence: int
    time_ns: int
    severity: int
    bits: int
    epoch: int
    flags: int
    headers: memoryview | bytes
    body: memoryview | bytes
    at: int = 0
    """Its sequence in the section where it was read; what is confirmed and released."""


class Header(NamedTuple):
    """Who a section is."""

    kind: str
    durability: Durability
    producer: int
    ring_bytes: int
    event_bytes_max: int
    incarnation: int
    owner_pid: int
    owner_start: int
    created_ms: int


class State(NamedTuple):
    """Everything before `sequence` is released; it lies, or will lie, at or after `position`."""

    number: int
    sequence: int
    position: int
    torn: tuple[Range, ...] = ()
    """[first, end) that were never durable; so few that later recoveries can tell them from damage."""


# --- sizes ----------------------------------------------------------------------------------------


def aligned(value: int, alignment: int) -> int:
    return (value + alignment - 1) & -alignment


def span_max(event_bytes_max: int) -> int:
    """What the largest record takes."""
    return aligned(FOREIGN_BYTES + event_bytes_max, ALIGN_BYTES)


def ring_bytes_for(events: int, event_bytes: int, durability: Durability) -> int:
    """A ring that holds so many events of this size (headers and data), whatever happened in it before."""
    alignment = SECTOR_BYTES if durability == "power" else ALIGN_BYTES
    return aligned((events + 2) * aligned(span_max(event_bytes), alignment), PAGE_BYTES)


def ring_bytes_min(event_bytes_max: int) -> int:
    return ring_bytes_for(2, event_bytes_max, "power")


def salt_of(producer: int) -> int:
    """The upper half of a generation: a record of another ring is none here."""
    return crc32c(producer.to_bytes(16, "big")) << 32


# --- header and state -----------------------------------------------------------------------------


def _sealed(body: bytes) -> bytes:
    data = body + _CHECKSUM.pack(crc32c(body))
    return data + bytes(SECTOR_BYTES - len(data))


def _checked(data: memoryview, offset: int, form: struct.Struct, magic: bytes) -> tuple[int, ...] | None:
    body = data[offset : offset + form.size]
    if len(body) < form.size or body[:8] != magic:
        return None
    if _CHECKSUM.unpack_from(data, offset + form.size)[0] != crc32c(body):
        return None
    return form.unpack(body)[1:]


def encode_header(header: Header) -> bytes:
    """One sector."""
    return _sealed(
        _HEADER.pack(
            _HEADER_MAGIC,
            FORMAT_VERSION,
            KINDS.index(header.kind),
            DURABILITIES.index(header.durability),
            header.producer.to_bytes(16, "big"),
            header.ring_bytes,
            header.event_bytes_max,
            header.incarnation,
            header.owner_pid,
            header.owner_start,
            header.created_ms,
        )
    )


def decode_header(data: memoryview, path: str = "") -> Header | None:
    """The newest copy that checks. Raises `NewerFormat`."""
    found: Header | None = None
    for offset in HEADER_OFFSETS:
        fields = _checked(data, offset, _HEADER, _HEADER_MAGIC)
        if fields is None:
            continue
        version, kind, durability, producer, *others = fields
        if version > FORMAT_VERSION:
            raise NewerFormat(path=path, version=version, supported=FORMAT_VERSION)
        identity = int.from_bytes(producer, "big")  # type: ignore[arg-type]
        header = Header(KINDS[kind], DURABILITIES[durability], identity, *others)
        if found is None or header.incarnation > found.incarnation:
            found = header
    return found


def pack_state(sector: memoryview, state: State) -> None:
    """Into a sector that exists: this happens when an event is recorded, perhaps without memory."""
    ends = [end for torn in state.torn[-TORN_MAX:] for end in torn]
    zeros = _ZEROS[len(ends) :]
    _STATE.pack_into(sector, 0, _STATE_MAGIC, state.number, state.sequence, state.position, *ends, *zeros)
    _CHECKSUM.pack_into(sector, _STATE.size, crc32c(sector[: _STATE.size]))


def encode_state(state: State) -> bytes:
    sector = bytearray(SECTOR_BYTES)
    pack_state(memoryview(sector), state)
    return bytes(sector)


def decode_state(data: memoryview) -> State | None:
    """The newer of the two that check."""
    found: State | None = None
    for offset in STATE_OFFSETS:
        fields = _checked(data, offset, _STATE, _STATE_MAGIC)
        if fields is not None and (found is None or fields[0] > found.number):
            ends = fields[3:]
            torn = tuple(pair for pair in zip(ends[::2], ends[1::2], strict=True) if pair[1])
            found = State(fields[0], fields[1], fields[2], torn)
    return found


def released_check(sequence: int, position: int, salt: int) -> int:
    """What stands beside a released head in the mark: two words are not written at once."""
    return crc32c(_RELEASED.pack(sequence, position)) ^ salt


# --- records --------------------------------------------------------------------------------------


def to_recorded(data: memoryview, raw: Raw, producer: int) -> Recorded | None:
    """The event of a record that checks; None for one of a kind that is not known."""
    if raw.kind == KIND_OWN and len(raw.head) == HEAD.size:
        sequence, head_from = raw.index, 0
    elif raw.kind == KIND_FOREIGN and len(raw.head) == ORIGIN.size + HEAD.size:
        origin, sequence = ORIGIN.unpack_from(raw.head)
        producer, head_from = int.from_bytes(origin, "big"), ORIGIN.size
    else:
        return None
    time_ns, _durable, bits, epoch, header_bytes, severity, flags = HEAD.unpack_from(raw.head, head_from)
    middle = raw.body_from + header_bytes
    headers, body = bytes(data[raw.body_from : middle]), bytes(data[middle : raw.body_to])
    return Recorded(producer, sequence, time_ns, severity, bits, epoch, flags, headers, body, raw.index)


def durable_of(raw: Raw) -> int:
    """The last sequence that was durable when this record was written."""
    found: int = HEAD.unpack_from(raw.head, len(raw.head) - HEAD.size)[1] if len(raw.head) >= HEAD.size else 0
    return found


def records_of(group: memoryview, producer: int) -> Iterator[Recorded]:
    """The events of a group, as a mirror is given it, that was written by the section with this producer id.

    A record that does not check ends nothing: the ones after it are found.
    """
    reached = 0
    for offset in candidates(group, 0):
        if offset < reached:
            continue
        raw = parse_any(group, offset)
        recorded = to_recorded(group, raw, producer) if raw is not None else None
        if raw is not None and recorded is not None:
            reached = raw.end
            yield recorded


assert HEADER_BYTES + HEAD.size == OWN_BYTES
assert HEADER_BYTES + ORIGIN.size + HEAD.size == FOREIGN_BYTES
