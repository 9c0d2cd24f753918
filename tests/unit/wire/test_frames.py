"""Frames are cut the same way however the bytes arrive, and bad ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.errors import BadFrame, FrameTooLarge
from clarion.wire import commands, frames

FRAMES = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=50)), max_size=8)


@given(FRAMES, st.data())
def test_b01_frames_survive_any_cutting_of_the_stream(
    wanted: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(b"".join(frames.frame(kind, channel, [body])) for kind, channel, body in wanted)
    reader = frames.FrameReader()
    got: list[tuple[int, int, bytes]] = []
    at = 0
    while at < len(stream):
        step = data.draw(st.integers(1, len(stream) - at))
        got += [(f.type, f.channel, bytes(f.payload)) for f in reader.feed(stream[at : at + step])]
        at += step
    assert got == wanted
    assert reader.buffered == 0


def test_b01_a_size_over_the_limit_is_refused_from_the_header_alone() -> None:
    reader = frames.FrameReader(limit=1_000)
    with pytest.raises(FrameTooLarge):
        list(reader.feed(frames.HEADER.pack(1_001, 3, 0, 0, 0)))
    assert reader.buffered == 0


@given(st.lists(st.tuples(st.integers(0, 2**63), st.integers(1, 1000)), min_size=1, max_size=20), st.integers(0, 9))
def test_a08_confirmations_travel_as_ranges(pairs: list[tuple[int, int]], request: int) -> None:
    ranges = [(first, first + size) for first, size in pairs]
    payload = memoryview(frames.pack_ack(7, request, ranges))
    assert frames.unpack_ack(payload) == (7, request, ranges)


@pytest.mark.parametrize(
    "payload", [b"", b"\0" * 15, b"\0" * 17, frames.pack_ack(1, 1, [(5, 5)]), bytes(16 + 16 * 1025)]
)
def test_a08_a_confirmation_that_makes_no_sense_is_refused(payload: bytes) -> None:
    with pytest.raises(BadFrame):
        frames.unpack_ack(memoryview(payload))


@given(st.lists(st.tuples(st.integers(1, 2**40), st.integers(1, 9), st.booleans(), st.binary(max_size=30)), max_size=6))
def test_b04_deliveries_travel_as_slices(slices: list[tuple[int, int, bool, bytes]]) -> None:
    parts = frames.deliver_parts(9, [(first, count, again, [body]) for first, count, again, body in slices])
    consumer, got = frames.unpack_deliver(memoryview(b"".join(parts)))
    assert consumer == 9
    assert [(s.first, s.delivery_count, s.redelivered, bytes(s.batch)) for s in got] == slices
    if slices:
        with pytest.raises(BadFrame):
            frames.unpack_deliver(memoryview(b"".join(parts))[:-1])


@pytest.mark.parametrize("payload", [b"\xc1", b"\x91", b"\xdb\xff\xff\xff\xff", b"\x91" * 5_000 + b"\xc0"])
def test_b01_control_payloads_that_are_not_messagepack_are_refused(payload: bytes) -> None:
    with pytest.raises(BadFrame):
        frames.unpack(payload)


def test_b05_a_command_names_its_session_and_its_channel_follows_from_it() -> None:
    session = (77 << 64) + (3 << 48)
    command = commands.decode(commands.encode(20, session, [b"ab", b"c"], flags=1))
    assert (command.type, command.flags, command.session, bytes(command.payload)) == (20, 1, session, b"abc")
    assert commands.session_channel(session) == commands.session_channel(session + (9 << 48))
    assert commands.session_channel(session) != commands.session_channel(session + (1 << 64))
