"""Recording an event: how long `emit` takes beside the limits of the same moment (A-02).

    python -m benchmarks.events                # all figures, some 20 s
    python -m benchmarks.events --rounds 5     # sooner

Theory of operation
    Every round has one short burst of each contestant, so that a slow moment of the machine slows all of them. `emit`
    with "power" and what nobody can be faster than, `pwrite` + `fdatasync` of as many bytes as it writes, into a file
    of its directory that was written before, take turns in one thread, a few of each: where the scheduler leaves a
    thread decides how long a sync takes. Then `emit` in one and in eight threads, `emit_many`, and `emit` with
    "process" beside a thread that computes. Ratios are taken within a round; what is printed is their median. The
    percentiles of "process" are over all events of all rounds.

Reading it
    After a sync nothing is in the caches: what `emit` does beside it takes three times as long as in a loop without one
    (4 us to encode an event became 12). So every call that it does not make counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.contestant import percentile
from benchmarks.processes import work_directory
from clarion.events import EventSystem
from clarion.events.memory.layout import PAGE_BYTES, SECTOR_BYTES, aligned
from clarion.journal.options import Durability

ROUNDS = 25
BURST = 40
MANY = 10_000
QUICK = 2_000
"""Events of one burst with durability "process"."""
THREADS = 8
TURN = 5
"""Of one contestant before it is the other's turn. The first is not counted: the other one has the caches then."""
SYNC_FILE_BYTES = 16 << 20
CAPACITY = 100_000
EVENT_BYTES = 512
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
    bytes: int = 0
    """What one `emit` with "power" writes."""


def _emit(system: EventSystem) -> None:
    system.emit("disk.full", source="volume/7", severity=40, data=DATA)


def _timed(work: Callable[[], object], count: int) -> list[float]:
    samples = []
    for _ in range(count):
        before = time.perf_counter_ns()
        work()
        samples.append((time.perf_counter_ns() - before) / 1000)
    return samples


def _in_turns(works: Sequence[Callable[[], object]], count: int) -> list[float]:
    """The median of each, in microseconds."""
    samples: list[list[float]] = [[] for _ in works]
    while len(samples[0]) < count:
        for work, mine in zip(works, samples, strict=True):
            mine += _timed(work, TURN)[1:]
    return [statistics.median(mine) for mine in samples]


class Sync:
    """What nobody can be faster than."""

    def __init__(self, path: Path, bytes_: int) -> None:
        self._block = os.urandom(bytes_)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        for _ in range(SYNC_FILE_BYTES // PAGE_BYTES):
            os.write(self._descriptor, bytes(PAGE_BYTES))
        os.fsync(self._descriptor)
        self._at = 0

    def once(self) -> None:
        self._at = (self._at + len(self._block)) % SYNC_FILE_BYTES
        os.pwrite(self._descriptor, self._block, self._at)
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _written_bytes(system: EventSystem) -> int:
    """What one `emit` writes."""
    section = system._recorder.sections.normal
    before = section.used_bytes()
    _emit(system)
    return aligned(section.used_bytes() - before, SECTOR_BYTES)


def _many(system: EventSystem, count: int) -> float:
    """Events per second."""
    before = time.perf_counter()
    system.emit_many([("disk.full", "volume/7", 40, DATA)] * count)
    return count / (time.perf_counter() - before)


def _together(system: EventSystem, threads: int, count: int) -> float:
    """Events per second of so many threads, each with its own `count`."""
    start = threading.Barrier(threads + 1)

    def work() -> None:
        start.wait()
        for _ in range(count):
            _emit(system)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    before = time.perf_counter()
    for worker in workers:
        worker.join()
    return threads * count / (time.perf_counter() - before)


def _beside_a_busy_thread(system: EventSystem, count: int) -> list[float]:
    done = False

    def compute() -> None:
        number = 0
        while not done:
            number = (number * 31 + 7) % 1_000_003

    busy = threading.Thread(target=compute)
    busy.start()
    try:
        return _timed(lambda: _emit(system), count)
    finally:
        done = True
        busy.join()


def _system(directory: Path, durability: Durability) -> EventSystem:
    system = EventSystem.open(directory / durability, capacity=CAPACITY, event_bytes=EVENT_BYTES, durability=durability)
    system.ready()
    return system


def _release(system: EventSystem) -> None:
    section = system._recorder.sections.normal
    section.release(section.next_sequence)


def measure(rounds: int = ROUNDS, burst: int = BURST, many: int = MANY, quick: int = QUICK) -> Seen:
    """One burst of each in every round."""
    seen = Seen()
    with work_directory() as directory, _system(directory, "power") as power, _system(directory, "process") as process:
        seen.bytes = _written_bytes(power)
        sync = Sync(directory / "sync", seen.bytes)
        for round_ in range(rounds + 1):
            sync_us, power_us = _in_turns((sync.once, lambda: _emit(power)), burst)
            alone = _together(power, 1, burst)
            together = _together(power, THREADS, burst)
            per_s = _many(power, many)
            quick_us = _beside_a_busy_thread(process, quick)
            _release(power)
            _release(process)
            if round_:  # the first one warms up
                seen.sync_us.append(sync_us)
                seen.power_us.append(power_us)
                seen.alone_per_s.append(alone)
                seen.threads_per_s.append(together)
                seen.many_per_s.append(per_s)
                seen.quick_us.extend(quick_us)
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
    table.add_row(f"pwrite + fdatasync of {seen.bytes} bytes: p50", f"{sync_us:.0f} us", "", "")
    table.add_row("power: p50", f"{power_us:.0f} us", "", "")
    table.add_row("power / fdatasync", f"{power:.2f}", f"{POWER_RATIO_MAX}", _mark(power <= POWER_RATIO_MAX))
    eight = f"power, {THREADS} threads / one"
    table.add_row(eight, f"{threads:.2f}", f"{THREADS_RATIO_MIN}", _mark(threads >= THREADS_RATIO_MIN))
    table.add_row("power, emit_many", f"{many:,.0f}/s", f"{MANY_PER_S_MIN:,}/s", _mark(many >= MANY_PER_S_MIN))
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
