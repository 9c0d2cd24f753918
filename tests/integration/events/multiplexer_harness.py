"""Senders and multiplexers as processes, and what must hold whatever happened to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from clarion import ids
from clarion.errors import ClarionError
from clarion.events import look
from clarion.events.recipients import log_lines
from tests.faults.events_harness import Nursery, until
from tests.integration.events.multiplexer_process import Process

PROCESSES = "tests.integration.events.multiplexer_process"
"""What a nursery of multiplexers, and of those who send to them, runs."""


class Line(NamedTuple):
    """What `emit` returned for, or what a recipient got."""

    id: str
    source: str
    life: str
    number: int


def lines_of(path: Path) -> list[Line]:
    """Whole lines."""
    found = []
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if line.endswith("\n"):
            identity, source, life, number = line.split()
            found.append(Line(identity, source, life, int(number)))
    return found


class Place:
    """A process of one folder, one life after the other."""

    def __init__(self, nursery: Nursery, folder: Path, **options: Any) -> None:
        self.nursery = nursery
        self.folder = folder
        self.options = options
        self.pid = 0

    def start(self, **options: Any) -> None:
        self.pid = self.nursery.start(Process(str(self.folder), **{**self.options, **options}))

    def wait(self, status: int = 0) -> None:
        """It ends, like this."""
        found = self.nursery.wait(self.pid)
        assert found == status, f"{self.folder.name} ended with {found}: {self.failure()}"

    def kill(self) -> None:
        self.nursery.kill(self.pid)

    @property
    def lives(self) -> bool:
        return self.pid != 0 and self.nursery.wait(self.pid, 0.0) is None

    def failure(self) -> str:
        path = self.folder / "failed"
        return path.read_text() if path.exists() else ""

    def got(self, name: str) -> list[Line]:
        return lines_of(self.folder / name)

    def logged(self) -> list[str]:
        path = self.folder / "log"
        found = [log_lines.id_of_json(line) for line in path.read_bytes().splitlines()] if path.exists() else []
        return [identity for identity in found if identity is not None]

    def status(self) -> dict[str, Any]:
        return look.status(self.folder / "events")

    def waiting(self) -> int:
        """Events that somebody has not confirmed; -1 while nobody can be asked."""
        try:
            return look.waiting(self.folder / "events")
        except ClarionError:
            return -1


class MultiplexerPlace(Place):
    """A multiplexer; it keeps the port that its first life got."""

    def __init__(self, nursery: Nursery, folder: Path, **options: Any) -> None:
        super().__init__(nursery, folder, role="multiplexer", end="stays", **options)

    @property
    def address(self) -> str:
        return (self.folder / "address").read_text()

    def start(self, **options: Any) -> None:
        path = self.folder / "address"
        if path.exists():
            options.setdefault("listen", path.read_text())
            super().start(**options)
            return
        super().start(**options)
        until(path.exists, f"an address: {self.failure()}")

    def drained(self) -> None:
        """Everything it has is confirmed by everybody."""
        until(lambda: self.waiting() == 0, f"{self.folder.name} has delivered everything")


def check(emitted: list[Line], place: Place, name: str, wanted: Callable[[Line], bool] = lambda line: True) -> None:
    """A recipient got what it is for, all of it, nothing else, in order per source."""
    expected = {line.id for line in emitted if wanted(line)}
    assert expected
    if name == "log":
        logged = place.logged()
        assert len(set(logged)) == len(logged), "the log has doubles"
        assert set(logged) == expected
        return
    got = place.got(name)
    assert {line.id for line in got} == expected, f"{name}: {len(got)} of {len(expected)}"
    seen: dict[tuple[int, str], int] = {}
    known: set[str] = set()
    for line in got:
        if line.id not in known:
            known.add(line.id)
            identity = ids.parse_id(line.id)
            where = ids.producer_of(identity), line.source
            assert ids.sequence_of(identity) > seen.get(where, 0), f"{name} got {line} out of order"
            seen[where] = ids.sequence_of(identity)
