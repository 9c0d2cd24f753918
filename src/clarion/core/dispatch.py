"""Dispatch: which slice of which batch goes to which consumer next.

Pure: looks at a destination and the cache, changes soft state, and says what to send, which pages to
read first, and what else is needed. Slices are cut from batches without looking at messages. Consumers
take turns; when many wait for little, slices are small, when few wait for much, they are as large as
credit allows, so one message at a time is not paid for with throughput nor the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clarion import limits
from clarion.core.cache import PageCache
from clarion.core.destination import Destination
from clarion.core.pages import Page
from clarion.core.subscription import Consumer, Range, Subscription
from clarion.wire.batch import Batch, Buffer

_SLICES_MAX = 512
"""Slices of one turn: then other destinations have theirs."""

DeliverySlice = tuple[int, int, bool, list[Buffer]]


@dataclass(slots=True)
class Turn:
    """What one turn of one destination wants done."""

    deliveries: dict[Consumer, list[DeliverySlice]] = field(default_factory=dict)
    missing: list[Page] = field(default_factory=list)
    """Pages to read before the next turn."""
    marks: list[Subscription] = field(default_factory=list)
    """Subscriptions whose delivered mark must be logged further ahead."""
    damaged: list[Range] = field(default_factory=list)
    """Sequences that no page holds: lost on disk."""
    more: bool = False
    """There was more to do than one turn may take."""


def dispatch(destination: Destination, cache: PageCache, bytes_max: int) -> Turn:
    """One turn: at most about `bytes_max` bytes and `_SLICES_MAX` slices."""
    turn = Turn()
    budget = _Budget(bytes_max, _SLICES_MAX)
    for subscription in destination.subscriptions.values():
        if subscription.consumers:
            _serve(destination, subscription, cache, turn, budget)
            if budget.spent():
                turn.more = True
                break
    return turn


class _Budget:
    __slots__ = ("size", "slices")

    def __init__(self, size: int, slices: int) -> None:
        self.size = size
        self.slices = slices

    def spent(self) -> bool:
        return self.size <= 0 or self.slices <= 0


def _serve(destination: Destination, subscription: Subscription, cache: PageCache, turn: Turn, budget: _Budget) -> None:
    """Serve one subscription until nothing is ready, nobody has room, or the budget is spent."""
    active = [consumer for consumer in subscription.consumers if consumer.room > 0]
    if not active:
        return
    want_mark(subscription, turn.marks)
    share = max(1, subscription.ready(destination.visible) // len(active)) if len(active) > 1 else 1 << 30
    while active and not budget.spent():
        run = subscription.next_ready(destination.visible)
        if run is None:
            return
        found = _locate(destination, cache, run, turn)
        if found is None:
            return
        batch_first, batch = found
        consumer = active[subscription.turn % len(active)]
        subscription.turn += 1
        first = run[0]
        end = min(run[1], batch_first + batch.count, first + min(consumer.room, share))
        index = first - batch_first
        stop = batch.fit(index, index + end - first, min(consumer.credit_bytes, limits.DELIVER_BYTES_TARGET))
        size = batch.data_bytes(index, stop)
        slices = turn.deliveries.setdefault(consumer, [])
        for piece_first, piece_end, count, redelivered in subscription.deliver(
            consumer, first, batch_first + stop, size
        ):
            parts = batch.slice_parts(piece_first - batch_first, piece_end - batch_first)
            slices.append((piece_first, count, redelivered, parts))
        budget.size -= size
        budget.slices -= 1
        if consumer.room <= 0:
            active.remove(consumer)


def _locate(destination: Destination, cache: PageCache, run: Range, turn: Turn) -> tuple[int, Batch] | None:
    """The batch that holds the start of `run`, or None with what is needed first noted in `turn`."""
    first, end = run
    page = destination.pages.find(first)
    if page is None:
        ahead = destination.pages.following(first, 1)
        turn.damaged.append((first, min(end, ahead[0].first) if ahead else end))
        return None
    cached = cache.get(destination.identity, page.first)
    if cached is None:
        turn.missing.append(page)
        return None
    found = cached.find(first)
    if found is None:
        turn.damaged.append((first, min(end, page.end, cached.next_first(first) or page.end)))
    return found


def want_mark(subscription: Subscription, marks: list[Subscription]) -> None:
    """Ask for a new delivered mark before the cursor comes near the present one."""
    if (
        subscription.durable
        and not subscription.mark_pending
        and subscription.mark - subscription.cursor < limits.DELIVERED_MARK_MESSAGES // 2
    ):
        subscription.mark_pending = True
        marks.append(subscription)
