"""Two event systems in one process: real rings, sockets, witness and threads, and an engine that is as small as can be.

A crash is that everything stops where it is: threads are ended, nothing is said to anybody, and the rings are opened
again with what is in them. (Crashes of processes, pauses and cut wires are tested with processes.)
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from clarion.events.link.confirmations import Confirmations
from clarion.events.link.sink import ForeignSection
from clarion.events.memory.ring import Section
from clarion.events.pair.host import Pair
from clarion.events.pair.messages import Policy, Timing
from clarion.events.pair.witness import FileWitness
from clarion.instruments import Registry
from tests.unit.events.link_harness import emit, new_section

TIMING = Timing.of(1_000)
RECIPIENT = "the recipient"
EventId = tuple[int, int]


class Recipient:
    """What was delivered, by whom."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.got: list[tuple[str, EventId, str]] = []

    def texts(self) -> list[str]:
        return [text for _, _, text in self.got]


class Engine:
    """Delivers to one recipient. Its ledger is a set, which outlives a crash."""

    def __init__(self, name: str, ring: Section, recipient: Recipient, ledger: dict[str, set[EventId]]) -> None:
        self.name, self.ring, self.recipient, self.ledger = name, ring, recipient, ledger
        self.pair: Pair | None = None
        self.replaying: ForeignSection | None = None
        self.reports: list[str] = []
        self.notes: list[bytes] = []
        self.partner_confirmations: list[Confirmations] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        assert self.pair is not None
        while not self._stop.wait(0.005):
            if not self.recipient.open.is_set():
                continue
            with self._lock:
                if self.pair.may_deliver():
                    self._deliver(self.ring, "own")
                if self.replaying is not None and self.pair.may_act():
                    self._deliver(self.replaying, "partner")
                self._release()

    def _deliver(self, section: Any, whose: str) -> None:
        for event in section.read(section.first_sequence, 10_000, 1 << 24):
            identity = event.producer, event.sequence
            if identity not in self.ledger[whose]:
                self.recipient.got.append((self.name, identity, bytes(event.body).decode().strip('"')))
                self.ledger[whose].add(identity)
                if whose == "own" and self.pair is not None:
                    self.pair.confirmed(RECIPIENT, [(event.producer, event.sequence, event.sequence + 1)])

    def _release(self) -> None:
        at = self.ring.first_sequence
        while (self.ring.producer, at) in self.ledger["own"]:
            at += 1
        self.ring.release(at)

    # --- what the pair calls --------------------------------------------------------------------------

    def may_deliver(self, allowed: bool) -> None:
        pass

    def start_replay(self, section: ForeignSection) -> None:
        self.replaying = section

    def stop_replay(self, section: ForeignSection) -> None:
        with self._lock:
            self.replaying = None

    def confirmations(self, section: ForeignSection) -> Confirmations:
        with self._lock:
            return [(RECIPIENT, [(producer, at, at + 1) for producer, at in sorted(self.ledger["partner"])])]

    def forget(self, section: ForeignSection) -> None:
        with self._lock:
            self.ledger["partner"].clear()

    def apply_confirmations(self, confirmations: Confirmations) -> None:
        with self._lock:
            for _, ranges in confirmations:
                for producer, first, end in ranges:
                    self.ledger["own"].update((producer, at) for at in range(first, end))

    def partner_confirmed(self, confirmations: Confirmations) -> None:
        self.partner_confirmations.append(confirmations)

    def partner_note(self, note: bytes) -> bytes:
        self.notes.append(note)
        return note

    def own_confirmations(self) -> Confirmations:
        with self._lock:
            return [(RECIPIENT, [(producer, at, at + 1) for producer, at in sorted(self.ledger["own"])])]

    def held_there(self, held: Sequence[tuple[int, int]]) -> None:
        pass

    def floors(self) -> Iterable[tuple[int, int]]:
        return [(self.ring.producer, self.ring.first_sequence)]

    def report(self, type_: str, severity: str, data: dict[str, Any]) -> None:
        self.reports.append(type_.removeprefix("clarion.pair."))


class System:
    """One of the two hosts."""

    def __init__(self, name: str, partner: str, base: Path, recipient: Recipient, policy: Policy) -> None:
        self.name, self.partner, self.recipient, self.policy = name, partner, recipient, policy
        self.shared = base / "shared"
        self.shared.mkdir(exist_ok=True)
        self.directory = base / name
        self.directory.mkdir()
        self.ledger: dict[str, set[EventId]] = {"own": set(), "partner": set()}
        new_section(self.directory / "normal.ring").close()
        new_section(self.directory / "partner.ring", "partner").close()
        self.address = ("127.0.0.1", 0)
        self.partner_address = ("127.0.0.1", 0)
        self.note: bytes | None = f"recipients of {name}".encode()
        """What the engine wants the partner to know from the start."""
        self.up = False

    def make(self) -> None:
        """Everything, without threads: then the addresses are known."""
        self.ring = Section.open(self.directory / "normal.ring", writable=True)
        self.section = Section.open(self.directory / "partner.ring", writable=True)
        self.engine = Engine(self.name, self.ring, self.recipient, self.ledger)
        self.registry = Registry()
        witness = FileWitness(self.shared, skew_ms=20) if self.policy is Policy.WITNESS else None
        self.pair = Pair(
            self.name,
            self.partner,
            listen=self.address,
            partner_address=self.partner_address,
            section=self.section,
            engine=self.engine,
            state_path=self.directory / "pair.state",
            note_path=self.directory / "partner.note",
            registry=self.registry,
            witness=witness,
            without_witness=self.policy,
            timing=TIMING,
            stored_ms=2_000,
        )
        self.address = self.pair.server.address
        self.engine.pair = self.pair

    def start(self) -> None:
        if not self.up:
            self.ring.mirror = self.pair.keeper.mirror(self.ring)
            if self.note is not None:
                self.pair.note(self.note)
            self.pair.start()
            self.engine.start()
            self.up = True

    def crash(self) -> None:
        if self.up:
            self.up = False
            self.engine.stop()
            self.pair.close()
            self.ring.close()
            self.section.close()

    def restart(self) -> None:
        self.make()
        self.start()

    def emit(self, text: str) -> None:
        emit(self.ring, f"{self.name} {text}")

    @property
    def empty(self) -> bool:
        """Nothing is in any memory, and nothing is owed."""
        return (
            self.ring.first_sequence == self.ring.next_sequence
            and self.section.first_sequence == self.section.next_sequence
            and not self.ledger["partner"]
        )
