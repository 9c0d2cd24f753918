"""What a contestant of the benchmarks is, and what its two figures mean.

Theory of operation
    A contestant is a broker with one way of using it: server settings and client habits together. The harness
    starts it in an empty directory, measures, and stops it, once per round.

Rules
    1. `throughput` counts a message only when it was published, confirmed by the server, received by the consumer
       and acknowledged by it. The clock runs from the first send to the later of the last confirmation (producer)
       and the last acknowledgement (consumer). Producer and consumer are processes of their own.
    2. `latency` is the time from one send to its confirmation, one message at a time, nothing else in flight.
    3. `available` may install what is missing and then answers None; otherwise it answers the reason, in words.
    4. `stop` ends and reaps every process that `start` started, also after a failure, also when called twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

UNSYNCED = "page cache"
"""Begins the durability text of a contestant whose confirmed messages a power cut may take: not our promise."""


class BenchmarkError(Exception):
    """A measurement failed: a process died, a time limit passed, or a count was wrong."""


@dataclass(frozen=True, slots=True)
class Result:
    """Messages that made the whole way, and the seconds it took."""

    count: int
    size: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds


@dataclass(frozen=True, slots=True)
class Latency:
    """Send to confirmation, in microseconds."""

    count: int
    size: int
    p50_us: float
    p99_us: float


class Peer(Protocol):
    """One line of the table."""

    @property
    def name(self) -> str: ...

    @property
    def durability(self) -> str:
        """What is safe, and against what, when the confirmation arrives."""

    def version(self) -> str: ...

    def available(self) -> str | None: ...

    def start(self, directory: Path) -> None: ...

    def stop(self) -> None: ...

    def throughput(self, count: int, size: int) -> Result: ...

    def latency(self, count: int, size: int) -> Latency: ...


def percentile(samples: Sequence[float], fraction: float) -> float:
    """The nearest-rank percentile: always one of the samples, never an interpolation."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def latency_of(samples_ns: Sequence[int], size: int) -> dict[str, float]:
    """What a latency worker answers: JSON-ready, so that thousands of samples need not cross a pipe."""
    return {
        "count": len(samples_ns),
        "size": size,
        "p50_us": percentile(samples_ns, 0.50) / 1000,
        "p99_us": percentile(samples_ns, 0.99) / 1000,
    }


def latency_from(answer: dict[str, float]) -> Latency:
    return Latency(int(answer["count"]), int(answer["size"]), answer["p50_us"], answer["p99_us"])
