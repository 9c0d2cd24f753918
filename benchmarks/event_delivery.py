"""Delivering events: what bad recipients cost the good ones, and how fast a backlog goes to a server that is back.

    python -m benchmarks.event_delivery                 # both, some 3 minutes
    python -m benchmarks.event_delivery --events 100000 --rounds 10

Bad recipients
    Two event systems with ten recipients each, in two processes. All ten of the first are good; of the second, one is
    dead (nobody listens where it connects to) and one takes 50 ms for each event. Their bursts take turns. A sample is
    the time from `emit` to the call of one good recipient, one event at a time; eight good ones are counted in each. A
    round's ratio is p50 beside the bad ones through p50 without; printed is the median over the rounds. `durability` is
    "process", so that no sync hides a difference.

Backlog
    Events of some 100 bytes of data are recorded while their server is not there; then a real one comes back. The clock
    runs from the first confirmed batch to the last; what was confirmed before it started does not count. Each event is
    a durable message of a queue, checked by the server's own count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import clarion
from benchmarks.contestant import BenchmarkError, percentile
from benchmarks.processes import HOST, Worker, free_ports, lasting_ports, work_directory
from benchmarks.worker import Gate
from clarion.events import Event, EventSystem, RetryPolicy
from clarion.events.recipients import ClarionServer, Function
from clarion.testing.server import ServerProcess

RECIPIENTS = 10
COUNTED = 8
ROUNDS = 40
BURST = 50
SLOW_S = 0.05
EVENTS = 1_000_000
DATA_BYTES = 100
RECORD_BYTES = 320
"""An event of so much data with its headers, as persistent memory has it."""
GROUP_EVENTS = 10_000
RUN_S_MAX = 900
RATIO_MAX = 1.5
PER_S_MIN = 100_000
"""What is promised."""


# --- good recipients beside bad ones ------------------------------------------------------------------------------


def bursts(gate: Gate, *, directory: str, bad: bool, count: int, port: int) -> dict[str, Any]:
    """In a worker: one burst whenever it is told to go. `port` is one where nobody listens."""
    called: queue.SimpleQueue[int] = queue.SimpleQueue()

    def counted(number: int) -> Function:
        async def note(_: Event) -> None:
            called.put(time.perf_counter_ns())

        return Function(note, name=f"good-{number}")

    def good(number: int) -> Function:
        async def nothing(_: Event) -> None:
            pass

        return Function(nothing, name=f"uncounted-{number}")

    async def connect(_: list[Event]) -> None:
        await asyncio.open_connection(HOST, port)

    def take_long(_: Event) -> None:
        threading.Event().wait(SLOW_S)

    others = (
        [Function(connect, name="dead", batch=True), Function(take_long, name="slow")] if bad else [good(8), good(9)]
    )
    recipients = [*map(counted, range(COUNTED)), *others]
    with EventSystem.open(directory, recipients=recipients, durability="process") as events:
        events.ready()
        while True:
            gate.wait()
            samples = []
            for number in range(count):
                before = time.perf_counter_ns()
                events.emit("tick", source="benchmark", data=number)
                samples += [called.get(timeout=RUN_S_MAX) - before for _ in range(COUNTED)]
            owed = {one["name"]: one["owed"] for one in events.status()["recipients"]}
            gate.say(json.dumps({"samples": samples, "owed": owed}))


@dataclass
class Beside:
    """p50 of each round in microseconds; what the bad ones are owed at the end."""

    normal_us: list[float] = field(default_factory=list)
    beside_us: list[float] = field(default_factory=list)
    owed: dict[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return statistics.median(b / a for a, b in zip(self.normal_us, self.beside_us, strict=True))


def measure_beside(rounds: int = ROUNDS, burst: int = BURST) -> Beside:
    """Good recipients, alone and beside a dead and a slow one; their bursts take turns."""
    seen = Beside()
    with work_directory() as directory, ExitStack() as stack:
        workers = []
        for name, bad in (("normal", False), ("beside", True)):
            arguments = {"directory": str(directory / name), "bad": bad, "count": burst, "port": free_ports(1)[0]}
            target = "benchmarks.event_delivery:bursts"
            worker = Worker(Path(sys.executable), target, arguments, directory / f"{name}.log", RUN_S_MAX)
            stack.callback(worker.stop)
            workers.append(worker)
        for turn in range(rounds + 1):
            answers: list[dict[str, Any]] = [{}, {}]
            for which in (0, 1) if turn % 2 else (1, 0):
                workers[which].until_ready()
                workers[which].go()
                answers[which] = workers[which].answer()
            if turn:  # the first one warms up
                seen.normal_us.append(percentile(answers[0]["samples"], 0.5) / 1_000)
                seen.beside_us.append(percentile(answers[1]["samples"], 0.5) / 1_000)
            seen.owed = answers[1]["owed"]
    return seen


# --- a backlog ----------------------------------------------------------------------------------------------------


@dataclass
class Backlog:
    events: int
    recorded_per_s: float
    first_s: float
    """From the server's return to the first confirmed batch: the pause between two attempts, mostly."""
    delivered_per_s: float
    stored: int
    """Messages that the server has."""


def _until(look: Callable[[], int | None], what: str) -> int:
    """What `look` finds as soon as it finds something."""
    deadline_s = time.monotonic() + RUN_S_MAX
    while (found := look()) is None:
        if time.monotonic() > deadline_s:
            raise BenchmarkError(f"not within {RUN_S_MAX} s: {what}")
        time.sleep(0.005)
    return found


async def _stored(url: str) -> int:
    async with clarion.connect(url) as connection:
        found = [one for one in await connection.command("destinations") if one["name"] == "events"]
        return int(found[0]["depth"]) if found else 0


def measure_backlog(count: int = EVENTS) -> Backlog:
    """Record events while the server is away; how fast they are delivered when it is back."""
    data = {"number": 0, "text": "x" * (DATA_BYTES - 24)}
    group = [("order.taken", "shop/till", "info", data)] * min(count, GROUP_EVENTS)
    with work_directory() as directory, ExitStack() as stack:
        server = ServerProcess(directory / "data")
        server.port = lasting_ports(1)[0]  # nobody else may take it while the server is away
        stack.enter_context(server)
        server.kill()
        recipient = ClarionServer(server.url, destination="queue:events")
        with EventSystem.open(
            directory / "events",
            recipients=[recipient],
            capacity=count + len(group),
            event_bytes=RECORD_BYTES,
            retry=RetryPolicy(max_ms=1_000),
        ) as events:
            events.ready()

            def confirmed() -> int:
                recipients = events.status()["recipients"]
                return int(recipients[0]["confirmed"]) if recipients else 0

            began_s = time.perf_counter()
            recorded = 0
            while recorded < count:
                recorded += len(events.emit_many(group[: count - recorded]))
            recorded_per_s = count / (time.perf_counter() - began_s)
            server.start()
            back_s = time.perf_counter()
            before = _until(lambda: confirmed() or None, "nothing is delivered")
            first_s = time.perf_counter()
            if not events.wait_until_delivered(RUN_S_MAX):
                raise BenchmarkError(f"not all of {count} events were delivered within {RUN_S_MAX} s")
            seconds = time.perf_counter() - first_s
        stored = asyncio.run(_stored(server.url))
    return Backlog(count, recorded_per_s, first_s - back_s, (count - before) / seconds, stored)


# --- the command line ---------------------------------------------------------------------------------------------


def table(beside: Beside, backlogs: list[Backlog]) -> Table:
    shown = Table(title="delivering events")
    for title, justify in (("figure", "left"), ("measured", "right"), ("promised", "right")):
        shown.add_column(title, justify=justify)  # type: ignore[arg-type]
    shown.add_row("p50 of a good recipient, ten good ones", f"{statistics.median(beside.normal_us):,.0f} µs", "")
    shown.add_row("the same beside a dead and a slow one", f"{statistics.median(beside.beside_us):,.0f} µs", "")
    shown.add_row(f"ratio, median of {len(beside.normal_us)} rounds", f"{beside.ratio:.2f}", f"≤ {RATIO_MAX}")
    for backlog in backlogs:
        shown.add_row(f"{backlog.events:,} events recorded, server away", f"{backlog.recorded_per_s:,.0f}/s", "")
        shown.add_row("first one confirmed after the server's return", f"{backlog.first_s:.2f} s", "")
        shown.add_row("delivered and confirmed", f"{backlog.delivered_per_s:,.0f}/s", f"≥ {PER_S_MIN:,}/s")
    return shown


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.event_delivery", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--burst", type=int, default=BURST, help="events in a burst")
    parser.add_argument("--events", type=int, default=EVENTS, help="of the backlog")
    parser.add_argument("--backlogs", type=int, default=3, help="how often the backlog is delivered")
    arguments = parser.parse_args(given)
    backlogs = [measure_backlog(arguments.events) for _ in range(arguments.backlogs)]
    beside = measure_beside(arguments.rounds, arguments.burst)
    Console(width=None if sys.stdout.isatty() else 120).print(table(beside, backlogs))
    return 0 if all(one.stored == one.events for one in backlogs) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
