"""A process whose engine is stopped while there are no descriptors, or no memory: `DIRECTORY descriptors|memory COUNT`.

It emits all the time. When the pressure has ended everything must be delivered by an engine that started by itself.
Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
import traceback
from pathlib import Path

from clarion.events import Event, EventSystem, RetryPolicy
from clarion.events.recipients import LogFile
from clarion.events.recipients.function import Function

PRESSED_S = 1.0


def use_up_descriptors() -> list[int]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return taken


class Eater(threading.Thread):
    """Takes what is free until it is told to stop, but for the smallest pieces: without those the interpreter dies."""

    def __init__(self) -> None:
        super().__init__()
        self.full = self.stop = False

    def run(self) -> None:
        held: object = None
        while not self.stop:
            for size in (1 << 24, 1 << 20, 1 << 16, 1 << 13):
                try:
                    while not self.stop:
                        held = (held, bytearray(size))
                except MemoryError:
                    pass
            self.full = True
        while held is not None:  # not by recursion
            held = held[0]  # type: ignore[index]


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} in {Path(frames[-1].filename).name}:{frames[-1].lineno}"


def main(directory: str, pressure: str, count: int) -> None:
    got: list[str] = []
    is_open = [True]
    path = Path(directory)

    def keep(event: Event) -> None:
        if not is_open[0]:
            raise RuntimeError("closed")
        got.append(event.id)

    system = EventSystem.open(
        path / "events",
        [Function(keep, name="keeper", batch_events_max=4), LogFile(path / "log")],
        capacity=5_000,
        event_bytes=256,
        durability="process",
        retry=RetryPolicy(first_ms=20, max_ms=200),
    )
    system.ready()
    emitted: list[object] = [None] * (3 * count)
    for number in range(count):
        emitted[number] = system.emit("before", source="s", data=number)
    assert system.wait_until_delivered(30)
    engine = system._engine
    assert engine is not None
    failed: list[object] = [None] * count
    limits = resource.getrlimit(resource.RLIMIT_AS), resource.getrlimit(resource.RLIMIT_NOFILE)
    is_open[0] = False
    for number in range(count):
        emitted[count + number] = system.emit("backlog", source="s", data=number)
    numbers = list(range(count))
    taken: list[int] = []
    eater = Eater()
    system.registry.arm("events.215=fail:ENOMEM")  # it stops once for sure, and starts again while there is nothing
    if pressure == "descriptors":
        taken = use_up_descriptors()
    else:
        pages = int(Path("/proc/self/statm").read_text().split()[0]) + 1_000
        eater.start()
        resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE"), limits[0][1]))
        while not eater.full:
            os.sched_yield()
    is_open[0] = True  # there is much to deliver
    began_s = time.monotonic()
    for number in numbers:
        try:
            emitted[2 * count + number] = system.emit("pressed", source="s", data=number)
        except BaseException as error:
            failed[number] = error
    while time.monotonic() - began_s < PRESSED_S:
        time.sleep(0.01)
    if pressure == "memory":
        resource.setrlimit(resource.RLIMIT_AS, limits[0])
    eater.stop = True
    if eater.ident is not None:
        eater.join()
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits[1])
    ended_s = time.monotonic()
    delivered = system.wait_until_delivered(40)
    took_s = time.monotonic() - ended_s
    last = system.emit("after", source="s")
    delivered = delivered and system.wait_until_delivered(40)
    wanted = {identity for identity in (*emitted, last) if identity is not None}
    result = {
        "delivered": delivered,
        "restarted": system._engine is not engine,
        "failed": sorted({_place(error) for error in failed if isinstance(error, BaseException)}),
        "refused": sum(error is not None for error in failed),
        "missing": len(wanted - set(got)),
        "recorded": len(wanted),
        "took_s": round(took_s, 2),
        "problem": system.problem,
    }
    system.close()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
