"""Dead events: what was given up, for whom and why, where its bytes are.

Rules
    1. A dead event is gone only by an explicit purge, or when it was sent again and confirmed.
    2. Sent again it has a sequence in the section of the dead (`DEAD_SECTION`), in the order of sending: a recipient's
       pipeline treats that like any other section.
    3. Applying an entry twice, or to what is gone, changes nothing: a checkpoint is written page by page while the
       log goes on, and a replay begins where it began.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from clarion.events.ledger.entries import Dead, DeadAgain, DeadAt, Resent, encode, id_of
from clarion.events.memory.layout import Recorded

DEAD_SECTION = 0
"""Id of the section of the dead; no producer ever has it."""
_PAGE_EVENTS = 64
_FIXED_BYTES = 160
"""What a dead event takes in a checkpoint beside its texts, at most."""


class DeadEvent(msgspec.Struct):
    """One event that was given up for one recipient."""

    dead: Dead
    position: int
    span: int
    """0: its bytes are lost, or could not be read when it was given up."""
    resent_at: int = 0
    """Its sequence in the section of the dead while it is owed again; 0 while it is not."""

    @property
    def number(self) -> int:
        return self.dead.number

    @property
    def slot(self) -> int:
        return self.dead.slot

    @property
    def recipient(self) -> str:
        return self.dead.recipient

    @property
    def section(self) -> int:
        return id_of(self.dead.section)

    @property
    def at(self) -> int:
        return self.dead.at

    @property
    def producer(self) -> int:
        return id_of(self.dead.producer)

    @property
    def sequence(self) -> int:
        return self.dead.sequence

    @property
    def time_ns(self) -> int:
        return self.dead.time_ns

    @property
    def severity(self) -> int:
        return self.dead.severity

    @property
    def reason(self) -> str:
        return self.dead.reason

    @property
    def attempts(self) -> int:
        return self.dead.attempts

    @property
    def time_ms(self) -> int:
        """When it was given up."""
        return self.dead.time_ms

    @property
    def is_lost(self) -> bool:
        return self.span == 0

    def record(self, data: bytes | memoryview) -> Recorded:
        """The event as a section has it, with the bytes that the journal has for it."""
        dead, cut = self.dead, self.dead.header_bytes
        return Recorded(
            producer=self.producer,
            sequence=dead.sequence,
            time_ns=dead.time_ns,
            severity=dead.severity,
            bits=dead.bits,
            epoch=dead.epoch,
            flags=dead.flags,
            headers=bytes(data[:cut]),
            body=bytes(data[cut:]),
            at=self.resent_at or dead.at,
        )


class DeadTable:
    """All of them, by number."""

    def __init__(self) -> None:
        self.events: dict[int, DeadEvent] = {}
        self.resent: dict[int, int] = {}
        """Sequence in the section of the dead -> number."""
        self.number_next = 1
        self.resent_next = 1
        self._text_bytes = 0

    def __len__(self) -> int:
        return len(self.events)

    def put(self, dead: Dead, position: int, span: int, resent_at: int = 0) -> None:
        self.discard(dead.number)
        self.events[dead.number] = DeadEvent(dead, position, span, resent_at)
        self.number_next = max(self.number_next, dead.number + 1)
        self._text_bytes += len(dead.reason) + len(dead.recipient)
        if resent_at:
            self.resent[resent_at] = dead.number
            self.resent_next = max(self.resent_next, resent_at + 1)

    def discard(self, number: int) -> None:
        event = self.events.pop(number, None)
        if event is not None:
            self.resent.pop(event.resent_at, None)
            self._text_bytes -= len(event.reason) + len(event.recipient)

    def send_again(self, entry: Resent) -> None:
        for number, at in zip(entry.pairs[::2], entry.pairs[1::2], strict=True):
            self.resent_next = max(self.resent_next, at + 1)
            event = self.events.get(number)
            if event is not None:
                self.resent.pop(event.resent_at, None)
                event.resent_at = at
                self.resent[at] = number

    def give_up_again(self, entry: DeadAgain) -> None:
        event = self.events.get(entry.number)
        if event is not None:
            self.resent.pop(event.resent_at, None)
            self._text_bytes += len(entry.reason) - len(event.reason)
            event.resent_at = 0
            event.dead = msgspec.structs.replace(
                event.dead, reason=entry.reason, attempts=entry.attempts, time_ms=entry.time_ms
            )

    def move(self, number: int, position: int, span: int) -> None:
        event = self.events.get(number)
        if event is not None:
            event.position, event.span = position, span

    def in_segment(self, position_from: int, position_to: int) -> list[DeadEvent]:
        """Those whose bytes are there. Costs a look at each."""
        return [event for event in self.events.values() if position_from <= event.position < position_to and event.span]

    def resent_in(self, slot: int, first: int, end: int) -> list[int]:
        """Numbers that were sent again to this recipient, by their sequences."""
        if end - first > len(self.resent):
            hits = [at for at in self.resent if first <= at < end]
        else:
            hits = [at for at in range(first, end) if at in self.resent]
        return [self.resent[at] for at in hits if self.events[self.resent[at]].slot == slot]

    def pages(self) -> Iterator[list[bytes]]:
        """For a checkpoint: entries as they are when their page is written."""
        numbers = list(self.events)
        for start in range(0, len(numbers), _PAGE_EVENTS):
            found = [self.events[number] for number in numbers[start : start + _PAGE_EVENTS] if number in self.events]
            yield [encode(DeadAt(one.dead, one.position, one.span, one.resent_at)) for one in found]

    @property
    def checkpoint_bytes(self) -> int:
        """About what they take in a checkpoint."""
        return len(self.events) * _FIXED_BYTES + 2 * self._text_bytes
