"""Who has what of a subscription: the parts of unconfirmed runs that are free, or not in flight. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from clarion.core.spans import Spans

if TYPE_CHECKING:
    from clarion.core.subscription import Subscription

Range = tuple[int, int]


def free(subscription: Subscription, run: Range) -> Iterator[Range]:
    """The parts of an unconfirmed run that are neither in flight nor assigned nor away."""
    of = subscription
    if not of.away and not of.grouped and len(of.views) <= 1 and run[0] >= of.cursor:
        yield run
        return
    busy = Spans()
    for consumer in of.consumers:
        for first, end, _ in (*consumer.inflight.overlap(*run), *consumer.assigned.overlap(*run)):
            busy.put(first, end)
    for first, end, _ in of.away.overlap(*run):
        busy.put(first, end)
    yield from _gaps(busy, run)


def not_in_flight(subscription: Subscription, run: Range) -> list[Range]:
    """The parts of a run that neither a consumer nor a reader holds."""
    first, end = max(run[0], subscription.taken), run[1]
    if first >= end:
        return []
    run = (first, end)
    held = Spans()
    for consumer in subscription.consumers:
        for first, end, _ in consumer.inflight.overlap(*run):
            held.put(first, end)
    return _gaps(held, run)


def is_idle(subscription: Subscription, first: int, end: int) -> bool:
    """Is nothing of [first, end) in flight or away?"""
    return not subscription.away.overlap(first, end) and not any(
        consumer.inflight.overlap(first, end) for consumer in subscription.consumers
    )


def _gaps(busy: Spans, run: Range) -> list[Range]:
    """What of a run is not in `busy`, all of whose values are 0."""
    return [(first, end) for first, end, is_free in busy.pieces(*run, 1) if is_free]
