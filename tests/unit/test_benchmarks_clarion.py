"""The benchmarks of Clarion itself, tiny, so that they never rot: they check their own counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import clarion_peer, scale
from benchmarks.contestant import Peer


@pytest.mark.parametrize("contestant", clarion_peer.contestants(), ids=lambda contestant: contestant.name)
def test_b22_every_contestant_of_ours_carries_every_message(contestant: Peer, tmp_path: Path) -> None:
    try:
        contestant.start(tmp_path)
        result = contestant.throughput(3_000, 100)
        assert result.count == 3_000
        assert contestant.latency(20, 100).p50_us > 0
    finally:
        contestant.stop()


@pytest.mark.parametrize("singly", [False, True])
def test_b22_a_backlog_survives_a_kill_and_is_drained(singly: bool) -> None:
    seen = scale.measure_backlog(20_000, singly=singly)
    assert seen.drain_per_s > 0
    assert seen.memory_bytes_max > 0


def test_b22_idle_connections_cost_little() -> None:
    seen = scale.measure_connections(200)
    assert 0 <= seen.connection_bytes < 40_000
