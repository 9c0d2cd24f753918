"""Never mute: the daemon of a host has no memory and no descriptor, and nothing is lost (A-03).

Other processes of the host record meanwhile, one of them without memory, descriptors and disk space itself, and one
that was not there before. When the pressure ends the same daemon delivers all of it: its threads have arenas of their
own (`clarion.events.arenas`). Or the next one: where even the arenas of threads are taken, as in a library's process
with MALLOC_ARENA_MAX=1, the one that delivers was seen to end by SIGABRT or SIGSEGV, rarely, and not for a reason that
we know; then it is started again, as a supervisor would do it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from benchmarks.small_disk import FOREIGN, fill
from clarion.events import EventSystem
from tests.faults.test_events_memory import EVENTS, RUN_S_MAX, disk, starve

__all__ = ["disk"]

EVENT_BYTES = 4096
DRAIN_S = 120.0
LATE = 20
ONE_ARENA = {**os.environ, "MALLOC_ARENA_MAX": "1"}
"""The C library gives every thread address space for itself, which others cannot take. Here only if it is told to."""


class Starving:
    """A daemon under pressure, until it is told that there is none."""

    def __init__(self, process: subprocess.Popen[str], stdin: IO[str], stdout: IO[str], *, may_die: bool) -> None:
        self._process, self._stdin, self._stdout, self._may_die = process, stdin, stdout, may_die
        assert stdout.readline() == "ready\n"

    def begin(self) -> None:
        assert self._ask() in ("starving\n", "")

    def end(self) -> bool:
        """Whether it lives."""
        answer = self._ask()
        if not answer:
            assert self._process.wait(60) in (-signal.SIGABRT, -signal.SIGSEGV) and self._may_die
            return False
        told = json.loads(answer)
        assert told["refused"] and told["eating"] and told["rounds"] > 0, told
        return True

    def _ask(self) -> str:
        """The answer to a line; empty if nobody is there."""
        try:
            self._stdin.write("\n")
            self._stdin.flush()
        except BrokenPipeError:
            return ""
        return self._stdout.readline()

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(60) == 0


@contextlib.contextmanager
def serving(directory: Path, log: Path, durability: str, arenas: str) -> Iterator[Starving]:
    """`clarion events serve` for a directory, with a log file as its recipient."""
    settings = log.with_suffix(".toml")
    settings.write_text(
        f"[events]\ncapacity = 10\ninitialisation_capacity = 10\nevent_bytes_max = {EVENT_BYTES}\n"
        f'durability = "{durability}"\n[[events.recipients]]\ntype = "log"\npath = "{log}"\n'
    )
    command = [sys.executable, "-m", "tests.faults.daemon_memory_child", str(directory), str(settings), arenas]
    with (
        log.with_suffix(".err").open("w") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=ONE_ARENA
        ) as child,
    ):
        assert child.stdin is not None and child.stdout is not None
        try:
            yield Starving(child, child.stdin, child.stdout, may_die=arenas == "shared")
        except BaseException:
            child.kill()
            raise
        finally:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()


def ended(daemon: Starving, directory: Path, log: Path, durability: str) -> list[Any]:
    """The data of all events that the daemon, or the next one, has delivered after the pressure."""
    if daemon.end():
        found = delivered(directory, log)
        daemon.stop()
        return found
    with serving(directory, log, durability, "own") as another:
        found = delivered(directory, log)
        another.stop()
        return found


def delivered(directory: Path, log: Path) -> list[Any]:
    """The data of all events, when the daemon says that it has delivered everything."""
    with EventSystem.open(directory, capacity=10, initialisation_capacity=10, event_bytes_max=EVENT_BYTES) as system:
        assert system.wait_until_delivered(DRAIN_S), log.with_suffix(".err").read_text()[-2000:]
    return [json.loads(line)["data"] for line in log.read_text().splitlines()]


@pytest.mark.parametrize(
    ("durability", "arenas"), [("power", "own"), ("process", "own"), ("power", "shared"), ("process", "shared")]
)
def test_a03_a_daemon_without_memory_delivers_later(tmp_path: Path, durability: str, arenas: str) -> None:
    directory, log = tmp_path / "events", tmp_path / "log.jsonl"
    with serving(directory, log, durability, arenas) as daemon:
        daemon.begin()
        with EventSystem.open(directory, capacity=50, initialisation_capacity=10, durability=durability) as late:
            late.ready()
            for number in range(LATE):
                late.emit("late", source="late", data=number)
        assert ended(daemon, directory, log, durability) == list(range(LATE))


def press(directory: Path, log: Path, durability: str, arenas: str, count: int) -> None:
    """A process that records and the daemon that delivers have nothing left, both."""
    with serving(directory, log, durability, arenas) as daemon:

        def begin() -> None:
            fill(directory)
            daemon.begin()

        result = starve(directory, durability, count, way="daemon", before=begin)
        assert result["failed"] == 0 and result["next"] == count + 1 and not result["lost"], result
        assert result["rounds"] > 0 and result["alive"], result
        (directory / FOREIGN).unlink()
        numbers = [one["number"] - 10**6 for one in ended(daemon, directory, log, durability)]
        assert numbers == list(range(count))


@pytest.mark.root
def test_a03_events_are_recorded_and_delivered_through_a_daemon_that_has_nothing_left(
    disk: Path, tmp_path: Path
) -> None:
    press(disk, tmp_path / "log.jsonl", "power", "own", 100)


@pytest.mark.soak
@pytest.mark.root
@pytest.mark.timeout(RUN_S_MAX + 60)
@pytest.mark.parametrize("arenas", ["own", "shared"])
@pytest.mark.parametrize("durability", ["power", "process"])
def test_a03_ten_thousand_events_are_recorded_and_delivered_through_a_daemon_that_has_nothing_left(
    disk: Path, tmp_path: Path, durability: str, arenas: str
) -> None:
    press(disk, tmp_path / "log.jsonl", durability, arenas, EVENTS)
