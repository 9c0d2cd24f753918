"""Confirmations: gathered in one turn of the loop, written together, never refused.

Rules
    1. They use the reserve of the journal. When even that is full they wait, and are written when there is room.
    2. A floor counts when the confirmations below it are durable, not when they are written.
"""

from __future__ import annotations

from collections.abc import Sequence

from clarion.errors import ClarionError, JournalFull
from clarion.events.ledger.burying import Burying
from clarion.events.ledger.dead import DEAD_SECTION
from clarion.events.ledger.durable import Durable
from clarion.events.ledger.entries import RANGES_PER_ENTRY_MAX, Confirmed, id_bytes
from clarion.events.ledger.log import LedgerLog
from clarion.events.ledger.part import Done
from clarion.events.ledger.state import Settled, State
from clarion.journal import Committer

Range = tuple[int, int]


class Confirming(Burying):
    """What recipients have settled."""

    def __init__(self, log: LedgerLog, state: State, committer: Committer) -> None:
        super().__init__(log, state)
        self._committer = committer
        self._gathered: dict[tuple[int, int], list[Range]] = {}
        self._turn: Durable | None = None
        """Of what is gathered and not written."""
        self._scheduled = False
        self._writing = False
        log.on_room = self._flush

    def confirm(self, section: int, slot: int, ranges: Sequence[Range], done: Done | None = None) -> Durable:
        """These are settled for a recipient. Confirmations of one turn of the loop share a `Durable` and a write."""
        if self._log.error is not None:
            raise self._log.error
        turn = self._turn = self._turn or Durable()
        if done is not None:
            turn.then(done)
        self._gathered.setdefault((section, slot), []).extend(ranges)
        if not self._scheduled:
            self._scheduled = True
            self._committer.schedule(self._write_turn)
        return turn

    def _write_turn(self) -> None:
        self._scheduled = False
        self._flush()
        if self._gathered:
            self._log.demand()

    def _flush(self) -> None:
        """Write what was gathered; without room it stays gathered until there is some."""
        turn = self._turn
        if turn is None or self._writing or self._log.error is not None:
            return
        self._writing = True  # writing may free room, and that asks for this again
        moved: list[tuple[Settled, int]] = []
        try:
            while self._gathered:
                self._write_gathered(moved)
        except JournalFull:
            pass  # again when there may be room
        finally:
            self._writing = False
            self._advance_after(moved)
        if not self._gathered:
            self._turn = None
            self._log.complete(turn)
        self._log.journal.flush()

    def _write_gathered(self, moved: list[tuple[Settled, int]]) -> None:
        key = section, slot = next(iter(self._gathered))
        ranges = self._gathered[key]
        while ranges:
            few = ranges[:RANGES_PER_ENTRY_MAX]
            if section == DEAD_SECTION:
                self._purge([number for run in few for number in self._state.dead.resent_in(slot, *run)])
            elif (row := self._state.sections.get(section)) is not None:  # else it is finished meanwhile
                self._log.write(Confirmed(id_bytes(section), slot, [bound for run in few for bound in run]))
                settled = row.of(slot)
                moved.append((settled, settled.floor))
            del ranges[: len(few)]
        del self._gathered[key]

    def _give_up_turn(self, error: ClarionError) -> None:
        """Persistent memory failed: nobody will be told of what is gathered."""
        self._gathered.clear()
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.fail(error)

    def floor(self, section: int, slot: int) -> int:
        """Everything below is durably settled for this recipient."""
        row = self._state.sections.get(section)
        return 1 if row is None else row.of(slot).durable_floor

    def settled(self, section: int, slot: int) -> tuple[int, list[Range]]:
        """(floor, spans above it) as written, for `Pipeline.load` after a start: then all of it is durable."""
        row = self._state.sections.get(section)
        if row is None:
            return 1, []
        settled = row.of(slot)
        return settled.floor, [(first, end) for first, end, _ in settled.spans]

    def owes(self, section: int, slot: int, at: int, bits: int, epoch: int) -> bool:
        """Is an event with these recipients, decided in this epoch, still owed to who is in this slot now?"""
        row = self._state.recipients.get(slot)
        if row is None or row.removed or not bits >> slot & 1 or epoch < row.since:
            return False
        known = self._state.sections.get(section)
        if known is None:
            return True
        settled = known.of(slot)
        return at >= settled.floor and not settled.spans.overlap(at, at + 1)
