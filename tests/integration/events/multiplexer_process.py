"""Processes of a test of multiplexers: senders and multiplexers, ended at any moment.

`python -m tests.integration.events.multiplexer_process` reads requests, a line each, and forks a process for each
`start`, with what it needs imported already. A sender writes what `emit` returned for to a file, a multiplexer its
address; their recipients append what they get to files, and sync them.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from clarion import ids
from clarion.events import RetryPolicy
from clarion.events.event import Event
from clarion.events.multiplexer import Multiplexer
from clarion.events.recipients import LogFile, Multiplexing
from clarion.events.recipients.function import Function
from clarion.events.settings import MultiplexSettings
from clarion.events.system import EventSystem

SOURCES = 3
DRAIN_S = 40.0
RETRY = RetryPolicy(first_ms=20, max_ms=200)
SMALL: dict[str, Any] = {
    "capacity": 2_000,
    "initialisation_capacity": 100,
    "event_bytes": 256,
    "event_bytes_max": 1024,
    "retry": RETRY,
    "wait_s": 10.0,
}
FILTERS = {"odd": "number_is_odd = TRUE", "errors": "severity_level >= 40"}


class Process(msgspec.Struct):
    """What one does from its start to its end."""

    folder: str
    """Of everything that it writes."""
    role: Literal["sender", "multiplexer"] = "sender"
    arm: str = ""
    recipients: tuple[str, ...] = ()
    refusing: tuple[str, ...] = ()
    """Recipients that confirm nothing in this life."""
    multiplexer: str = ""
    """The address of one, which is a recipient too."""
    listen: str = "127.0.0.1:0"
    confirm_early: bool = True
    forward: bool = False
    label: str = "a"
    initialising: int = 0
    """Events of its own that it emits before it is ready."""
    events: int = 40
    """How many a sender emits; -1: until there is a file `halt`."""
    pause_s: float = 0.0
    durability: Literal["power", "process"] = "process"
    end: Literal["drained", "stays"] = "drained"


def keeper(path: Path, name: str, refuses: bool) -> Function:
    """A recipient that keeps no ids: a line for each call."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def keep(event: Event) -> None:
        if refuses:
            raise RuntimeError("not in this life")
        os.write(descriptor, f"{event.id} {event.source} {event.data['life']} {event.data['n']}\n".encode())
        os.fdatasync(descriptor)

    return Function(keep, name=name, filter=FILTERS.get(name, ""), batch_events_max=4)


def recipients_of(process: Process, folder: Path) -> list[Any]:
    chosen: list[Any] = []
    for name in process.recipients:
        if name == "log":
            chosen.append(LogFile(folder / "log", name="log", batch_events_max=8))
        else:
            chosen.append(keeper(folder / name, name, name in process.refusing))
    if process.multiplexer:
        listener = forwarded_to(folder / "forwarded")
        options: dict[str, Any] = {"name": "next", "timeout_s": 5.0, "batch_events_max": 8}
        chosen.append(Multiplexing(process.multiplexer, on_confirmation=listener, **options))
    return chosen


def forwarded_to(path: Path) -> Callable[[str, list[tuple[int, int, int]]], None]:
    """A line for each event of which it is heard that a recipient has confirmed it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def hear(recipient: str, ranges: list[tuple[int, int, int]]) -> None:
        found = [(producer, number) for producer, first, end in ranges for number in range(first, end)]
        lines = [f"{recipient} {ids.format_id(producer + number)}\n" for producer, number in found]
        os.write(descriptor, "".join(lines).encode())

    return hear


def live(process: Process) -> None:
    """From the start to the end."""
    if process.arm:
        os.environ["CLARION_ARM"] = process.arm
    folder = Path(process.folder)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = recipients_of(process, folder)
    options = {**SMALL, "durability": process.durability}
    system: EventSystem
    if process.role == "multiplexer":
        switches = MultiplexSettings(process.listen, process.confirm_early, process.forward)
        system = Multiplexer.open(folder / "events", chosen, multiplex=switches, **options)
        pending = folder / "address.new"
        pending.write_text(system.addresses()["multiplex"])
        pending.rename(folder / "address")
    else:
        system = EventSystem.open(folder / "events", chosen, **options)
    emit = emitter(system, process, folder)
    for number in range(1, process.initialising + 1):
        emit("init", number)
    system.ready()
    if process.role == "sender":
        for number in numbers(process, folder / "halt"):
            emit("source", number)
        (folder / "halted").touch()
    if process.end == "stays":
        signal.pause()
    if not system.wait_until_delivered(DRAIN_S):
        raise TimeoutError(f"not delivered: {system.status()}")
    system.close()


def numbers(process: Process, halt: Path) -> Iterator[int]:
    number = 0
    while number != process.events and (process.events >= 0 or not halt.exists()):
        number += 1
        yield number
        if process.pause_s:
            time.sleep(process.pause_s)


def emitter(system: EventSystem, process: Process, folder: Path) -> Callable[[str, int], None]:
    """Emits, and writes what was recorded."""
    descriptor = os.open(folder / "emitted", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def emit(kind: str, number: int) -> None:
        source = f"{folder.name}-{kind}-{number % SOURCES}"
        severity = "error" if number % 4 == 0 else "info"
        data = {"n": number, "life": process.label}
        attributes: dict[str, Any] = {"number_is_odd": number % 2 == 1}
        identity = system.emit("test.event", source=source, severity=severity, data=data, attributes=attributes)
        os.write(descriptor, f"{identity} {source} {process.label} {number}\n".encode())

    return emit


def _start(process: Process) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        live(process)
        status = 0
    except BaseException as error:
        with Path(process.folder, "failed").open("a") as file:
            file.write(f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(status)


def main() -> None:
    alive: set[int] = set()
    verbs: dict[str, Callable[[str], object]] = {
        "start": lambda argument: _started(argument, alive),
        "wait": lambda argument: _wait(argument, alive),
    }
    try:
        for line in sys.stdin:
            verb, _, argument = line.strip().partition(" ")
            print(verbs[verb](argument), flush=True)
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)


def _started(argument: str, alive: set[int]) -> int:
    pid = _start(msgspec.json.decode(argument, type=Process))
    alive.add(pid)
    return pid


def _wait(argument: str, alive: set[int]) -> str:
    """The status of a process that ends in time, else `running`."""
    number, seconds = argument.split()
    pid = int(number)
    if pid in alive:
        descriptor = os.pidfd_open(pid)
        try:
            if not select.select([descriptor], [], [], float(seconds))[0]:
                return "running"
        finally:
            os.close(descriptor)
        alive.discard(pid)
        _ended[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return str(_ended[pid])


_ended: dict[int, int] = {}


if __name__ == "__main__":
    main()
