"""The latency benchmark, tiny, so that it never rots: every mark is passed, every count is of something."""

from __future__ import annotations

import shutil
from pathlib import Path

import clarion
from benchmarks import latency, latency_marks

SOURCE = Path(clarion.__file__).parent.parent


def test_b22_latency_is_measured_beside_the_limits_of_the_same_moment() -> None:
    seen = latency.measure({"clarion": SOURCE}, rounds=2, burst=5)
    assert set(seen) == {"sync", "echo", "bare", "clarion"}
    assert all(len(p50s) == 2 and min(p50s) > 0 for p50s in seen.values())
    # A confirmation needs a sync and a way there and back, whatever the machine does meanwhile.
    assert min(seen["clarion"]) > min(seen["echo"])
    assert "clarion        / (sync + echo):" in latency.report(seen, ["clarion"])


def test_b22_every_stage_of_a_message_is_seen() -> None:
    stages = latency.measure_stages({"clarion": SOURCE}, rounds=2, burst=5)["clarion"]
    names = [stage.name for stage in stages]
    expected = [latency_marks.CLIENT[0], *latency_marks.SERVER, latency_marks.CLIENT[1]]
    assert names == [*(mark.stage for mark in expected), latency_marks.LAST, "all", "all but the disk"]
    assert all(stage.p50_us >= 0 for stage in stages)


def test_b22_calls_and_system_calls_are_counted() -> None:
    calls = latency.measure_calls(SOURCE, 20)
    assert all(count > 1 for count in calls.values())
    if shutil.which("strace"):
        system_calls = latency.measure_system_calls(SOURCE, 20)
        assert not system_calls or system_calls["fdatasync"] > 0.9  # the allocator may add some


def test_b22_only_the_first_passing_in_order_counts() -> None:
    order = ["a", "b", "c"]
    assert latency_marks._way([(1, "b"), (2, "a"), (3, "b"), (4, "b"), (5, "c")], order) == [2, 3, 5]
    assert latency_marks._way([(1, "a"), (2, "c"), (3, "b")], order) is None
