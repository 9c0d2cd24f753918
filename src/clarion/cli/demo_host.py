"""A program on a host that has events to tell: the producer of `clarion demo`, a process of its own.

    python -m clarion.cli.demo_host DIRECTORY NUMBER EVENTS RATE

It records EVENTS events in DIRECTORY, RATE a second, and prints a line of JSON now and then: how many are recorded.
Whether anybody delivers them is not its business. Things go on as in a real machine room: heartbeats, logins, a link
that goes up and down in the second half, a disk that fills up at the end.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

import msgspec

from clarion.events import EventSystem

SAY_S = 0.1


def happening(number: int, index: int, events: int) -> tuple[str, str, str, dict[str, Any]]:
    """Type, source, severity and attributes of event `index` of `events`, of program `number`."""
    part = index / events
    if 0.5 < part < 0.9 and index % 25 == 0:
        return "link.changed", f"host/{number}/eth0", "warning", {"state": "up" if index % 50 else "down"}
    if part > 0.8 and index % 10 == 0:
        return "disk.full", f"host/{number}/volume/7", "error", {"free": 0}
    if index % 4 == 0:
        return "heartbeat", f"host/{number}", "debug", {}
    if index % 7 == 0:
        return "login.failed", f"host/{number}/sshd", "warning", {"user": "root"}
    return "login", f"host/{number}/sshd", "info", {"user": f"user-{index % 90}"}


def main(directory: str, number: int, events: int, rate: float) -> None:
    """Record, at a steady pace; what falls behind is caught up with."""
    counts: Counter[str] = Counter()
    with EventSystem.open(directory) as system:
        system.ready()
        began = said = time.monotonic()
        for index in range(events):
            type_, source, severity, attributes = happening(number, index, events)
            system.emit(type_, source=source, severity=severity, data={"index": index}, attributes=attributes)
            counts[type_] += 1
            now = time.monotonic()
            if now - said >= SAY_S:
                said = now
                say(counts)
            ahead_s = index / rate - (now - began)
            if ahead_s > 0:
                time.sleep(ahead_s)
        say(counts)


def say(counts: Counter[str]) -> None:
    sys.stdout.write(msgspec.json.encode({"at": time.time(), "counts": counts}).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
