"""Dead events that an operator sends again: owed to who they were given up for, until they are confirmed."""

from __future__ import annotations

from clarion.errors import NoSuchDeadEvent, RecordDamaged
from clarion.events.distribution import Pipeline
from clarion.events.ledger import DEAD_SECTION, Ledger
from clarion.events.memory import Recorded


class Resending:
    """They have a section of their own, in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._left: dict[int, bool] = {}
        """By slot: there are more to be sent again than the window had room for."""
        self._numbers: dict[int, int] = {}
        """Sequence in the section of the dead -> number of the dead event."""

    def offer(self, pipeline: Pipeline) -> None:
        """Give a pipeline as many as its window takes; the others when there is room."""
        left = False
        for event in self._ledger.resent(pipeline.slot):
            at = event.resent_at
            self._numbers[at] = event.number
            if at >= pipeline.cursor(DEAD_SECTION):
                left = not pipeline.offer_runs(DEAD_SECTION, [(at, at + 1)], at + 1)
                if left:
                    break
        self._left[pipeline.slot] = left

    def offer_rest(self, pipeline: Pipeline) -> None:
        """There may be room again."""
        if self._left.get(pipeline.slot):
            self.offer(pipeline)

    async def resend(self, numbers: list[int] | None) -> int:
        """Owe dead events again, durably: these, or all; how many."""
        every = self._ledger.dead_events(count_max=1 << 30) if numbers is None else []
        chosen = numbers if numbers is not None else [event.number for event in every]
        events = self._ledger.resend_dead(chosen)
        await self._ledger.durable()
        return len(events)

    def read(self, at: int) -> Recorded | None:
        """A dead event that is sent again; None if it is damaged, or purged meanwhile."""
        try:
            return self._ledger.read_dead(self._numbers.get(at, 0))
        except (RecordDamaged, NoSuchDeadEvent):
            return None
