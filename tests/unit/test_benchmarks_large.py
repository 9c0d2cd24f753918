"""The benchmark of small messages beside a large one, tiny, so that it never rots: it checks its own sizes."""

from __future__ import annotations

import pytest

from benchmarks import large


@pytest.mark.parametrize("cold", [False, True])
def test_b12_the_benchmark_passes_a_body_beside_others(cold: bool) -> None:
    medians = large.measure(1, 16, idle_s=0.2, cold=cold).medians()
    assert min(medians.values()) > 0
