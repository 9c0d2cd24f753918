"""The benchmark of reading by sequences, tiny, so that it never rots: it checks its own counts."""

from __future__ import annotations

from benchmarks import reading


def test_d01_the_benchmark_reads_every_message() -> None:
    assert min(reading.measure(3_000, 100)) > 0
