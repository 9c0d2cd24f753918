"""Which events a multiplexer knows, against a dictionary that knows each one (A-11)."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion import limits
from clarion.events.multiplex.origins import BUCKETS, COMPLETE, HELD, RANGES_KEPT, RANGES_MAX, Origins, bucket_of

PRODUCER = 7 << 64

_changes = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12), st.booleans()), max_size=40)


def _apply(origins: Origins, changes: list[tuple[int, int, bool]]) -> dict[int, int]:
    model: dict[int, int] = {}
    for first, count, complete in changes:
        (origins.complete if complete else origins.hold)(PRODUCER, first, first + count)
        model.update(dict.fromkeys(range(first, first + count), COMPLETE if complete else HELD))
    return model


@given(_changes)
def test_a11_an_event_is_known_if_and_only_if_it_was_put(changes: list[tuple[int, int, bool]]) -> None:
    origins = Origins()
    model = _apply(origins, changes)
    assert [origins.state(PRODUCER, at) for at in range(80)] == [model.get(at) for at in range(80)]
    found: dict[int, int | None] = {}
    for first, end, state in origins.pieces(PRODUCER, 5, 70):
        assert first < end
        found.update(dict.fromkeys(range(first, end), state))
    assert found == {at: model.get(at) for at in range(5, 70)}
    pieces = origins._pieces.get(PRODUCER, [])
    for (_, end, state), (first, _, following) in pairwise(pieces):
        assert end < first or (end == first and state != following)


@given(_changes, _changes)
def test_a11_what_is_complete_is_known_after_a_restart(
    before: list[tuple[int, int, bool]], after: list[tuple[int, int, bool]]
) -> None:
    origins = Origins()
    model = _apply(origins, before)
    origins.comes(PRODUCER, 1)
    origins.will_not_come(PRODUCER, 1, 9)
    value = origins.dump(bucket_of(PRODUCER))
    fresh = Origins()
    fresh.load(value)
    complete = {at: state for at, state in model.items() if state == COMPLETE}
    assert {at: fresh.state(PRODUCER, at) for at in range(80) if fresh.state(PRODUCER, at) is not None} == complete
    assert {**complete, **_apply(fresh, after)} == {
        at: state for at in range(80) if (state := fresh.state(PRODUCER, at)) is not None
    }


def test_a11_a_sender_that_leaves_gaps_costs_a_bounded_number_of_ranges() -> None:
    origins = Origins()
    origins.comes(PRODUCER, 1)
    for at in range(1, 4 * RANGES_MAX, 2):
        origins.hold(PRODUCER, at, at + 1)
        origins.complete(PRODUCER, at, at + 1)
        if at % 1_000 == 1:
            origins.will_not_come(PRODUCER, 1, at - 500)
    assert len(origins._pieces[PRODUCER]) < RANGES_KEPT + 1_000
    assert origins.state(PRODUCER, 4 * RANGES_MAX - 1) == COMPLETE
    silent = Origins()
    for at in range(1, 4 * RANGES_MAX, 2):
        silent.complete(PRODUCER, at, at + 1)
    assert len(silent._pieces[PRODUCER]) <= RANGES_MAX + 128
    assert silent.state(PRODUCER, 4 * RANGES_MAX - 1) == COMPLETE
    assert len(silent.dump(bucket_of(PRODUCER))) <= limits.EVENT_VALUE_BYTES_MAX


def test_a11_held_events_are_never_forgotten() -> None:
    origins = Origins()
    origins.hold(PRODUCER, 1, 2)
    for at in range(3, 4 * RANGES_MAX, 2):
        origins.complete(PRODUCER, at, at + 1)
    assert origins.state(PRODUCER, 1) == HELD
    assert origins.floor(PRODUCER) == 0
    origins.comes(PRODUCER, 1)
    origins.will_not_come(PRODUCER, 1, 10)
    assert origins.floor(PRODUCER) == 1
    origins.complete(PRODUCER, 1, 2)
    assert origins.floor(PRODUCER) == 10


def test_a11_too_many_producers_make_the_oldest_forgotten_and_no_value_too_large() -> None:
    origins = Origins()
    producers = [(8 << 64) + (number << 48) for number in range(1, 3_000)]
    chosen = [producer for producer in producers if bucket_of(producer) == 5]
    assert 10 < len(chosen) < len(producers) // BUCKETS * 3
    for producer in producers:
        origins.complete(producer, 1, 100)
    small = origins.dump(5, bytes_max=300)
    assert len(small) <= 300
    fresh = Origins()
    fresh.load(small)
    assert fresh.state(chosen[-1], 50) == COMPLETE
    assert fresh.state(chosen[0], 50) is None is origins.state(chosen[0], 50)


@given(st.binary(max_size=40))
def test_a11_a_damaged_value_is_refused_or_read(value: bytes) -> None:
    try:
        Origins().load(value)
    except (msgspec.MsgspecError, ValueError):
        return


def test_a11_a_floor_of_a_stranger_is_not_kept() -> None:
    origins = Origins()
    origins.will_not_come(PRODUCER, 1, 10)
    assert len(origins) == 0
    assert origins.floor(PRODUCER) == 0
    with pytest.raises(msgspec.MsgspecError):
        origins.load(b"\x01")


def test_a11_a_floor_is_what_all_ways_say() -> None:
    origins = Origins()
    origins.complete(PRODUCER, 1, 100)
    for way in (1, 2):
        origins.comes(PRODUCER, way)
    origins.will_not_come(PRODUCER, 1, 50)
    assert origins.floor(PRODUCER) == 0
    origins.will_not_come(PRODUCER, 2, 20)
    origins.will_not_come(PRODUCER, 2, 10)
    origins.will_not_come(PRODUCER, 3, 5)
    assert origins.floor(PRODUCER) == 20
    for way in range(3, 100):
        origins.comes(PRODUCER, way)
    assert origins.floor(PRODUCER) == 0
    assert origins.state(PRODUCER, 1) == COMPLETE
