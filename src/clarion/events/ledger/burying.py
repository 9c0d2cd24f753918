"""Giving up, and what becomes of it: dead events are listed, read, sent again, purged.

Rules
    1. A dead event takes its room from what producers may use, never from the reserve: when that is full, giving up
       waits, and the event stays owed.
    2. Nothing vanishes: only an explicit purge, or a confirmation after it was sent again, lets a dead event go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from clarion import limits
from clarion.errors import JournalFull, LimitReached, MessageTooLarge, NoSuchDeadEvent, RecordDamaged
from clarion.events.ledger.dead import DEAD_SECTION, DeadEvent
from clarion.events.ledger.durable import Durable
from clarion.events.ledger.entries import RANGES_PER_ENTRY_MAX, Dead, DeadAgain, Purged, Resent, id_bytes
from clarion.events.ledger.part import Part
from clarion.events.memory.layout import Recorded


class Burying(Part):
    """The dead."""

    def give_up(
        self,
        section: int,
        slot: int,
        at: int,
        reason: str,
        attempts: int,
        event: Recorded | None,
        done: Callable[[bool], None],
        *,
        now_ms: int | None = None,
    ) -> None:
        """Keep an event as dead, with its bytes; None: they cannot be read any more.

        `done(True)` when that is durable: it is settled for the recipient. `done(False)`, at once, if there is no
        room for it: it is owed as before. Raises what stopped persistent memory.
        """
        reason = reason[: limits.REASON_CHARACTERS_MAX]
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        try:
            if section == DEAD_SECTION:
                self._give_up_again(at, reason, attempts, now_ms)
            else:
                self._bury(section, slot, at, reason, attempts, event, now_ms)
        except (JournalFull, MessageTooLarge, LimitReached):
            self._log.demand()
            done(False)
            return
        self._written().then(partial(done, True))

    def _bury(
        self, section: int, slot: int, at: int, reason: str, attempts: int, event: Recorded | None, now_ms: int
    ) -> None:
        state = self._state
        if len(state.dead) >= limits.EVENT_DEAD_MAX:
            raise LimitReached(what="dead events", limit=limits.EVENT_DEAD_MAX)
        row = state.recipients.get(slot)
        if event is None:
            event = Recorded(section, at, 0, 0, 1 << slot, 0, 0, b"", b"", at)
        dead = Dead(
            number=state.dead.number_next,
            slot=slot,
            recipient="" if row is None else row.name,
            section=id_bytes(section),
            at=at,
            producer=id_bytes(event.producer),
            sequence=event.sequence,
            time_ns=event.time_ns,
            severity=event.severity,
            bits=event.bits,
            epoch=event.epoch,
            flags=event.flags,
            header_bytes=len(event.headers),
            attempts=attempts,
            time_ms=now_ms,
            reason=reason,
        )
        self._log.write(dead, b"".join((event.headers, event.body)), reserve=False)
        self._log.measure()
        known = state.sections.get(section)
        if known is not None:
            settled = known.of(slot)
            self._advance_after([(settled, settled.floor)])

    def _give_up_again(self, at: int, reason: str, attempts: int, now_ms: int) -> None:
        number = self._state.dead.resent.get(at)
        if number is not None:
            self._log.write(DeadAgain(number, reason, attempts, now_ms))

    def dead_events(self, recipient: str | None = None, *, after: int = 0, count_max: int = 1_000) -> list[DeadEvent]:
        """By number, those after `after`: page by page."""
        numbers = sorted(number for number in self._state.dead.events if number > after)
        found = (self._state.dead.events[number] for number in numbers)
        chosen = [event for event in found if recipient is None or event.recipient == recipient]
        return chosen[:count_max]

    def dead_floor(self, section: int, slot: int) -> int | None:
        """The lowest sequence of a section that is dead for a recipient; None if none is. Costs a look at each."""
        events = self._state.dead.events.values()
        return min((one.at for one in events if one.slot == slot and one.section == section), default=None)

    def dead_event(self, number: int) -> DeadEvent:
        """Raises `NoSuchDeadEvent`."""
        event = self._state.dead.events.get(number)
        if event is None:
            raise NoSuchDeadEvent(number=number)
        return event

    def read_dead(self, number: int) -> Recorded:
        """The event itself, once it is durable. Waits for the disk. Raises `RecordDamaged` if its bytes are lost."""
        event = self.dead_event(number)
        records = self._log.journal.read(event.position, event.span) if event.span else []
        if not records or not records[0].body:
            raise RecordDamaged(position=event.position, detail=f"the bytes of dead event {number} are not there")
        return event.record(records[0].body)

    def resend_dead(self, numbers: Iterable[int]) -> list[DeadEvent]:
        """Owe these again: offer each as sequence `resent_at` of `DEAD_SECTION`, and confirm it there.

        Durable when `durable()` says so. Those whose recipient is gone, or that are under way, are left out.
        """
        events = [self.dead_event(number) for number in dict.fromkeys(numbers)]
        present = {row.slot: row.name for row in self._state.recipients.values() if not row.removed}
        chosen = [one for one in events if present.get(one.slot) == one.recipient and not one.resent_at and one.span]
        for start in range(0, len(chosen), RANGES_PER_ENTRY_MAX):
            few = chosen[start : start + RANGES_PER_ENTRY_MAX]
            first = self._state.dead.resent_next
            self._log.write(Resent([part for n, one in enumerate(few) for part in (one.number, first + n)]))
        return chosen

    def resent(self, slot: int) -> list[DeadEvent]:
        """What is owed again to a recipient, in the order of `resent_at`: to be offered after a start."""
        dead = self._state.dead
        events = [dead.events[dead.resent[at]] for at in sorted(dead.resent)]
        return [event for event in events if event.slot == slot]

    def purge_dead(self, numbers: Iterable[int]) -> Durable:
        """Let dead events go for good. Raises `NoSuchDeadEvent` and purges none then."""
        wanted = list(numbers)
        for number in wanted:
            self.dead_event(number)
        self._purge(wanted)
        return self._written()

    def _purge(self, numbers: list[int]) -> None:
        numbers = list(dict.fromkeys(numbers))
        for start in range(0, len(numbers), RANGES_PER_ENTRY_MAX):
            few = numbers[start : start + RANGES_PER_ENTRY_MAX]
            places = [(event.position, event.span) for event in map(self.dead_event, few)]
            self._log.write(Purged(few))
            for position, span in places:
                if span:
                    self._log.journal.release(position, span)
