"""A process without memory, descriptors or disk space that records events: `DIRECTORY DURABILITY COUNT [WAY]`.

WAY: `section`, `process` (an event system that only records), `daemon` (the same, and another process delivers),
`library` (one that delivers too, to a log file that is elsewhere, and has to when the pressure ends).

Run by `test_events_memory.py`, which fills the disk when this says `ready`. Prints one line of JSON at the end.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.eater import Eater
from clarion.events.memory import Section, ring_bytes_for
from clarion.events.recipients.log_file import LogFile
from clarion.events.system import EventSystem
from clarion.journal.options import Durability
from clarion.message import decode_headers

EVENT_BYTES = 4096


class AddressSpace:
    """What this process has of it, and a limit that leaves it nothing more.

    Needs no descriptor later: somebody else would take one that was free for a moment.
    """

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._limits = resource.getrlimit(resource.RLIMIT_AS)

    def limit(self) -> None:
        pages = int(os.pread(self._statm, 100, 0).split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE"), self._limits[1]))

    def free(self) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self._limits)


class Descriptors:
    """None left, from `take` to `free`."""

    def __init__(self) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._taken: list[int] = []

    def take(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, self._limits[1]))
        try:
            while True:
                self._taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass

    def free(self) -> None:
        for descriptor in self._taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)


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
    turns = iter(list(zip(numbers, times, events, strict=True)))  # made now: later there is no memory for a loop
    eater = Eater()
    print("ready", flush=True)
    sys.stdin.readline()
    record, began = section.record, time.monotonic()
    space, descriptors = AddressSpace(), Descriptors()
    descriptors.take()
    eater.start()
    space.limit()
    eater.begin = True
    while not eater.full:  # a `threading.Event` would need memory
        os.sched_yield()
    for number, time_ns, data in turns:
        try:
            if system is None:
                record("disk.full", "volume/7", 40, time_ns, data, bits=1)
            else:
                system.emit("disk.full", source="volume/7", severity="error", data=data)  # at the time that it is
        except BaseException as error:
            errors[number] = type(error)
    space.free()
    seconds = time.monotonic() - began
    rounds, alive = eater.rounds, eater.is_alive()
    left = section._ballast.count()
    eater.end()
    descriptors.free()
    path = Path(directory) / ("own.ring" if system is None else "sections/0-normal.ring")
    delivered: list[Any] = []
    if system is not None and way == "library":
        assert system.wait_until_delivered(RUN_S_MAX), system.problem
        delivered = [json.loads(line)["data"] for line in Path(LOG).read_text().splitlines()]
    following, lost = section.next_sequence, section.lost
    if system is not None:
        system.close()
    else:
        section.close()
    good = sum(data == event for data, event in zip(delivered, events, strict=False))
    if way != "daemon":  # which takes what this process leaves
        good, following, lost = _read(path, events, good)
    failed = [error.__name__ for error in errors if error is not None]
    result = {
        "errors": sorted(set(failed)),
        "failed": len(failed),
        "good": good,
        "seconds": seconds,
        "rounds": rounds,
        "alive": alive,
        "ballast": section._ballast._full,
        "left": left,
    }
    print(json.dumps({**result, "lost": lost, "next": following}), flush=True)


def _read(path: Path, events: list[Any], good: int) -> tuple[int, int, list[Any]]:
    """How many are there as they should be, where the section ends, and what it has lost."""
    section = Section.open(path, writable=True)
    first = section.first_sequence
    while some := section.read(first, 100, 1 << 20):
        for event in some:
            properties = decode_headers(event.headers).properties or {}
            expected = events[good] if good < len(events) else None
            good += json.loads(bytes(event.body)) == expected and properties["source"] == "volume/7"
        first = some[-1].at + 1
    following, lost = section.next_sequence, section.lost
    section.close()
    return good, following, lost


LOG = os.environ.get("CLARION_TEST_LOG", "")
RUN_S_MAX = 300.0

if __name__ == "__main__":
    main(sys.argv[1], "power" if sys.argv[2] == "power" else "process", int(sys.argv[3]), [*sys.argv, "section"][4])
