"""Processes with event systems, started and ended by tests, and what must hold whatever happened to them."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from clarion import ids
from clarion.events.ledger import Ledger
from clarion.events.recipients import log_lines
from tests.faults.events_child import Life

WAIT_S = 45.0
KILLED = -signal.SIGKILL
_Answer = TypeVar("_Answer")


def until(condition: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
    """Ask again until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.005)


class Nursery:
    """Starts processes as a module of tests describes them, a fork each; leaves none behind."""

    def __init__(self, module: str = "tests.faults.events_child") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "CLARION_ARM"},
        )

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)
        self._process.stdout.close()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def start(self, described: msgspec.Struct) -> int:
        """The id of the new process."""
        return int(self._ask(f"start {msgspec.json.encode(described).decode()}"))

    def wait(self, pid: int, seconds: float = WAIT_S) -> int | None:
        """Its status; None while it runs."""
        answer = self._ask(f"wait {pid} {seconds}")
        return None if answer == "running" else int(answer)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        assert self.wait(pid) == KILLED

    def run(self, described: msgspec.Struct) -> int:
        """From its start to its end; its status."""
        pid = self.start(described)
        status = self.wait(pid)
        if status is None:
            self.kill(pid)
        assert status is not None, "it did not end"
        return status


class Got(NamedTuple):
    """A line: what `emit` returned for, or what a recipient got."""

    id: str
    kind: str
    source: str
    life: str
    number: int


class World:
    """One directory, its recipients, and everything that lives printed."""

    def __init__(self, folder: Path, recipients: tuple[str, ...] = ("one", "two", "log", "statistics")) -> None:
        self.folder = folder
        self.path = folder / "events"
        self.out = folder / "out"
        self.printed = folder / "printed"
        self.recipients = recipients
        self.keeping = [name for name in recipients if name not in ("log", "statistics", "clarion")]
        self.confirmed_before: dict[str, dict[str, int]] = {name: {} for name in self.keeping}
        """By recipient: ids whose confirmation was recorded when a life ended, and how many lines there were then."""
        self.starts: dict[str, list[int]] = {name: [] for name in self.keeping}
        """By recipient: how many lines there were at the start of each life."""
        self.out.mkdir(exist_ok=True, parents=True)

    def life(self, **options: Any) -> Life:
        options.setdefault("recipients", self.recipients)
        return Life(str(self.path), str(self.out), str(self.printed), **options)

    def copy(self, folder: Path) -> World:
        shutil.copytree(self.folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("control"))
        world = World(folder, self.recipients)
        for name in self.keeping:
            world.starts[name] = list(self.starts[name])
        return world

    # --- what happened --------------------------------------------------------------------------------

    def emitted(self) -> list[Got]:
        return _lines(self.printed)

    def got(self, recipient: str) -> list[Got]:
        return _lines(self.out / recipient)

    def notes(self) -> list[str]:
        return [line for line in self.printed.read_text().splitlines() if line.startswith("-")]

    def note_start(self) -> None:
        for name in self.keeping:
            self.starts[name].append(len(self.got(name)))

    def note_end(self) -> None:
        """A life has ended: what is confirmed must not come again."""
        for name, confirmed in confirmed_ids(self.path).items():
            if name in self.confirmed_before:
                count = len(self.got(name))
                for identity in confirmed:
                    self.confirmed_before[name].setdefault(identity, count)

    # --- what must hold -------------------------------------------------------------------------------

    def check(self) -> None:
        emitted = [one.id for one in self.emitted()]
        assert len(set(emitted)) == len(emitted), "an id was given twice"
        assert emitted, "nothing was emitted"
        everything: set[str] = set()
        for name in self.keeping:
            got = self.got(name)
            assert not set(emitted) - {one.id for one in got}, f"{name} did not get everything: {self.notes()}"
            check_not_again(name, got, self.confirmed_before[name])
            self._check_order(name, got)
            everything |= {one.id for one in got}
        for name in self.keeping:
            assert {one.id for one in self.got(name)} == everything, f"{name} and others do not have the same"
        if "log" in self.recipients:
            logged = log_ids(self.out / "log")
            assert len(set(logged)) == len(logged), "the log has doubles"
            assert set(logged) == everything
        if "statistics" in self.recipients:
            counted = msgspec.json.decode((self.out / "statistics").read_bytes())["count"]
            assert counted == len(everything), "statistics count doubles, or not everything"

    def _check_order(self, name: str, got: list[Got]) -> None:
        """Order per source (and section), and in each life: initialisation, replayed, new."""
        seen: dict[tuple[str, str], int] = {}
        known: set[str] = set()
        for one in got:
            if one.id not in known:
                known.add(one.id)
                place = one.id[:20], one.source
                sequence = ids.sequence_of(ids.parse_id(one.id))
                assert sequence > seen.get(place, 0), f"{name} got {one} out of order"
                seen[place] = sequence
        check_lives(name, got, self.starts[name], _ranks)


def _ranks(life: Sequence[Got], number: int) -> list[int]:
    newest = max((one.life for one in life), default="")
    return [0 if one.kind == "init" else 2 if one.life == newest else 1 for one in life]


# --- what must hold of what a recipient got, whoever brought it ---------------------------------------


class HasId(Protocol):
    """A line of what a recipient got."""

    @property
    def id(self) -> str: ...


_Line = TypeVar("_Line", bound=HasId)


def check_not_again(name: str, got: Sequence[HasId], confirmed: Mapping[str, int]) -> None:
    """`confirmed`: ids whose confirmation was recorded, each with how many lines there were then."""
    for number, one in enumerate(got):
        assert number < confirmed.get(one.id, len(got)), f"{name} got {one} after it had confirmed it"


def check_lives(
    name: str, got: Sequence[_Line], starts: Sequence[int], ranks: Callable[[Sequence[_Line], int], list[int]]
) -> None:
    """In each life what comes first has a lower rank. `starts`: how many lines there were at the start of each; `ranks`
    says those of all lines of a life, which has a number."""
    for number, (first, end) in enumerate(itertools.pairwise([*starts, len(got)])):
        found = ranks(got[first:end], number)
        assert found == sorted(found), f"{name}, life {number}: {list(zip(found, got[first:end], strict=True))}"


def _lines(path: Path) -> list[Got]:
    """What stands there, without a line that was cut off and without notes."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n") and not line.startswith("-"):
            identity, kind, source, life, number = line.split()
            found.append(Got(identity, kind, source, life, int(number)))
    return found


def log_ids(path: Path) -> list[str]:
    """Of a log file."""
    found = [log_lines.id_of_json(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    assert None not in found
    return [identity for identity in found if identity is not None]


def confirmed_ids(path: Path) -> dict[str, set[str]]:
    """By recipient: what the ledger of a directory that nobody uses has as confirmed, of sections that are there."""
    return ask_ledger(path, _confirmed_ids) if (path / "ledger" / "format").exists() else {}


def ask_ledger(path: Path, ask: Callable[[Ledger], _Answer]) -> _Answer:
    """Of a directory that nobody uses; a copy is asked, so that nothing changes."""

    async def opened(copied: Path) -> _Answer:
        ledger = Ledger.open(copied, asyncio.get_running_loop(), durability="process")
        try:
            return ask(ledger)
        finally:
            ledger.close()

    copied = path.parent / "ledger.copy"
    shutil.copytree(path / "ledger", copied)
    try:
        return asyncio.run(opened(copied))
    finally:
        shutil.rmtree(copied)


def _confirmed_ids(ledger: Ledger) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in ledger.recipients():
        found[row.name] = confirmed = set()
        for section in ledger.sections():
            floor, spans = ledger.settled(section.section, row.slot)
            for first, end in [(1, floor), *spans]:
                confirmed |= {ids.format_id(section.section + number) for number in range(first, end)}
    return found


def doubles(lines: list[Got]) -> dict[str, int]:
    """Ids that came more than once."""
    return {identity: count for identity, count in Counter(one.id for one in lines).items() if count > 1}
