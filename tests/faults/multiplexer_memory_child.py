"""A multiplexer without memory, descriptors or disk space: `DIRECTORY DURABILITY CAPACITY`.

Run by `test_multiplexer_memory.py`. It prints its address; a line of input begins the pressure, and `starving` is the
answer; another line ends it, and one line of JSON is the answer when everything is delivered.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from clarion.events.event import Event
from clarion.events.memory.ballast import NO_MEMORY
from clarion.events.multiplexer import Multiplexer
from clarion.events.recipients.function import Function
from tests.faults.events_memory_child import Eater, _statm, use_up_descriptors

EVENT_BYTES = 4096
WARM = 20
_PROBE_BYTES = 64 << 10
"""Events that arrive before the pressure: every thread that is needed runs then."""
DRAIN_S = 120.0


class SteadyEater(Eater):
    """Lives as long as the pressure has to: what it catches is a tuple that exists, for to make one needs memory."""

    def _eat(self) -> None:
        while not self.begin:
            os.sched_yield()
        while not self.stop:
            try:
                while not self.stop:
                    self._eat_more()
            except NO_MEMORY:
                self.full = True
        chain, self._chain = self._chain, None
        while chain is not None:  # not by recursion
            chain = chain[0]  # type: ignore[index]


def main(directory: str, durability: str, capacity: int) -> None:
    got: set[str] = set()

    def keep(event: Event) -> None:
        got.add(event.id)

    collector = Multiplexer.open(
        Path(directory) / "events",
        [Function(keep, name="keeper", filter="source = 'volume/7'")],
        multiplex_capacity=capacity,
        capacity=50,
        initialisation_capacity=50,
        event_bytes=EVENT_BYTES,
        event_bytes_max=EVENT_BYTES,
        durability=durability,
    )
    collector.ready()
    eater = SteadyEater()
    eater.start()
    room = [bytearray(1)]
    print(collector.address, flush=True)
    os.readv(0, room)
    while len(got) < WARM:
        os.sched_yield()
    taken = use_up_descriptors()
    pages = int(_statm(taken).split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    eater.begin = True
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE"), limits[1]))
    while not eater.full:
        os.sched_yield()
    while True:
        try:
            os.write(1, b"starving\n")
            break
        except NO_MEMORY:
            pass
    before = eater.rounds
    while True:
        try:
            os.readv(0, room)
            break
        except NO_MEMORY:
            pass
    refused = False
    try:
        bytearray(_PROBE_BYTES)
    except NO_MEMORY:
        refused = True
    alive = eater._thread.is_alive()
    resource.setrlimit(resource.RLIMIT_AS, limits)
    rounds = eater.rounds - before
    eater.end()
    for descriptor in taken:
        os.close(descriptor)
    starved = collector.multiplex_status()["starved"]
    delivered = collector.wait_until_delivered(DRAIN_S)
    result = {
        "got": len(got),
        "delivered": delivered,
        "starved": starved,
        "rounds": rounds,
        "refused": refused,
        "eating": alive,
        "problem": collector.problem,
    }
    print(json.dumps(result), flush=True)
    collector.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
