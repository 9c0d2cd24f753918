"""Never mute: a multiplexer without memory, descriptors and disk space records what arrives (A-03, A-11).

The address space is used up and another thread takes what is freed. The thread of the link has an arena of the C
library for itself, whose reserved space nobody else takes, so its ballast is hardly asked (`starved` is 0). So it is in
a process of `clarion events multiplex` whatever its environment says. Not shown: a program of somebody else's that has
one, with MALLOC_ARENA_MAX=1. There the ballast is asked all the time, and 300 events take more than a minute: to wait
for input and to receive gives up the interpreter, and what comes back needs memory that others have taken meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.small_disk import FOREIGN, fill
from clarion.events.encoding import Encoder
from clarion.events.link.client import Link
from clarion.events.link.frames import Hello, Role
from clarion.events.memory import Recorded
from tests.faults.multiplexer_memory_child import EVENT_BYTES, WARM
from tests.faults.test_events_memory import disk

__all__ = ["disk"]

EVENTS = 10_000
PRODUCER = 7 << 64
RUN_S_MAX = 900.0


def events_of(first: int, count: int) -> list[Recorded]:
    """Of the largest size."""
    encoder = Encoder(EVENT_BYTES)
    empty = encoder.encode("disk.full", "volume/7", 40, 1 << 60, b"")
    body = b"x" * (EVENT_BYTES - len(empty.headers))
    event = encoder.encode("disk.full", "volume/7", 40, 1 << 60, body)
    assert len(event.headers) + len(event.body) == EVENT_BYTES
    headers = bytes(event.headers)
    return [
        Recorded(PRODUCER, sequence, 1 << 60, 40, 1, 1, 0, headers, body) for sequence in range(first, first + count)
    ]


def starve(folder: Path, durability: str, count: int, *, full: bool) -> dict[str, Any]:
    """What a multiplexer says that got `count` events while it had nothing."""
    command = [sys.executable, "-m", "tests.faults.multiplexer_memory_child", str(folder), durability]
    command.append(str(count + 2 * WARM))
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            host, port = child.stdout.readline().strip().split(":")
            link = Link.connect((host, int(port)), 30.0, hello=Hello("test", Role.MULTIPLEX))
            deadline_s = time.monotonic() + RUN_S_MAX
            link.put_recorded(PRODUCER, events_of(1, WARM), deadline_s)
            link.await_stored(deadline_s)
            if full:
                fill(folder)
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == "starving\n"
            began_s = time.monotonic()
            for first in range(1, count + 1, 50):
                link.put_recorded(PRODUCER, events_of(WARM + first, min(50, count + 1 - first)), deadline_s)
                link.await_stored(deadline_s)
            seconds = time.monotonic() - began_s
            link.close()
            (folder / FOREIGN).unlink(missing_ok=True)
            answer, _ = child.communicate("\n", timeout=RUN_S_MAX)
        except BaseException:
            child.kill()
            raise
    assert child.returncode == 0
    result: dict[str, Any] = json.loads(answer)
    print({**result, "seconds": round(seconds, 1)})
    return result


@pytest.mark.parametrize("durability", ["power", "process"])
def test_a03_a_multiplexer_records_without_memory(tmp_path: Path, durability: str) -> None:
    result = starve(tmp_path, durability, 300, full=False)
    assert result["delivered"] and result["got"] == WARM + 300, result


@pytest.mark.root
@pytest.mark.timeout(RUN_S_MAX + 60)
@pytest.mark.parametrize("durability", ["power", "process"])
def test_a03_ten_thousand_events_arrive_without_memory_descriptors_and_disk_space(
    disk: Path,
    durability: str,
) -> None:
    result = starve(disk, durability, EVENTS, full=True)
    assert result["delivered"] and result["got"] == WARM + EVENTS, result
    assert result["eating"] and result["rounds"] > 0, "somebody took what was free until the end"
    assert result["refused"], "there was no memory at the end"
