"""The distribution engine: everything that persistent memory holds goes to every recipient it is for (A-07 to A-09).

Theory of operation
    Feeds bring what sections hold to their indication queues; a courier for each recipient delivers what it is owed;
    confirmations go to the ledger, and when they are durable the head of the section moves. Replayed events go
    before new ones, for each recipient by itself: what was recorded while initialising, what was incomplete, what a
    partner left.

Guarantees
    1. An event leaves persistent memory only when the ledger has a durable confirmation (or an explicit giving up)
       of every recipient that was recorded with it.
    2. A recipient that is slow, dead or not there delays nobody but itself.
    3. Nothing here must survive: the engine can be stopped and made again at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from clarion import limits
from clarion.errors import LimitReached
from clarion.events.distribution import Confirm, GiveUp, Pipeline, RetryPolicy
from clarion.events.engine.courier import Courier
from clarion.events.engine.dead import Resending
from clarion.events.engine.deciding import Decisions
from clarion.events.engine.feed import READ_BYTES, READ_EVENTS, Feed
from clarion.events.engine.pages import Pages
from clarion.events.engine.replay import Rank, ReplayReport
from clarion.events.engine.seams import Memory, Rules
from clarion.events.event import PROPERTY_SOURCE, headers_of
from clarion.events.ledger import DEAD_SECTION, Ledger
from clarion.events.memory import Recorded, Section
from clarion.events.steps import Steps

STOP_S = 2.0
"""How long deliveries that are under way may take when the engine stops; then they are cut off, and come again."""
LOOK_S = 0.5
"""How often sections of other processes are looked for."""
POLL_S = 0.02
"""How often sections of other processes are looked at while there are any."""
OFFER_EVENTS = 1 << 16
PARTNER_KIND = "partner"
FOREIGN_KINDS = frozenset({PARTNER_KIND, "multiplex"})
"""Sections whose events were emitted elsewhere, and keep the ids that they have there."""

_logger = logging.getLogger("clarion.events")


class Engine:
    """See the module. Lives in one loop; made anew after whatever stopped it."""

    def __init__(
        self,
        memory: Memory,
        rules: Rules,
        ledger: Ledger,
        steps: Steps,
        recipients: Mapping[str, Any],
        policies: Mapping[str, RetryPolicy],
    ) -> None:
        self.steps = steps
        self.feeds: dict[int, Feed] = {}
        self.pages = Pages()
        self.report = ReplayReport(self.now_ms())
        self.ledger = ledger
        self.decisions = Decisions(ledger)
        self.resending = Resending(ledger)
        self.pipelines: dict[int, Pipeline] = {}
        self.couriers: dict[int, Courier] = {}
        self._memory = memory
        self._rules = rules
        self._recipients = dict(recipients)
        self._policies = policies
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._bell = asyncio.Event()
        self.rung = False
        """Somebody has asked for `ring`, which has not come yet."""
        self.is_running = False
        """It knows all sections and recipients, and delivers."""
        self._failed: asyncio.Future[None] | None = None
        self._stopping_feeds: set[int] = set()
        self.landed = asyncio.Event()
        """Set by couriers: a delivery is over."""
        self._starting = True

    # --- life ---------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until `stop` is set. Raises what makes going on senseless."""
        self._failed = failed = asyncio.get_running_loop().create_future()
        self.ledger.on_failed = self._fail
        self._forget_gone()
        self._add_recipients()
        await self.ledger.durable()
        self._reroute()
        for row in self.ledger.recipients():
            self._add_pipeline(row.slot, row.name)
        self._find()
        self._starting = False
        waiting: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(stop.wait()),
            asyncio.ensure_future(self._take_for_ever()),
            failed,
        ]
        await self._run_until(waiting)

    async def _run_until(self, waiting: list[asyncio.Future[Any]]) -> None:
        """Until one of these is done."""
        try:
            await self._deliver_until(waiting)
        finally:
            self.is_running = False
            await self._end([*waiting, *self._tasks.values()])

    async def _deliver_until(self, waiting: list[asyncio.Future[Any]]) -> None:
        for slot, pipeline in self.pipelines.items():
            self._start_courier(slot, pipeline)
        self.is_running = True
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await self._let_deliveries_end()

    async def _end(self, running: list[asyncio.Future[Any]]) -> None:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _let_deliveries_end(self) -> None:
        """What is just being delivered would come twice if its confirmation was not waited for."""
        busy = [self._tasks[slot] for slot, courier in self.couriers.items() if courier.stop()]
        if busy:
            await asyncio.wait(busy, timeout=STOP_S)

    def begin_anew(self) -> None:
        """The ledger knows more than the pipelines do: deliver nothing more, end, and be made again from it."""
        for courier in self.couriers.values():
            courier.stop()
        if self._failed is not None and not self._failed.done():
            self._failed.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """Going on is senseless: whoever runs this engine makes another."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    def _courier_ended(self, task: asyncio.Task[None]) -> None:
        """No recipient is forgotten because its courier met something unforeseen, like want of memory."""
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._fail(error)

    def ring(self) -> None:
        """Something was recorded, or may be delivered now."""
        self.rung = False
        self._bell.set()

    def _start_courier(self, slot: int, pipeline: Pipeline) -> None:
        recipient = self._recipients.get(pipeline.name)
        if recipient is not None:
            courier = self.couriers[slot] = Courier(self, pipeline, recipient)
            task = self._tasks[slot] = asyncio.ensure_future(courier.run())
            task.add_done_callback(self._courier_ended)

    # --- recipients ---------------------------------------------------------------------------------

    def _add_pipeline(self, slot: int, name: str) -> Pipeline:
        policy = self._policies.get(name, RetryPolicy())
        window_events = int(getattr(self._recipients.get(name), "window_events", limits.EVENT_WINDOW_EVENTS))
        pipeline = self.pipelines[slot] = Pipeline(slot, name, policy, self._facts_of, window_events)
        for feed in self.feeds.values():
            self._attach(pipeline, feed)
        pipeline.add_section(DEAD_SECTION, Rank.NEW, 1)
        self.resending.offer(pipeline)
        return pipeline

    def _attach(self, pipeline: Pipeline, feed: Feed) -> None:
        """A recipient and a section meet: what is settled between them is known to the ledger."""
        floor, spans = self.ledger.settled(feed.key, pipeline.slot)
        first = feed.queue.first
        exact = feed.section.kind == PARTNER_KIND  # what we cannot deliver is not settled by that: its origin will
        pipeline.load(feed.key, floor, spans)
        if first < feed.boundary:
            pipeline.add_section(feed.key, feed.rank, first, feed.boundary, exact=exact)
            first = feed.boundary
        pipeline.add_section(feed.key, feed.rank_new, first, exact=exact)

    def add_recipient(self, name: str, recipient: Any) -> None:
        """From now on; it gets what is recorded from now on. Raises `LimitReached`."""
        self._check_room(name, recipient)
        slot = self.ledger.add_recipient(name, getattr(recipient, "filter", ""))
        self._recipients[name] = recipient
        self._reroute()
        pipeline = self.pipelines.get(slot)
        if slot not in self.couriers:
            self._start_courier(slot, pipeline if pipeline is not None else self._add_pipeline(slot, name))

    async def remove_recipient(self, name: str, force: bool) -> int:
        """An explicit act. Raises `RecipientOwes` unless it owes nothing or `force`; how many it was owed."""
        row = self.ledger.recipient(name)
        await self._all_indicated()
        owed = self.owed(row.slot)
        removed = self.ledger.remove_recipient(name, owed=owed, now_ms=self.now_ms(), force=force)
        task = self._tasks.pop(row.slot, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.couriers.pop(row.slot, None)
        self.pipelines.pop(row.slot, None)
        self._recipients.pop(name, None)
        await removed
        self._reroute()
        for feed in list(self.feeds.values()):
            self._release(feed)
        return owed

    async def _all_indicated(self) -> None:
        """What is recorded by now is on the indication queues, as far as they have room: it counts as owed."""
        self.look()
        recorded = {key: feed.section.next_sequence for key, feed in self.feeds.items()}
        while any(
            feed.has_new and feed.queue.next < recorded[key] for key, feed in self.feeds.items() if key in recorded
        ):
            self._bell.set()
            await asyncio.sleep(0.001)

    def owed(self, slot: int) -> int:
        """Events that the recipient in this slot has neither confirmed nor been given up for."""
        pipeline = self.pipelines.get(slot)
        if pipeline is None:
            return 0
        count = pipeline.owed
        for feed in self.feeds.values():
            cursor = pipeline.cursor(feed.key)
            count += sum(end - first for first, end in feed.queue.runs(slot, cursor, feed.queue.next))
        return count

    def _reroute(self) -> None:
        """The recipients have changed: whoever records is told."""
        self._rules.routes_changed(self.decisions.renew())

    # --- sections -----------------------------------------------------------------------------------

    async def _take_for_ever(self) -> None:
        """Bring what is recorded to the indication queues."""
        looked_s = time.monotonic()
        while True:
            self._bell.clear()
            self.rung = False  # also if the one who asked for a ring was interrupted
            if time.monotonic() - looked_s > LOOK_S:
                looked_s = time.monotonic()
                self.look()
            taken = 0
            if self.pipelines:
                for feed in list(self.feeds.values()):
                    if feed.has_new:
                        self.steps.at("214")
                        taken += await feed.take(self.pages, self.decisions)
            for slot, pipeline in self.pipelines.items():
                if slot not in self.couriers:  # nobody delivers to it here, but what it is not owed can go
                    self.offer(pipeline)
            if taken:
                self._wake()
                await asyncio.sleep(0)
                continue
            if self._rules.may_deliver():
                self._wake_if_ready()
            await self._rest(POLL_S if any(not feed.is_own for feed in self.feeds.values()) else LOOK_S)

    async def _rest(self, pause_s: float) -> None:
        """Until the bell is rung. Short, for want of memory is often met here (rule 3 of `memory.writing`)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._bell.wait()

    def _wake(self) -> None:
        for courier in self.couriers.values():
            courier.wake()

    def _wake_if_ready(self) -> None:
        """The system may have become ready since."""
        for courier in self.couriers.values():
            if courier.waits_until_ready:
                courier.wake()
        self._note_replayed()

    def _note_replayed(self) -> None:
        """When everything that was there at the start has reached all recipients that are here, that is over."""
        if not self.report.finished_ms and all(
            courier.pipeline.settled_floor(feed.key) >= feed.boundary
            for feed in self.feeds.values()
            for courier in self.couriers.values()
        ):
            self.report.finished_ms = self.now_ms()
            self.steps.at("240")

    def look(self) -> None:
        """Sections come and go. Without a descriptor that is not seen now, and those that are known are delivered."""
        with contextlib.suppress(OSError):
            self._find()

    def _find(self) -> None:
        """Raises OSError."""
        held = {}
        for section, is_own in self._memory.found():
            if self._rules.is_replayed(section):
                held[section.producer] = section
                if section.producer not in self.feeds:
                    self._add_feed(section, is_own)
        for key in [key for key in self.feeds if key not in held]:
            self._drop_feed(key)
        for key, section in held.items():
            feed = self.feeds[key]
            if section is not feed.section:
                feed.section = section  # it was opened again
            if section.first_sequence == section.next_sequence:
                self._tell_epoch(section, self.ledger.epoch)
            if not feed.is_own and len(feed.queue) == 0 and not feed.has_new and self._memory.is_orphan(section):
                self._finish(feed)

    def _forget_gone(self) -> None:
        """Sections whose file went just before a crash, so that the ledger did not hear of it."""
        if not self._memory.unreadable:
            there = {section.producer for section, _ in self._memory.found()}
            for row in self.ledger.sections():
                if row.section not in there:
                    self.ledger.finish_section(row.section)

    def _add_recipients(self) -> None:
        """Those that were given. One for whom there is no slot now must not keep the others from their events."""
        for section, _ in self._memory.found():
            self._tell_epoch(section, self._oldest_epoch(section))
        for name, recipient in self._recipients.items():
            try:
                self._check_room(name, recipient)
                self.ledger.add_recipient(name, getattr(recipient, "filter", ""))
            except LimitReached as error:
                _logger.error("recipient %s cannot join, and is not delivered to: %s", name, error)

    def _check_room(self, name: str, recipient: Any) -> None:
        """Before it is recorded that one joins: whether everybody who must know it can. Raises `LimitReached`."""
        joined = {row.name: row.filter for row in self.ledger.recipients()}
        for known, one in (*self._recipients.items(), (name, recipient)):
            joined[known] = getattr(one, "filter", "")
        self._rules.check_recipients(joined)

    def _tell_epoch(self, section: Section, oldest: int) -> None:
        """Of the records in a section, so that slots of older ones can be used again.

        A record may just be on its way: but only one of the last epoch.
        """
        self.ledger.released(section.producer, section.first_sequence, max(0, min(oldest, self.ledger.epoch - 1)))

    def _oldest_epoch(self, section: Section) -> int:
        """The oldest of its records, as far as that is found out in a moment; 0 if it is not."""
        first, end = section.first_sequence, section.next_sequence
        events = section.read(first, READ_EVENTS, READ_BYTES) if first < end else []
        if len(events) < end - first or (events and section.kind in FOREIGN_KINDS):
            return 0
        oldest = self.ledger.epoch
        for event in events:
            fresh = not event.epoch and not self.ledger.decided(section.producer, event.at, event.at + 1)
            oldest = oldest if fresh else min(oldest, event.epoch)
        return oldest

    def _add_feed(self, section: Section, is_own: bool) -> None:
        first = section.first_sequence
        self.ledger.adopt_section(section.producer, section.name, section.kind, first=first)
        self.ledger.released(section.producer, first)
        boundary = section.next_sequence if self._starting or section.kind == PARTNER_KIND else first
        if is_own and section.kind != PARTNER_KIND:  # what this process emitted before its engine ran is new as well
            boundary = min(boundary, max(section.recovered_to, first))
        translate = self._rules.translation(section)
        feed = Feed(section, first, is_own=is_own, boundary=boundary, translate=translate)
        self.feeds[section.producer] = feed
        if boundary > first:
            self.steps.at({Rank.INITIALISATION: "231a", Rank.PARTNER: "231c"}.get(feed.rank, "231b"))
            self.report.found[feed.rank] += boundary - first
        self.report.lost += sum(end - start for start, end in section.lost)
        for pipeline in self.pipelines.values():
            self._attach(pipeline, feed)

    def _drop_feed(self, key: int) -> None:
        self.feeds.pop(key)
        self.pages.drop(key, 1 << 62)
        for pipeline in self.pipelines.values():
            pipeline.remove_section(key)

    async def stop_feed(self, key: int) -> None:
        """Deliver nothing of a section any more; returns when nothing of it is on its way, and all is recorded."""
        if key not in self.feeds:
            return
        self._stopping_feeds.add(key)
        try:
            await self._wait_until_landed(key)
            await self.ledger.durable()
            self._drop_feed(key)
        finally:
            self._stopping_feeds.discard(key)
            self._wake()

    async def _wait_until_landed(self, key: int) -> None:
        while any(courier.carries(key) for courier in self.couriers.values()):
            self.landed.clear()
            await self.landed.wait()

    def _finish(self, feed: Feed) -> None:
        """An empty section of a process that is gone."""
        if self._memory.remove(feed.section):
            self._drop_feed(feed.key)
            self.ledger.finish_section(feed.key)

    # --- for couriers -------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Unix time."""
        return time.time_ns() // 1_000_000

    def may_deliver(self) -> bool:
        """The system is ready, it is ours to deliver, and all that goes first is known."""
        return (
            not self._stopping_feeds
            and self._rules.may_deliver()
            and not any(feed.has_new for feed in self.feeds.values() if feed.rank_new == Rank.INITIALISATION)
        )

    def offer(self, pipeline: Pipeline) -> None:
        """Give a pipeline what was indicated, as far as its window goes, lower ranks first."""
        for feed in sorted(self.feeds.values(), key=lambda one: one.rank):
            key, before = feed.key, pipeline.cursor(feed.key)
            while pipeline.room(key) > 0 and (cursor := pipeline.cursor(key)) < feed.queue.next:
                replayed = cursor < feed.boundary
                read_to = min(feed.queue.next, cursor + OFFER_EVENTS, feed.boundary if replayed else feed.queue.next)
                count = pipeline.offer_runs(key, feed.queue.runs(pipeline.slot, cursor, read_to), read_to)
                if replayed:
                    self.report.count(self.report.owed, pipeline.name, feed.rank, count)
                if pipeline.cursor(key) == cursor:
                    break
            if pipeline.cursor(key) > before:
                self._release(feed)
        self.resending.offer_rest(pipeline)

    def confirm(self, pipeline: Pipeline, confirm: Confirm) -> None:
        """Record it; then it is acted on."""

        def durable() -> None:
            self.steps.at("216b")
            pipeline.recorded(confirm)
            feed = self.feeds.get(confirm.section)
            if feed is not None:
                self._count(pipeline, feed, confirm)
                self._tell_settled(pipeline, feed)
                self._rules.confirmed(feed.section, pipeline.name, confirm.ranges)
                self._release(feed)
                if confirm.ranges[0][0] < feed.boundary:
                    self._note_replayed()
            courier = self.couriers.get(pipeline.slot)
            if courier is not None:
                courier.wake()

        self.ledger.confirm(confirm.section, pipeline.slot, confirm.ranges).then(self._guarded(durable))

    def _guarded(self, act: Callable[..., None]) -> Callable[..., None]:
        """For what the ledger calls: others wait for the same write, and must hear of it whatever happens here."""

        def guarded(*arguments: Any) -> None:
            try:
                act(*arguments)
            except Exception as error:
                self._fail(error)

        return guarded

    def _tell_settled(self, pipeline: Pipeline, feed: Feed) -> None:
        """Not beyond a dead event, which an operator may send again. Other systems' events have other numbers."""
        courier = self.couriers.get(pipeline.slot)
        if courier is not None and courier.keeps_ids and feed.section.kind not in FOREIGN_KINDS:
            floor = pipeline.settled_floor(feed.key)
            courier.settled(feed.key, min(floor, self.ledger.dead_floor(feed.key, pipeline.slot) or floor))

    def _count(self, pipeline: Pipeline, feed: Feed, confirm: Confirm) -> None:
        if confirm.ranges[0][0] < feed.boundary:
            count = sum(
                min(until, feed.boundary) - begin
                for first, end in confirm.ranges
                for begin, until in feed.queue.runs(pipeline.slot, first, min(end, feed.boundary))
            )
            self.report.count(self.report.confirmed, pipeline.name, feed.rank, count)

    def give_up(self, pipeline: Pipeline, give_up: GiveUp, event: Recorded | None) -> None:
        """Bury it with its reason; it is owed no more when that is durable."""
        if event is None and give_up.section in self.feeds:
            found = self.pages.events(self.feeds[give_up.section].section, [(give_up.at, give_up.at + 1)])
            event = found[0] if found else None

        def done(stored: bool) -> None:
            if not stored:
                _logger.warning("recipient %s: there is no room to give up event %d", pipeline.name, give_up.at)
                pipeline.kept(give_up.section, give_up.at, self.now_ms(), 0.5)
                return
            _logger.warning("recipient %s: event %d was given up: %s", pipeline.name, give_up.at, give_up.reason)
            pipeline.buried(give_up.section, give_up.at)
            feed = self.feeds.get(give_up.section)
            if feed is not None:
                self._release(feed)

        self.ledger.give_up(
            give_up.section, pipeline.slot, give_up.at, give_up.reason, give_up.attempts, event, self._guarded(done)
        )

    def release(self, section: int) -> None:
        """What `Rules.releasable` held back may leave now."""
        feed = self.feeds.get(section)
        if feed is not None:
            self._release(feed)

    def _release(self, feed: Feed) -> None:
        """What everybody has settled leaves the queue and persistent memory (step 217)."""
        if not self.pipelines:
            return
        floor = min(pipeline.settled_floor(feed.key) for pipeline in self.pipelines.values())
        floor = min(floor, feed.queue.next)
        if floor <= feed.queue.first or (floor := self._rules.releasable(feed.section, floor)) <= feed.queue.first:
            return
        self.steps.at("217")
        feed.queue.release(floor)
        self.pages.drop(feed.key, floor)
        feed.section.release(floor)
        self.ledger.released(feed.key, floor)
        self._rules.settled(feed.section, floor)

    def _facts_of(self, section: int, at: int) -> tuple[Hashable, int]:
        """Source and time of an event: who must wait for it after it failed."""
        feed = self.feeds.get(section)
        found = self.pages.events(feed.section, [(at, at + 1)]) if feed is not None else []
        if not found:
            return None, self.now_ms()
        source = (headers_of(found[0]).properties or {}).get(PROPERTY_SOURCE)
        return source, found[0].time_ns // 1_000_000

    async def resend_dead(self, numbers: list[int] | None) -> int:
        """Owe dead events again to who they were given up for; how many."""
        count = await self.resending.resend(numbers)
        for pipeline in self.pipelines.values():
            self.resending.offer(pipeline)
        self._wake()
        return count
