"""The benchmark of recording events, tiny, so that it never rots."""

from __future__ import annotations

from benchmarks import events


def test_a02_recording_is_measured_beside_the_limits_of_the_same_moment() -> None:
    seen = events.measure(rounds=2, burst=3, many=50, quick=20)
    assert len(seen.sync_us) == len(seen.power_us) == len(seen.threads_per_s) == len(seen.many_per_s) == 2
    assert len(seen.quick_us) == 40 and min(seen.quick_us) > 0
    assert events.report(seen).row_count == 7
