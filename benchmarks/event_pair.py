"""Recording an event in a pair: what the partner's copy costs, beside recording alone at the same moment (A-10).

    python -m benchmarks.event_pair                # some 20 s
    python -m benchmarks.event_pair --rounds 5     # sooner

Theory of operation
    Two event systems on loopback are partners, and a third one is alone, for each durability; the partner is a process
    of its own. Every round has one short burst of `emit` on each, so that a slow moment of the machine slows all of
    them. Ratios and differences are taken within a round; what is printed is their median, and the percentiles of all
    events. Nobody delivers: recording is what is measured. A real network adds its round trip.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.contestant import BenchmarkError, percentile
from benchmarks.processes import HOST, free_ports, work_directory
from clarion.events import EventSystem, PairSettings
from clarion.journal.options import Durability

ROUNDS = 25
BURST = 100
CAPACITY = 5_000
"""More than all rounds record: nobody delivers."""
DURABILITIES: tuple[Durability, ...] = ("process", "power")
DATA = {"free_bytes": 0, "volume": "/var/lib/data", "reason": "no space left on device"}
PAIRED_S_MAX = 30.0


@dataclass(slots=True)
class Seen:
    """Microseconds: medians of every round, and every event."""

    alone_us: list[float] = field(default_factory=list)
    paired_us: list[float] = field(default_factory=list)
    every_alone_us: list[float] = field(default_factory=list)
    every_paired_us: list[float] = field(default_factory=list)


def _burst(system: EventSystem, count: int) -> list[float]:
    samples = []
    for _ in range(count):
        before = time.perf_counter_ns()
        system.emit("disk.full", source="volume/7", severity="error", data=DATA)
        samples.append((time.perf_counter_ns() - before) / 1000)
    return samples


def _settings(name: str, listen: int, partner: int) -> PairSettings:
    return PairSettings(partner_name=name, partner=f"{HOST}:{partner}", listen=f"{HOST}:{listen}")


def _open(path: Path, durability: Durability, name: str, partner: PairSettings | None) -> EventSystem:
    system = EventSystem.open(path, partner=partner, name=name, capacity=CAPACITY, durability=durability)
    system.ready()
    return system


@contextmanager
def _partner(path: Path, durability: Durability, listen: int, partner: int) -> Iterator[None]:
    """In a process of its own, until stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.event_pair", "--partner", str(path), durability, str(listen), str(partner)],
        stdin=subprocess.PIPE,
    )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(PAIRED_S_MAX)
        finally:
            process.kill()
            process.wait()


def _until_paired(system: EventSystem) -> None:
    deadline_s = time.monotonic() + PAIRED_S_MAX
    while (system.pair_status() or {})["state"] != "paired":
        if time.monotonic() > deadline_s:
            raise BenchmarkError("the partner cannot be reached")
        time.sleep(0.01)


def measure(rounds: int = ROUNDS, burst: int = BURST) -> dict[Durability, Seen]:
    """One burst of each in every round."""
    found: dict[Durability, Seen] = {durability: Seen() for durability in DURABILITIES}
    with work_directory() as directory, ExitStack() as stack:
        contestants: list[tuple[Seen, EventSystem, EventSystem]] = []
        for durability, seen in found.items():
            ours, theirs = free_ports(2)
            stack.enter_context(_partner(directory / f"{durability}-b", durability, theirs, ours))
            pair = _settings("b", ours, theirs)
            alone = stack.enter_context(_open(directory / f"{durability}-alone", durability, "alone", None))
            paired = stack.enter_context(_open(directory / f"{durability}-a", durability, "a", pair))
            _until_paired(paired)
            contestants.append((seen, alone, paired))
        for round_ in range(rounds + 1):
            for seen, alone, paired in contestants:
                alone_us, paired_us = _burst(alone, burst), _burst(paired, burst)
                _until_paired(paired)
                if round_:  # the first one warms up
                    seen.alone_us.append(statistics.median(alone_us))
                    seen.paired_us.append(statistics.median(paired_us))
                    seen.every_alone_us.extend(alone_us)
                    seen.every_paired_us.extend(paired_us)
    return found


def report(found: dict[Durability, Seen]) -> Table:
    """Alone, in a pair, and the difference."""
    table = Table("durability", "", "alone", "in a pair", "added", "ratio", title="emit() in a pair, on loopback")
    for durability, seen in found.items():
        both = list(zip(seen.alone_us, seen.paired_us, strict=True))
        added = statistics.median(paired - alone for alone, paired in both)
        ratio = statistics.median(paired / alone for alone, paired in both)
        p50 = percentile(seen.every_alone_us, 0.50), percentile(seen.every_paired_us, 0.50)
        p99 = percentile(seen.every_alone_us, 0.99), percentile(seen.every_paired_us, 0.99)
        table.add_row(durability, "p50", f"{p50[0]:.0f} us", f"{p50[1]:.0f} us", f"{added:.0f} us", f"{ratio:.2f}")
        table.add_row("", "p99", f"{p99[0]:.0f} us", f"{p99[1]:.0f} us", "", "")
    return table


def _be_the_partner(path: str, durability: str, listen: str, partner: str) -> int:
    chosen: Durability = "power" if durability == "power" else "process"
    with _open(Path(path), chosen, "b", _settings("a", int(listen), int(partner))):
        sys.stdin.read()
    return 0


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.event_pair", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--partner", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.partner:
        return _be_the_partner(*arguments.partner)
    Console().print(report(measure(arguments.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
