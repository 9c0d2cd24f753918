"""Frames between event systems: what two of them say to each other, as bytes.

    header   u32 bytes of the payload, u32 crc32c of the rest of the header and the payload,
             u8 type, u8 flags, u16 zero, u32 number (an answer repeats the number of what it answers)

    HELLO           -> <-   who speaks, and which sections it will send; answered by HELLO with what is held of them
    PUT             ->      a group of records; answered by STORED when they are durable, or by ERROR
    HEARTBEAT       -> <-   "I live, and this is what I do for you"; answered by HEARTBEAT
    RELEASED        ->      everything of a section below a floor is settled
    CONFIRMED       -> <-   a recipient has confirmed these events
    GIVE_BACK_ASK   ->      what did you do for me?
    GIVE_BACK       ->      this; the last part is flagged
    GIVE_BACK_DONE  ->      I have recorded it, you may forget it
    NOTE            ->      what one engine wants the other's to know; the link does not look into it. A partner answers
                            by STORED when it has it durable

Rules
    1. Pure: bytes in, bytes out.
    2. Whatever bytes come, reading them returns a frame, wants more, or raises `ProtocolError`. Nothing is believed
       before the checksum agreed, except the size, which is bounded.
    3. What emit() needs (`begin_put`, `add_record`, `seal`, `Incoming`, `unpack_stored`) works in buffers that exist
       beforehand; the rest may allocate.
"""

from __future__ import annotations

import enum
import struct
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c

from clarion import limits
from clarion.errors import BadFrame, ClarionError, Fact, FrameTooLarge, VersionMismatch, from_code
from clarion.events.memory.layout import HEAD, ORIGIN, Recorded

HEADER = struct.Struct("<IIBBHI")
HEADER_BYTES = HEADER.size
_COVERED_FROM = 8
VERSION = 1
MAGIC = b"CLNELNK1"

Buffer = bytes | bytearray | memoryview


class Type(enum.IntEnum):
    """What a frame is."""

    HELLO = 1
    PUT = 2
    STORED = 3
    CONFIRMED = 4
    RELEASED = 5
    HEARTBEAT = 6
    GIVE_BACK_ASK = 7
    GIVE_BACK = 8
    GIVE_BACK_DONE = 9
    NOTE = 10
    ERROR = 11


_KNOWN = frozenset(int(kind) for kind in Type)
LAST = 1
"""Flag of GIVE_BACK: no part follows …"""
FIRST = 2
"""… or precedes."""


class Role(enum.IntEnum):
    """Why somebody connects."""

    PARTNER = 1
    MULTIPLEX = 2


class Frame(NamedTuple):
    """One frame as it was cut; the payload is a view of the buffer, and valid until the next one is cut."""

    type: int
    flags: int
    number: int
    payload: memoryview


class Held(NamedTuple):
    """A section: in a greeting what its owner has, in the answer what is held of it. `first` to before `end`."""

    producer: int
    first: int
    end: int


class Hello(msgspec.Struct, frozen=True):
    """A greeting, or the answer to it."""

    name: str
    role: Role
    epoch: int = 0
    frame_bytes_max: int = limits.EVENT_LINK_FRAME_BYTES_DEFAULT
    memory: int = 0
    """Which persistent memory this is: another number under the same name means that the old one is gone."""
    sections: tuple[Held, ...] = ()


class Heartbeat(msgspec.Struct, frozen=True):
    """A sign of life, and the word on which the other may act."""

    beat: int
    echo: int = 0
    """The last beat that was heard from whom this is sent to."""
    epoch: int = 0
    """Of the lease on the sender's own name."""
    acting: int = 0
    """The epoch in which the sender acts for the receiver, which thereby is fenced; 0: it does not."""
    owes: bool = False
    """It has confirmations of the receiver's events that it did not give back yet."""
    delivers: bool = False
    """It delivers its own events."""


# --- sealing and cutting --------------------------------------------------------------------------


def seal(buffer: memoryview, kind: int, payload_bytes: int, number: int = 0, flags: int = 0) -> int:
    """Write the header of a frame whose payload lies behind it already; returns the bytes of the frame."""
    HEADER.pack_into(buffer, 0, payload_bytes, 0, kind, flags, 0, number)
    end = HEADER_BYTES + payload_bytes
    struct.pack_into("<I", buffer, 4, crc32c(buffer[_COVERED_FROM:end]))
    return end


def frame(kind: int, payload: Buffer = b"", number: int = 0, flags: int = 0) -> bytes:
    """A whole frame."""
    buffer = bytearray(HEADER_BYTES + len(payload))
    buffer[HEADER_BYTES:] = payload
    seal(memoryview(buffer), kind, len(payload), number, flags)
    return bytes(buffer)


class Incoming:
    """Received bytes on their way to becoming frames, in one buffer that is made beforehand."""

    __slots__ = ("_end", "_start", "_view", "limit")

    def __init__(self, frame_bytes_max: int) -> None:
        self.limit = frame_bytes_max
        buffer = bytearray(frame_bytes_max)
        buffer[::4096] = b"\1" * len(range(0, frame_bytes_max, 4096))  # touched, so that the pages are there
        self._view = memoryview(buffer)
        self._start = self._end = 0

    def room(self) -> memoryview:
        """Where to receive to; never empty while every whole frame is taken first."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._view) or self._start > len(self._view) // 2:
            rest = self._end - self._start
            self._view[:rest] = self._view[self._start : self._end]
            self._start, self._end = 0, rest
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """So many bytes were put into the room."""
        self._end += count

    def peek(self) -> Frame | None:
        """The next frame, if it is there; it stays until `drop`. Raises `ProtocolError`."""
        have = self._end - self._start
        if have < HEADER_BYTES:
            return None
        size, checksum, kind, flags, zero, number = HEADER.unpack_from(self._view, self._start)
        if size > self.limit - HEADER_BYTES:
            raise FrameTooLarge(size=size, limit=self.limit - HEADER_BYTES)
        if have < HEADER_BYTES + size:
            return None
        end = self._start + HEADER_BYTES + size
        if zero or kind not in _KNOWN or crc32c(self._view[self._start + _COVERED_FROM : end]) != checksum:
            raise BadFrame(detail=f"type {kind} of {size} bytes does not check")
        return Frame(kind, flags, number, self._view[self._start + HEADER_BYTES : end])

    def drop(self) -> None:
        """The frame that `peek` showed is done with."""
        self._start += HEADER_BYTES + HEADER.unpack_from(self._view, self._start)[0]

    def clear(self) -> None:
        self._start = self._end = 0


# --- PUT and STORED -------------------------------------------------------------------------------

_PUT = struct.Struct("<16sII")
"""Section (its producer id), count of records, zero; then the records, each with its size before it."""
PUT_BYTES = _PUT.size
_SIZE = struct.Struct("<I")
RECORD_BYTES_MIN = ORIGIN.size + HEAD.size
RECORD_OVERHEAD_BYTES = _SIZE.size + RECORD_BYTES_MIN
PUT_OVERHEAD_BYTES = HEADER_BYTES + PUT_BYTES + RECORD_OVERHEAD_BYTES
"""What a PUT with one event has beyond the event's headers and body."""
_HEADER_BYTES_AT = ORIGIN.size + 28
STORED = struct.Struct("<IIQ")
"""Count of records, zero, last sequence of the section that holds them now."""


def begin_put(buffer: memoryview, section: bytes) -> int:
    """Start a PUT in `buffer`; returns where the first record goes."""
    _PUT.pack_into(buffer, HEADER_BYTES, section, 0, 0)
    return HEADER_BYTES + PUT_BYTES


def add_record(buffer: memoryview, at: int, producer: bytes, sequence: int, rest: memoryview) -> int:
    """Add one record: `rest` is head, headers and body. Returns where the next goes, or 0 if there is no room."""
    size = ORIGIN.size + len(rest)
    end = at + _SIZE.size + size
    if end > len(buffer):
        return 0
    _SIZE.pack_into(buffer, at, size)
    ORIGIN.pack_into(buffer, at + _SIZE.size, producer, sequence)
    buffer[end - len(rest) : end] = rest
    return end


def end_put(buffer: memoryview, at: int, count: int, number: int) -> int:
    """Finish a PUT whose records end at `at`; returns the bytes of the frame."""
    struct.pack_into("<I", buffer, HEADER_BYTES + 16, count)
    return seal(buffer, Type.PUT, at - HEADER_BYTES, number)


def unpack_put(payload: memoryview) -> tuple[int, list[memoryview]]:
    """(section, records): a record is origin, head, headers and body; see `recorded_of`."""
    if len(payload) < PUT_BYTES:
        raise BadFrame(detail=f"PUT of {len(payload)} bytes")
    section, count, _zero = _PUT.unpack_from(payload)
    at, end = PUT_BYTES, len(payload)
    if count * RECORD_OVERHEAD_BYTES > end - at:
        raise BadFrame(detail=f"PUT of {end} bytes says that it has {count} records")
    records: list[memoryview] = []
    for _ in range(count):
        size = _SIZE.unpack_from(payload, at)[0] if at + _SIZE.size <= end else 0
        at += _SIZE.size
        if size < RECORD_BYTES_MIN or at + size > end:
            raise BadFrame(detail=f"PUT has a record of {size} bytes at {at}")
        record = payload[at : at + size]
        if int.from_bytes(record[_HEADER_BYTES_AT : _HEADER_BYTES_AT + 2], "little") > size - RECORD_BYTES_MIN:
            raise BadFrame(detail="PUT has a record whose headers are longer than itself")
        records.append(record)
        at += size
    if at != end:
        raise BadFrame(detail=f"PUT has {end - at} bytes too many")
    return int.from_bytes(section, "big"), records


def origin_of(record: memoryview) -> tuple[int, int]:
    """(producer, sequence) of a record of a PUT."""
    producer, sequence = ORIGIN.unpack_from(record)
    return int.from_bytes(producer, "big"), sequence


def recorded_of(record: memoryview) -> Recorded:
    """A record of a PUT as `Section.put_many` takes it; headers and body are views."""
    producer, sequence = origin_of(record)
    time_ns, _durable, bits, epoch, header_bytes, severity, flags = HEAD.unpack_from(record, ORIGIN.size)
    middle = RECORD_BYTES_MIN + header_bytes
    headers, body = record[RECORD_BYTES_MIN:middle], record[middle:]
    return Recorded(producer, sequence, time_ns, severity, bits, epoch, flags, headers, body)


def rest_of(event: Recorded) -> bytes:
    """What follows the origin of an event in a PUT."""
    head = HEAD.pack(event.time_ns, 0, event.bits, event.epoch, len(event.headers), event.severity, event.flags)
    return b"".join((head, event.headers, event.body))


def pack_producer(producer: int) -> bytes:
    """A producer's id as 16 bytes, which sort like the number."""
    return producer.to_bytes(16, "big")


def unpack_stored(payload: memoryview) -> tuple[int, int]:
    """(count, last)."""
    if len(payload) != STORED.size:
        raise BadFrame(detail=f"STORED of {len(payload)} bytes")
    count, _zero, last = STORED.unpack_from(payload)
    return count, last


# --- HELLO ----------------------------------------------------------------------------------------

_HELLO = struct.Struct("<8sHBBIQ16sHH")
_HELD = struct.Struct("<16sQQ")


def pack_hello(hello: Hello) -> bytes:
    name = hello.name.encode()
    if len(name) > limits.NAME_BYTES_MAX or len(hello.sections) > limits.EVENT_LINK_SECTIONS_MAX:
        raise ValueError("a greeting has a long name or too many sections")
    fixed = (hello.epoch, hello.memory.to_bytes(16, "big"), len(name), len(hello.sections))
    head = _HELLO.pack(MAGIC, VERSION, hello.role, 0, hello.frame_bytes_max, *fixed)
    return b"".join((head, name, *(_HELD.pack(pack_producer(one.producer), *one[1:]) for one in hello.sections)))


def unpack_hello(payload: memoryview) -> Hello:
    if len(payload) < _HELLO.size:
        raise BadFrame(detail=f"HELLO of {len(payload)} bytes")
    magic, version, role, zero, limit, epoch, memory, name_bytes, count = _HELLO.unpack_from(payload)
    if magic != MAGIC:
        raise BadFrame(detail="this is not an event system")
    if version != VERSION:
        raise VersionMismatch(server_min=VERSION, server_max=VERSION, client_min=version, client_max=version)
    at = _HELLO.size + name_bytes
    if (
        zero
        or role not in (Role.PARTNER, Role.MULTIPLEX)
        or not 0 < name_bytes <= limits.NAME_BYTES_MAX
        or not HEADER_BYTES + 1_024 <= limit <= limits.EVENT_LINK_FRAME_BYTES_MAX
        or count > limits.EVENT_LINK_SECTIONS_MAX
        or at + count * _HELD.size != len(payload)
    ):
        raise BadFrame(detail="a greeting with impossible numbers")
    sections = tuple(
        Held(int.from_bytes(producer, "big"), first, end) for producer, first, end in _HELD.iter_unpack(payload[at:])
    )
    name = text_of(payload[_HELLO.size : at])
    return Hello(name, Role(role), epoch, limit, int.from_bytes(memory, "big"), sections)


# --- heartbeats and floors ------------------------------------------------------------------------

_HEARTBEAT = struct.Struct("<QQQQB7x")
_RELEASED = struct.Struct("<16sQ")
_EPOCH = struct.Struct("<Q")
_OWES, _DELIVERS = 1, 2


def pack_heartbeat_into(buffer: memoryview, at: int, beat: Heartbeat) -> int:
    """Write the payload of HEARTBEAT; returns its bytes."""
    flags = _OWES * beat.owes | _DELIVERS * beat.delivers
    _HEARTBEAT.pack_into(buffer, at, beat.beat, beat.echo, beat.epoch, beat.acting, flags)
    return _HEARTBEAT.size


def pack_heartbeat(beat: Heartbeat) -> bytes:
    buffer = bytearray(_HEARTBEAT.size)
    pack_heartbeat_into(memoryview(buffer), 0, beat)
    return bytes(buffer)


def unpack_heartbeat(payload: memoryview) -> Heartbeat:
    beat, echo, epoch, acting, flags = _exactly(_HEARTBEAT, payload, "HEARTBEAT")
    if flags > _OWES | _DELIVERS:
        raise BadFrame(detail=f"HEARTBEAT with flags {flags}")
    return Heartbeat(beat, echo, epoch, acting, bool(flags & _OWES), bool(flags & _DELIVERS))


def pack_released(producer: int, floor: int) -> bytes:
    return _RELEASED.pack(pack_producer(producer), floor)


def unpack_released(payload: memoryview) -> tuple[int, int]:
    """(producer of the section, floor)."""
    producer, floor = _exactly(_RELEASED, payload, "RELEASED")
    return int.from_bytes(producer, "big"), floor


def pack_epoch(epoch: int) -> bytes:
    """Payload of GIVE_BACK_ASK; with a token instead, of GIVE_BACK_DONE."""
    return _EPOCH.pack(epoch)


def unpack_epoch(payload: memoryview) -> int:
    epoch: int = _exactly(_EPOCH, payload, "an epoch")[0]
    return epoch


# --- ERROR ----------------------------------------------------------------------------------------

_facts = msgspec.msgpack.Decoder(tuple[str, dict[str, str | int | float | bool | None]])


def pack_error(error: ClarionError) -> bytes:
    return msgspec.msgpack.encode((error.code, error.facts))


def unpack_error(payload: memoryview) -> ClarionError:
    try:
        code, facts = _facts.decode(payload)
        known: dict[str, Fact] = {name: value for name, value in facts.items() if name.isidentifier()}
        return from_code(code, known)
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError) as error:
        raise BadFrame(detail=f"ERROR: {error}") from None


def _exactly(form: struct.Struct, payload: memoryview, what: str) -> tuple[Any, ...]:
    if len(payload) != form.size:
        raise BadFrame(detail=f"{what} of {len(payload)} bytes")
    return form.unpack_from(payload)


def text_of(name: memoryview) -> str:
    """A name within a payload."""
    try:
        return str(name, "utf-8")
    except UnicodeDecodeError as error:
        raise BadFrame(detail=str(error)) from None
