"""A multiplexer without memory, descriptors or disk space: `DIRECTORY DURABILITY CAPACITY`, as the command line has it.

Run by `test_multiplexer_memory.py`. It prints its address; a line of input begins the pressure, and `starving` is the
answer; another line ends it, and one line of JSON is the answer when everything is delivered.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks.eater import Eater
from clarion.events import arenas
from clarion.events.event import Event
from clarion.events.multiplexer import Multiplexer
from clarion.events.recipients.function import Function
from tests.faults.pressure import endure

EVENT_BYTES = 4096
WARM = 20
"""Events that arrive before the pressure: every thread that is needed runs then."""
DRAIN_S = 120.0


def main(directory: str, durability: str, capacity: int) -> None:
    arenas.claim()
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
    eater = Eater()
    eater.start()
    room = [bytearray(1)]
    print(collector.address, flush=True)
    os.readv(0, room)
    while len(got) < WARM:
        os.sched_yield()
    pressed = endure(eater)
    starved = collector.multiplex_status()["starved"]
    delivered = collector.wait_until_delivered(DRAIN_S)
    result = {
        "got": len(got),
        "delivered": delivered,
        "starved": starved,
        **pressed,
        "problem": collector.problem,
    }
    print(json.dumps(result), flush=True)
    collector.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
