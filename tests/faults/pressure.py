"""No memory and no descriptor, from one line of input to the next: for children that have a thread to wait in.

Everything after the first line is done without memory: in line, each step once, and again where there was none for it.
"""

from __future__ import annotations

import os

from benchmarks.eater import Eater
from clarion.events.memory.ballast import NO_MEMORY
from tests.faults.events_memory_child import AddressSpace, Descriptors

PROBE_BYTES = 64 << 10
PROBE_BYTES_OWN = 80 << 20
"""More than an arena of a thread may become, which has its address space already."""


def endure(eater: Eater, probe_bytes: int = PROBE_BYTES) -> dict[str, object]:
    """Begin the pressure, say `starving`, wait for a line, end it.

    `refused`: there was no memory until the end; `eating`: somebody took what was free until then; `rounds` of that.
    """
    room = [bytearray(1)]
    space, descriptors = AddressSpace(), Descriptors()
    descriptors.take()
    space.limit()
    eater.begin = True
    told = heard = refused = False
    before = 0
    while True:
        try:
            while not eater.full:
                os.sched_yield()
            if not told:
                os.write(1, b"starving\n")
                told = True
                before = eater.rounds
            if not heard:
                os.readv(0, room)
                heard = True
            while eater.rounds == before and eater.is_alive():  # the last one may just not be over
                os.sched_yield()
            if not refused:
                refused = True
                bytearray(probe_bytes)
                refused = False
            space.free()
            break
        except NO_MEMORY:
            pass
    eating, rounds = eater.is_alive(), eater.rounds - before
    eater.end()
    descriptors.free()
    return {"refused": refused, "eating": eating, "rounds": rounds}
