"""The benchmark of recording in a pair, tiny, so that it never rots."""

from __future__ import annotations

from benchmarks import event_pair


def test_a10_recording_in_a_pair_is_measured_beside_recording_alone() -> None:
    found = event_pair.measure(rounds=1, burst=3)
    assert set(found) == {"power", "process"}
    for seen in found.values():
        assert len(seen.alone_us) == len(seen.paired_us) == 1
        assert len(seen.every_paired_us) == 3 and min(seen.every_paired_us) > 0
    assert event_pair.report(found).row_count == 4
