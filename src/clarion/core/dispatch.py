"""Dispatch: which slice of which batch goes to which consumer next.

Pure: looks at a destination and the cache, changes soft state, and says what to send, which pages to
read first, and what else is needed. Slices are cut from batches without looking at messages; only batches
with groups or expired messages, and views with a selector, are sifted message by message (`sift`). Consumers
take turns; when many wait for little, slices are small, when few wait for much, they are as large as
credit allows, so one message at a time is not paid for with throughput nor the other way round. So do
subscriptions: one that takes a whole turn comes last in the next.
"""

from __future__ import annotations

from collections.abc import Iterable

from clarion import limits
from clarion.core.cache import PageCache
from clarion.core.consumer import Consumer
from clarion.core.destination import Destination
from clarion.core.sift import earliest_expiry_ms, expired_runs, sift
from clarion.core.subscription import Range, Subscription
from clarion.core.turn import Turn
from clarion.core.view import View
from clarion.wire.batch import GROUPS, Batch


def dispatch(destination: Destination, cache: PageCache, bytes_max: int, now_ms: int = 0, ttl_ms_max: int = 0) -> Turn:
    """One turn: at most about `bytes_max` bytes, and a bounded number of slices."""
    turn = Turn(bytes_left=bytes_max, now_ms=now_ms, ttl_ms_max=ttl_ms_max)
    for subscription in _in_turn(destination):
        for key, view in list(subscription.views.items()):
            _serve_view(destination, subscription, view, cache, turn)
            if turn.spent():  # the others go before it in the next turn
                subscription.views[key] = subscription.views.pop(key)
                destination.served = subscription.identity
                turn.more = True
                return turn
    destination.served = 0
    return turn


def _in_turn(destination: Destination) -> Iterable[Subscription]:
    """All subscriptions, first those that the last turn did not come to."""
    if not destination.served:
        return destination.subscriptions.values()
    every = list(destination.subscriptions.values())
    at = next((at for at, one in enumerate(every, 1) if one.identity == destination.served), 0)
    return every[at:] + every[:at]


def _serve_view(destination: Destination, subscription: Subscription, view: View, cache: PageCache, turn: Turn) -> None:
    if view.owners:
        _serve_assigned(destination, subscription, view, cache, turn)
    _serve(destination, subscription, view, cache, turn)
    if view.owners:  # nobody else can have what is assigned, so nobody else's credit wakes us for it
        for consumer in view.consumers:
            if consumer.assigned and consumer.room <= 0:
                consumer.credit.starved.add(destination.identity)


def _serve(destination: Destination, subscription: Subscription, view: View, cache: PageCache, turn: Turn) -> None:
    """Serve one view until nothing is ready, nobody has room, or the turn is over."""
    active = [consumer for consumer in view.consumers if consumer.room > 0]
    if active:
        want_mark(destination, subscription, turn.marks)
        limit = min(destination.visible, subscription.mark_durable)
        share = max(1, view.ready(limit) // len(active)) if len(active) > 1 else 1 << 30
    while active and not turn.spent():
        run = view.next_run(limit, destination.priorities)
        if run is None:
            return
        found = _locate(destination, cache, run, turn)
        if found is None:
            return
        batch_first, batch = found
        consumer = active[view.turn % len(active)]
        view.turn += 1
        if _needs_sifting(view, batch, consumer, turn):
            if not sift(destination, subscription, view, turn, run, batch_first, batch, active):
                return  # what is next waits for an owner who has too much waiting already
            active = [other for other in active if other.room > 0]
            continue
        end = min(run[1], batch_first + batch.count, run[0] + min(consumer.room, share))
        view.take(run[0], turn.give(subscription, consumer, run[0], end, batch_first, batch))
        if consumer.room <= 0:
            active = [other for other in active if other.room > 0]
    if not active:
        for consumer in view.consumers:
            consumer.credit.starved.add(destination.identity)


def _serve_assigned(
    destination: Destination, subscription: Subscription, view: View, cache: PageCache, turn: Turn
) -> None:
    """Messages of groups that waited for their owner."""
    for consumer in view.consumers:
        if consumer.assigned and consumer.room > 0:
            for run in _in_order(consumer, destination):
                if not _serve_run(destination, subscription, consumer, cache, turn, run):
                    break


def _in_order(consumer: Consumer, destination: Destination) -> list[Range]:
    """What is assigned to a consumer: higher priorities first, then by sequence."""
    if not destination.priorities:
        return [(first, end) for first, end, _ in consumer.assigned]
    pieces = [
        piece
        for first, end, _ in consumer.assigned
        for piece in destination.priorities.pieces(first, end, limits.PRIORITY_DEFAULT)
    ]
    return [(first, end) for first, end, _ in sorted(pieces, key=lambda piece: -piece[2])]


def _serve_run(
    destination: Destination, subscription: Subscription, consumer: Consumer, cache: PageCache, turn: Turn, run: Range
) -> bool:
    """One run of assigned messages; whether the next one has its turn."""
    at, end = run
    while at < end:
        if consumer.room <= 0 or turn.spent():
            return False
        found = _locate(destination, cache, (at, end), turn)
        if found is None:
            return False
        batch_first, batch = found
        stop = min(end, batch_first + batch.count)
        expired = expired_runs(batch, at - batch_first, stop - batch_first, turn.now_ms, turn.ttl_ms_max)
        if expired:
            turn.expire(subscription, [(batch_first + first, batch_first + gone) for first, gone in expired])
            alive = next(iter(consumer.assigned.overlap(at, stop)), None)
            if alive is None:
                at = stop
                continue
            at, stop, _ = alive
        stop = turn.give(subscription, consumer, at, min(stop, at + consumer.room), batch_first, batch)
        consumer.assigned.take(at, stop)
        at = stop
    return True


def _needs_sifting(view: View, batch: Batch, consumer: Consumer, turn: Turn) -> bool:
    """Whether messages of this batch must be looked at one by one."""
    return (
        view.selector is not None
        or bool(batch.flags & GROUPS)
        or 0 < earliest_expiry_ms(batch, turn.ttl_ms_max) <= turn.now_ms
        or consumer.ignores is not None
    )


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


def want_mark(destination: Destination, subscription: Subscription, marks: list[Subscription]) -> None:
    """Ask for a new delivered mark before the cursor comes near the present one.

    With priorities everything that is visible can be next, so the mark must be beyond all of it.
    """
    if not subscription.durable or subscription.mark_pending:
        return
    reached = destination.visible if destination.priorities else subscription.cursor
    if subscription.mark - reached < limits.DELIVERED_MARK_MESSAGES // 2:
        subscription.mark_pending = True
        marks.append(subscription)
