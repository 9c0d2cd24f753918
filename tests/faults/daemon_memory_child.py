"""`clarion events serve` in a process that has no memory and no descriptor for a while: `DIRECTORY SETTINGS`.

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
from clarion.events import daemon
from tests.faults.pressure import endure


def press(eater: Eater, main_thread: int) -> None:
    """In a thread of its own: the main one is the daemon's."""
    room = [bytearray(1)]
    while sys._current_frames()[main_thread].f_code is not daemon.run.__code__:  # it has all that it needs
        os.sched_yield()
    os.write(1, b"ready\n")
    os.readv(0, room)
    os.write(1, json.dumps(endure(eater)).encode() + b"\n")


def main(directory: str, settings: str) -> int:
    eater = Eater()
    eater.start()
    threading.Thread(target=press, args=(eater, threading.get_ident()), daemon=True).start()
    return daemon.run(Path(directory), Path(settings), ready=lambda _line: None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
