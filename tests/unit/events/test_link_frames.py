"""Frames between event systems: what goes in comes out, and whatever bytes come, nothing else happens (A-10, A-11)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion import limits
from clarion.errors import BadFrame, Blocked, ClarionError, FrameTooLarge, ProtocolError, VersionMismatch
from clarion.events.link import frames
from clarion.events.link.confirmations import pack_confirmations, parts_of, unpack_confirmations
from clarion.events.link.frames import Frame, Heartbeat, Held, Hello, Incoming, Role, Type
from clarion.events.memory.layout import Recorded

u64 = st.integers(0, 2**64 - 1)
producers = st.integers(0, 2**128 - 1)
names = st.text(min_size=1, max_size=60).filter(lambda name: len(name.encode()) <= limits.NAME_BYTES_MAX)
events = st.builds(
    Recorded, producers, u64, u64, st.integers(0, 255), u64, st.integers(0, 2**32 - 1), st.integers(0, 255),
    st.binary(max_size=100), st.binary(max_size=300),
)  # fmt: skip
heartbeats = st.builds(Heartbeat, u64, u64, u64, u64, st.booleans(), st.booleans())
hellos = st.builds(
    Hello, names, st.sampled_from(Role), u64, st.integers(2_000, limits.EVENT_LINK_FRAME_BYTES_MAX), producers,
    st.lists(st.builds(Held, producers, u64, u64), max_size=5).map(tuple),
)  # fmt: skip
ranges = st.tuples(producers, st.integers(0, 1000), st.integers(1, 1000)).map(lambda r: (r[0], r[1], r[1] + r[2]))
confirmations = st.lists(st.tuples(names, st.lists(ranges, min_size=1, max_size=8)), max_size=5)

READERS: dict[Type, Callable[[memoryview], object]] = {
    Type.HELLO: frames.unpack_hello,
    Type.PUT: lambda payload: [frames.recorded_of(one) for one in frames.unpack_put(payload)[1]],
    Type.STORED: frames.unpack_stored,
    Type.CONFIRMED: unpack_confirmations,
    Type.RELEASED: frames.unpack_released,
    Type.HEARTBEAT: frames.unpack_heartbeat,
    Type.GIVE_BACK_ASK: frames.unpack_epoch,
    Type.GIVE_BACK: unpack_confirmations,
    Type.GIVE_BACK_DONE: frames.unpack_epoch,
    Type.NOTE: bytes,
    Type.ERROR: frames.unpack_error,
}


def put(group: list[Recorded], number: int = 7) -> bytes:
    buffer = memoryview(bytearray(64 * 1024))
    at = frames.begin_put(buffer, frames.pack_producer(99))
    for event in group:
        rest = memoryview(frames.rest_of(event))
        at = frames.add_record(buffer, at, frames.pack_producer(event.producer), event.sequence, rest)
    return bytes(buffer[: frames.end_put(buffer, at, len(group), number)])


def cut(incoming: Incoming, data: bytes, step: int) -> list[tuple[int, int, int, bytes]]:
    """Feed bytes as a socket would, in pieces."""
    found: list[tuple[int, int, int, bytes]] = []
    while data:
        room = incoming.room()
        count = min(step, len(room), len(data))
        room[:count] = data[:count]
        incoming.received(count)
        data = data[count:]
        while (frame := incoming.peek()) is not None:
            found.append((frame.type, frame.flags, frame.number, bytes(frame.payload)))
            incoming.drop()
    return found


def payload_of(whole: bytes) -> memoryview:
    return memoryview(whole)[frames.HEADER_BYTES :]


@given(st.lists(events, max_size=6))
def test_a10_records_come_out_as_they_went_in(group: list[Recorded]) -> None:
    section, records = frames.unpack_put(payload_of(put(group)))
    assert section == 99
    found = [frames.recorded_of(record) for record in records]
    for event in found:
        event.headers, event.body = bytes(event.headers), bytes(event.body)
    assert found == group


@given(hellos, heartbeats, confirmations, u64)
def test_a10_everything_else_does_too(
    hello: Hello, heartbeat: Heartbeat, confirmed: list[tuple[str, list[tuple[int, int, int]]]], number: int
) -> None:
    assert frames.unpack_hello(memoryview(frames.pack_hello(hello))) == hello
    assert frames.unpack_heartbeat(memoryview(frames.pack_heartbeat(heartbeat))) == heartbeat
    packed = pack_confirmations(confirmed, number, 5)
    assert unpack_confirmations(memoryview(packed)) == (number, 5, confirmed)
    assert frames.unpack_released(memoryview(frames.pack_released(77, number))) == (77, number)
    assert frames.unpack_epoch(memoryview(frames.pack_epoch(number))) == number


def test_a10_an_error_crosses_as_itself() -> None:
    error = frames.unpack_error(memoryview(frames.pack_error(Blocked(destination="partner-a", detail="full"))))
    assert isinstance(error, Blocked)
    assert error.facts == {"destination": "partner-a", "detail": "full"}


@given(confirmations, st.integers(600, 2_000))
def test_a10_confirmations_are_cut_to_fit_and_nothing_is_left_out(
    confirmed: list[tuple[str, list[tuple[int, int, int]]]], frame_bytes_max: int
) -> None:
    parts = list(parts_of(confirmed, frame_bytes_max))
    for part in parts:
        assert len(pack_confirmations(part)) + frames.HEADER_BYTES <= frame_bytes_max
    flat = [(name, one) for part in parts for name, some in part for one in some]
    assert flat == [(name, one) for name, some in confirmed for one in some]


@given(st.lists(st.tuples(st.sampled_from(Type), st.binary(max_size=200)), max_size=8), st.integers(1, 300))
def test_a10_frames_are_cut_wherever_the_pieces_end(sent: list[tuple[Type, bytes]], step: int) -> None:
    data = b"".join(frames.frame(kind, payload, number) for number, (kind, payload) in enumerate(sent))
    found = cut(Incoming(300), data, step)
    assert found == [(kind, 0, number, payload) for number, (kind, payload) in enumerate(sent)]


@given(st.binary(max_size=600), st.integers(1, 600))
def test_a10_hostile_bytes_are_no_frame_and_nothing_worse(data: bytes, step: int) -> None:
    try:
        cut(Incoming(500), data, step)
    except ProtocolError:
        pass


@given(st.sampled_from(Type), st.binary(max_size=300))
@settings(max_examples=500)
def test_a10_hostile_payloads_are_refused_and_nothing_worse(kind: Type, payload: bytes) -> None:
    try:
        READERS[kind](memoryview(payload))
    except ProtocolError:
        pass


SAMPLES = [
    put([Recorded(1, 2, 3, 40, 5, 6, 0, b"headers", b"body"), Recorded(1, 3, 4, 40, 5, 6, 0, b"", b"")]),
    frames.frame(Type.HELLO, frames.pack_hello(Hello("a", Role.PARTNER, sections=(Held(1, 2, 3),)))),
    frames.frame(Type.CONFIRMED, pack_confirmations([("log", [(1, 2, 3), (4, 5, 6)])], 9)),
    frames.frame(Type.HEARTBEAT, frames.pack_heartbeat(Heartbeat(1, 2, 3, 4, True, True))),
    frames.frame(Type.ERROR, frames.pack_error(Blocked(destination="x", detail="y"))),
]


@pytest.mark.parametrize("sample", SAMPLES)
def test_a10_every_flipped_bit_is_noticed(sample: bytes) -> None:
    for bit in range(8 * len(sample)):
        damaged = bytearray(sample)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert cut(Incoming(4096), bytes(damaged), 4096) == []  # a longer frame may be announced now: it waits
        except ProtocolError:
            pass


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=400)
def test_a10_a_forger_who_knows_checksums_gets_no_further(sample: bytes, data: st.DataObject) -> None:
    payload = bytearray(payload_of(sample))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)))]
    try:
        READERS[Type(sample[8])](memoryview(bytes(payload)))
    except ProtocolError:
        pass


def test_a10_sizes_and_versions_are_bounded() -> None:
    with pytest.raises(FrameTooLarge):
        cut(Incoming(100), frames.frame(Type.NOTE, bytes(200)), 50)
    with pytest.raises(VersionMismatch):
        hello = bytearray(frames.pack_hello(Hello("a", Role.PARTNER)))
        hello[8] = 9
        frames.unpack_hello(memoryview(hello))
    with pytest.raises(BadFrame):
        frames.unpack_hello(memoryview(b"GET / HTTP/1.1" + bytes(100)))


def test_a10_a_buffer_is_never_without_room_for_the_rest_of_a_frame() -> None:
    incoming = Incoming(100)
    for _ in range(50):
        for step in (1, 7, 84):
            whole = frames.frame(Type.NOTE, bytes(84))
            assert len(cut(incoming, whole, step)) == 1


def test_a10_a_frame_is_a_view_and_an_error_is_ours() -> None:
    incoming = Incoming(100)
    cut(incoming, b"", 1)
    assert incoming.peek() is None
    assert Frame._fields == ("type", "flags", "number", "payload")
    assert issubclass(BadFrame, ClarionError)
