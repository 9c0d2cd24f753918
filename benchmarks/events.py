"""Recording an event: how long it takes beside the limits of the same moment (A-02).

    python -m benchmarks.events                # all figures, some 20 s
    python -m benchmarks.events --rounds 5     # sooner

Theory of operation
    Every round has one short burst of each contestant, so that a slow moment of the machine slows all of them:
    `pwrite` + `fdatasync` of 4 KiB, `record` with "power" in one thread, in eight threads, `append_many`, and `record`
    with "process" beside a thread that computes. Ratios are taken within a round; what is printed is their median. The
    percentiles of "process" are over all events of all rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.contestant import percentile
from benchmarks.processes import work_directory
from clarion.events.memory import Section
from clarion.journal.options import Durability

ROUNDS = 25
BURST = 40
MANY = 10_000
QUICK = 2_000
"""Events of one burst with durability "process"."""
THREADS = 8
SYNC_BYTES = 4096
RING_BYTES = 64 << 20
EVENT_BYTES_MAX = 16 << 10
DATA = {"free_bytes": 0, "volume": "/var/lib/data", "reason": "no space left on device"}

P50_US_MAX = 15.0
P99_US_MAX = 100.0
POWER_RATIO_MAX = 1.5
THREADS_RATIO_MIN = 2.0
MANY_PER_S_MIN = 100_000


@dataclass(slots=True)
class Seen:
    """Of every round, in its order; times in microseconds."""

    sync_us: list[float] = field(default_factory=list)
    power_us: list[float] = field(default_factory=list)
    alone_per_s: list[float] = field(default_factory=list)
    threads_per_s: list[float] = field(default_factory=list)
    many_per_s: list[float] = field(default_factory=list)
    quick_us: list[float] = field(default_factory=list)
    """Of every event."""


def _record(section: Section) -> None:
    section.record("disk.full", "volume/7", 40, time.time_ns(), DATA, bits=1, epoch=1)


def _timed(work: Callable[[], object], count: int) -> list[float]:
    samples = []
    for _ in range(count):
        before = time.perf_counter_ns()
        work()
        samples.append((time.perf_counter_ns() - before) / 1000)
    return samples


class Sync:
    """What nobody can be faster than."""

    def __init__(self, path: Path) -> None:
        self._block = os.urandom(SYNC_BYTES)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        for offset in range(0, RING_BYTES // 4, SYNC_BYTES):
            os.pwrite(self._descriptor, self._block, offset)
        os.fsync(self._descriptor)
        self._at = 0

    def once(self) -> None:
        self._at = (self._at + SYNC_BYTES) % (RING_BYTES // 4)
        os.pwrite(self._descriptor, self._block, self._at)
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _many(section: Section, count: int) -> float:
    """Events per second, encoding included."""
    encode, now = section.encoder.encode, time.time_ns()
    before = time.perf_counter()
    section.append_many([encode("disk.full", "volume/7", 40, now, DATA) for _ in range(count)], 1, 1)
    return count / (time.perf_counter() - before)


def _together(section: Section, threads: int, count: int) -> float:
    """Events per second of so many threads, each with its own `count`."""
    start = threading.Barrier(threads + 1)

    def work() -> None:
        start.wait()
        for _ in range(count):
            _record(section)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    before = time.perf_counter()
    for worker in workers:
        worker.join()
    return threads * count / (time.perf_counter() - before)


def _beside_a_busy_thread(section: Section, count: int) -> list[float]:
    done = False

    def compute() -> None:
        number = 0
        while not done:
            number = (number * 31 + 7) % 1_000_003

    busy = threading.Thread(target=compute)
    busy.start()
    try:
        return _timed(lambda: _record(section), count)
    finally:
        done = True
        busy.join()


def _section(directory: Path, durability: Durability, producer: int) -> Section:
    return Section.create(
        directory / f"{durability}.ring",
        name=durability,
        kind="normal",
        producer=producer,
        bytes_=RING_BYTES,
        event_bytes_max=EVENT_BYTES_MAX,
        durability=durability,
    )


def measure(rounds: int = ROUNDS, burst: int = BURST, many: int = MANY, quick: int = QUICK) -> Seen:
    """One burst of each in every round."""
    seen = Seen()
    with work_directory() as directory:
        sync = Sync(directory / "sync")
        power, process = _section(directory, "power", 1 << 64), _section(directory, "process", 2 << 64)
        for round_ in range(rounds + 1):
            sync_us = statistics.median(_timed(sync.once, burst))
            power_us = statistics.median(_timed(lambda: _record(power), burst))
            alone = _together(power, 1, burst)
            together = _together(power, THREADS, burst)
            per_s = _many(power, many)
            quick_us = _beside_a_busy_thread(process, quick)
            for section in (power, process):
                section.release(section.next_sequence)
            if round_:  # the first one warms up
                seen.sync_us.append(sync_us)
                seen.power_us.append(power_us)
                seen.alone_per_s.append(alone)
                seen.threads_per_s.append(together)
                seen.many_per_s.append(per_s)
                seen.quick_us.extend(quick_us)
        power.close()
        process.close()
        sync.close()
    return seen


def report(seen: Seen) -> Table:
    """What was promised, and what was seen."""
    power = statistics.median(mine / limit for mine, limit in zip(seen.power_us, seen.sync_us, strict=True))
    threads = statistics.median(
        together / alone for together, alone in zip(seen.threads_per_s, seen.alone_per_s, strict=True)
    )
    many = statistics.median(seen.many_per_s)
    p50, p99 = (percentile(seen.quick_us, part) for part in (0.50, 0.99))
    sync_us, power_us = statistics.median(seen.sync_us), statistics.median(seen.power_us)
    table = Table("what", "seen", "promised", "", title="Recording an event")
    table.add_row(
        "process, beside a busy thread: p50", f"{p50:.1f} us", f"{P50_US_MAX:.0f} us", _mark(p50 <= P50_US_MAX)
    )
    table.add_row(
        "process, beside a busy thread: p99", f"{p99:.1f} us", f"{P99_US_MAX:.0f} us", _mark(p99 <= P99_US_MAX)
    )
    table.add_row("pwrite + fdatasync of 4 KiB: p50", f"{sync_us:.0f} us", "", "")
    table.add_row("power: p50", f"{power_us:.0f} us", "", "")
    table.add_row("power / fdatasync", f"{power:.2f}", f"{POWER_RATIO_MAX}", _mark(power <= POWER_RATIO_MAX))
    eight = f"power, {THREADS} threads / one"
    table.add_row(eight, f"{threads:.2f}", f"{THREADS_RATIO_MIN}", _mark(threads >= THREADS_RATIO_MIN))
    table.add_row("power, append_many", f"{many:,.0f}/s", f"{MANY_PER_S_MIN:,}/s", _mark(many >= MANY_PER_S_MIN))
    return table


def _mark(good: bool) -> str:
    return "yes" if good else "no"


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.events", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args(given)
    Console().print(report(measure(arguments.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
