"""Messages by ranges of sequences: what `browse` looks at, and what `read` gives to those who read by sequences.

Theory of operation
    Whoever asks names a range; the answer holds slices of stored batches as they are, ascending, and where to go on.
    What of the range is *owed* decides who asks: what one subscription has not confirmed, or whatever is still
    kept. Nothing is done for a single message unless there is a selector.

Rules
    1. Nothing here changes anything, except that what is found damaged is reported as lost.
    2. An answer is bounded: by messages, and by bytes. A message that is larger comes alone.
    3. The event loop has its turn after a bounded number of slices, and of messages that a selector looked at.
    4. A page that is read from disk brings those behind it along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from clarion import limits
from clarion.core.cache import CachedPage
from clarion.core.destination import QUEUE, QUEUE_SUBSCRIPTION, Destination
from clarion.core.entries import runs_of
from clarion.core.pages import Page
from clarion.core.subscription import DYING, RESERVED, Range, Subscription
from clarion.core.view import Filter
from clarion.errors import BadArgument, ClarionError, NoSuchDestination, NoSuchSubscription
from clarion.nodes.message_manager.arguments import Arguments, counted, find, number
from clarion.nodes.message_manager.sessions import Session
from clarion.nodes.message_manager.subscribing import filter_of, named
from clarion.nodes.message_manager.turns import Turns
from clarion.selector import compile_selector
from clarion.wire.batch import Batch

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

READ_BYTES = 2 * limits.MIB
"""What one answer of `read` holds, at most, unless a single message is larger."""
_READS_MAX = 4
_LOOKED_BYTES = 8
"""What looking at a message for nothing takes of an answer's room."""
_SELECTED_MAX = 4_096
"""Messages that a selector looks at in one step: some milliseconds."""
_SLICES_MAX = 256
"""Slices that are cut in one turn of the event loop: a millisecond or two."""

Owed = Callable[[int, int], Range | None]
Slice = tuple[int, int, bool, bytes]


class Bounds(NamedTuple):
    """What an answer may hold."""

    messages: int
    size: int


class _Answer:
    """Slices so far, and what room is left."""

    __slots__ = ("messages", "room", "since_turn", "slices")

    def __init__(self, bounds: Bounds) -> None:
        self.messages, self.room = bounds
        self.slices: list[Slice] = []
        self.since_turn = 0

    @property
    def full(self) -> bool:
        return self.messages <= 0 or self.room <= 0

    def take(self, first: int, batch: Batch, low: int, stop: int, selector: Filter | None) -> int | None:
        """The messages from index `low` on, at most to `stop`: to where they were taken, None if none fits."""
        high = batch.fit(low, min(stop, low + self.messages), self.room)
        if self.slices and batch.data_bytes(low, high) > self.room:
            return None  # a large message comes alone, so that no reply is larger than a frame
        if selector is None:
            self._add(first, batch, low, high)
        else:
            high = min(high, low + _SELECTED_MAX)
            for run in runs_of((np.flatnonzero(selector.matches(batch, low, high)) + low).tolist()):
                self._add(first, batch, *run)
            self.room -= _LOOKED_BYTES * (high - low)
            self.since_turn += (high - low) * _SLICES_MAX // _SELECTED_MAX
        return high

    def _add(self, first: int, batch: Batch, low: int, high: int) -> None:
        data = b"".join(batch.slice_parts(low, high))
        self.slices.append((first + low, 1, False, data))
        self.messages -= high - low
        self.room -= len(data)
        self.since_turn += 1


class Ranging:
    """Reads of all sessions."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._turns = Turns(host, _READS_MAX)
        self._read = host.registry.counter("mm.read", unit="bytes", meaning="bytes given to readers")
        self.pump = self._turns.pump
        self.ended = self._turns.ended

    def ask(self, session: Session, request: int, arguments: Arguments) -> None:
        """The verb `read`: answered when it is its turn. Raises what is wrong with the arguments."""
        destination = find(self._host.state, arguments)
        check_identity(destination, arguments.get("identity"))
        at, end = (counted(name, arguments[name]) for name in ("from", "end"))
        size = min(number(arguments, "bytes", READ_BYTES), READ_BYTES)
        selector = filter_of(arguments)
        owed: Owed = partial(owed_by_any, destination)
        subscription = self._subscription(destination, arguments)
        if subscription is not None:
            owed = partial(owed_by, subscription)
            if selector is None and subscription.selector:
                selector = compile_selector(subscription.selector)
        bounds = Bounds(limits.BATCH_MESSAGES_MAX * 4, size)

        async def work() -> None:
            await self._serve(session, request, destination, owed, (at, end), bounds, selector)

        self._turns.add(session, work)

    @staticmethod
    def _subscription(destination: Destination, arguments: Arguments) -> Subscription | None:
        """Whose unconfirmed messages are wanted; None: whatever is kept. A queue's own has the empty name."""
        name = arguments.get("subscription")
        if name is None:
            return None
        found = subscription_of(destination, name)
        if found is None:
            raise NoSuchSubscription(destination=str(destination), subscription=str(name))
        return found

    async def _serve(
        self,
        session: Session,
        request: int,
        destination: Destination,
        owed: Owed,
        run: Range,
        bounds: Bounds,
        selector: Filter | None,
    ) -> None:
        at, end = run[0], min(run[1], destination.visible)
        try:
            slices, at = await self.collect(destination, owed, (max(at, 1), end), bounds, selector)
        except ClarionError as error:
            self._host.fail(session.identity, request, error)
            return
        self._read.add(sum(len(one[3]) for one in slices))
        result = {"slices": slices, "next": at if at < end else None, "end": end}
        self._host.reply(session.identity, request, result)
        await asyncio.sleep(0)  # its connection may be full now, and says so

    async def collect(
        self, destination: Destination, owed: Owed, run: Range, bounds: Bounds, selector: Filter | None
    ) -> tuple[list[Slice], int]:
        """Slices of what is owed of `run`, and where to go on. Raises `NoSuchDestination` if it goes meanwhile."""
        at, end = run
        answer = _Answer(bounds)
        while not answer.full and at < end:
            part = owed(at, end)
            if part is None:
                return answer.slices, end
            at, stop = part
            found = await self._host.reader.fetch(destination, at)
            if self._host.state.destinations.get(destination.identity) is not destination:
                raise NoSuchDestination(destination=str(destination))
            if found is None:
                following = destination.pages.following(at, 1)
                at = following[0].first if following else end
                continue
            page, cached = found
            self._host.reader.ahead(destination, page.first)
            reached = self._of_page(destination, page, cached, answer, (at, stop), selector)
            if reached is None:
                break
            at = reached
            if answer.since_turn >= _SLICES_MAX:
                answer.since_turn = 0
                await asyncio.sleep(0)
        return answer.slices, min(at, end)

    def _of_page(
        self,
        destination: Destination,
        page: Page,
        cached: CachedPage,
        answer: _Answer,
        run: Range,
        selector: Filter | None,
    ) -> int | None:
        """What of `run` lies in one page: to where it was taken; None if the next message does not fit any more."""
        at, stop = run[0], min(run[1], page.end)
        start = at
        while at < stop and not answer.full and answer.since_turn < _SLICES_MAX:
            piece = cached.find(at)
            if piece is None:
                gap_end = min(cached.next_first(at) or stop, stop)
                if not destination.is_confirmed(at, gap_end):
                    self._host.spawn(self._host.delivery.give_up(destination, (at, gap_end)))
                at = gap_end
                continue
            first, batch = piece
            high = answer.take(first, batch, at - first, min(stop - first, batch.count), selector)
            if high is None:
                return at if at > start else None
            at = first + high
        return at


def check_identity(destination: Destination, identity: object) -> None:
    """Raises `BadArgument` if somebody means an earlier destination of this name."""
    if identity is not None and counted("identity", identity) != destination.identity:
        detail = f"{destination} was dropped and made again: it is {destination.identity} now, not {identity}"
        raise BadArgument(argument="identity", detail=detail)


def subscription_of(destination: Destination, name: object) -> Subscription | None:
    """The durable subscription of that name; a queue's own, which has none, is named by the empty text."""
    if name is not None and not isinstance(name, str):
        raise BadArgument(argument="subscription", detail="it is not text")
    if destination.kind == QUEUE:
        return None if name else destination.subscriptions[QUEUE_SUBSCRIPTION]
    return named(destination, name or "", durable=True)


def first_kept(destination: Destination) -> int:
    """The first message that is still there, if any is."""
    return min(destination.retained_from or destination.floor(), destination.floor())


def owed_by_any(destination: Destination, at: int, end: int) -> Range | None:
    """The next run that some subscription has not confirmed, or that is retained."""
    if destination.retained_from:
        return (at, end) if at < end else None
    every = destination.subscriptions.values()
    return min((run for one in every if (run := one.confirmed.gap(at, end)) is not None), default=None)


def owed_by(subscription: Subscription, at: int, end: int) -> Range | None:
    """The next run that a subscription has not confirmed, and that is nobody else's to decide on."""
    while (run := subscription.confirmed.gap(at, end)) is not None:
        for first, stop in unclaimed(subscription, run):
            return first, stop
        at = run[1]
    return None


def unclaimed(subscription: Subscription, run: Range) -> list[Range]:
    """The parts of a run that neither become dead messages nor belong to a prepared transaction."""
    if not subscription.away:
        return [run]
    pieces = subscription.away.pieces(*run)
    return [(first, end) for first, end, why in pieces if why not in (DYING, RESERVED)]
