"""Delivery: destinations that have something to do take turns; none waits for another's disk.

Rules
    1. A turn is bounded in bytes and slices; after a few turns the event loop has its own.
    2. A destination whose next page is not in memory gives its turn away until the page is read.
    3. What no page holds is read again from the disk before it is given up; then it is logged as
       discarded and reported, and delivery goes on behind it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from clarion import limits
from clarion.core.consumer import Consumer
from clarion.core.destination import Destination
from clarion.core.dispatch import dispatch
from clarion.core.entries import Kind, Mark, Ranges
from clarion.core.subscription import Range, Subscription
from clarion.core.turn import DeliverySlice, Turn
from clarion.errors import JournalFull
from clarion.nodes.logging import ERROR, event
from clarion.wire import frames

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_TURN_BYTES = 512 * limits.KIB
_TURNS = 16
_log = logging.getLogger("clarion.mm")


class Delivery:
    """Whose turn it is."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._due: dict[int, Destination] = {}
        self._scheduled = False
        registry = host.registry
        self._delivered = registry.counter("mm.delivered_bytes", unit="bytes", meaning="bytes sent to consumers")
        self._lost = registry.counter("mm.lost", unit="messages", meaning="messages damaged on disk")
        self._before = registry.test_point("mm.before_deliver", meaning="a delivery is about to leave")

    def wake(self, destination: Destination) -> None:
        """Something changed: a message, a consumer, credit."""
        if not destination.has_consumers():
            return
        self._due[destination.identity] = destination
        if not self._scheduled:
            self._scheduled = True
            self._host.soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        for _ in range(min(_TURNS, len(self._due))):
            identity = next(iter(self._due))
            destination = self._due.pop(identity)
            if identity in self._host.state.destinations:
                self._turn(destination)
        if self._due and not self._scheduled:
            self._scheduled = True
            self._host.soon(self._run)

    def _turn(self, destination: Destination) -> None:
        now_ms = self._host.now_ms()
        turn = dispatch(destination, self._host.cache, _TURN_BYTES, now_ms, self._host.policy(destination).ttl_ms_max)
        for consumer, slices in turn.deliveries.items():
            self._send(consumer, slices)
            self._host.watching.delivered(destination, slices, now_ms)
            self._host.reader.ahead(destination, slices[-1][0])
            if consumer.visibility_ms:
                self._host.clockwork.at(destination, now_ms + consumer.visibility_ms)
        for page in turn.missing:
            if self._host.reader.is_durable(page):
                self._host.reader.want(destination, page, lambda: self.wake(destination))
                self._host.reader.ahead(destination, page.first)
            else:
                self._host.log.after(lambda: self.wake(destination))
        for subscription in turn.marks:
            self._mark(destination, subscription)
        for damaged in turn.damaged:
            self._host.spawn(self.give_up(destination, damaged))
        if turn.expired or turn.unwanted:
            self._set_aside(destination, turn)
        if turn.more:
            self.wake(destination)

    def _set_aside(self, destination: Destination, turn: Turn) -> None:
        """What must not be delivered: it has expired, or its subscription does not select it."""
        for subscription, expired in turn.expired:
            self._host.dead.expire(destination, subscription, [expired])
        unwanted: dict[Subscription, list[Range]] = {}
        for subscription, run in turn.unwanted:
            unwanted.setdefault(subscription, []).append(run)
        for subscription, ranges in unwanted.items():
            for at in range(0, len(ranges), limits.RANGES_PER_FRAME_MAX):
                self._pass_over(destination, subscription, ranges[at : at + limits.RANGES_PER_FRAME_MAX])

    def _pass_over(self, destination: Destination, subscription: Subscription, ranges: list[Range]) -> None:
        try:
            self._host.consuming.log_confirm(destination, subscription, ranges)
        except JournalFull:
            return  # they are passed over again by the next consumer, or after the next start
        self._host.log.after(lambda: self._host.consuming.settled(destination, ranges))

    def _send(self, consumer: Consumer, slices: list[DeliverySlice]) -> None:
        self._before()
        group: list[DeliverySlice] = []
        size = 0
        for piece in slices:
            piece_size = sum(map(len, piece[3]))
            if group and size + piece_size > limits.DELIVER_BYTES_TARGET:
                self._send_frame(consumer, group, size)
                group, size = [], 0
            group.append(piece)
            size += piece_size
        self._send_frame(consumer, group, size)

    def _send_frame(self, consumer: Consumer, slices: list[DeliverySlice], size: int) -> None:
        self._delivered.add(size)
        self._host.send(consumer.session, frames.Type.DELIVER, frames.deliver_parts(consumer.number, slices))

    def _mark(self, destination: Destination, subscription: Subscription) -> None:
        mark = max(subscription.mark, subscription.cursor) + limits.DELIVERED_MARK_MESSAGES
        try:
            self._host.log.write(Kind.MARK, Mark(destination.identity, subscription.identity, mark).encode())
        except JournalFull:
            subscription.mark_pending = False
            return

        def durable() -> None:
            subscription.mark_durable = mark
            subscription.mark_pending = False
            self.wake(destination)

        self._host.log.after(durable)

    async def give_up(self, destination: Destination, damaged: Range) -> None:
        """Look once more, then log that these messages are lost."""
        first, end = damaged
        page = destination.pages.find(first)
        if page is not None:
            again = await self._host.reader.read(destination.identity, page)
            if again.find(first) is not None:
                self._host.cache.loaded(destination.identity, page.first, again)
                self.wake(destination)
                return
        if destination.floor() > first:
            return
        try:
            self._host.log.write(Kind.DISCARD, Ranges(destination.identity, 0, [damaged]).encode())
        except JournalFull:
            return
        destination.lost_messages += end - first
        self._lost.add(end - first)
        event(_log, ERROR, "messages_lost", destination=str(destination), first=first, count=end - first)

        def durable() -> None:
            self._host.freeing.release(destination, [damaged])
            self.wake(destination)

        self._host.log.after(durable)
