"""Offsets of the Spark source against naive models."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.errors import BadArgument
from clarion.spark import offsets
from clarion.spark.offsets import Offsets, Position, Range


class Extent(NamedTuple):
    """As a reader reports a destination."""

    destination: str
    identity: int
    floor: int
    end: int


NAMES = [f"topic:{name}" for name in "abcde"]


@st.composite
def extents(draw: st.DrawFn) -> list[Extent]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    made = []
    for name in names:
        floor = draw(st.integers(1, 30))
        made.append(Extent(name, draw(st.integers(1, 3)), floor, floor + draw(st.integers(0, 30))))
    return made


positions = st.dictionaries(
    st.sampled_from(NAMES), st.builds(Position, st.integers(1, 3), st.integers(1, 70)), max_size=len(NAMES)
)


def unread(start: Offsets, found: list[Extent]) -> set[tuple[str, int, int]]:
    """Naive: every message that `start` has not read, one by one."""
    return {
        (one.destination, one.identity, sequence)
        for one in found
        for sequence in range(one.floor, one.end)
        if one.destination not in start
        or start[one.destination].identity != one.identity
        or sequence >= start[one.destination].next
    }


def messages(ranges: list[Range]) -> list[tuple[str, int, int]]:
    return [(one.destination, one.identity, sequence) for one in ranges for sequence in range(one.first, one.end)]


def floors(found: list[Extent]) -> dict[tuple[str, int], int]:
    return {(one.destination, one.identity): one.floor for one in found}


@settings(deadline=None)
@given(positions, extents(), st.integers(1, 80) | st.none())
def test_d01_a_batch_is_a_prefix_of_what_is_unread_and_as_large_as_it_may_be(
    start: Offsets, found: list[Extent], rows_max: int | None
) -> None:
    wanted = unread(start, found)
    end = offsets.admit(start, found, rows_max)
    taken = messages(offsets.between(start, end, floors(found)))
    assert len(taken) == len(set(taken)) == (len(wanted) if rows_max is None else min(rows_max, len(wanted)))
    assert set(taken) <= wanted
    for name, identity, sequence in wanted - set(taken):  # of each destination the oldest ones
        assert all(other < sequence for one, life, other in taken if (one, life) == (name, identity))
    assert unread(end, found) == wanted - set(taken)
    assert offsets.lag(start, found) == len(wanted)


@settings(deadline=None)
@given(positions, extents(), st.integers(1, 80))
def test_d01_rows_are_shared_out_fairly(start: Offsets, found: list[Extent], rows_max: int) -> None:
    waiting = {one.destination: sum(name == one.destination for name, _, _ in unread(start, found)) for one in found}
    end = offsets.admit(start, found, rows_max)
    ranges = offsets.between(start, end, floors(found))
    taken = {one.destination: one.rows for one in ranges}
    for name, count in waiting.items():
        if taken.get(name, 0) < count:  # it was cut: nobody has more than one row more than it
            assert max(taken.values()) <= taken.get(name, 0) + 1
    assert len(taken) >= min(rows_max, sum(count > 0 for count in waiting.values()))


@settings(deadline=None)
@given(positions, extents(), st.lists(st.integers(1, 20), max_size=40))
def test_d01_batch_after_batch_everything_is_read_once(start: Offsets, found: list[Extent], limits: list[int]) -> None:
    wanted, seen, at = unread(start, found), [], start
    for rows_max in [*limits, None]:
        end = offsets.admit(at, found, rows_max)
        seen += messages(offsets.between(at, end, floors(found)))
        at = offsets.decode(json.loads(json.dumps(offsets.encode(end))))
    assert sorted(seen) == sorted(wanted)
    assert offsets.admit(at, found, None) == at


@settings(deadline=None)
@given(positions, extents(), st.integers(1, 9))
def test_d01_partitions_are_a_cut_of_the_batch(start: Offsets, found: list[Extent], partitions: int) -> None:
    ranges = offsets.between(start, offsets.admit(start, found), floors(found))
    parts = offsets.split(ranges, partitions)
    rows = [sum(one.rows for one in part) for part in parts]
    assert messages([one for part in parts for one in part]) == messages(ranges)
    assert len(parts) <= partitions
    assert all(rows) and (not rows or max(rows) == -(-sum(rows) // partitions))


@settings(deadline=None)
@given(positions, extents())
def test_d01_only_what_was_read_is_confirmed(end: Offsets, found: list[Extent]) -> None:
    confirmed = {
        (name, sequence)
        for name, ranges in offsets.below(end, found).items()
        for first, stop in ranges
        for sequence in range(first, stop)
    }
    by_name = {one.destination: one for one in found}
    for name, sequence in confirmed:
        assert end[name].identity == by_name[name].identity and sequence < end[name].next
    missing = {(name, sequence) for name, _, sequence in unread({}, found)} - confirmed
    for name, sequence in missing:
        assert name not in end or end[name].identity != by_name[name].identity or sequence >= end[name].next


def test_d01_a_vanished_destination_keeps_its_position_and_a_new_life_begins_anew() -> None:
    start = {"topic:a": Position(1, 10), "topic:b": Position(1, 7)}
    found = [Extent("topic:b", 2, 1, 4)]
    end = offsets.admit(start, found)
    assert end == {"topic:a": Position(1, 10), "topic:b": Position(2, 4)}
    assert offsets.between(start, end) == [Range("topic:b", 2, 1, 4)]
    assert offsets.below(start, found) == {}


def test_d01_a_destination_that_joins_is_read_from_its_floor() -> None:
    found = [Extent("topic:new", 5, 3, 6)]
    end = offsets.admit({}, found)
    assert offsets.between({}, end, floors(found)) == [Range("topic:new", 5, 3, 6)]
    assert offsets.between({}, end) == [Range("topic:new", 5, 1, 6)]
    assert offsets.initial(found) == {"topic:new": Position(5, 3)}


def test_d01_offsets_are_one_text_whatever_the_order_and_name_their_source() -> None:
    source = {"url": "clarion://h:1", "destination": "glob:*", "subscription": "s"}
    one = {"topic:b": Position(1, 2), "topic:a": Position(3, 4)}
    other = dict(reversed(one.items()))
    assert json.dumps(offsets.encode(one, source)) == json.dumps(offsets.encode(other, source))
    assert offsets.encode(one, source)[offsets.SOURCE] == source
    assert offsets.decode(offsets.encode(one, source)) == one


@pytest.mark.parametrize("value", [{"topic:a": 3}, {"topic:a": ["x", 1]}, {"topic:a": [1]}, {"topic:a": None}])
def test_d01_a_foreign_offset_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(BadArgument, match="was not written by this source"):
        offsets.decode(value)
