"""The child side of a measurement: `python -m benchmarks.worker MODULE:FUNCTION ARGUMENTS-AS-JSON`.

A worker imports the function, connects, says "ready", waits for "go", works, and answers one line of JSON. The
handshake keeps interpreter start, imports and connecting out of the measured time. Clocks are CLOCK_MONOTONIC,
which all processes of one machine share, so a producer's start and a consumer's end can be subtracted.

A worker ends by itself: an alarm ends it at its time limit even when its parent is gone. Standard output belongs to
the handshake; whatever a library prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any


class Gate:
    """Where a worker waits until every worker of its run is ready."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.opened_ns = 0

    def say(self, line: str) -> None:
        os.write(self.channel, line.encode() + b"\n")

    def wait(self) -> None:
        self.say("ready")
        if sys.stdin.readline().strip() != "go":
            raise SystemExit("the parent went away before the start")
        self.opened_ns = time.monotonic_ns()

    def times(self, count: int) -> dict[str, Any]:
        """The usual answer of a producer or consumer: how many, from when, until now."""
        return {"count": count, "started_ns": self.opened_ns, "ended_ns": time.monotonic_ns()}


def main(arguments: list[str]) -> None:
    target, encoded, limit_s = arguments
    signal.alarm(int(limit_s))
    channel = os.dup(1)
    os.dup2(2, 1)
    module, _, name = target.partition(":")
    function: Callable[..., dict[str, Any]] = getattr(importlib.import_module(module), name)
    gate = Gate(channel)
    gate.say(json.dumps(function(gate, **json.loads(encoded))))


if __name__ == "__main__":
    main(sys.argv[1:])
