"""Sections of the host come, get a feed, and go (A-02, A-09).

Guarantees
    1. What was there at the start counts as replayed, except for what this process has emitted itself since.
    2. A section of a process that is gone is removed when it is empty, and the ledger forgets it.
    3. What is stopped is settled: nothing of it is on its way, and its confirmations are durable.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from clarion.events.engine.feed import READ_BYTES, READ_EVENTS, Feed
from clarion.events.engine.replay import Rank
from clarion.events.engine.seams import FOREIGN_KINDS, PARTNER_KIND, Memory, Rules
from clarion.events.memory import Section

if TYPE_CHECKING:
    from clarion.events.engine.engine import Engine


class Adopting:
    """The sections of one engine."""

    def __init__(self, engine: Engine, memory: Memory, rules: Rules) -> None:
        self.starting = True
        """What is found now was there before."""
        self._engine = engine
        self._memory = memory
        self._rules = rules
        self._stopping: set[int] = set()

    @property
    def is_stopping(self) -> bool:
        """Nothing is delivered until what is stopped has landed."""
        return bool(self._stopping)

    def tell_epochs(self) -> None:
        """How old the records in all sections are, before recipients join."""
        for section, _ in self._memory.found():
            self._tell_epoch(section, self._oldest_epoch(section))

    def look(self) -> None:
        """Sections come and go. Without a descriptor that is not seen now, and those that are known are delivered."""
        with contextlib.suppress(OSError):
            self.find()

    def find(self) -> None:
        """Raises OSError."""
        held = {}
        for section, is_own in self._memory.found():
            if self._rules.is_replayed(section):
                held[section.producer] = section
                if section.producer not in self._engine.feeds:
                    self._add(section, is_own)
        for key in [key for key in self._engine.feeds if key not in held]:
            self._drop(key)
        for key, section in held.items():
            feed = self._engine.feeds[key]
            if section is not feed.section:
                feed.section = section  # it was opened again
            if section.first_sequence == section.next_sequence:
                self._tell_epoch(section, self._engine.ledger.epoch)
            if not feed.is_own and len(feed.queue) == 0 and not feed.has_new and self._memory.is_orphan(section):
                self._finish(feed)

    def forget_gone(self) -> None:
        """Sections whose file went just before a crash, so that the ledger did not hear of it."""
        if not self._memory.unreadable:
            there = {section.producer for section, _ in self._memory.found()}
            for row in self._engine.ledger.sections():
                if row.section not in there:
                    self._engine.ledger.finish_section(row.section)

    def _tell_epoch(self, section: Section, oldest: int) -> None:
        """Of the records in a section, so that slots of older ones can be used again.

        A record may just be on its way: but only one of the last epoch.
        """
        self._engine.ledger.released(
            section.producer, section.first_sequence, max(0, min(oldest, self._engine.ledger.epoch - 1))
        )

    def _oldest_epoch(self, section: Section) -> int:
        """The oldest of its records, as far as that is found out in a moment; 0 if it is not."""
        first, end = section.first_sequence, section.next_sequence
        events = section.read(first, READ_EVENTS, READ_BYTES) if first < end else []
        if len(events) < end - first or (events and section.kind in FOREIGN_KINDS):
            return 0
        oldest = self._engine.ledger.epoch
        for event in events:
            fresh = not event.epoch and not self._engine.ledger.decided(section.producer, event.at, event.at + 1)
            oldest = oldest if fresh else min(oldest, event.epoch)
        return oldest

    def _add(self, section: Section, is_own: bool) -> None:
        first = section.first_sequence
        self._engine.ledger.adopt_section(section.producer, section.name, section.kind, first=first)
        self._engine.ledger.released(section.producer, first)
        boundary = section.next_sequence if self.starting or section.kind == PARTNER_KIND else first
        if is_own and section.kind != PARTNER_KIND:  # what this process emitted before its engine ran is new as well
            boundary = min(boundary, max(section.recovered_to, first))
        translate = self._rules.translation(section)
        feed = Feed(section, first, is_own=is_own, boundary=boundary, translate=translate)
        self._engine.feeds[section.producer] = feed
        if boundary > first:
            self._engine.steps.at({Rank.INITIALISATION: "231a", Rank.PARTNER: "231c"}.get(feed.rank, "231b"))
            self._engine.report.found[feed.rank] += boundary - first
        self._engine.report.lost += sum(end - start for start, end in section.lost)
        for pipeline in self._engine.pipelines.values():
            self._engine.attach(pipeline, feed)

    def _drop(self, key: int) -> None:
        self._engine.feeds.pop(key)
        self._engine.pages.drop(key, 1 << 62)
        for pipeline in self._engine.pipelines.values():
            pipeline.remove_section(key)

    async def stop(self, key: int) -> None:
        """Deliver nothing of a section any more; returns when nothing of it is on its way, and all is recorded."""
        if key not in self._engine.feeds:
            return
        self._stopping.add(key)
        try:
            await self._wait_until_landed(key)
            await self._engine.ledger.durable()
            self._drop(key)
        finally:
            self._stopping.discard(key)
            self._engine.wake()

    async def _wait_until_landed(self, key: int) -> None:
        while any(courier.carries(key) for courier in self._engine.couriers.values()):
            self._engine.landed.clear()
            await self._engine.landed.wait()

    def _finish(self, feed: Feed) -> None:
        """An empty section of a process that is gone."""
        if self._memory.remove(feed.section):
            self._drop(feed.key)
            self._engine.ledger.finish_section(feed.key)
