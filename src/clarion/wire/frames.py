"""Frames: how bytes of a connection are cut, and what each kind of frame carries.

A frame is a 12-byte header (payload size u32, type u8, flags u8, zero u16, channel u32; little
endian) and a payload. Channel 0 is the connection itself, every other channel is a session.
Control frames carry MessagePack, hot frames carry fixed structs and batches: see
docs/formats/wire.md for each, byte by byte.

Rules: pure; `FrameReader` never holds more than one frame's limit; a size beyond the limit is
refused from the header alone, before anything is buffered.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from clarion import limits
from clarion.errors import BadFrame, ClarionError, FrameTooLarge
from clarion.wire.batch import Buffer

PROTOCOL_VERSION_MIN = 1
PROTOCOL_VERSION_MAX = 1

HEADER = struct.Struct("<IBBHI")
HEADER_BYTES = HEADER.size
assert HEADER_BYTES == 12


class Type(IntEnum):
    """Frame types. C: sent by clients, S: by servers."""

    HELLO = 1  # C {versions, name, software, heartbeat_ms, authentication}
    WELCOME = 2  # S {version, server, heartbeat_ms, batch_bytes_max, producer_window_bytes}
    HEARTBEAT = 3  # C S
    GOODBYE = 4  # C S {code, facts}: the last frame of a connection
    OPEN = 10  # C {producer: 16 bytes or none, sender, resumed}: begin a session on this channel
    OPENED = 11  # S {producer: 16 bytes}
    CLOSE = 12  # C: end the session; unconfirmed deliveries go back
    CLOSED = 13  # S
    PUBLISH = 20  # C floor u64, batch
    PUBLISHED = 21  # S (first producer sequence u64, count u32, zero u32) …
    REFUSED = 22  # S first producer sequence u64, {destination, reason}: send again after RESUME
    RESUME = 23  # S first producer sequence u64, destination
    PUBLISH_FAILED = 24  # S first producer sequence u64, count u32, zero u32, {code, facts}
    STAGE = 25  # C transaction u64, floor u64, batch: PUBLISH within a transaction, answered alike
    DELIVERED = 26  # S (first producer sequence u64, count u32, how u32) …: what UNTIL_* asked for
    FRAGMENT = 27  # C stream 24 bytes, offset u64, name bytes u16, destination, data: bytes of a large body
    FRAGMENT_STORED = 28  # S stream 24 bytes, stored u64, answered bytes u32, how u32, {reason | code, facts}
    PUBLISH_LARGE = 29  # C stream 24 bytes, transaction u64 (0: none), floor u64, batch: the message of a large body
    SUBSCRIBE = 30  # C {request, consumer, …}, answered by REPLY or ERROR
    CREDIT = 31  # C consumer u32, messages u32, bytes u64
    DELIVER = 32  # S consumer u32, slices u32, slice …
    CONFIRM = 33  # C consumer u32, zero u32, request u64, (first u64, end u64) …
    REJECT = 34  # C as CONFIRM
    UNSUBSCRIBE = 35  # C {request, consumer, unseen, delete}, answered by REPLY or ERROR
    CONSUMER_CLOSED = 36  # S consumer u32, zero u32, {code, facts}
    RETURN = 37  # C {request, consumer, ranges, reason, delay_ms}: REJECT with a reason
    MERGED = 38  # S {consumer, merged: [(number, destination) …]}: more destinations of a pattern
    REQUEST = 40  # C {request, verb, arguments}
    REPLY = 41  # S {request, result}
    ERROR = 42  # S {request, code, facts}


RESEND = 1
"""Flag of PUBLISH and STAGE: this batch was sent before and its outcome is not known."""
UNTIL_ANY = 2
"""Flag of PUBLISH: also say DELIVERED when one subscription has confirmed …"""
UNTIL_EVERY = 4
"""… or when every subscription has."""
SENDER_BYTES = 8
"""`sender` of OPEN: chosen at random by one that has ids of its own, the same on all its connections."""
MERGED_NUMBER_MIN = 1 << 31
"""Numbers of consumers from here on are given by the server, to the destinations of a pattern."""


class Frame(NamedTuple):
    """One frame as it was cut; the payload is a view of the received bytes."""

    type: int
    flags: int
    channel: int
    payload: memoryview


class FrameReader:
    """Cuts a stream of bytes into frames."""

    __slots__ = ("_have", "_limit", "_need", "_parts")

    def __init__(self, limit: int = limits.FRAME_BYTES_MAX) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._have = 0
        self._need = HEADER_BYTES

    @property
    def buffered(self) -> int:
        """Bytes of an unfinished frame."""
        return self._have

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with `data`. Raises `FrameTooLarge` for a header over the limit."""
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        self._have = 0
        view = memoryview(data)
        at, end = 0, len(data)
        while True:
            need = HEADER_BYTES
            if end - at >= HEADER_BYTES:
                size, kind, flags, _zero, channel = HEADER.unpack_from(data, at)
                if size > self._limit:
                    raise FrameTooLarge(size=size, limit=self._limit)
                need += size
                if end - at >= need:
                    yield Frame(kind, flags, channel, view[at + HEADER_BYTES : at + need])
                    at += need
                    continue
            if at < end:
                self._parts.append(data[at:])
                self._have = end - at
            self._need = need
            return


def frame(kind: int, channel: int, parts: Iterable[Buffer] = (), flags: int = 0) -> list[Buffer]:
    """One frame as buffers for a vectored write."""
    body = list(parts)
    return [HEADER.pack(sum(map(len, body)), kind, flags, 0, channel), *body]


# --- control payloads ---------------------------------------------------------------------------

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


def pack(value: object) -> bytes:
    """A control payload."""
    return _encoder.encode(value)


def unpack(payload: Buffer) -> Any:
    """The inverse of `pack`. Raises `BadFrame` for bytes that are not MessagePack."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadFrame(detail=f"control payload: {error}") from None


def error_facts(error: ClarionError) -> dict[str, object]:
    """An error as it crosses the wire."""
    return {"code": error.code, "facts": error.facts}


# --- hot payloads -------------------------------------------------------------------------------

FLOOR = struct.Struct("<Q")
STAGED = struct.Struct("<QQ")
"""Transaction and floor."""
FRAGMENT = struct.Struct("<24sQH")
"""Stream, offset of the first byte, bytes of the destination's name; the name and the data follow."""
STORED = struct.Struct("<24sQII")
"""Stream, how much of it is durable, how many bytes of fragments are answered by this, how."""
STORED_ALL, STORED_ELSE, STORED_WAIT, STORED_GO, STORED_FAILED = 0, 1, 2, 3, 4
"""How a fragment was answered: stored; not, it does not begin where the body ends so far; not, send it again after
GO; go on; never."""
LARGE = struct.Struct("<24sQQ")
"""Stream, transaction, floor."""
SETTLED = struct.Struct("<QII")
CONFIRMED, UNWANTED, EXPIRED, DEAD = 0, 1, 2, 3
"""How a DELIVERED came about: confirmed; nobody was to have it; it expired; it became a dead message."""
CREDIT = struct.Struct("<IIQ")
ACK = struct.Struct("<IIQ")
RANGE = struct.Struct("<QQ")
DELIVER = struct.Struct("<II")
SLICE = struct.Struct("<QIIII")
"""First sequence, delivery count, flags, batch bytes, zero; the batch follows."""
REDELIVERED = 1
"""Flag of a slice: a consumer may have seen these messages before."""
CLOSED = struct.Struct("<II")

Ranges = Sequence[tuple[int, int]]


class Slice(NamedTuple):
    """Part of a delivery: messages with consecutive sequences from `first`."""

    first: int
    delivery_count: int
    redelivered: bool
    batch: memoryview


class Fragment(NamedTuple):
    """Some bytes of a large body on their way to the broker."""

    stream: bytes
    offset: int
    destination: bytes
    data: memoryview


def fragment_parts(stream: bytes, offset: int, destination: bytes, data: Buffer) -> list[Buffer]:
    """Payload of FRAGMENT."""
    return [FRAGMENT.pack(stream, offset, len(destination)) + destination, data]


def unpack_fragment(payload: memoryview) -> Fragment:
    """Payload of FRAGMENT. Raises `BadFrame` when it is too short or too long."""
    stream, offset, name_bytes = FRAGMENT.unpack_from(payload)
    at = FRAGMENT.size + name_bytes
    if not at < len(payload) <= at + limits.FRAGMENT_BYTES_MAX:
        raise BadFrame(detail=f"a fragment of {len(payload)} bytes")
    return Fragment(stream, offset, bytes(payload[FRAGMENT.size : at]), payload[at:])


def pack_ack(consumer: int, request: int, ranges: Ranges) -> bytes:
    """Payload of CONFIRM and REJECT; request 0 wants no answer."""
    return b"".join((ACK.pack(consumer, 0, request), *(RANGE.pack(first, end) for first, end in ranges)))


def unpack_ack(payload: memoryview) -> tuple[int, int, list[tuple[int, int]]]:
    """(consumer, request, ranges). Raises `BadFrame` unless ranges are whole, bounded and not empty."""
    size = len(payload) - ACK.size
    if size < 0 or size % RANGE.size or size > RANGE.size * limits.RANGES_PER_FRAME_MAX:
        raise BadFrame(detail=f"a confirmation of {len(payload)} bytes")
    consumer, _zero, request = ACK.unpack_from(payload)
    ranges = list(RANGE.iter_unpack(payload[ACK.size :]))
    for first, end in ranges:
        if first >= end:
            raise BadFrame(detail=f"the range {first} to {end} is empty")
    return consumer, request, ranges


def deliver_parts(consumer: int, slices: Sequence[tuple[int, int, bool, Sequence[Buffer]]]) -> list[Buffer]:
    """Payload of DELIVER from (first sequence, delivery count, redelivered, parts of the batch)."""
    parts: list[Buffer] = [DELIVER.pack(consumer, len(slices))]
    for first, delivery_count, redelivered, batch_parts in slices:
        size = sum(map(len, batch_parts))
        parts.append(SLICE.pack(first, delivery_count, REDELIVERED if redelivered else 0, size, 0))
        parts.extend(batch_parts)
    return parts


def unpack_deliver(payload: memoryview) -> tuple[int, list[Slice]]:
    """(consumer, slices). Raises `BadFrame` when sizes do not add up."""
    try:
        consumer, count = DELIVER.unpack_from(payload)
        at = DELIVER.size
        slices: list[Slice] = []
        for _ in range(count):
            first, deliveries, flags, size, _zero = SLICE.unpack_from(payload, at)
            at += SLICE.size
            slices.append(Slice(first, deliveries, bool(flags & REDELIVERED), payload[at : at + size]))
            at += size
    except struct.error as error:
        raise BadFrame(detail=str(error)) from None
    if at != len(payload):
        raise BadFrame(detail=f"a delivery of {len(payload)} bytes should have {at}")
    return consumer, slices
