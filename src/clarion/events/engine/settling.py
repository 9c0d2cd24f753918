"""What becomes of a delivery: recorded first, acted on then; what everybody has leaves persistent memory (A-08).

Guarantees
    1. An event leaves only when the ledger has a durable confirmation, or an explicit giving up, of every recipient
       that was recorded with it.
    2. A recipient that keeps ids hears what it may forget, and never of an event that could still come again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clarion.events.distribution import Confirm, GiveUp, Pipeline
from clarion.events.engine.feed import Feed
from clarion.events.engine.seams import FOREIGN_KINDS, Rules
from clarion.events.memory import Recorded

if TYPE_CHECKING:
    from clarion.events.engine.engine import Engine

_logger = logging.getLogger("clarion.events")


class Settling:
    """Confirmations and givings-up of one engine."""

    def __init__(self, engine: Engine, rules: Rules) -> None:
        self._engine = engine
        self._rules = rules

    def confirm(self, pipeline: Pipeline, confirm: Confirm) -> None:
        """Record it; then it is acted on."""

        def durable() -> None:
            self._engine.steps.at("216b")
            pipeline.recorded(confirm)
            feed = self._engine.feeds.get(confirm.section)
            if feed is not None:
                self._count(pipeline, feed, confirm)
                self._tell_settled(pipeline, feed)
                self._rules.confirmed(feed.section, pipeline.name, confirm.ranges)
                self._release(feed)
                if confirm.ranges[0][0] < feed.boundary:
                    self.note_replayed()
            courier = self._engine.couriers.get(pipeline.slot)
            if courier is not None:
                courier.wake()

        self._engine.ledger.confirm(confirm.section, pipeline.slot, confirm.ranges).then(self._guarded(durable))

    def _guarded(self, act: Callable[..., None]) -> Callable[..., None]:
        """For what the ledger calls: others wait for the same write, and must hear of it whatever happens here."""

        def guarded(*arguments: Any) -> None:
            try:
                act(*arguments)
            except Exception as error:
                self._engine.fail(error)

        return guarded

    def _tell_settled(self, pipeline: Pipeline, feed: Feed) -> None:
        """Not beyond a dead event, which an operator may send again. Other systems' events have other numbers."""
        courier = self._engine.couriers.get(pipeline.slot)
        if courier is not None and courier.keeps_ids and feed.section.kind not in FOREIGN_KINDS:
            floor = pipeline.settled_floor(feed.key)
            courier.settled(feed.key, min(floor, self._engine.ledger.dead_floor(feed.key, pipeline.slot) or floor))

    def _count(self, pipeline: Pipeline, feed: Feed, confirm: Confirm) -> None:
        if confirm.ranges[0][0] < feed.boundary:
            count = sum(
                min(until, feed.boundary) - begin
                for first, end in confirm.ranges
                for begin, until in feed.queue.runs(pipeline.slot, first, min(end, feed.boundary))
            )
            self._engine.report.count(self._engine.report.confirmed, pipeline.name, feed.rank, count)

    def give_up(self, pipeline: Pipeline, give_up: GiveUp, event: Recorded | None) -> None:
        """Bury it with its reason; it is owed no more when that is durable."""
        if event is None and give_up.section in self._engine.feeds:
            found = self._engine.pages.events(
                self._engine.feeds[give_up.section].section, [(give_up.at, give_up.at + 1)]
            )
            event = found[0] if found else None

        def done(stored: bool) -> None:
            if not stored:
                _logger.warning("recipient %s: there is no room to give up event %d", pipeline.name, give_up.at)
                pipeline.kept(give_up.section, give_up.at, self._engine.now_ms(), 0.5)
                return
            _logger.warning("recipient %s: event %d was given up: %s", pipeline.name, give_up.at, give_up.reason)
            pipeline.buried(give_up.section, give_up.at)
            self.release(give_up.section)

        self._engine.ledger.give_up(
            give_up.section, pipeline.slot, give_up.at, give_up.reason, give_up.attempts, event, self._guarded(done)
        )

    def release(self, section: int) -> None:
        """What everybody has settled, and nothing holds back any more, may leave now."""
        feed = self._engine.feeds.get(section)
        if feed is not None:
            self._release(feed)

    def release_all(self) -> None:
        """Somebody is gone who was owed events."""
        for feed in list(self._engine.feeds.values()):
            self._release(feed)

    def _release(self, feed: Feed) -> None:
        """What everybody has settled leaves the queue and persistent memory (step 217)."""
        if not self._engine.pipelines:
            return
        floor = min(pipeline.settled_floor(feed.key) for pipeline in self._engine.pipelines.values())
        floor = min(floor, feed.queue.next)
        if floor <= feed.queue.first or (floor := self._rules.releasable(feed.section, floor)) <= feed.queue.first:
            return
        self._engine.steps.at("217")
        feed.queue.release(floor)
        self._engine.pages.drop(feed.key, floor)
        feed.section.release(floor)
        self._engine.ledger.released(feed.key, floor)
        self._rules.settled(feed.section, floor)

    def note_replayed(self) -> None:
        """When everything that was there at the start has reached all recipients that are here, that is over."""
        if not self._engine.report.finished_ms and all(
            courier.pipeline.settled_floor(feed.key) >= feed.boundary
            for feed in self._engine.feeds.values()
            for courier in self._engine.couriers.values()
        ):
            self._engine.report.finished_ms = self._engine.now_ms()
            self._engine.steps.at("240")
