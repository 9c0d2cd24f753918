"""A multiplexer and who sends to it, one life after the other, and what must hold at the end (A-08, A-09, A-11).

The sender emits all the time, so that a life of the multiplexer comes to each of its steps. Both begin every life with
events that they emit while they initialise.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from clarion import ids
from clarion.events.ledger import Ledger
from clarion.events.memory import Section
from clarion.events.multiplex.origins import BUCKETS, COMPLETE, Origins
from clarion.events.multiplex.outcomes import value_name
from tests.faults.events_harness import (
    KILLED,
    Nursery,
    ask_ledger,
    check_lives,
    check_not_again,
    confirmed_ids,
    until,
)
from tests.integration.events.multiplexer_harness import Line, MultiplexerPlace, Place, check, lines_of

MODES: dict[str, dict[str, bool]] = {
    "early": {"confirm_early": True, "forward": False},
    "early-forward": {"confirm_early": True, "forward": True},
    "late": {"confirm_early": False, "forward": False},
    "late-forward": {"confirm_early": False, "forward": True},
}
KEEPING = ("one", "odd")
"""Recipients that keep no ids: they see what comes twice."""
KEEPERS = (*KEEPING, "log")
PAUSE_S = 0.004


class World:
    """See the module. The folders of both lie in `folder`."""

    def __init__(self, nursery: Nursery, folder: Path, mode: str) -> None:
        self.folder = folder
        self.mode = mode
        self.collector = MultiplexerPlace(nursery, folder / "m", recipients=KEEPERS, initialising=2, **MODES[mode])
        self.sender = Place(nursery, folder / "s", initialising=3, events=-1, pause_s=PAUSE_S, end="stays")
        self._lives = {self.collector: 0, self.sender: 0}
        self._starts: dict[str, list[int]] = {name: [] for name in KEEPING}
        """By recipient: how many lines there were at the start of each life of the multiplexer."""
        self._replayed: list[set[str]] = []
        """By life of the multiplexer: what was in its memory when that began."""
        self._confirmed: dict[str, dict[str, int]] = {name: {} for name in KEEPING}
        """By recipient: ids whose confirmation was recorded when a life ended, and how many lines there were then."""

    def copy(self, folder: Path) -> World:
        """Of a world in which nobody lives. Where the multiplexer listens is chosen anew."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("control", "halted"))
        world = World(self.collector.nursery, folder, self.mode)
        (world.collector.folder / "address").write_text(_free_address())
        world._lives = dict(zip(world._lives, self._lives.values(), strict=True))
        world._starts = {name: list(starts) for name, starts in self._starts.items()}
        world._replayed = list(self._replayed)
        world._note()
        return world

    # --- what is done ---------------------------------------------------------------------------------

    def leave(self) -> None:
        """What both leave that were killed: events that `one` has and `odd` has not, and events of a sender that did
        not find the multiplexer, some of them emitted while it initialised."""
        self.collect(refusing=("odd",))
        self.send(events=20, pause_s=0.0)
        until(lambda: len(self.collector.got("one")) >= 25, "they are there")
        self.collector.kill()
        self.sender.kill()
        self.send(events=12, pause_s=0.0)
        until(lambda: len(self._emitted_by(self.sender)) == 38, "they are emitted")
        self.sender.kill()

    def collect(self, **options: Any) -> None:
        """The next life of the multiplexer."""
        for name in KEEPING:
            self._starts[name].append(len(self.collector.got(name)))
        self._replayed.append(_held(self.collector.folder / "events"))
        self.collector.start(label=self._label(self.collector), **options)

    def send(self, **options: Any) -> None:
        """The next life of the sender."""
        self.sender.start(label=self._label(self.sender), multiplexer=self.collector.address, **options)

    def died(self, place: Place) -> bool:
        """It was killed at its step, by itself."""
        if place.lives:
            return False
        place.wait(KILLED)
        if place is self.collector:
            self._note()
        return True

    def until_died(self, place: Place, arm: str, *, surely: bool = True) -> None:
        """If not `surely`, the multiplexer is killed when it has passed the time for it."""

        def passed() -> bool:
            return not surely and len(self.collector.got("one")) > self._starts["one"][-1] + 20

        until(lambda: self.died(place) or passed(), f"{place.folder.name} dies at {arm}")
        if place.lives:
            place.kill()
            self._note()

    def end(self) -> None:
        """Nothing more is emitted, and everything arrives."""
        (self.sender.folder / "halt").touch()
        until((self.sender.folder / "halted").exists, "nothing more is emitted")
        until(lambda: self.sender.waiting() == 0, "the sender is confirmed")
        self.collector.drained()
        if MODES[self.mode]["forward"]:
            until(lambda: not self._unheard(), "all confirmations are heard")
        self.sender.kill()
        self.collector.kill()

    def _label(self, place: Place) -> str:
        self._lives[place] += 1
        return f"{self._lives[place]:02}"

    def _note(self) -> None:
        """A life of the multiplexer has ended: what is confirmed must not come again."""
        for name, confirmed in confirmed_by(self.collector.folder / "events").items():
            if name in self._confirmed:
                count = len(self.collector.got(name))
                for identity in confirmed:
                    self._confirmed[name].setdefault(identity, count)

    def _unheard(self) -> set[tuple[str, str]]:
        """Confirmations of the sender's events that it did not hear of."""
        path = self.sender.folder / "forwarded"
        heard = {tuple(line.split()) for line in path.read_text().splitlines()} if path.exists() else set()
        got = {(name, line.id) for name in KEEPING for line in self.collector.got(name) if line.source.startswith("s-")}
        return got - heard

    # --- what must hold -------------------------------------------------------------------------------

    def _emitted_by(self, place: Place) -> list[Line]:
        return lines_of(place.folder / "emitted")

    def check(self) -> None:
        emitted = [line.id for place in (self.sender, self.collector) for line in self._emitted_by(place)]
        assert len(set(emitted)) == len(emitted), "an id was given twice"
        everything = self.collector.got("one")
        assert not set(emitted) - {line.id for line in everything}, "events were lost"
        # More than was said: a process that is killed before `emit` returns has recorded the event, or not.
        assert len({line.id for line in everything} - set(emitted)) <= sum(self._lives.values())
        check(everything, self.collector, "one")
        check(everything, self.collector, "log")
        check(everything, self.collector, "odd", lambda line: line.number % 2 == 1)
        for name in KEEPING:
            got = self.collector.got(name)
            check_not_again(name, got, self._confirmed[name])
            check_lives(name, got, self._starts[name], self._ranks)
            _check_sent_in_order(name, got)

    def _ranks(self, life: Sequence[Line], number: int) -> list[int]:
        replayed = self._replayed[number]
        return [0 if line.source.startswith("m-init") else 1 if line.id in replayed else 2 for line in life]


def _check_sent_in_order(name: str, got: Sequence[Line]) -> None:
    """What is new in the last life of the sender came after all that it replayed, and after what it emitted while it
    initialised. (What was new in a life before is replayed in the last one, with what is older.)"""
    sent = [line for line in got if line.source.startswith("s-")]
    last = max(line.life for line in sent)
    known: set[str] = set()
    is_new = False
    for line in sent:
        if line.id not in known:
            known.add(line.id)
            newest = line.life == last and line.source.startswith("s-source")
            assert newest or not is_new, f"{name} got {line} after what was new"
            is_new = newest


def _free_address() -> str:
    """Known before the multiplexer is, which may die before it listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


# --- what a multiplexer knows when nobody runs it -------------------------------------------------------


def _held(path: Path) -> set[str]:
    """Ids of everything in its memory."""
    found: set[str] = set()
    for file in (path / "sections").glob("*.ring"):
        section = Section.open(file, writable=False)
        try:
            for event in section.read(section.first_sequence, 100_000, 1 << 26):
                found.add(ids.format_id(event.producer + event.sequence))
        finally:
            section.close()
    return found


def confirmed_by(path: Path) -> dict[str, set[str]]:
    """By recipient: ids of what it is known to have confirmed, events of others among them."""
    found = confirmed_ids(path)
    for name, more in ask_ledger(path, partial(_confirmed_of_others, path / "sections" / "multiplex.ring")).items():
        found.setdefault(name, set()).update(more)
    return found


def _confirmed_of_others(path: Path, ledger: Ledger) -> dict[str, set[str]]:
    """In the memory, by what the ledger has of each recipient; what has left it, by what is known as complete."""
    origins = Origins()
    for bucket in range(BUCKETS):
        value = ledger.value(value_name(bucket))
        if value is not None:
            origins.load(value)
    complete = {
        ids.format_id(producer + sequence)
        for producer, pieces in origins._pieces.items()
        for first, end, state in pieces
        if state == COMPLETE
        for sequence in range(first, end)
    }
    section = Section.open(path, writable=False)
    try:
        events = section.read(section.first_sequence, 100_000, 1 << 26)
        found: dict[str, set[str]] = {}
        for row in ledger.recipients():
            floor, spans = ledger.settled(section.producer, row.slot)
            found[row.name] = complete | {
                ids.format_id(event.producer + event.sequence)
                for event in events
                if event.at < floor or any(first <= event.at < end for first, end in spans)
            }
        return found
    finally:
        section.close()
