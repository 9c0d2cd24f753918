"""The benchmark of delivering events, tiny: what it counts is there, and arrives."""

from __future__ import annotations

from benchmarks import event_delivery


def test_a07_good_recipients_are_measured_beside_a_dead_and_a_slow_one() -> None:
    seen = event_delivery.measure_beside(rounds=2, burst=4)
    assert len(seen.normal_us) == len(seen.beside_us) == 2 and min(seen.normal_us + seen.beside_us) > 0
    assert seen.ratio > 0
    # All three bursts are owed to the dead one; each of the eight others has been called for every event.
    assert seen.owed["dead"] == 12


def test_a08_a_backlog_reaches_a_server_that_comes_back() -> None:
    backlog = event_delivery.measure_backlog(12_345)
    assert backlog.stored == backlog.events == 12_345
    assert backlog.delivered_per_s > 0 and backlog.recorded_per_s > 0
    shown = event_delivery.table(event_delivery.Beside([1.0], [1.2]), [backlog])
    assert shown.row_count == 6
