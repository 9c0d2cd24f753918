"""The benchmark harness without any peer: rounds, medians, table, result file, workers, and failure as a line."""

from __future__ import annotations

import json
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import bare, harness, raw, registry, report
from benchmarks.contestant import BenchmarkError, Latency, Peer, Result, latency_of, percentile
from benchmarks.processes import Server, free_ports, run_workers
from benchmarks.worker import Gate

TINY = harness.Settings(rounds=3, seconds=0.01, latency_count=20, raw_count=3)
WORKERS = "tests.unit.test_benchmarks_peers"
"""This module as a worker process, started in the root of the repository, imports it."""
LIMITS = raw.RawLimits((raw.SyncTime(4096, 200.0, 400.0),), 50.0)


class InProcess:
    """A contestant that is a deque; its rates are given, so that medians can be foretold."""

    durability = "none"

    def __init__(self, name: str, rates: list[float] | None = None) -> None:
        self.name = name
        self._rates = rates
        self.log: list[str] = []

    def version(self) -> str:
        return "1"

    def available(self) -> str | None:
        return None

    def start(self, directory: Path) -> None:
        assert directory.is_dir() and not list(directory.iterdir())
        self.log.append("start")

    def stop(self) -> None:
        self.log.append("stop")

    def throughput(self, count: int, size: int) -> Result:
        if self._rates is not None:
            return Result(count, size, count / self._rates[self.log.count("start") - 1])
        queue: deque[bytes] = deque()
        before = time.perf_counter()
        for _ in range(count):
            queue.append(bytes(size))
            queue.popleft()
        return Result(count, size, time.perf_counter() - before)

    def latency(self, count: int, size: int) -> Latency:
        return Latency(count, size, 10.0, 20.0)


class Failing(InProcess):
    def throughput(self, count: int, size: int) -> Result:
        raise BenchmarkError("the server ended")


class Missing(InProcess):
    def available(self) -> str | None:
        return "no such package"


@pytest.fixture(autouse=True)
def _no_raw_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "measure", lambda directory, count: LIMITS)


def _outcome(*peers: Peer, settings: harness.Settings = TINY) -> harness.Outcome:
    return harness.run(peers, settings)


def test_percentiles_are_samples() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(range(100)), 0.99) == 99
    assert percentile([7.0], 0.99) == 7.0
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)
    assert latency_of([1000, 3000, 2000], 100) == {"count": 3, "size": 100, "p50_us": 2.0, "p99_us": 3.0}


def test_rates_are_medians_over_rounds_and_every_start_is_stopped() -> None:
    peer = InProcess("Clarion", rates=[1000.0, 9000.0, 2000.0])
    line = _outcome(peer).lines[0]
    assert [round(rate) for rate in line.rates[100]] == [1000, 9000, 2000]
    assert line.rate(100) == pytest.approx(2000.0)
    assert line.latency_us() == (10.0, 20.0)
    assert peer.log == ["start", "stop"] * 3


def test_rounds_begin_with_another_contestant_each_time() -> None:
    steps: list[str] = []
    peers = [InProcess("a", [1e6] * 3), InProcess("b", [1e6] * 3)]
    harness.run(peers, TINY, steps.append)
    assert len(steps) == harness.steps_of(peers, TINY)
    assert [step.split(": ")[1] for step in steps] == ["raw limits", "a", "b", "raw limits", "b", "a", "raw limits", "a", "b"]  # fmt: skip  # noqa: E501


def test_a_contestant_that_fails_or_is_missing_is_a_line_with_its_reason() -> None:
    failing = Failing("failing")
    lines = _outcome(failing, Missing("missing"), InProcess("well")).lines
    assert lines[0].problem() == "failed: the server ended"
    assert failing.log == ["start", "stop"] * 3
    assert lines[1].problem() == "not available: no such package"
    assert lines[2].problem() is None and lines[2].rate(1024)


def test_probe_finds_a_count_for_the_wanted_time_within_bounds() -> None:
    steady = InProcess("steady", rates=[50_000.0])
    steady.log.append("start")
    assert harness.probe(steady, 100, 2.0) == pytest.approx(100_000, rel=0.01)
    endless = InProcess("endless", rates=[1e12])
    endless.log.append("start")
    assert harness.probe(endless, 1024, 2.0) == harness.BYTES_MAX // 1024


def test_table_has_ratios_and_reasons() -> None:
    outcome = _outcome(
        InProcess("Clarion", [4e5] * 3), InProcess("other", [1e3] * 3), InProcess(bare.CEILING, [8e5] * 3), Missing("m")
    )
    console = Console(width=160, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(report.table(outcome))
    console.file.close()
    text = console.export_text()
    rows = {line.split("│")[1].strip(): line.split("│") for line in text.splitlines() if line.startswith("│")}
    assert [cell.strip() for cell in rows["Clarion"][3:9]] == ["400,000", "400,000", "10", "20", "1.00", "0.50"]
    assert [cell.strip() for cell in rows["other"][7:9]] == ["1/400", "1/800"]
    assert "no such package" in text and "fdatasync" in text


def test_result_file_is_dated_and_complete(tmp_path: Path) -> None:
    outcome = _outcome(InProcess("Clarion", [4e5] * 3), Missing("missing"))
    path = report.write(outcome, tmp_path, datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert path.name == "2030-01-02T03-04-05.json"
    result: dict[str, Any] = json.loads(path.read_text())
    assert result["schema"] == report.SCHEMA
    assert {"cores", "cpu", "kernel", "python", "memory_gib", "load_average"} == set(result["machine"])
    assert result["raw"]["syncs"][0] == {"block_size": 4096, "p50_us": 200.0, "p99_us": 400.0}
    first, second = result["contestants"]
    assert first["rate_median"] == {"100": pytest.approx(4e5), "1024": pytest.approx(4e5)}
    assert len(first["rates"]["100"]) == len(first["counts"]["100"]) == TINY.rounds
    assert second["unavailable"] == "no such package" and second["rates"] == {}


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="positive"):
        harness.Settings(rounds=0)


def test_names_choose_contestants_and_the_ceiling_comes_along() -> None:
    everyone = [peer.name for peer in registry.contestants()]
    assert len(everyone) == len(set(everyone))
    chosen = [peer.name for peer in registry.chosen(["REDIS"])]
    assert len(chosen) > 1 and chosen[-1] == bare.CEILING
    assert all("redis" in name.lower() for name in chosen[:-1])
    with pytest.raises(ValueError, match="no contestant"):
        registry.chosen(["no such broker"])


def echo_worker(gate: Gate, *, value: int) -> dict[str, Any]:
    gate.wait()
    return {"value": value}


def silent_worker(gate: Gate) -> dict[str, Any]:
    raise SystemExit("nothing to say")


def test_workers_answer_and_their_failures_are_told(tmp_path: Path) -> None:
    answers = run_workers(
        [(f"{WORKERS}:echo_worker", {"value": 1}), (f"{WORKERS}:echo_worker", {"value": 2})], tmp_path
    )
    assert [answer["value"] for answer in answers] == [1, 2]
    with pytest.raises(BenchmarkError, match="nothing to say"):
        run_workers([(f"{WORKERS}:silent_worker", {})], tmp_path)


def test_a_server_that_ends_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    server = Server(["sh", "-c", "echo out of luck; exit 3"], tmp_path / "log")
    with pytest.raises(BenchmarkError, match="ended with 3: out of luck"):
        server.wait_for_port(free_ports(1)[0])
    server.stop()
    server.stop()


def test_bare_path_moves_every_message(tmp_path: Path) -> None:
    ceiling, by_message = bare.contestants()
    for peer in (ceiling, by_message):
        directory = tmp_path / peer.name
        directory.mkdir()
        try:
            peer.start(directory)
            assert peer.throughput(5000, 100).count == 5000
        finally:
            peer.stop()
    assert ceiling.durability == by_message.durability
