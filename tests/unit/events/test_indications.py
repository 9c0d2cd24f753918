"""The event indication queue against a plain list."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.errors import InternalFault
from clarion.events.engine.indications import IndicationQueue

WORDS = st.lists(st.integers(0, (1 << 64) - 1) | st.sampled_from([0, 1, 3]), max_size=20)


@given(st.lists(st.tuples(WORDS, st.integers(0, 20)), max_size=12), st.integers(1, 40), st.sampled_from([0, 1, 63]))
def test_a06_runs_are_those_of_a_plain_list(steps: list[tuple[list[int], int]], capacity: int, slot: int) -> None:
    queue = IndicationQueue(capacity, first=7)
    held: dict[int, int] = {}
    for words, released in steps:
        if len(words) > queue.room:
            before = queue.next
            with pytest.raises(InternalFault):
                queue.put(words)
            assert queue.next == before
        else:
            for number, word in enumerate(words):
                held[queue.next + number] = word
            queue.put(words)
        queue.release(min(queue.first + released, queue.next))
        held = {at: word for at, word in held.items() if at >= queue.first}
        assert len(queue) == len(held) <= capacity
        owed = [at for at, word in sorted(held.items()) if word >> slot & 1]
        runs = queue.runs(slot, 0, 1 << 40)
        assert [at for first, end in runs for at in range(first, end)] == owed
        assert all(end < first for (_, end), (first, _) in itertools.pairwise(runs))
        assert all(queue.bits(at) == word for at, word in held.items())


def test_a06_a_part_is_asked_for_and_nothing_beyond_what_is_held() -> None:
    queue = IndicationQueue(8)
    queue.put([1, 1, 0, 1])
    assert queue.runs(0, 2, 4) == [(2, 3)]
    assert queue.runs(0, 5, 99) == []
    with pytest.raises(InternalFault):
        queue.release(6)
