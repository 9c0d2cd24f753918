"""Sparse batches: ids with gaps go in and come out, of slices too, and no lie about them gets past `parse` (B-11)."""

from __future__ import annotations

import random
import struct
from itertools import accumulate

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion import ids
from clarion.errors import BadBatch, ClarionError
from clarion.wire.batch import GROUPS, HEADERS, IDS, TIMES, Batch, encode

PRODUCER = (3 << 118) + (5 << 104) + (77 << 64) + (2 << 48)
U32_MAX = (1 << 32) - 1
GAPS = st.lists(st.integers(1, 3) | st.integers(1, 1 << 26), max_size=12)


def bodies_of(count: int) -> list[bytes]:
    return [f"{number}".encode() * (number % 4) for number in range(count)]


def sparse(deltas: list[int], columns: int, first: int = 1_000) -> Batch:
    """A batch with these ids, and the optional columns whose flags are given."""
    count = len(deltas)
    return Batch.parse(
        encode(
            b"queue:q",
            PRODUCER + first,
            bodies_of(count),
            [f"h{number}".encode() for number in range(count)] if columns & HEADERS else None,
            list(range(7, 7 + count)) if columns & GROUPS else None,
            list(range(0, 3 * count, 3)) if columns & TIMES else None,
            created_ms=50,
            id_deltas=deltas,
        )
    )


def check(batch: Batch, origin: Batch, indexes: list[int]) -> None:
    """The messages of a batch are those of its origin at these places, in every column."""
    assert batch.count == len(indexes)
    for index, at in enumerate(indexes):
        assert batch.id_of(index) == origin.id_of(at)
        assert [bytes(part) for part in batch.record(index)] == [bytes(part) for part in origin.record(at)]
        assert batch.time_ms(index) == origin.time_ms(at)
    if origin.flags & GROUPS:
        assert batch.groups().tolist() == origin.groups()[indexes].tolist()
    assert batch.data_bytes(0, batch.count) == len(batch.data)


@given(GAPS, st.integers(0, 7), st.data())
def test_b11_a_sparse_batch_and_all_its_slices_have_their_ids(
    gaps: list[int], columns: int, data: st.DataObject
) -> None:
    deltas = list(accumulate(gaps, initial=0))
    batch = sparse(deltas, columns)
    assert batch.flags == columns | IDS
    assert [batch.id_of(index) for index in range(batch.count)] == [PRODUCER + 1_000 + delta for delta in deltas]
    first = data.draw(st.integers(0, batch.count - 1))
    end = data.draw(st.integers(first + 1, batch.count))
    part = Batch.parse(b"".join(batch.slice_parts(first, end)))
    check(part, batch, list(range(first, end)))
    middle = data.draw(st.integers(0, part.count - 1))
    check(Batch.parse(part.sliced(middle, part.count).buffer), batch, list(range(first + middle, end)))


@given(GAPS, st.integers(0, 7), st.booleans(), st.data())
def test_b11_messages_that_are_picked_keep_their_ids(
    gaps: list[int], columns: int, gapless: bool, data: st.DataObject
) -> None:
    """Also out of an ordinary batch, and out of a slice, whose offsets do not begin with 0."""
    batch = sparse(list(accumulate(gaps, initial=0)), columns)
    if gapless:
        ordinary = encode(b"queue:q", PRODUCER + 9, bodies_of(batch.count), created_ms=50)
        batch = Batch.parse(ordinary)
    chosen = sorted(data.draw(st.sets(st.integers(0, batch.count - 1), min_size=1)))
    ranges = [(index, index + 1) for index in chosen]
    check(Batch.parse(batch.picked(ranges).buffer), batch, chosen)
    rest = batch.sliced(chosen[0], batch.count)
    check(Batch.parse(rest.picked([(low - chosen[0], high - chosen[0]) for low, high in ranges]).buffer), batch, chosen)


def test_b11_an_ordinary_batch_pays_nothing() -> None:
    batch = Batch.parse(encode(b"q", PRODUCER + 5, [b"x"] * 4))
    assert batch.flags == 0 and batch.size == 80 + 4 + 4 * 5 + 4
    assert [batch.id_of(index) for index in range(4)] == [PRODUCER + 5 + index for index in range(4)]


def test_b11_the_last_id_may_be_the_last_of_its_producer() -> None:
    room = ids.SEQUENCE_MAX - U32_MAX
    batch = sparse([0, U32_MAX], 0, first=room)
    assert batch.id_of(1) == PRODUCER + ids.SEQUENCE_MAX
    for deltas, first in (([0, U32_MAX], room + 1), ([0, 1], ids.SEQUENCE_MAX)):
        with pytest.raises(BadBatch, match="beyond the last"):
            sparse(deltas, 0, first)


@pytest.mark.parametrize("columns", range(8))
@pytest.mark.parametrize("deltas", [[1], [5, 6], [0, 0], [0, 2, 2], [0, 3, 2], [0, 5, 4, 9], [0, U32_MAX, U32_MAX - 1]])
def test_b01_ids_that_do_not_ascend_from_the_first_are_refused(deltas: list[int], columns: int) -> None:
    with pytest.raises(BadBatch, match="do not ascend"):
        sparse(deltas, columns)


def resealed(buffer: bytearray) -> bytearray:
    buffer[:4] = crc32c(bytes(buffer[4:])).to_bytes(4, "little")
    return buffer


@pytest.mark.parametrize("count", [1, 2, 5])
def test_b01_a_flag_without_its_column_is_refused(count: int) -> None:
    """Bodies are then taken for columns, or columns for bodies: offsets do not fit the data any more."""
    for flags, wrong in ((0, IDS), (IDS, 0), (0, 16), (IDS, IDS | 16)):
        deltas = list(range(0, 2 * count, 2)) if flags else None
        buffer = encode(b"q", PRODUCER + 1, [b"body"] * count, id_deltas=deltas)
        struct.pack_into("<I", buffer, 12, wrong)
        with pytest.raises(BadBatch):
            Batch.parse(resealed(buffer))


@settings(max_examples=200)
@given(GAPS, st.data())
def test_b01_a_changed_byte_of_a_sparse_batch_is_always_noticed(gaps: list[int], data: st.DataObject) -> None:
    buffer = bytearray(sparse(list(accumulate(gaps, initial=0)), HEADERS).buffer)
    at = data.draw(st.integers(0, len(buffer) - 1))
    buffer[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ClarionError):
        Batch.parse(buffer)


def test_b01_lies_with_a_good_checksum_are_refused_or_harmless() -> None:
    """Random bytes of header and columns: what is parsed ascends, and can be sliced and read to its end."""
    generator, parsed = random.Random(11), 0
    for _ in range(5_000):
        deltas = list(accumulate((generator.choice([1, 2, 900]) for _ in range(generator.randint(0, 6))), initial=0))
        batch = sparse(deltas, generator.randrange(8))
        buffer = bytearray(batch.buffer)
        for _ in range(generator.choice([1, 1, 3])):
            buffer[generator.randrange(4, len(buffer) - len(batch.data))] = generator.choice([0, 1, 8, 15, 255])
        try:
            lie = Batch.parse(resealed(buffer))
        except ClarionError:
            continue
        parsed += 1
        found = [lie.id_of(index) for index in range(lie.count)]
        assert found == sorted(set(found)) and {ids.producer_of(one) for one in found} == {ids.producer_of(found[0])}
        for first in range(lie.count):
            check(Batch.parse(lie.sliced(first, lie.count).buffer), lie, list(range(first, lie.count)))
    assert parsed > 50
