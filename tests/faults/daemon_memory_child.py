"""`clarion events serve` in a process that has no memory and no descriptor for a while: `DIRECTORY SETTINGS ARENAS`.

ARENAS: `own`, as the command line has it, or `shared`.

Run by `test_daemon_memory.py`. It prints `ready`; a line of input begins the pressure, and `starving` is the answer;
another line ends it, and one line of JSON is the answer.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from benchmarks.eater import Eater
from clarion.events import arenas, daemon
from tests.faults.pressure import PROBE_BYTES, PROBE_BYTES_OWN, endure


def press(eater: Eater, main_thread: int, probe_bytes: int) -> None:
    """In a thread of its own: the main one is the daemon's."""
    room = [bytearray(1)]
    while sys._current_frames()[main_thread].f_code is not daemon.run.__code__:  # it has all that it needs
        os.sched_yield()
    os.write(1, b"ready\n")
    os.readv(0, room)
    os.write(1, json.dumps(endure(eater, probe_bytes)).encode() + b"\n")


def main(directory: str, settings: str, whose: str) -> int:
    if whose == "own":
        assert arenas.claim()
    eater = Eater()
    eater.start()
    probe_bytes = PROBE_BYTES_OWN if whose == "own" else PROBE_BYTES
    threading.Thread(target=press, args=(eater, threading.get_ident(), probe_bytes), daemon=True).start()
    return daemon.run(Path(directory), Path(settings), ready=lambda _line: None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
