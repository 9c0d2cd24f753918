"""A view: what of a subscription is ready for those of its consumers that share one selector.

Theory of operation
    A subscription of a topic has one view. A queue's consumers may have selectors of their own; each
    selector is a view, and a message is ready in every view until it is delivered through one of them.
    A view knows what it has passed (`cursor`), and what came back from below it (`returned`). Where
    messages have priorities, both are sorted into pools, one per priority: higher ones first, and within
    a pool in the order of sequences. A view without consumers is not kept: it is made anew from what is
    neither confirmed nor busy.

Rules
    1. Soft: nothing here is logged.
    2. What is ready here is neither confirmed nor in flight nor away; whoever delivers a message takes it
       out of all views.
    3. Whether a message matches the selector is found out when it is next to be delivered, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from clarion import limits
from clarion.core import whereabouts
from clarion.core.spans import Spans
from clarion.wire.batch import Batch

if TYPE_CHECKING:
    from clarion.core.consumer import Consumer
    from clarion.core.subscription import Subscription

Range = tuple[int, int]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Filter(Protocol):
    """What a view needs of a selector."""

    @property
    def canonical(self) -> str:
        """Equal for selectors that mean the same."""

    def matches(self, batch: Batch, first: int, end: int) -> Mask:
        """For each message of [first, end), by index in the batch: does it match?"""


class View:
    """One view of one subscription."""

    __slots__ = ("_pools", "_subscription", "consumers", "cursor", "owners", "returned", "selector", "turn")

    def __init__(self, subscription: Subscription, selector: Filter | None) -> None:
        self._subscription = subscription
        self.selector = selector
        self.consumers: list[Consumer] = []
        self.owners: dict[int, Consumer] = {}
        """Whose a message group is, by its hash."""
        self.turn = 0
        self.cursor = subscription.cursor
        self.returned = Spans()
        self._pools: dict[int, Spans] | None = None
        floor = subscription.confirmed.floor
        for run in subscription.confirmed.gaps(floor, self.cursor):
            for first, end in whereabouts.free(subscription, run):
                self.returned.put(first, end)

    # --- what is next ---------------------------------------------------------------------------------

    def next_run(self, limit: int, priorities: Spans) -> Range | None:
        """The next run to deliver, below `limit`. `priorities` are those that differ from the default."""
        if priorities or self._pools is not None:
            return self._next_by_priority(limit, priorities)
        if self.returned:
            return next((first, end) for first, end, _ in self.returned)
        return self._next_new(limit)

    def _next_new(self, limit: int) -> Range | None:
        subscription = self._subscription
        while self.cursor < limit:
            run = subscription.confirmed.gap(self.cursor, limit)
            if run is None:
                self._pass(limit)
                return None
            free = next(whereabouts.free(subscription, run), None)
            if free is not None:
                return free
            self._pass(run[1])
        return None

    def _next_by_priority(self, limit: int, priorities: Spans) -> Range | None:
        pools = self._pools
        if pools is None:
            pools = self._pools = {}
        for first, end, _ in self.returned:
            _sort(pools, priorities, first, end)
        self.returned.clear()
        while (run := self._next_new(limit)) is not None:
            _sort(pools, priorities, *run)
            self._pass(run[1])
        best = max((priority for priority, pool in pools.items() if pool), default=None)
        if best is None:
            self._pools = None  # back to the simple way, until there is a priority again
            return None
        return next((first, end) for first, end, _ in pools[best])

    def ready(self, limit: int) -> int:
        """About how many messages wait, of those below `limit`."""
        beyond = max(0, limit - self.cursor)
        if beyond:
            beyond -= self._subscription.confirmed.count(self.cursor, limit)
        pooled = sum(pool.total() for pool in self._pools.values()) if self._pools else 0
        return self.returned.total() + pooled + beyond

    def forsake(self, consumer: Consumer) -> None:
        """A consumer leaves: its groups go to others."""
        self.consumers.remove(consumer)
        for group in [group for group, owner in self.owners.items() if owner is consumer]:
            del self.owners[group]

    # --- what changes ---------------------------------------------------------------------------------

    def take(self, first: int, end: int) -> None:
        """A part of what `next_run` gave, from its start: delivered, or not for this view."""
        if self._pools is not None:
            for pool in self._pools.values():
                pool.take(first, end)
        elif first >= self.cursor:
            self._pass(end)
        else:
            self.returned.take(first, end)

    def remove(self, first: int, end: int) -> None:
        """No longer ready: confirmed, or delivered through another view."""
        self.returned.take(first, end)
        for pool in (self._pools or {}).values():
            pool.take(first, end)

    def remove_all(self, claimed: Spans) -> None:
        """`remove` of many; costs what is ready here, not what is claimed."""
        for spans in (self.returned, *(self._pools or {}).values()):
            for first, end in overlaps(spans, claimed):
                spans.take(first, end)

    def put_back(self, first: int, end: int) -> None:
        """Ready again. What is beyond the cursor is found there."""
        end = min(end, self.cursor)
        if first < end:
            self.returned.put(first, end)

    def _pass(self, sequence: int) -> None:
        self.cursor = sequence
        if sequence > self._subscription.cursor:
            self._subscription.cursor = sequence


def overlaps(source: Spans, wanted: Spans) -> list[Range]:
    """What of `source` is wanted. Costs what `source` has, not what is wanted."""
    return [piece[:2] for first, end, _ in source for piece in wanted.overlap(first, end)]


def _sort(pools: dict[int, Spans], priorities: Spans, first: int, end: int) -> None:
    for piece_first, piece_end, priority in priorities.pieces(first, end, limits.PRIORITY_DEFAULT):
        pool = pools.get(priority)
        if pool is None:
            pool = pools[priority] = Spans()
        pool.put(piece_first, piece_end)
