"""A process without memory, descriptors or disk space that records events: `DIRECTORY DURABILITY COUNT [WAY]`.

WAY: `section`, `process` (an event system that only records), `library` (one that delivers too, to a log file that is
elsewhere, and has to when the pressure ends).

Run by `test_events_memory.py`, which fills the disk when this says `ready`. Prints one line of JSON at the end.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

from clarion.events.memory import Section, ring_bytes_for
from clarion.events.recipients.log_file import LogFile
from clarion.events.system import EventSystem
from clarion.journal.options import Durability
from clarion.message import decode_headers

EVENT_BYTES = 4096
NOTHING_LEFT = (MemoryError, SystemError)
"""Made here, like what follows: to make it where it is needed would need memory."""
SMALL_SIZES = tuple(range(0, 480, 16)) if os.environ.get("CLARION_TEST_SMALL") else ()
"""Without small blocks the caller's own frames and numbers are safe; with them only what is below `emit` is."""
MANY = range(100_000)


class Eater:
    """Takes every byte that anybody frees, large blocks and small ones, and never gives any back until it is told."""

    def __init__(self) -> None:
        self.begin = self.stop = False
        self.full = False
        self.rounds = 0
        self._large: list[object] = [None] * 200_000
        self._count = 0
        self._chain: object = None
        self._thread = threading.Thread(target=self._eat)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self.stop = True
        self._thread.join()
        self._large.clear()

    def _eat(self) -> None:
        while not self.begin:
            os.sched_yield()
        while not self.stop:
            try:
                self._eat_more()
            except NOTHING_LEFT:
                self.full = True  # whatever there was none for
        chain, self._chain = self._chain, None
        while chain is not None:  # not by recursion
            chain = chain[0]  # type: ignore[index]

    def _eat_more(self) -> None:
        for size in (1 << 26, 1 << 22, 1 << 18, 1 << 14, 1 << 12, 2000, 1000):
            try:
                while not self.stop and self._count < len(self._large):
                    self._large[self._count] = bytearray(size)
                    self._count += 1
            except NOTHING_LEFT:
                pass
        # Small objects of all sizes, in a chain that needs no list to hold them.
        for size in SMALL_SIZES:
            try:
                for _ in MANY:
                    if self.stop:
                        return
                    self._chain = (self._chain, bytes(size))
            except NOTHING_LEFT:
                pass
        self.full = True
        self.rounds += 1


def use_up_descriptors() -> list[int]:
    soft = 64
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return taken


def room_for(start: str) -> int:
    return EVENT_BYTES - len(json.dumps({"number": 10**6, "text": start}, ensure_ascii=False).encode()) - 4


def main(directory: str, durability: Durability, count: int, way: str) -> None:
    system: EventSystem | None = None
    if way == "section":
        section = Section.create(
            Path(directory) / "own.ring", name="own", kind="normal", producer=7 << 64,
            bytes_=ring_bytes_for(count, EVENT_BYTES, durability), event_bytes_max=EVENT_BYTES, durability=durability,
        )  # fmt: skip
    else:
        recipients = [LogFile(LOG, sync=False)] if way == "library" else []
        system = EventSystem.open(
            directory, recipients, capacity=count, event_bytes=EVENT_BYTES, event_bytes_max=EVENT_BYTES,
            initialisation_capacity=10, durability=durability,
        )  # fmt: skip
        system.ready()
        section = system._recorder.sections.normal
        while way == "library" and not system.is_delivering:
            time.sleep(0.01)
    probe = len(section.encoder.encode("disk.full", "volume/7", 40, 1 << 60, {"number": 10_000, "text": ""}).headers)
    texts = [start + "x" * (room_for(start) - probe) for start in ('say "hello"\n' * 20, "é" * 20)]
    # Most of them ASCII, as they are in life: the others take the slow way.
    events = [{"number": 10**6 + number, "text": texts[number % 10 == 9]} for number in range(count)]
    numbers = list(range(count))
    times = [(1 << 60) + number for number in range(count)]
    errors: list[type | None] = [None] * count
    eater = Eater()
    print("ready", flush=True)
    sys.stdin.readline()
    taken = use_up_descriptors()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    eater.start()
    pages = int(_statm(taken).split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE"), limits[1]))
    eater.begin = True
    while not eater.full:  # a `threading.Event` would need memory
        os.sched_yield()
    began = time.monotonic()
    record = section.record
    for number, time_ns, data in zip(numbers, times, events, strict=True):
        try:
            if system is None:
                record("disk.full", "volume/7", 40, time_ns, data, bits=1)
            else:
                system.emit("disk.full", source="volume/7", severity=40, data=data, time_ns=time_ns)
        except BaseException as error:
            errors[number] = type(error)
    resource.setrlimit(resource.RLIMIT_AS, limits)
    seconds = time.monotonic() - began
    rounds, alive = eater.rounds, eater.is_alive()
    left = section._ballast.count()
    eater.end()
    for descriptor in taken:
        os.close(descriptor)
    path = Path(directory) / ("own.ring" if system is None else "sections/0-normal.ring")
    delivered: list[Any] = []
    if system is not None and way == "library":
        assert system.wait_until_delivered(RUN_S_MAX), system.problem
        delivered = [json.loads(line)["data"] for line in Path(LOG).read_text().splitlines()]
    if system is not None:
        system.close()
    else:
        section.close()
    section = Section.open(path, writable=True)
    good = sum(data == event for data, event in zip(delivered, events, strict=False))
    first = section.first_sequence
    while some := section.read(first, 100, 1 << 20):
        for event in some:
            properties = decode_headers(event.headers).properties or {}
            expected = events[good] if good < count else None
            good += json.loads(bytes(event.body)) == expected and properties["source"] == "volume/7"
        first = some[-1].at + 1
    failed = [error.__name__ for error in errors if error is not None]
    result = {
        "errors": sorted(set(failed)),
        "failed": len(failed),
        "good": good,
        "seconds": seconds,
        "rounds": rounds,
        "alive": alive,
        "left": left,
    }
    print(json.dumps({**result, "lost": section.lost, "next": section.next_sequence}), flush=True)
    section.close()


def _statm(taken: list[int]) -> str:
    os.close(taken.pop())
    with Path("/proc/self/statm").open() as file:
        text = file.read()
    taken.append(os.open("/dev/null", os.O_RDONLY))
    return text


LOG = os.environ.get("CLARION_TEST_LOG", "")
RUN_S_MAX = 300.0

if __name__ == "__main__":
    main(sys.argv[1], "power" if sys.argv[2] == "power" else "process", int(sys.argv[3]), [*sys.argv, "section"][4])
