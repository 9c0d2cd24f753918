"""What happens by itself when its time comes: delayed messages, returned ones, time to live, visibility.

One timer per destination that waits for something, set to the earliest of it. What the timer finds due is logged
before anybody sees it; without room in the log it is tried again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from clarion.core.destination import EXPIRY_STEP_MS, TOPIC, Destination
from clarion.core.entries import Change, Due, Kind, runs_of
from clarion.core.sift import expired_runs, expiry_ms
from clarion.core.subscription import DYING, RESERVED, Range
from clarion.core.whereabouts import not_in_flight
from clarion.errors import JournalFull

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_AGAIN_MS = 200
"""When something is due and there is no room to log it."""
_DUE_MESSAGES_MAX = 100_000
"""Delayed messages of a destination that become visible in one step."""
EXPIRED = "its time to live was over"


class Clockwork:
    """The timers of a message manager."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._timers: dict[int, tuple[int, asyncio.TimerHandle]] = {}
        self._expiring: set[int] = set()

    def look(self, destination: Destination) -> None:
        """Something of a destination changed that may have a time: see to it that the timer is early enough."""
        due_ms = _next_ms(destination)
        if due_ms:
            self.at(destination, due_ms)

    def at(self, destination: Destination, due_ms: int) -> None:
        """`look` for a time that is known: it costs the same however many subscriptions there are."""
        known = self._timers.get(destination.identity)
        if known is not None:
            if known[0] <= due_ms:
                return
            known[1].cancel()
        wait_ms = max(0, due_ms - self._host.now_ms())
        timer = self._host.later(wait_ms, lambda: self._fire(destination))
        self._timers[destination.identity] = (due_ms, timer)

    def _fire(self, destination: Destination) -> None:
        self._timers.pop(destination.identity, None)
        if self._host.state.destinations.get(destination.identity) is not destination:
            return
        now_ms = self._host.now_ms()
        try:
            self._show_due(destination, now_ms)
            self._take_back_overdue(destination, now_ms)
        except JournalFull:
            self.at(destination, now_ms + _AGAIN_MS)
            return
        found = [subscription.come_due(now_ms) for subscription in destination.subscriptions.values()]
        if any(found):
            self._host.delivery.wake(destination)
        if 0 < destination.expiry_next_ms <= now_ms and destination.identity not in self._expiring:
            self._expiring.add(destination.identity)
            self._host.spawn(self._expire(destination, now_ms))
        self.look(destination)

    # --- delayed messages -----------------------------------------------------------------------------

    def _show_due(self, destination: Destination, now_ms: int) -> None:
        """Delayed batches whose time has come get their sequences."""
        due = destination.stages.due(now_ms, _DUE_MESSAGES_MAX)
        if not due:
            return
        change = Change(
            destination.identity,
            visible=runs_of([staged.number for staged in due]),
            first=destination.tail,
        )
        try:
            self._host.log.write(Kind.DUE, Due(now_ms, change).encode())
        except JournalFull:
            destination.stages.not_yet(due)
            raise
        first, tail = change.first, destination.tail

        def durable() -> None:
            self._host.shown(destination, tail)
            if destination.kind == TOPIC:
                self._host.freeing.release(destination, [(first, tail)])  # all its subscriptions may be gone, or be new

        self._host.log.after(durable)

    # --- visibility -----------------------------------------------------------------------------------

    def _take_back_overdue(self, destination: Destination, now_ms: int) -> None:
        """Messages that a consumer has had for too long go to others."""
        for subscription in destination.subscriptions.values():
            for consumer in list(subscription.consumers):
                overdue = consumer.overdue(now_ms)
                if overdue:
                    self._host.consuming.give_back(destination, consumer, overdue, "not confirmed in time")
                    self._host.consuming.leave_if_done(consumer.session, destination, consumer)
                    self._host.delivery.wake(destination)

    # --- time to live ---------------------------------------------------------------------------------

    async def _expire(self, destination: Destination, now_ms: int) -> None:
        """Set aside what has expired, whoever would have received it; what is in flight may still be confirmed."""
        try:
            held = destination.held_below()
            due = [(max(first, held), end) for first, end, step in destination.expiring if step <= now_ms]
            for first, end in due:
                await self._expire_run(destination, first, min(end, destination.visible), now_ms)
            self._expect_next(destination)
        finally:
            self._expiring.discard(destination.identity)
        self.look(destination)

    @staticmethod
    def _expect_next(destination: Destination) -> None:
        """When something expires next that no reader holds."""
        held = destination.held_below()
        destination.expiry_next_ms = min((step for _, end, step in destination.expiring if end > held), default=0)

    def released(self, destination: Destination) -> None:
        """A reader has let go: what expired meanwhile is not held any more."""
        if destination.expiring:
            self._expect_next(destination)
            self.look(destination)

    async def set_aside(self, destination: Destination, first: int) -> None:
        """What has expired by now from sequence `first` on is out of sight when this returns."""
        now_ms = self._host.now_ms()
        due = [(max(low, first), end) for low, end, step in destination.expiring if end > first and step <= now_ms]
        for low, end in due:
            await self._expire_run(destination, low, min(end, destination.visible), now_ms)

    async def _expire_run(self, destination: Destination, first: int, end: int, now_ms: int) -> None:
        at = first
        while at < end:
            found = await self._host.reader.batch(destination, at)
            if found is None:
                following = destination.pages.following(at, 1)
                stop = following[0].first if following else end
                destination.expiring.take(at, stop)
                at = stop
                continue
            batch_first, batch = found
            low, high = at - batch_first, min(end - batch_first, batch.count)
            ttl_ms = self._host.policy(destination).ttl_ms_max
            gone = [(batch_first + f, batch_first + e) for f, e in expired_runs(batch, low, high, now_ms, ttl_ms)]
            busy = self._bury(destination, gone)
            later = [expiry_ms(batch, index) for index in range(low, high)]
            later.append(batch.created_ms + ttl_ms if ttl_ms else 0)
            still = [time_ms for time_ms in later if time_ms > now_ms]
            destination.expiring.take(at, batch_first + high)
            if busy:
                destination.expect_expiry(at, batch_first + high, now_ms + EXPIRY_STEP_MS)
            elif still:
                destination.expect_expiry(at, batch_first + high, max(min(still), now_ms + EXPIRY_STEP_MS))
            at = batch_first + high

    def _bury(self, destination: Destination, gone: list[Range]) -> bool:
        """Expired messages leave every subscription that does not have them in flight; whether one does."""
        busy = False
        for subscription in list(destination.subscriptions.values()):
            idle: list[Range] = []
            for run in gone:
                for gap in subscription.confirmed.gaps(*run):
                    free = not_in_flight(subscription, gap)
                    busy |= sum(e - f for f, e in free) != gap[1] - gap[0]
                    # What dies already, or belongs to a prepared transaction, is decided elsewhere.
                    pieces = [piece for part in free for piece in subscription.away.pieces(*part)]
                    idle += [(first, end) for first, end, why in pieces if why not in (DYING, RESERVED)]
            if idle:
                self._host.dead.expire(destination, subscription, idle)
        return busy


def _next_ms(destination: Destination) -> int:
    """The earliest time at which something is due; 0 for never."""
    times = [destination.stages.due_ms, destination.expiry_next_ms and destination.expiry_next_ms + EXPIRY_STEP_MS]
    for subscription in destination.subscriptions.values():
        times.append(subscription.due_ms)
        times += [consumer.deadlines[0][0] for consumer in subscription.consumers if consumer.deadlines]
    return min((time_ms for time_ms in times if time_ms), default=0)
