"""Lives of processes that have an event system, for tests that end them at any moment.

`python -m tests.faults.events_child` reads requests, a line each, and forks a life for each `start`: a process of its
own with what it needs already imported, so that a test can have many of them. A life prints, line by line, what `emit`
returned for; its recipients append what they got to files, and sync them.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from clarion.events import RetryPolicy
from clarion.events.event import Event
from clarion.events.recipients import ClarionServer, LogFile, Statistics
from clarion.events.recipients.function import Function
from clarion.events.system import EventSystem

SOURCES = 3
DRAIN_S = 30.0
RETRY = RetryPolicy(first_ms=20, max_ms=200)
SMALL: dict[str, Any] = {
    "capacity": 400,
    "initialisation_capacity": 100,
    "event_bytes": 256,
    "event_bytes_max": 1024,
}


class Life(msgspec.Struct):
    """What a process does from its start to its end."""

    path: str
    """Of the event system."""
    out: str
    """Where the files of recipients are."""
    printed: str
    arm: str = ""
    label: str = "a"
    recipients: tuple[str, ...] = ("one", "two", "log", "statistics")
    refusing: tuple[str, ...] = ()
    """Recipients that confirm nothing in this life."""
    url: str = ""
    """Of a Clarion server, which is a recipient then."""
    initialising: int = 3
    events: int = 12
    """How many are emitted; -1: until it is ended."""
    pause_s: float = 0.0
    durability: Literal["power", "process"] = "process"
    beside: bool = False
    """A second system of the same directory, without recipients, emits the same."""
    ready: bool = True
    end: Literal["drained", "closed", "killed", "stays"] = "drained"


def keeper(path: Path, name: str, refuses: bool) -> Function:
    """A recipient that keeps no ids: a line for each call."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def keep(event: Event) -> None:
        if refuses:
            raise RuntimeError("not in this life")
        os.write(
            descriptor, f"{event.id} {event.type} {event.source} {event.data['life']} {event.data['n']}\n".encode()
        )
        os.fdatasync(descriptor)

    return Function(keep, name=name, batch_events_max=4)


def recipients_of(life: Life) -> list[Any]:
    out = Path(life.out)
    makers: dict[str, Callable[[], Any]] = {
        "log": lambda: LogFile(out / "log", name="log", batch_events_max=4),
        "statistics": lambda: Statistics(out / "statistics", batch_events_max=4),
        "clarion": lambda: ClarionServer(life.url, destination="queue:events", timeout_s=5.0, batch_events_max=16),
    }
    chosen: list[Any] = []
    for name in life.recipients:
        make = makers.get(name)
        chosen.append(make() if make else keeper(out / name, name, name in life.refusing))
    return chosen


def emit_all(systems: list[EventSystem], life: Life, kind: str, count: int, say: Callable[[str], None]) -> None:
    number = 0
    while number != count:
        number += 1
        for system in systems:
            source = f"{kind}-{number % SOURCES}"
            identity = system.emit(kind, source=source, data={"n": number, "life": life.label})
            say(f"{identity} {kind} {source} {life.label} {number}")
        if life.pause_s:
            time.sleep(life.pause_s)


def live(life: Life) -> None:
    """From the start to the end."""
    if life.arm:
        os.environ["CLARION_ARM"] = life.arm
    descriptor = os.open(life.printed, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def say(text: str) -> None:
        os.write(descriptor, text.encode() + b"\n")

    options: dict[str, Any] = {**SMALL, "durability": life.durability, "wait_s": 10.0, "retry": RETRY}
    system = EventSystem.open(life.path, recipients_of(life), **options)
    systems = [system]
    if life.beside:
        systems.append(EventSystem.open(life.path, **options))
    emit_all(systems, life, "init", life.initialising, say)
    if life.ready:
        for one in systems:
            one.ready()
    say("-ready")
    emit_all(systems, life, "normal", life.events, say)
    say("-emitted")
    if life.end == "drained" and not system.wait_until_delivered(DRAIN_S):
        raise TimeoutError(f"not delivered: {system.status()}")
    if life.end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if life.end == "stays":
        signal.pause()
    for one in systems:
        one.close()


def _start(life: Life) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        live(life)
        status = 0
    except BaseException as error:
        with Path(life.printed).open("a") as file:
            file.write(f"-failed {type(error).__name__}: {error}\n")
    finally:
        os._exit(status)


def main() -> None:
    alive: set[int] = set()
    try:
        for line in sys.stdin:
            verb, _, argument = line.strip().partition(" ")
            if verb == "start":
                pid = _start(msgspec.json.decode(argument, type=Life))
                alive.add(pid)
                print(pid, flush=True)
            else:
                which, seconds = argument.split()
                print(_wait(int(which), float(seconds), alive), flush=True)
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)


def _wait(pid: int, seconds: float, alive: set[int]) -> str:
    """The status of a process that ends in time, else `running`."""
    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], seconds)[0]:
            return "running"
    finally:
        os.close(descriptor)
    alive.discard(pid)
    return str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    main()
