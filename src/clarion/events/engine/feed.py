"""One section of persistent memory as an engine reads it: new events go to its indication queue (step 214).

Guarantees
    1. Every event that the section holds is indicated once, in order; what the disk lost is indicated as for nobody.
    2. An event that was recorded without a decision who gets it is decided here, and that decision is durable before
       anybody is told of the event.
"""

from __future__ import annotations

from collections.abc import Callable

from clarion import limits
from clarion.errors import InternalFault
from clarion.events.engine.deciding import Decisions
from clarion.events.engine.indications import IndicationQueue
from clarion.events.engine.pages import Pages
from clarion.events.engine.replay import Rank
from clarion.events.event import headers_of
from clarion.events.memory import FLAG_UNDECIDED, Recorded, Section

READ_EVENTS = 4_096
READ_BYTES = 1 * limits.MIB
QUEUE_EVENTS_MAX = 1 << 20
RECORD_BYTES_MIN = 128
"""No record of an event is smaller, so a queue of so many words mirrors a whole section."""

Translate = Callable[[Recorded], int]
"""For whom an event of another system is, in our numbers of recipients."""

RANKS = {"initialisation": Rank.INITIALISATION, "partner": Rank.PARTNER}


class Feed:
    """What an engine knows of one section."""

    def __init__(
        self, section: Section, first: int, *, is_own: bool, boundary: int, translate: Translate | None = None
    ) -> None:
        self.section = section
        self.key = section.producer
        self._translate = translate
        self.is_own = is_own
        """This process writes it."""
        self.boundary = boundary
        """What lies below was there before this start, and is replayed; from here on events are new."""
        self.queue = IndicationQueue(min(len(section.file.view) // RECORD_BYTES_MIN, QUEUE_EVENTS_MAX), first)
        self.released = first

    @property
    def rank(self) -> Rank:
        """Of what was there before this start."""
        return RANKS.get(self.section.kind, Rank.INCOMPLETE)

    @property
    def rank_new(self) -> Rank:
        """Of what comes after the start."""
        return RANKS.get(self.section.kind, Rank.NEW)

    @property
    def has_new(self) -> bool:
        """There is something that is not indicated yet, and room for it."""
        return self.queue.next < self.section.next_sequence and self.queue.room > 0

    async def take(self, pages: Pages, deciding: Decisions) -> int:
        """Indicate some new events; how many."""
        first, end = self.queue.next, self.section.next_sequence
        count = min(end - first, self.queue.room, READ_EVENTS)
        if count <= 0:
            return 0
        events = self.section.read(first, count, READ_BYTES)
        pages.put(self.section, events)
        bits = await self._bits(first, count, events, deciding)
        self.queue.put(bits)
        return len(bits)

    async def _bits(self, first: int, count: int, events: list[Recorded], deciding: Decisions) -> list[int]:
        if not events:
            return self._lost(first, first + count)
        bits: list[int] = []
        fresh: list[tuple[int, int, int]] = []
        known_epoch, valid = -1, 0
        for event in events:
            at = first + len(bits)
            if event.at != at:
                bits += self._lost(at, event.at)
            if self._translate is not None:
                bits.append(self._translate(event))
                continue
            if event.epoch != known_epoch:
                known_epoch, valid = event.epoch, deciding.valid(event.epoch)
            if event.flags & FLAG_UNDECIDED:
                bits.append(self._undecided(event, deciding, fresh) & deciding.valid(1 << 32))
            else:
                bits.append(event.bits & valid)
        if fresh:
            await deciding.decide(self.key, fresh)
        return bits

    def _undecided(self, event: Recorded, deciding: Decisions, fresh: list[tuple[int, int, int]]) -> int:
        """For whom it is: as was decided before, or as is decided now."""
        known = deciding.decided(self.key, event.at, event.at + 1)
        if known:
            return known[0][2]
        routes = deciding.routes_of(event.epoch)
        identity = event.producer + event.sequence
        bits = routes.decide(headers_of(event), event.time_ns // 1_000_000, identity)
        if fresh and fresh[-1][1] == event.at and fresh[-1][2] == bits:
            fresh[-1] = fresh[-1][0], event.at + 1, bits
        else:
            fresh.append((event.at, event.at + 1, bits))
        return bits

    def _lost(self, first: int, end: int) -> list[int]:
        """Nobody gets what the disk lost; but only that may be missing."""
        missing = (*self.section.lost, *self.section.torn)
        known = sum(min(end, stop) - max(first, start) for start, stop in missing if start < end and stop > first)
        if known < end - first:
            raise InternalFault(detail=f"section {self.section.name}: {first} to {end} cannot be read and is not lost")
        return [0] * (end - first)
