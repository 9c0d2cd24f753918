"""What becomes of a multiplexer's events: who has confirmed is told to their sender, then they leave (steps 255, 256).

Guarantees
    1. An event leaves persistent memory only when the ledger durably knows its origin as complete. So an event that is
       sent again is known whatever crashed meanwhile, and not delivered again.
    2. "All have it" is said only of events whose confirmations by everybody here are durable (or that were given up
       here, which an operator sees here; or that nobody here wants).
    3. Nothing said here must arrive: a sender that waits asks, and is answered from `Origins`.
    4. What a multiplexer behind this one has forwarded is in the ledger, or was heard here, before it is called heard.

Rules
    1. One for each engine, in the thread of its loop.
    2. First an event is marked complete, then its sender is looked up. The intake does it the other way round: whoever
       comes second sees what the first has done, so that a sender that has just connected is told by one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec
from pyroaring import BitMap64

from clarion import limits
from clarion.errors import JournalFull
from clarion.events.distribution.lane import runs_of
from clarion.events.engine.engine import Engine
from clarion.events.link.confirmations import Ranges
from clarion.events.memory import Section
from clarion.events.multiplex import signals
from clarion.events.multiplex.intake import Intake
from clarion.events.multiplex.origins import BUCKETS, bucket_of
from clarion.events.recipients.multiplexer import Multiplexing

LOOK_S = 0.05
"""How often it is looked for events that are complete without a confirmation: nobody wants them, or gave them up."""
AGAIN_S = 0.2
"""A ledger that is full is tried again."""

KEEP_S = 0.05
"""Forwarded confirmations gather for so long before they are written: by then most of them were heard further on."""
TO_HEAR_MAX = 4_096
"""Of these, while the ledger is full; beyond that they are told again over the next connection."""

UNHEARD = "multiplex.unheard"
"""The value of the ledger that has forwarded confirmations which nobody said to have heard."""

_logger = logging.getLogger("clarion.events")
Range = tuple[int, int]


def value_name(bucket: int) -> str:
    """Of the value of the ledger that has this bucket."""
    return f"multiplex.{bucket:02d}"


class Outcomes:
    """See the module."""

    def __init__(self, engine: Engine, section: Section, intake: Intake, *, confirm_early: bool, forward: bool) -> None:
        self._engine = engine
        self._section = section
        self._key = section.producer
        self._intake = intake
        self._late = not confirm_early
        self._forward = forward
        self._loop = asyncio.get_running_loop()
        self._told = BitMap64()
        """Sequences of the section that were said to be complete, from `_told_floor` on."""
        self._told_floor = section.first_sequence
        self._forwarded: dict[str, BitMap64] = {}
        self._recalled = not forward
        """What was confirmed before this start, and may not have been heard, is told."""
        self._scheduled = False
        self._marked = self._mapped = section.first_sequence
        """Everything below is complete, so in memory, and in the ledger."""
        self._changed: set[int] = set()
        self._changed_producers: set[int] = set()
        self._writing = False
        self._to_hear: list[Callable[[], None]] = []
        """To be called when what was relayed is kept."""
        self._keeping = False
        self._load()
        if self._late or forward:
            self._loop.call_later(LOOK_S, self._look)

    def _load(self) -> None:
        for bucket in range(BUCKETS):
            value = self._engine.ledger.value(value_name(bucket))
            if value is None:
                continue
            try:
                self._intake.origins.load(value)
            except (msgspec.MsgspecError, ValueError) as error:
                _logger.error("what was complete before cannot be read, doubles are possible: %s", error)
        unheard = self._engine.ledger.value(UNHEARD)
        if unheard is not None and self._forward:
            try:
                self._intake.unheard.load(unheard)
            except (msgspec.MsgspecError, ValueError) as error:
                _logger.error("which confirmations were not heard cannot be read: %s", error)

    # --- confirmations ----------------------------------------------------------------------------------

    def confirmed(self, recipient: str, ranges: list[Range]) -> None:
        """One recipient has confirmed, durably."""
        if self._forward:
            self._forward_one(recipient, ranges)
        if self._late and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._complete)

    def _forward_one(self, recipient: str, ranges: list[Range]) -> None:
        """Of what the ranges cover: events for this recipient that were not forwarded yet."""
        feed = self._engine.feeds.get(self._key)
        slot = next((slot for slot, one in self._engine.pipelines.items() if one.name == recipient), None)
        if feed is None or slot is None:
            return
        fresh = BitMap64()
        for first, end in ranges:
            for begin, until in feed.queue.runs(slot, first, end):
                fresh.add_range(begin, until)
        known = self._forwarded.setdefault(recipient, BitMap64())
        if known:
            known.remove_range(0, feed.queue.first)
            fresh -= known
        known |= fresh
        self._forwarded[recipient] = known
        if fresh:
            self._intake.confirm(recipient, self._origins_of(runs_of(fresh)), signals.OF_RECIPIENT)

    def relay(self, recipient: str, ranges: Ranges, heard: Callable[[], None]) -> None:
        """A multiplexer behind this one has forwarded a confirmation: so do we, with the way that it came; `heard` is
        called when it is kept here."""
        if not self._forward or len(recipient.encode()) > limits.NAME_BYTES_MAX:
            heard()
            return
        if ranges:
            self._intake.confirm(recipient, ranges, signals.OF_RECIPIENT)
        if len(self._to_hear) < TO_HEAR_MAX:
            self._to_hear.append(heard)
        self._keep_soon(KEEP_S)

    def _keep_soon(self, wait_s: float) -> None:
        if self._to_hear and not self._keeping:
            self._loop.call_later(wait_s, self._keep)
            self._keeping = True

    def _keep(self) -> None:
        """Write which confirmations were not heard, for those of other multiplexers."""
        heard, self._to_hear = self._to_hear, []

        def durable() -> None:
            self._keeping = False
            for tell in heard:
                tell()
            self._keep_soon(KEEP_S)

        try:
            kept = self._engine.ledger.set_value(UNHEARD, self._intake.unheard.dump())
        except BaseException as error:
            self._to_hear, self._keeping = heard + self._to_hear, False
            if not isinstance(error, JournalFull):  # for want of memory: the next confirmation tries again
                raise
            self._keep_soon(AGAIN_S)
        else:
            kept.then(durable)

    def _look(self) -> None:
        if self._late or not self._recalled:
            self._loop.call_later(LOOK_S, self._look)
        feed = self._engine.feeds.get(self._key)
        if not self._recalled and feed is not None and feed.queue.next >= feed.boundary:
            self._recall(feed.boundary)
            self._recalled = True
        if self._late and not self._scheduled:
            self._complete()

    def _recall(self, below: int) -> None:
        """Of what was here at the start, before it leaves: which recipients have it. Who has heard it, knows that."""
        first_here = self._engine.feeds[self._key].queue.first
        for slot, pipeline in self._engine.pipelines.items():
            floor, spans = self._engine.ledger.settled(self._key, slot)
            known = [(max(first, first_here), min(end, below)) for first, end in ((0, floor), *spans)]
            self._forward_one(pipeline.name, [one for one in known if one[0] < one[1]])

    def _complete(self) -> None:
        """Tell senders of what nobody here is owed any more."""
        self._scheduled = False
        feed = self._engine.feeds.get(self._key)
        if feed is None or self._told_floor >= feed.queue.next:
            return
        queue = feed.queue
        done = BitMap64()
        done.add_range(self._told_floor, queue.next)
        for pipeline in self._engine.pipelines.values():
            done -= pipeline.open_in(self._key)
            for first, end in queue.runs(pipeline.slot, pipeline.cursor(self._key), queue.next):
                done.remove_range(first, end)
        done -= self._told
        if done:
            self._told |= done
            self._tell_complete(runs_of(done))
        runs = runs_of(self._told)
        if runs and runs[0][0] <= self._told_floor:
            self._told_floor = runs[0][1]
            self._told.remove_range(0, self._told_floor)

    def _tell_complete(self, runs: list[Range]) -> None:
        ranges = self._origins_of(runs)
        self._mark(ranges)
        self._intake.confirm(signals.ASKED, ranges, signals.OF_ALL)

    def _mark(self, ranges: list[tuple[int, int, int]]) -> None:
        for producer, first, end in ranges:
            self._intake.origins.complete(producer, first, end)
            self._changed.add(bucket_of(producer))
            self._changed_producers.add(producer)

    def _origins_of(self, runs: list[Range]) -> list[tuple[int, int, int]]:
        events = self._engine.pages.events(self._section, runs)
        return signals.joined([(event.producer, event.sequence) for event in events])

    # --- leaving ----------------------------------------------------------------------------------------

    def releasable(self, floor: int) -> int:
        """Everybody here has settled what is below `floor`: how far the ledger knows it."""
        if not self._recalled:
            self._recall(floor)
        if floor > self._marked:
            if self._late:
                self._complete()  # all of them are
            else:
                self._mark(self._origins_of([(self._marked, floor)]))
            self._marked = floor
        if self._mapped < self._marked and not self._writing:
            self._write()
        return min(floor, self._mapped)

    def _write(self) -> None:
        self._writing = True
        target, ledger = self._marked, self._engine.ledger
        try:
            while self._changed:
                bucket = next(iter(self._changed))
                ledger.set_value(value_name(bucket), self._intake.origins.dump(bucket))
                self._changed.discard(bucket)
            if self._forward:
                ledger.set_value(UNHEARD, self._intake.unheard.dump())
        except JournalFull:
            self._loop.call_later(AGAIN_S, self._write)
            return
        except BaseException:  # for want of memory: the next confirmation tries again
            self._writing = False
            raise

        def durable() -> None:
            self._writing = False
            self._mapped = target
            self._engine.settling.release(self._key)

        ledger.durable().then(durable)

    def settled(self) -> None:
        """Events have left: multiplexers behind this one hear what they may forget.

        Only they: a floor is true of the ways that are known, and by a new one older events may come. Who would take
        those for doubles must not hear of it.
        """
        producers, self._changed_producers = self._changed_producers, set()
        engine = self._engine
        for slot, courier in engine.couriers.items():
            if not isinstance(courier.recipient, Multiplexing):
                continue
            dead = {one.producer for one in engine.ledger.dead_events(count_max=1 << 30) if one.slot == slot}
            for producer in producers:
                floor = self._intake.origins.floor(producer)
                if floor and producer not in dead:
                    courier.settled(producer, floor)
