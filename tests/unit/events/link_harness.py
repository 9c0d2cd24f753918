"""Rings, and a server that stores what it gets in one; also as a process of its own that can be killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from clarion.errors import Blocked
from clarion.events.link.frames import Heartbeat, Hello, Role, Type, recorded_of
from clarion.events.link.server import Peer, Server
from clarion.events.link.sink import Sink
from clarion.events.memory.ring import Section
from clarion.ids import IdGenerator
from clarion.journal.options import Durability

WAIT_S = 20.0
_ids = IdGenerator.begin(1, 1, 1_800_000_000_000)


def new_section(
    path: Path, kind: str = "normal", *, mib: int = 1, durability: Durability = "power", event_bytes_max: int = 16_384
) -> Section:
    producer = _ids.next_producer()
    return Section.create(
        path, name=path.stem, kind=kind, producer=producer, bytes_=mib << 20, event_bytes_max=event_bytes_max,
        durability=durability,
    )  # fmt: skip


def emit(section: Section, text: str) -> int:
    """One event, recorded."""
    return section.record("test.event", "tests", 20, time.time_ns(), text)


def emit_many(section: Section, texts: list[str]) -> range:
    """Many events, in one group."""
    encoded = [section.encoder.encode("test.event", "tests", 20, time.time_ns(), text) for text in texts]
    return section.append_many(encoded, 1, 1)


def texts_of(section: Section) -> list[str]:
    """What a section holds, in its order."""
    found = section.read(section.first_sequence, 1_000_000, 1 << 30)
    return [bytes(event.body).decode().strip(' "') for event in found]


class StoringHandler:
    """Stores in one section, and remembers what else it was told."""

    def __init__(self, section: Section) -> None:
        self.sink = Sink(section)
        self.told: list[tuple[int, int, bytes]] = []
        self.lost_peers = 0
        self.before_store: Callable[[], None] = lambda: None
        self.on_record: Callable[[str], None] = lambda text: None
        self.refuses_notes = False

    def hello(self, peer: Peer, hello: Hello) -> Hello:
        return Hello("server", Role.PARTNER, sections=tuple(self.sink.held(one.producer) for one in hello.sections))

    def store(self, peer: Peer, section: int, records: list[memoryview]) -> int:
        self.before_store()
        for record in records:
            self.on_record(bytes(recorded_of(record).body).decode().strip(' "'))
        return self.sink.store(records)

    def heartbeat(self, peer: Peer, heartbeat: Heartbeat) -> Heartbeat:
        return Heartbeat(1, heartbeat.beat)

    def control(self, peer: Peer, kind: int, flags: int, payload: memoryview) -> bool:
        if kind == Type.NOTE and self.refuses_notes:
            raise Blocked(destination="notes", detail="no room for notes")
        self.told.append((kind, flags, bytes(payload)))
        return kind == Type.NOTE

    def lost(self, peer: Peer) -> None:
        self.lost_peers += 1


def until(condition: Callable[[], bool], what: str = "") -> None:
    """For what nobody announces."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"it did not happen within {WAIT_S} s: {what}")
        time.sleep(0.002)


class ServerProgram:
    """`StoringHandler` in a process of its own."""

    def __init__(self, path: Path, port: int = 0) -> None:
        self.path = path
        self.port = port
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.events.link_harness", str(self.path), str(self.port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], WAIT_S)
        assert ready
        self.port = int(self.process.stdout.readline())

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGSTOP:  # it goes on for a moment: until it has stopped, and its parent is told
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


def main() -> None:
    path, port = Path(sys.argv[1]), int(sys.argv[2])
    section = Section.open(path, writable=True) if path.exists() else new_section(path, "partner", mib=8)
    server = Server(StoringHandler(section), ("127.0.0.1", port))
    server.start()
    print(server.address[1], flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
