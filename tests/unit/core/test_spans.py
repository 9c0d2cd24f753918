"""Spans and confirmed sets against the plainest possible models."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from clarion.core.confirmed import Confirmed
from clarion.core.spans import Spans

RANGES = st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
KINDS = ["put", "take", "update", "cut", "go on"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), RANGES, st.integers(0, 2)), max_size=40)


@given(STEPS)
def test_a08_spans_behave_like_a_dictionary_of_integers(steps: list[tuple[str, tuple[int, int], int]]) -> None:
    spans, model = Spans(), dict[int, int]()
    for what, (first, end), value in steps:
        if what == "put":
            spans.put(first, end, value)
            model |= dict.fromkeys(range(first, end), value)
        elif what == "take":
            taken = {n: v for f, e, v in spans.take(first, end) for n in range(f, e)}
            assert taken == {n: model.pop(n) for n in range(first, end) if n in model}
        elif what == "update":
            spans.update(first, end, lambda old: old + 1)
            model |= {n: model.get(n, 0) + 1 for n in range(first, end)}
        elif what == "go on":
            start = max(model, default=0) + 1 - value  # where it ends, or a little before
            floor = start + end - first - 2
            if spans.go_on(start, start + end - first, floor):
                model |= dict.fromkeys(range(start, start + end - first), 0)
                model = {n: v for n, v in model.items() if n >= floor}
        else:
            spans.cut_below(first)
            model = {n: v for n, v in model.items() if n >= first}
        assert {n: v for f, e, v in spans for n in range(f, e)} == model
        listed = list(spans)
        assert all(f < e for f, e, _ in listed)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(listed))
        assert spans.total() == len(model)
        pieces = {n: v for f, e, v in spans.pieces(first, end, -1) for n in range(f, e)}
        assert pieces == {n: model.get(n, -1) for n in range(first, end)}


def test_a08_a_contiguous_history_is_one_span() -> None:
    spans = Spans()
    for first in range(0, 10_000, 10):
        spans.put(first, first + 10)
    assert list(spans) == [(0, 10_000, 0)]


@given(st.lists(RANGES, max_size=40), RANGES)
def test_a08_confirmed_behaves_like_a_set(ranges: list[tuple[int, int]], probe: tuple[int, int]) -> None:
    confirmed, model = Confirmed(1), {0}
    for first, end in ranges:
        fresh = set(range(first, end)) - model
        assert confirmed.add(first, end) == len(fresh)
        model |= fresh
        floor = next(n for n in range(200) if n not in model)
        assert confirmed.floor == floor
    first, end = probe
    inside = set(range(first, end))
    assert confirmed.covers(first, end) == (inside <= model)
    assert confirmed.count(first, end) == len(inside & model)
    gaps = {n for f, e in confirmed.gaps(first, end) for n in range(f, e)}
    assert gaps == inside - model
    again = Confirmed(confirmed.floor, confirmed.serialize())
    assert again.gaps(0, 100) == confirmed.gaps(0, 100)
