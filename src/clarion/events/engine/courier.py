"""Delivers to one recipient: what it is owed, as fast as it confirms, again after it failed (A-07, A-08, A-12).

Guarantees
    1. One `deliver` at a time; nobody else waits for it.
    2. A confirmation is durable before it is acted on; nothing whose confirmation was recorded is delivered again.
    3. Nothing is delivered while the system may not: initialising, paused, or its right belongs to a partner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from clarion import limits
from clarion.errors import ClarionError
from clarion.events.distribution import Batch, Confirm, Instruction, Pipeline
from clarion.events.engine.dead import Resending
from clarion.events.engine.feed import Feed
from clarion.events.engine.pages import Pages
from clarion.events.engine.settling import Settling
from clarion.events.event import Event
from clarion.events.ledger import DEAD_SECTION
from clarion.events.memory import Recorded
from clarion.events.recipients.base import Later, Partly
from clarion.events.steps import Steps

IDLE_S_MAX = 1.0
AHEAD_S = 0.0005
"""So long after a batch was handed to a recipient, when it is on its way, the next one is read."""
ERROR_CHARACTERS_MAX = 300
NOT_READY = "waiting until the system is ready"
NOT_OPEN = "cannot be opened"

_logger = logging.getLogger("clarion.events")


class Engine(Protocol):
    """What a courier needs of its engine."""

    steps: Steps
    feeds: dict[int, Feed]
    pages: Pages
    resending: Resending
    settling: Settling
    landed: asyncio.Event

    def now_ms(self) -> int: ...
    def may_deliver(self) -> bool: ...
    def offer(self, pipeline: Pipeline) -> None: ...


class Courier:
    """One recipient and its pipeline."""

    def __init__(self, engine: Engine, pipeline: Pipeline, recipient: Any) -> None:
        self._engine = engine
        self.pipeline = pipeline
        self.recipient = recipient
        self.confirmed = 0
        self.state = "opening"
        self._records = bool(getattr(recipient, "wants_records", False))
        self._events_max = int(getattr(recipient, "batch_events_max", limits.EVENT_BATCH_EVENTS_DEFAULT))
        self._ready: Callable[[], Any] | None = getattr(recipient, "ready", None)
        self._settled: Callable[[int, int], None] | None = getattr(recipient, "settled", None)
        self._news = asyncio.Event()
        self._ahead: asyncio.TimerHandle | None = None
        self._stopping = False
        self._carrying: frozenset[int] = frozenset()

    def stop(self) -> bool:
        """Begin no other delivery. True if one is under way: its confirmation is worth a moment."""
        self._stopping = True
        self.wake()
        return self.pipeline.in_flight > 0

    def carries(self, section: int) -> bool:
        """An event of this section is being delivered."""
        return section in self._carrying

    @property
    def keeps_ids(self) -> bool:
        """The recipient wants to hear what it need not remember any more."""
        return self._settled is not None

    def settled(self, producer: int, below: int) -> None:
        """Nothing of this producer below that comes again, so a recipient that keeps ids may forget them."""
        if self._settled is not None:
            self._settled(producer, below)

    def wake(self) -> None:
        """There may be something to deliver."""
        self._news.set()

    @property
    def waits_until_ready(self) -> bool:
        """It would deliver if the system were ready."""
        return self.state == NOT_READY

    async def run(self) -> None:
        """Deliver until `stop`."""
        await self._open()
        try:
            while not self._stopping:
                await self._turn()
        finally:
            await self._close()

    async def _turn(self) -> None:
        """Deliver what is due, or wait for it."""
        self._news.clear()
        self._engine.offer(self.pipeline)
        if self._ready is not None and self.pipeline.owed:
            await self._ready()
            self._engine.offer(self.pipeline)  # what comes first may have come meanwhile
        batch = self._next()
        if batch is None:
            await self._wait()
        else:
            await self._carry(batch)

    async def _carry(self, batch: Batch) -> None:
        self._carrying = frozenset(key for key, _ in batch.parts)
        try:
            await self._deliver(batch)
        finally:
            self._carrying = frozenset()
            if self._ahead is not None:
                self._ahead.cancel()
            self._engine.landed.set()

    async def _open(self) -> None:
        """A recipient that cannot be opened is tried again, like one that cannot be delivered to."""
        opening: Callable[[], Any] | None = getattr(self.recipient, "open", None)
        pause_s = 0.2
        while opening is not None:
            try:
                await opening()
                break
            except Exception as error:
                self.state = NOT_OPEN
                self._failed(error)
                await asyncio.sleep(pause_s * (0.8 + 0.4 * random.random()))
                pause_s = min(2 * pause_s, 10.0)

    async def _close(self) -> None:
        closing = getattr(self.recipient, "close", None)
        if closing is not None:
            try:
                await closing()
            except Exception as error:
                _logger.warning("recipient %s did not close: %s", self.pipeline.name, error)

    # --- what is owed -------------------------------------------------------------------------------

    def _next(self) -> Batch | None:
        if not self._engine.may_deliver():
            self.state = NOT_READY
            return None
        return self.pipeline.next_batch(self._engine.now_ms(), self._events_max)

    async def _wait(self) -> None:
        """Until something is indicated, a pause is over, or the system may deliver."""
        due_ms = self.pipeline.due_ms()
        pause_s = IDLE_S_MAX
        if due_ms is not None:
            pause_s = min(max(due_ms - self._engine.now_ms(), 1) / 1_000, IDLE_S_MAX)
        if self._engine.may_deliver():
            self.state = "retrying" if self.pipeline.owed else "idle"
        await self._rest(pause_s)

    async def _rest(self, pause_s: float) -> None:
        """Short, for want of memory is often met here (rule 3 of `memory.writing`)."""
        try:
            async with asyncio.timeout(pause_s):
                await self._news.wait()
        except TimeoutError:
            pass

    # --- delivering ---------------------------------------------------------------------------------

    async def _deliver(self, batch: Batch) -> None:
        records = [record for key, runs in batch.parts for record in self._read(key, runs)]
        if len(records) < batch.count:
            self._damaged(batch)
            return
        events: Sequence[Any] = records if self._records else [Event.from_recorded(record) for record in records]
        self.state = "delivering"
        self._engine.steps.at("215")
        if batch.count >= self._events_max:
            self._ahead = asyncio.get_running_loop().call_later(AHEAD_S, self._read_ahead, batch)
        await self._hand(batch, events, records)

    async def _hand(self, batch: Batch, events: Sequence[Any], records: list[Recorded]) -> None:
        """To the recipient, and record what came of it."""
        try:
            later = await self.recipient.deliver(events)
        except Partly as partly:
            self._failed_with(batch, partly.done, partly.error or partly, records)
        except asyncio.CancelledError as error:
            if _was_cancelled():
                raise
            # Nobody cancelled this: something inside of the recipient was, and that must not end its pipeline.
            self._failed_with(batch, 0, error, records)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self._failed_with(batch, 0, error, records)
        else:
            self._handed(batch, later, records)

    def _failed_with(
        self, batch: Batch, done: int | frozenset[int], error: BaseException, records: list[Recorded]
    ) -> None:
        self._record(batch, self._failure(batch, done, error), records)

    def _handed(self, batch: Batch, later: object, records: list[Recorded]) -> None:
        """It has them: for good, or safe until it confirms."""
        if isinstance(later, Later):
            self.pipeline.stored(batch)
            later.listen(partial(self._confirmed, batch), partial(self._again, batch))
            return
        self._engine.steps.at("216")
        self.confirmed += batch.count
        self._record(batch, self.pipeline.delivered(batch), records)

    def _read_ahead(self, batch: Batch) -> None:
        """While the recipient works on a full batch, read what is probably the next one."""
        key, runs = batch.parts[-1]
        feed = self._engine.feeds.get(key)
        if feed is not None and len(runs) == 1:
            first = runs[0][1]
            end = min(first + self._events_max, feed.queue.next)
            with contextlib.suppress(Exception):  # whatever is wrong is noticed when it is read in earnest
                self._engine.pages.events(feed.section, [(first, end)])

    def _confirmed(self, batch: Batch, indexes: list[tuple[int, int]]) -> None:
        """The recipient confirms what it had safe."""
        self._engine.steps.at("216")
        for instruction in self.pipeline.confirmed(batch, indexes):
            if isinstance(instruction, Confirm):
                self.confirmed += instruction.events
                self._engine.settling.confirm(self.pipeline, instruction)

    def _again(self, batch: Batch, indexes: list[tuple[int, int]]) -> None:
        """The recipient has lost what it had safe."""
        self.pipeline.again(batch, indexes)
        self.wake()

    def _failure(self, batch: Batch, done: int | frozenset[int], error: BaseException) -> list[Instruction]:
        self._failed(error)
        self.confirmed += done if isinstance(done, int) else len(done)
        text = self.pipeline.last_error
        return self.pipeline.failed(batch, done, self._engine.now_ms(), text, random.random())

    def _failed(self, error: BaseException) -> None:
        """Keep what was wrong for whoever looks; say it once, not every time."""
        text = str(error) if isinstance(error, ClarionError) else f"{type(error).__name__}: {error}"
        text = text[:ERROR_CHARACTERS_MAX]
        if text != self.pipeline.last_error:
            _logger.warning("recipient %s: %s", self.pipeline.name, text)
        self.pipeline.last_error = text

    def _record(self, batch: Batch, instructions: list[Instruction], records: list[Recorded]) -> None:
        by_place: dict[tuple[int, int], Recorded] | None = None
        for instruction in instructions:
            if isinstance(instruction, Confirm):
                self._engine.settling.confirm(self.pipeline, instruction)
                continue
            if by_place is None:
                by_place = dict(zip(batch.events(), records, strict=True))
            place = instruction.section, instruction.at
            self._engine.settling.give_up(self.pipeline, instruction, by_place.get(place))

    def _read(self, key: int, runs: list[tuple[int, int]]) -> list[Recorded]:
        if key == DEAD_SECTION:
            found = (self._engine.resending.read(at) for first, end in runs for at in range(first, end))
            return [record for record in found if record is not None]
        return self._engine.pages.events(self._engine.feeds[key].section, runs)

    def _damaged(self, batch: Batch) -> None:
        """Something that was readable is not any more: nobody can deliver it; the rest goes on."""
        readable = {(key, record.at) for key, runs in batch.parts for record in self._read(key, runs)}
        lost = [index for index, place in enumerate(batch.events()) if place not in readable]
        _logger.error("recipient %s: %d events cannot be read any more", self.pipeline.name, len(lost))
        self._record(batch, self.pipeline.unreadable(batch, lost), [])


def _was_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
