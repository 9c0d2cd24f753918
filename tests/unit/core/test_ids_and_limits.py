"""Ids never repeat, whatever the clock and the counters do (B-11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion import ids

NOW_MS = ids.EPOCH_MS + 1_000_000_000


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=10))
def test_b11_restarts_never_repeat_an_id_when_the_last_start_is_kept(steps_ms: list[int]) -> None:
    issued: set[int] = set()
    now_ms, last_start_ms = NOW_MS, 0
    for step_ms in steps_ms:  # the clock may go backwards between two lives
        now_ms += step_ms
        generator = ids.IdGenerator.begin(3, 7, now_ms, last_start_ms)
        fresh = {generator.next_producer() for _ in range(5)}
        assert len(fresh) == 5
        assert not fresh & issued
        issued |= fresh
        last_start_ms = generator.start_ms


def test_b11_overflow_of_the_ordinal_moves_on_and_repeats_nothing() -> None:
    generator = ids.IdGenerator.begin(1, 1, NOW_MS)
    issued = [generator.next_producer() for _ in range(70_000)]
    assert len(set(issued)) == len(issued)
    assert issued == sorted(issued)
    assert all(ids.sequence_of(identity) == 0 for identity in issued)


def test_b11_sites_and_nodes_never_meet() -> None:
    seen = {ids.IdGenerator.begin(site, node, NOW_MS).next_producer() for site in range(4) for node in range(4)}
    assert len(seen) == 16


def test_b11_an_id_is_compact_and_its_text_sorts_like_the_number() -> None:
    first = ids.IdGenerator.begin(1023, 16383, NOW_MS).next_producer()
    assert first.bit_length() <= 128
    last = first + ids.SEQUENCE_MAX
    assert ids.producer_of(last) == first
    assert ids.sequence_of(last) == ids.SEQUENCE_MAX
    assert ids.parse_id(ids.format_id(last)) == last
    assert ids.format_id(first) < ids.format_id(last)


@pytest.mark.parametrize("text", ["", "12", "x" * 32, "0" * 33])
def test_b11_what_is_not_an_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        ids.parse_id(text)


@pytest.mark.parametrize(
    ("site", "node", "now_ms"), [(-1, 0, NOW_MS), (1024, 0, NOW_MS), (0, 16384, NOW_MS), (0, 0, 5)]
)
def test_b11_numbers_out_of_range_are_refused(site: int, node: int, now_ms: int) -> None:
    with pytest.raises(ValueError):
        ids.IdGenerator.begin(site, node, now_ms)
