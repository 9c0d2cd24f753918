"""One system of a pair as a process of its own: what it is told comes by stdin, and each line is answered by stdout.

`python -m tests.faults.pair_child DESCRIPTOR` forks one for each request that comes over a socket, with what it needs
imported already, so that a test can have many of them. To a system this is said:

    emit COUNT KIND      ids go to the file `printed`, each when `emit` returned for it
    flow PAUSE_MS        emit until `halt`
    halt
    status               as JSON
    takeover
    close                end cleanly

Its recipients append to files that both systems of a pair see, and sync them.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from clarion.errors import Blocked, EngineAbsent
from clarion.events import EventSystem, PairSettings, RetryPolicy
from clarion.events.event import Event
from clarion.events.memory.layout import Recorded
from clarion.events.paired import PairedSystem
from clarion.events.recipients import ClarionServer
from clarion.events.recipients.function import Function

IMPORTED = PairedSystem
"""Once, and not in every process that is forked: an event system imports it when it has a partner."""
SOURCES = 3
PR_SET_PDEATHSIG = 1
RETRY = RetryPolicy(first_ms=20, max_ms=200)


class Child(msgspec.Struct):
    """How a system is started."""

    name: str
    partner_name: str
    folder: str
    """Seen by both: files of recipients, gates, `printed`."""
    listen: str
    partner: str
    witness: str | None = None
    without_witness: Literal["wait", "replay"] = "wait"
    lease_ms: int = 1_000
    recipients: tuple[str, ...] = ("raw", "kept")
    url: str = ""
    queue: str = ""
    """Of the Clarion server: where its recipient puts events."""
    initialising: int = 0
    capacity: int = 2_000
    durability: Literal["power", "process"] = "process"
    arm: str = ""

    @property
    def path(self) -> Path:
        return Path(self.folder) / self.name


def _closed(child: Child, recipient: str) -> bool:
    folder = Path(child.folder)
    return any((folder / f"closed{which}").exists() for which in ("", f"-{child.name}", f"-{recipient}"))


def _line(child: Child, event: Event) -> bytes:
    number = event.data.get("n", 0) if isinstance(event.data, dict) else 0
    return f"{event.id} {child.name} {time.time_ns()} {event.type} {event.source} {number}\n".encode()


def raw(child: Child, name: str) -> Function:
    """Keeps no ids: a line for every call."""
    descriptor = os.open(Path(child.folder) / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def keep(event: Event) -> None:
        if _closed(child, name):
            raise RuntimeError("closed")
        os.write(descriptor, _line(child, event))
        os.fdatasync(descriptor)

    return Function(keep, name=name, batch_events_max=1)


def kept(child: Child, name: str) -> Function:
    """Keeps ids, in a file that both systems use."""
    descriptor = os.open(Path(child.folder) / name, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    known: set[str] = set()
    read_bytes = 0

    def keep(event: Event) -> None:
        nonlocal read_bytes
        if _closed(child, name):
            raise RuntimeError("closed")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            while data := os.pread(descriptor, 1 << 20, read_bytes):
                read_bytes += len(data)
                known.update(line.split()[0] for line in data.decode().splitlines())
            if event.id not in known:
                os.write(descriptor, _line(child, event))
            os.fdatasync(descriptor)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    return Function(keep, name=name, batch_events_max=16)


class Gated(ClarionServer):
    """A Clarion server behind a gate."""

    def __init__(self, child: Child, name: str) -> None:
        super().__init__(child.url, name=name, destination=child.queue, timeout_s=1.0, batch_events_max=2)
        self._child = child

    async def deliver(self, records: Sequence[Recorded]) -> None:
        if _closed(self._child, self.name):
            raise RuntimeError("closed")
        await super().deliver(records)


def recipients_of(child: Child) -> list[Any]:
    kinds: dict[str, Callable[[Child, str], Any]] = {"raw": raw, "kept": kept, "clarion": Gated}
    return [kinds[name.partition("-")[0]](child, name) for name in child.recipients]


class Emitter:
    """Emits, and prints what was recorded."""

    def __init__(self, child: Child, system: EventSystem) -> None:
        self._child, self._system = child, system
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._printed = os.open(Path(child.folder) / "printed", flags, 0o600)
        self._number = 0
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None

    def emit(self, kind: str) -> None:
        self._number += 1
        source = f"{self._child.name}-{self._number % SOURCES}"
        try:
            identity = self._system.emit(kind, source=source, data={"n": self._number})
        except Blocked:
            return
        os.write(
            self._printed, f"{identity} {self._child.name} {time.time_ns()} {kind} {source} {self._number}\n".encode()
        )

    def many(self, count: int, kind: str) -> None:
        for _ in range(count):
            self.emit(kind)

    def flow(self, pause_s: float) -> None:
        def run() -> None:
            while not self._halt.wait(pause_s):
                self.emit("flow")

        self._halt.clear()
        self._thread = threading.Thread(target=run)
        self._thread.start()

    def halt(self) -> None:
        self._halt.set()
        if self._thread is not None:
            self._thread.join()


def status(system: EventSystem) -> dict[str, Any]:
    found = dict(system.pair_status() or {})
    try:
        sections = system.status()["sections"]
    except EngineAbsent:
        sections = []
    found["waiting"] = {one["name"]: one["waiting"] for one in sections}
    found["delivering"] = system.is_delivering and bool(sections)
    return found


def live(child: Child) -> None:
    """From the start to the end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)
    if child.arm:
        os.environ["CLARION_ARM"] = child.arm
    partner = PairSettings(
        partner_name=child.partner_name,
        partner=child.partner,
        listen=child.listen,
        witness=child.witness,
        without_witness=child.without_witness,
        lease_ms=child.lease_ms,
        stored_ms=500,
    )
    system = EventSystem.open(
        child.path,
        recipients_of(child),
        partner=partner,
        name=child.name,
        capacity=child.capacity,
        initialisation_capacity=100,
        event_bytes_max=1_024,
        durability=child.durability,
        wait_s=5.0,
        retry=RETRY,
    )
    emitter = Emitter(child, system)
    emitter.many(child.initialising, "init")
    system.ready()
    print("ready", flush=True)
    verbs: dict[str, Callable[..., object]] = {
        "emit": lambda count, kind: emitter.many(int(count), kind),
        "flow": lambda pause_ms: emitter.flow(int(pause_ms) / 1000),
        "halt": emitter.halt,
        "status": lambda: status(system),
        "takeover": system.take_over,
    }
    for line in sys.stdin:
        verb, *arguments = line.split()
        if verb == "close":
            break
        answer = verbs[verb](*arguments)
        print(msgspec.json.encode(answer).decode(), flush=True)
    emitter.halt()
    system.close()
    print("closed", flush=True)


def _start(child: Child, descriptors: list[int]) -> int:
    """With these as standard input, output and errors."""
    pid = os.fork()
    if pid:
        for one in descriptors:
            os.close(one)
        return pid
    status = 1
    try:
        for number, one in enumerate(descriptors):
            os.dup2(one, number)
            os.close(one)
        live(child)
        status = 0
    except BaseException:
        logging.exception("%s failed", child.name)
    finally:
        os._exit(status)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    alive: set[int] = set()
    try:
        while True:
            message, descriptors, _, _ = socket.recv_fds(channel, 1 << 16, 3)
            if not message:
                break
            verb, _, argument = message.decode().partition(" ")
            if verb == "start":
                pid = _start(msgspec.json.decode(argument, type=Child), descriptors)
                alive.add(pid)
                channel.send(str(pid).encode())
            else:  # of one that has ended
                _, status = os.waitpid(int(argument), 0)
                alive.discard(int(argument))
                channel.send(str(os.waitstatus_to_exitcode(status)).encode())
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
