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
from collections.abc import Hashable, Mapping
from typing import Any

from clarion import limits
from clarion.errors import LimitReached
from clarion.events.distribution import Pipeline, RetryPolicy
from clarion.events.engine.adopting import Adopting
from clarion.events.engine.courier import Courier
from clarion.events.engine.dead import Resending
from clarion.events.engine.deciding import Decisions
from clarion.events.engine.feed import Feed
from clarion.events.engine.pages import Pages
from clarion.events.engine.replay import Rank, ReplayReport
from clarion.events.engine.seams import PARTNER_KIND, Memory, Rules
from clarion.events.engine.settling import Settling
from clarion.events.event import PROPERTY_SOURCE, headers_of
from clarion.events.ledger import DEAD_SECTION, Ledger
from clarion.events.steps import Steps

STOP_S = 2.0
"""How long deliveries that are under way may take when the engine stops; then they are cut off, and come again."""
LOOK_S = 0.5
"""How often sections of other processes are looked for."""
POLL_S = 0.02
"""How often sections of other processes are looked at while there are any."""
OFFER_EVENTS = 1 << 16

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
        self.adopting = Adopting(self, memory, rules)
        self.settling = Settling(self, rules)
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
        self.landed = asyncio.Event()
        """Set by couriers: a delivery is over."""

    # --- life ---------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until `stop` is set. Raises what makes going on senseless."""
        self._failed = failed = asyncio.get_running_loop().create_future()
        self.ledger.on_failed = self.fail
        self.adopting.forget_gone()
        self._add_recipients()
        await self.ledger.durable()
        self._reroute()
        for row in self.ledger.recipients():
            self._add_pipeline(row.slot, row.name)
        self.adopting.find()
        self.adopting.starting = False
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

    def fail(self, error: BaseException) -> None:
        """Going on is senseless: whoever runs this engine makes another."""
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    def _courier_ended(self, task: asyncio.Task[None]) -> None:
        """No recipient is forgotten because its courier met something unforeseen, like want of memory."""
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self.fail(error)

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
            self.attach(pipeline, feed)
        pipeline.add_section(DEAD_SECTION, Rank.NEW, 1)
        self.resending.offer(pipeline)
        return pipeline

    def attach(self, pipeline: Pipeline, feed: Feed) -> None:
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
        self.settling.release_all()
        return owed

    async def _all_indicated(self) -> None:
        """What is recorded by now is on the indication queues, as far as they have room: it counts as owed."""
        self.adopting.look()
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
                self.adopting.look()
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
                self.wake()
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

    def wake(self) -> None:
        """There may be something to deliver."""
        for courier in self.couriers.values():
            courier.wake()

    def _wake_if_ready(self) -> None:
        """The system may have become ready since."""
        for courier in self.couriers.values():
            if courier.waits_until_ready:
                courier.wake()
        self.settling.note_replayed()

    def _add_recipients(self) -> None:
        """Those that were given. One for whom there is no slot now must not keep the others from their events."""
        self.adopting.tell_epochs()
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

    # --- for couriers -------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Unix time."""
        return time.time_ns() // 1_000_000

    def may_deliver(self) -> bool:
        """The system is ready, it is ours to deliver, and all that goes first is known."""
        return (
            not self.adopting.is_stopping
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
                self.settling.release(key)
        self.resending.offer_rest(pipeline)

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
        self.wake()
        return count
