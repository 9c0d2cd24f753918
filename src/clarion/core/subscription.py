"""One subscription: what each sequence of its destination is to it, kept in ranges.

Theory of operation
    Every sequence from the start of the subscription to the tail of its destination is exactly one of
        confirmed    in `confirmed`
        in flight    in `inflight` of one consumer
        returned     in `returned`: it was in flight and comes again, before anything newer
        new          at or beyond `cursor`
    A queue has exactly one subscription, shared and durable, without a name. Consumers attach with
    credit and take what is ready in whole slices; confirmations and returns are ranges.

Rules
    1. `confirmed`, `counts` and `mark` of a durable subscription change only while log entries are
       applied; `cursor`, `returned`, `inflight` and consumers are soft.
    2. Nothing at or beyond `mark_durable` is delivered: after a crash everything unconfirmed below
       the mark may have been seen and is flagged redelivered, everything beyond was not.
    3. A confirmation is valid whoever holds the message, and twice is as good as once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clarion import limits
from clarion.core.confirmed import Confirmed
from clarion.core.spans import Spans

Range = tuple[int, int]


class Consumer:
    """One attached consumer. `credit_*` is what it may still be sent, `inflight` what it holds."""

    __slots__ = (
        "credit_bytes",
        "credit_messages",
        "detached",
        "held",
        "inflight",
        "number",
        "paused",
        "session",
        "subscription",
        "unconfirmed_max",
    )

    def __init__(
        self,
        session: int,
        number: int,
        subscription: Subscription,
        *,
        credit_messages: int,
        credit_bytes: int,
        unconfirmed_max: int = limits.UNCONFIRMED_MESSAGES_DEFAULT,
    ) -> None:
        self.session = session
        self.number = number
        self.subscription = subscription
        self.credit_messages = credit_messages
        self.credit_bytes = credit_bytes
        self.unconfirmed_max = unconfirmed_max
        self.inflight = Spans()
        self.held = 0
        """How many messages are in flight."""
        self.detached = False
        """It takes no more, but may still confirm what it has."""
        self.paused = False
        """Its connection is full: it gets its turn again when that has drained."""

    def add_credit(self, messages: int, size: int) -> None:
        """More credit, up to the bound."""
        self.credit_messages = min(self.credit_messages + messages, limits.CONSUMER_CREDIT_MESSAGES_MAX)
        self.credit_bytes = min(self.credit_bytes + size, limits.CONSUMER_CREDIT_BYTES_MAX)

    @property
    def room(self) -> int:
        """How many messages it may be sent now."""
        if self.detached or self.paused or self.credit_bytes <= 0:
            return 0
        return min(self.credit_messages, self.unconfirmed_max - self.held)


class Subscription:
    """What one intended recipient (or a group that shares) still owes a confirmation for."""

    __slots__ = (
        "confirmed",
        "consumers",
        "counts",
        "cursor",
        "durable",
        "hint",
        "identity",
        "mark",
        "mark_durable",
        "mark_pending",
        "name",
        "recovered_below",
        "returned",
        "shared",
        "turn",
    )

    def __init__(self, identity: int, name: str, *, durable: bool, shared: bool, start: int) -> None:
        self.identity = identity
        self.name = name
        self.durable = durable
        self.shared = shared
        self.confirmed = Confirmed(start)
        self.counts = Spans()
        """How often each unconfirmed sequence was returned (absent: never)."""
        self.mark = start
        self.mark_durable = start if durable else 1 << 62
        self.mark_pending = False
        self.cursor = start
        self.returned = Spans()
        self.recovered_below = 0
        """Everything unconfirmed below was perhaps delivered by an earlier run."""
        self.consumers: list[Consumer] = []
        self.hint: Consumer | None = None
        """Who probably holds what is confirmed next: spares a search through all consumers."""
        self.turn = 0

    # --- applied from the log (or at once, when not durable) ------------------------------------------

    def confirm(self, ranges: Sequence[Range], tail: int) -> int:
        """Confirm ranges, as far as they exist; how many were not confirmed before."""
        fresh = 0
        for first, end in ranges:
            end = min(end, tail)
            first = max(first, self.confirmed.floor)
            if first >= end:
                continue
            added = self.confirmed.add(first, end)
            if added:
                fresh += added
                self._forget(first, end)
        if self.cursor < self.confirmed.floor:
            self.cursor = self.confirmed.floor
        return fresh

    def _forget(self, first: int, end: int) -> None:
        """Confirmed messages are no longer anywhere else."""
        if self.counts:
            self.counts.take(first, end)
        left, by = end - first, self.hint
        if by is not None and by.inflight:
            left -= self._drop(by, first, end)
        if left and self.returned:
            left -= sum(e - f for f, e, _ in self.returned.take(first, end))
        if left:
            for consumer in self.consumers:
                if consumer is not by and consumer.inflight:
                    self._drop(consumer, first, end)

    @staticmethod
    def _drop(consumer: Consumer, first: int, end: int) -> int:
        gone = sum(e - f for f, e, _ in consumer.inflight.take(first, end))
        consumer.held -= gone
        return gone

    def count_return(self, ranges: Sequence[Range]) -> None:
        """Log rule: these were delivered and came back; each counts one more delivery."""
        for first, end in ranges:
            for gap_first, gap_end in self.confirmed.gaps(first, end):
                self.counts.update(gap_first, gap_end, lambda count: count + 1)

    # --- soft -----------------------------------------------------------------------------------------

    def attach(self, consumer: Consumer, held: Sequence[Range] = ()) -> list[Range]:
        """Add a consumer; what of `held` (from its earlier life) is again in flight with it.

        It is taken from whoever has it. Mostly that is its earlier life, whose end is not known here yet:
        left there, it would come back at that end, and be delivered again to somebody who holds it.
        """
        wanted, claimed = Spans(), Spans()
        for first, end in held:
            for gap_first, gap_end in self.confirmed.gaps(first, min(end, self.cursor)):
                wanted.put(gap_first, gap_end)
        if wanted:
            _move(self.returned, wanted, claimed)
            for other in self.consumers:
                other.held -= _move(other.inflight, wanted, claimed)
        self.consumers.append(consumer)
        consumer.inflight = claimed
        consumer.held = claimed.total()
        return [(first, end) for first, end, _ in claimed]

    def take_back(self, consumer: Consumer, ranges: Sequence[Range]) -> list[Range]:
        """Move ranges from a consumer to the returned ones; those that it really had."""
        back: list[Range] = []
        for first, end in ranges:
            for piece_first, piece_end, _ in consumer.inflight.take(first, end):
                back.append((piece_first, piece_end))
                consumer.held -= piece_end - piece_first
                self.returned.put(piece_first, piece_end)
        return back

    def detach(self, consumer: Consumer) -> list[Range]:
        """A consumer is gone; what it had in flight is returned. These ranges."""
        everything = [(first, end) for first, end, _ in consumer.inflight]
        back = self.take_back(consumer, everything)
        consumer.detached = True
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        return back

    def recovered(self, tail: int) -> None:
        """The log has been replayed: whatever may have been delivered comes again, flagged."""
        self.recovered_below = min(self.mark, tail)
        self.mark_durable = self.mark
        self.cursor = max(self.confirmed.floor, self.recovered_below)
        self.returned.clear()
        for first, end in self.confirmed.gaps(self.confirmed.floor, self.recovered_below):
            self.returned.put(first, end)

    def ready(self, limit: int) -> int:
        """About how many messages wait for a consumer, of those below `limit`."""
        beyond = max(0, limit - self.cursor)
        return self.returned.total() + (beyond - self.confirmed.count(self.cursor, limit) if beyond else 0)

    def depth(self, tail: int) -> int:
        """How many messages are not confirmed."""
        floor = self.confirmed.floor
        return tail - floor - self.confirmed.count(floor, tail)

    def next_ready(self, limit: int) -> Range | None:
        """The next run to deliver: returned ones first, then new ones below `limit`."""
        if self.returned:
            return next((first, end) for first, end, _ in self.returned)
        limit = min(limit, self.mark_durable)
        if self.cursor >= limit:
            return None
        run = self.confirmed.gap(self.cursor, limit)
        if run is None:
            self.cursor = limit
        return run

    def deliver(self, consumer: Consumer, first: int, end: int, size: int) -> Iterator[tuple[int, int, int, bool]]:
        """[first, end) goes to a consumer: pieces (first, end, delivery count, redelivered)."""
        if first >= self.cursor:
            self.cursor = end
        else:
            self.returned.take(first, end)
        consumer.inflight.put(first, end)
        consumer.held += end - first
        consumer.credit_messages -= end - first
        consumer.credit_bytes -= size
        if not self.counts and first >= self.recovered_below:
            yield first, end, 1, False
            return
        for piece_first, piece_end, count in self.counts.pieces(first, end):
            old = min(piece_end, max(piece_first, self.recovered_below))
            if piece_first < old:
                yield piece_first, old, max(count + 1, 2), True
            if old < piece_end:
                yield old, piece_end, count + 1, count > 0

    # --- checkpoints ----------------------------------------------------------------------------------

    def dump(self) -> list[object]:
        """For a checkpoint: the logged part only."""
        return [
            self.identity,
            self.name,
            self.shared,
            self.confirmed.floor,
            self.confirmed.serialize(),
            self.mark,
            list(self.counts),
        ]

    @classmethod
    def load(cls, dumped: Sequence[object]) -> Subscription:
        """The inverse of `dump`, before `recovered`."""
        identity, name, shared, floor, bits, mark, counts = dumped
        assert isinstance(identity, int)
        assert isinstance(name, str)
        assert isinstance(floor, int)
        assert isinstance(bits, bytes)
        assert isinstance(mark, int)
        assert isinstance(counts, list)
        subscription = cls(identity, name, durable=True, shared=bool(shared), start=floor)
        subscription.confirmed = Confirmed(floor, bits)
        subscription.mark = mark
        subscription.counts = Spans([(first, end, count) for first, end, count in counts])
        return subscription


def _move(source: Spans, wanted: Spans, target: Spans) -> int:
    """Move what of `source` is wanted to `target`; how many. Costs what `source` has, not what is wanted."""
    moved = [piece for first, end, _ in source for piece in wanted.overlap(first, end)]
    for first, end, _ in moved:
        source.take(first, end)
        target.put(first, end)
    return sum(end - first for first, end, _ in moved)
