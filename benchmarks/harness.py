"""Rounds: every contestant once per round, several rounds, medians. Nothing is measured at the same time as another.

Theory of operation
    A shared machine drifts: its disk and its neighbours have good and bad minutes. So contestants are not measured
    one after the other but in turn, round by round, each round beginning with another one, and a figure is the median
    over the rounds. The raw limits are taken in every round too.

    How many messages a run has follows from how fast the contestant is: a short run that is not counted is enlarged
    until it took a quarter of the wanted time. It warms the server up (a JVM needs it) and gives the count. A run
    that then ends in less than half of the wanted time is repeated. Latency too follows a short uncounted run.

Rules
    1. Every run ends by its count, and by a time limit when the count is not reached.
    2. A contestant that fails or is not to be had is a line with its reason, never the end of the benchmark.
    3. Its processes are stopped before the next one starts.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks import raw
from benchmarks.contestant import BenchmarkError, Peer, Result
from benchmarks.processes import work_directory

SIZES = (100, 1024)
LATENCY_SIZE = 100
PROBE_COUNT = 500
RUNS_MAX = 3
"""Tries to make a run of the wanted length when the uncounted one misled us."""
PROBE_SHARE = 0.25
"""An uncounted run must take this share of the wanted time before its rate is believed."""
COUNT_MIN = 500
BYTES_MAX = 2 << 30
"""What one run may send, so that memory (Redis) and disk (Kafka) stay within bounds."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How long and how often."""

    rounds: int = 5
    seconds: float = 4.0
    """Wanted length of one throughput run."""
    latency_count: int = 2000
    raw_count: int = 500

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.seconds <= 0 or self.latency_count < 1 or self.raw_count < 1:
            raise ValueError("rounds, seconds and counts must be positive")


QUICK = Settings(rounds=1, seconds=1.0, latency_count=300, raw_count=200)


@dataclass
class Line:
    """What the rounds said about one contestant."""

    name: str
    durability: str
    version: str = ""
    unavailable: str | None = None
    errors: list[str] = field(default_factory=list)
    rates: dict[int, list[float]] = field(default_factory=dict)
    """Messages per second by message size, one figure per round."""
    p50_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)
    counts: dict[int, list[int]] = field(default_factory=dict)
    """Messages in each run, by size."""

    def rate(self, size: int) -> float | None:
        return median(self.rates[size]) if self.rates.get(size) else None

    def latency_us(self) -> tuple[float, float] | None:
        return (median(self.p50_us), median(self.p99_us)) if self.p50_us else None

    def problem(self) -> str | None:
        """Why there is no figure, when there is none."""
        if self.unavailable is not None:
            return f"not available: {self.unavailable}"
        return f"failed: {self.errors[0]}" if self.errors and not self.rates else None

    def as_json(self) -> dict[str, Any]:
        latency = self.latency_us()
        return {
            "name": self.name,
            "durability": self.durability,
            "version": self.version,
            "unavailable": self.unavailable,
            "errors": self.errors,
            "counts": {str(size): counts for size, counts in self.counts.items()},
            "rates": {str(size): rates for size, rates in self.rates.items()},
            "rate_median": {str(size): median(rates) for size, rates in self.rates.items()},
            "latency_p50_us": latency[0] if latency else None,
            "latency_p99_us": latency[1] if latency else None,
        }


@dataclass
class Outcome:
    lines: list[Line]
    limits: raw.RawLimits
    settings: Settings

    def line(self, prefix: str) -> Line | None:
        """The first line with figures whose name begins so."""
        return next((line for line in self.lines if line.name.startswith(prefix) and line.rates), None)


Progress = Callable[[str], None]
"""Told what is measured next; called once per contestant and round, and once per round for the raw limits."""


def steps_of(contestants: Sequence[Peer], settings: Settings) -> int:
    """How often a run calls its progress function."""
    return settings.rounds * (len(contestants) + 1)


def run(contestants: Sequence[Peer], settings: Settings, progress: Progress = lambda _: None) -> Outcome:
    lines = [Line(peer.name, peer.durability) for peer in contestants]
    entries = list(zip(contestants, lines, strict=True))
    limits: list[raw.RawLimits] = []
    for number in range(settings.rounds):
        progress(f"round {number + 1}: raw limits")
        with work_directory() as directory:
            limits.append(raw.measure(directory, settings.raw_count))
        first = number % len(entries) if entries else 0
        for peer, line in entries[first:] + entries[:first]:
            progress(f"round {number + 1}: {line.name}")
            _one_turn(peer, line, settings)
    return Outcome(lines, raw.median_of(limits), settings)


def _one_turn(peer: Peer, line: Line, settings: Settings) -> None:
    """One contestant, one round: start, every size, latency, stop."""
    if not line.version:
        line.unavailable = peer.available()
        line.version = "-" if line.unavailable else peer.version()
    if line.unavailable is not None:
        return
    with work_directory() as directory:
        try:
            peer.start(directory)
            for size in SIZES:
                result = throughput(peer, size, settings.seconds)
                line.counts.setdefault(size, []).append(result.count)
                line.rates.setdefault(size, []).append(result.rate)
            peer.latency(max(1, settings.latency_count // 4), LATENCY_SIZE)
            latency = peer.latency(settings.latency_count, LATENCY_SIZE)
            line.p50_us.append(latency.p50_us)
            line.p99_us.append(latency.p99_us)
        except (BenchmarkError, OSError, subprocess.SubprocessError) as error:
            line.errors.append(str(error))
        finally:
            peer.stop()


def throughput(peer: Peer, size: int, seconds: float) -> Result:
    """A run of about the wanted length; one that turned out shorter than half of it is repeated with more."""
    count = probe(peer, size, seconds)
    result = peer.throughput(count, size)
    for _ in range(RUNS_MAX - 1):
        if result.seconds >= seconds / 2 or count >= BYTES_MAX // size:
            break
        count = min(BYTES_MAX // size, int(result.rate * seconds))
        result = peer.throughput(count, size)
    return result


def probe(peer: Peer, size: int, seconds: float) -> int:
    """How many messages make a run of the wanted length."""
    count, most = PROBE_COUNT, BYTES_MAX // size
    while True:
        result = peer.throughput(count, size)
        if result.count != count:
            raise BenchmarkError(f"{count} messages asked for, {result.count} measured")
        if result.seconds >= PROBE_SHARE * seconds or count >= most:
            return max(COUNT_MIN, min(most, int(result.rate * seconds)))
        count = min(most, count * 4)
