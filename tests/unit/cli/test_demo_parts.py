"""What the demonstration computes and draws."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.cli.demo_host import happening
from clarion.cli.demo_plot import BIN_S, Picture, draw, rates


@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.integers(0, 100)), min_size=1, max_size=30))
def test_rates_add_up_to_what_there_was(steps: list[tuple[float, int]]) -> None:
    at, count, samples = 0.0, 0, []
    for pause, more in steps:
        at, count = at + pause, count + more
        samples.append((at, count))
    middles, values = rates(samples, at)
    assert sum(values) * BIN_S == pytest.approx(count)
    assert min(values) >= -1e-9 and len(middles) == len(values)


def test_an_even_pace_has_an_even_rate() -> None:
    _, values = rates([(float(second), 100 * second) for second in range(1, 11)], 9.5)
    assert values == pytest.approx([100.0] * 10)


def test_a_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "demo.png"
    curves = {"recorded": [(1.0, 10), (2.0, 30)], "delivered": [(1.5, 10), (3.0, 30)], "archive": []}
    draw(Picture(curves, (1.0, 2.0), [(2.5, "disk-full")]), path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n") and path.stat().st_size > 10_000


def test_the_host_has_something_for_every_rule() -> None:
    events = [happening(0, index, 600) for index in range(600)]
    types = Counter(type_ for type_, *_ in events)
    assert types["disk.full"] >= 9 and types["link.changed"] >= 8 and len(types) == 5
    states = [attributes["state"] for type_, _, _, attributes in events if type_ == "link.changed"]
    assert all(one != other for one, other in pairwise(states))
