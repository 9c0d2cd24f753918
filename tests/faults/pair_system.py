"""One of the two systems of a pair, as a process, and what it wrote."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.faults.pair_child import Child
from tests.faults.pair_processes import WAIT_S, Forked, Nursery


def until(condition: Callable[[], object], what: str | Callable[[], object], seconds: float = WAIT_S) -> None:
    """Ask again until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


class Line(NamedTuple):
    """What `emit` returned for, or what a recipient got."""

    id: str
    who: str
    time_ns: int
    kind: str
    source: str
    number: int


class System:
    """One of the two, as a process that can be killed, paused and started again."""

    def __init__(self, side: str, child: Child, nursery: Nursery) -> None:
        self.side = side
        self.child = child
        self._nursery = nursery
        self._process: Forked | None = None
        self._pending = b""
        self.is_paused = False
        self.log = Path(child.folder) / f"log-{child.name}"

    @property
    def runs(self) -> bool:
        return self._process is not None and not self.is_paused

    def begin(self, *, arm: str = "", initialising: int = 0) -> None:
        """Start, without waiting until it is ready."""
        assert self._process is None
        child = msgspec.structs.replace(self.child, arm=arm, initialising=initialising)
        with self.log.open("ab") as log:
            self._process = self._nursery.start(child, log.fileno())
        self._pending = b""

    def begun(self) -> None:
        assert self._line() == "ready", self.said()

    def start(self, *, arm: str = "", initialising: int = 0) -> None:
        self.begin(arm=arm, initialising=initialising)
        self.begun()

    def _line(self) -> str:
        process = self._process
        assert process is not None
        deadline = time.monotonic() + WAIT_S
        while b"\n" not in self._pending:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{self.child.name} does not answer: {self.said()}"
            if select.select([process.stdout], [], [], left_s)[0]:
                data = os.read(process.stdout.fileno(), 1 << 16)
                assert data, f"{self.child.name} ended: {self.said()}"
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def ask(self, *words: str) -> Any:
        process = self._process
        assert process is not None and not self.is_paused
        process.stdin.write(" ".join(words).encode() + b"\n")
        process.stdin.flush()
        return json.loads(self._line())

    def emit(self, count: int, kind: str = "normal") -> None:
        self.ask("emit", str(count), kind)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("status")
        return found

    @property
    def acts(self) -> bool:
        return bool(self.status()["may_act"])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._reap()

    def killed(self) -> bool:
        """By itself, at an armed test point."""
        assert self._process is not None
        if self._process.poll() is None:
            return False
        assert self._process.returncode == -signal.SIGKILL, self.said()
        self._reap()
        return True

    def close(self) -> None:
        """End cleanly."""
        process = self._process
        assert process is not None
        process.stdin.write(b"close\n")
        process.stdin.flush()
        assert self._line() == "closed"
        assert process.wait(WAIT_S) == 0
        self._reap()

    def _reap(self) -> None:
        process, self._process, self.is_paused = self._process, None, False
        assert process is not None
        process.wait(WAIT_S)
        process.stdout.close()
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def said(self) -> str:
        return self.log.read_text("utf-8", "replace")[-3000:] if self.log.exists() else ""


def lines_of(path: Path) -> list[Line]:
    if not path.exists():
        return []
    found = []
    for text in path.read_text().splitlines(keepends=True):
        if text.endswith("\n"):
            identity, who, time_ns, kind, source, number = text.split()
            found.append(Line(identity, who, int(time_ns), kind, source, int(number)))
    return found
