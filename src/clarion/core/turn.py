"""One turn of one destination: what it may take, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass, field

from clarion import limits
from clarion.core.consumer import Consumer
from clarion.core.pages import Page
from clarion.core.subscription import Range, Subscription
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
    unwanted: list[tuple[Subscription, Range]] = field(default_factory=list)
    """What a topic's subscription does not select: to be confirmed for it."""
    expired: list[tuple[Subscription, Range]] = field(default_factory=list)
    """What must not be delivered any more; it is out of sight already."""
    bytes_left: int = 0
    slices_left: int = _SLICES_MAX
    now_ms: int = 0
    ttl_ms_max: int = 0
    """How long a message lives here at most; 0 for as long as it wants."""
    more: bool = False
    """There was more to do than one turn may take."""

    def spent(self) -> bool:
        """Nothing more may be done in this turn."""
        return self.bytes_left <= 0 or self.slices_left <= 0

    def give(
        self, subscription: Subscription, consumer: Consumer, first: int, end: int, batch_first: int, batch: Batch
    ) -> int:
        """Send of [first, end), all in `batch`, what credit allows; up to where. At least one message goes."""
        index = first - batch_first
        stop = batch.fit(index, end - batch_first, min(consumer.credit.size, limits.DELIVER_BYTES_TARGET))
        size = batch.data_bytes(index, stop)
        slices = self.deliveries.setdefault(consumer, [])
        for piece_first, piece_end, count, redelivered in subscription.deliver(
            consumer, first, batch_first + stop, size, self.now_ms
        ):
            parts = batch.slice_parts(piece_first - batch_first, piece_end - batch_first)
            slices.append((piece_first, count, redelivered, parts))
        self.bytes_left -= size
        self.slices_left -= 1
        return batch_first + stop

    def expire(self, subscription: Subscription, ranges: list[Range]) -> None:
        """The time of these is over: out of sight at once, to be logged as expired."""
        self.expired += [(subscription, gone) for gone in subscription.bury(ranges)]
