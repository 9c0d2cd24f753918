"""The batch: what goes in comes out, slices are batches, and nothing inconsistent gets past `parse`."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion import limits
from clarion.errors import BadBatch, ClarionError, MessageTooLarge
from clarion.message import Headers, decode_headers, encode_headers
from clarion.wire.batch import Batch, encode, encode_lone

BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=12)
FIRST_ID = (3 << 118) + (5 << 104) + (77 << 64) + (2 << 48) + 1_000


@given(BODIES, st.booleans(), st.booleans(), st.integers(0, 9), st.data())
def test_b04_a_batch_and_all_its_slices_give_back_what_went_in(
    bodies: list[bytes], with_headers: bool, with_times: bool, priority: int, data: st.DataObject
) -> None:
    headers = [encode_headers(Headers(type=f"t{n}", properties={"n": n})) for n in range(len(bodies))]
    times = list(range(0, 10 * len(bodies), 10))
    buffer = encode(
        "queue:größe".encode(),
        FIRST_ID,
        bodies,
        headers if with_headers else None,
        None,
        times if with_times else None,
        priority=priority,
        created_ms=5_000,
    )
    batch = Batch.parse(buffer)
    first = data.draw(st.integers(0, len(bodies) - 1))
    end = data.draw(st.integers(first + 1, len(bodies)))
    part = Batch.parse(b"".join(batch.slice_parts(first, end)))
    middle = data.draw(st.integers(0, part.count - 1))
    again = Batch.parse(part.sliced(middle, part.count).buffer)
    for view, offset in ((batch, 0), (part, first), (again, first + middle)):
        assert view.destination.decode() == "queue:größe"
        assert view.priority == priority
        assert view.first_id == FIRST_ID + offset
        for index in range(view.count):
            raw_headers, body = view.record(index)
            assert bytes(body) == bodies[offset + index]
            assert view.time_ms(index) == 5_000 + (times[offset + index] if with_times else 0)
            if with_headers:
                assert decode_headers(raw_headers).properties == {"n": offset + index}
        assert view.data_bytes(0, view.count) == len(view.data)


@given(BODIES, st.integers(0, 200), st.data())
def test_b04_fit_is_the_most_that_fits_and_at_least_one(bodies: list[bytes], room: int, data: st.DataObject) -> None:
    batch = Batch(encode(b"q", FIRST_ID, bodies))
    first = data.draw(st.integers(0, len(bodies) - 1))
    stop = batch.fit(first, len(bodies), room)
    fitting = [n for n in range(first + 1, len(bodies) + 1) if sum(map(len, bodies[first:n])) <= room]
    assert stop == max([first + 1, *fitting])


@settings(max_examples=400)
@given(BODIES, st.data())
def test_b01_a_changed_byte_is_always_noticed(bodies: list[bytes], data: st.DataObject) -> None:
    buffer = encode(b"queue:orders", FIRST_ID, bodies)
    at = data.draw(st.integers(0, len(buffer) - 1))
    buffer[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ClarionError):
        Batch.parse(buffer)


def test_b01_random_and_cut_bytes_never_parse_and_never_crash() -> None:
    generator = random.Random(7)
    good = bytes(encode(b"q", FIRST_ID, [b"x" * 20] * 5))
    for size in range(len(good)):
        with pytest.raises(ClarionError):
            Batch.parse(good[:size])
    for _ in range(2_000):
        with pytest.raises(ClarionError):
            Batch.parse(generator.randbytes(generator.randint(0, 300)))


def _patched(at: int, value: bytes) -> bytearray:
    """A batch with a lie in it and a checksum that fits the lie."""
    from crc32c import crc32c

    buffer = encode(b"qq", FIRST_ID, [b"body"] * 3, [b"\x80"] * 3)
    buffer[at : at + len(value)] = value
    buffer[:4] = crc32c(bytes(buffer[4:])).to_bytes(4, "little")
    return buffer


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (4, b"\xff\xff\x00\x00"),  # size
        (8, b"\x00\x00"),  # magic
        (10, b"\x02"),  # version
        (11, b"\x0a"),  # priority
        (12, b"\x80\x00\x00\x00"),  # flags
        (32, b"\x00\x00\x00\x00"),  # count
        (32, b"\xff\xff\xff\x7f"),
        (36, b"\x01\x00\x00\x00"),  # base
        (40, b"\xff" * 8),  # a negative time
        (72, b"\x00\x00"),  # no destination
        (72, b"\xff\xff"),
        (74, b"\x01\x00"),  # zero
        (84, b"\x05\x00\x00\x00"),  # offsets
        (88, b"\xff\xff\xff\xff"),
        (100, b"\x09\x00\x00\x00"),  # headers larger than their record
    ],
)
def test_b01_a_lie_with_a_good_checksum_is_refused(at: int, value: bytes) -> None:
    with pytest.raises((BadBatch, MessageTooLarge)):
        Batch.parse(_patched(at, value))


def test_b01_a_batch_over_the_limit_is_refused_with_its_size() -> None:
    buffer = encode(b"q", FIRST_ID, [bytes(limits.BATCH_BYTES_MAX)])
    with pytest.raises(MessageTooLarge) as caught:
        Batch.parse(buffer)
    assert caught.value.facts["limit"] == limits.BATCH_BYTES_MAX


@given(st.binary(min_size=1, max_size=40), st.binary(max_size=300), st.integers(0, 1 << 45))
def test_b04_a_lone_message_is_encoded_to_the_same_bytes(name: bytes, body: bytes, created_ms: int) -> None:
    lone = encode_lone(name, FIRST_ID, body, created_ms)
    assert lone == encode(name, FIRST_ID, [body], created_ms=created_ms)
    assert bytes(Batch.parse(lone).record(0)[1]) == body
