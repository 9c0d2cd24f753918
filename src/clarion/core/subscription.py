"""One subscription: what each sequence of its destination is to it, kept in ranges.

Theory of operation
    Every sequence from the start of the subscription to the tail of its destination is exactly one of
        confirmed    in `confirmed`
        in flight    in `inflight` of one consumer
        assigned     ready for one consumer alone: it owns the message's group
        away         comes back later: a returned message waits for its time, a dead one for its burial, one
                     that a prepared transaction has consumed for the decision
        ready        everything else: new ones beyond the cursor, and those that came back
    A queue has exactly one subscription, shared and durable, without a name. Consumers attach with
    credit, see what is ready through a view, and take it in whole slices; confirmations and returns are
    ranges.

Rules
    1. `confirmed`, `counts`, `history`, `reserved` and `mark` of a durable subscription change only while log
       entries are applied; everything else is soft.
    2. Nothing at or beyond `mark_durable` is delivered: after a crash everything unconfirmed below
       the mark may have been seen and is flagged redelivered, everything beyond was not.
    3. A confirmation is valid whoever holds the message, and twice is as good as once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

from clarion.core.confirmed import Confirmed
from clarion.core.consumer import Consumer
from clarion.core.groups import Groups
from clarion.core.spans import Spans
from clarion.core.view import Filter, View, overlaps

Range = tuple[int, int]
DYING, RESERVED = 2, 3
"""Why a message is away; any larger value is the time at which it comes back."""
_HISTORY_MESSAGES_MAX = 10_000
_HISTORY_RETURNS_MAX = 16


class Subscription:
    """What one intended recipient (or a group that shares) still owes a confirmation for."""

    __slots__ = (
        "_later",
        "away",
        "confirmed",
        "consumers",
        "counts",
        "cursor",
        "durable",
        "grouped",
        "groups",
        "hint",
        "history",
        "identity",
        "mark",
        "mark_durable",
        "mark_pending",
        "name",
        "no_local",
        "pattern",
        "reader",
        "recovered_below",
        "reserved",
        "selector",
        "shared",
        "taken",
        "views",
    )

    def __init__(
        self,
        identity: int,
        name: str,
        *,
        durable: bool,
        shared: bool,
        start: int,
        selector: str = "",
        pattern: int = 0,
        no_local: bool | None = None,
    ) -> None:
        self.identity = identity
        self.name = name
        self.durable = durable
        self.shared = shared
        self.selector = selector
        """Of a topic's subscription: what does not match counts as confirmed. A queue's consumers have their own."""
        self.pattern = pattern
        """The durable pattern that made it; 0 for none."""
        self.no_local = no_local
        """Made for a consumer that leaves out what its own connection sends. None: not known, from an old log; then a
        consumer goes on with it either way."""
        self.confirmed = Confirmed(start)
        self.counts = Spans()
        """How often each unconfirmed sequence was returned (absent: never)."""
        self.history: dict[int, list[tuple[int, str]]] = {}
        """(time, reason) of returns that gave one, by sequence; as many as the bounds allow."""
        self.reserved = Spans()
        """What prepared transactions have consumed."""
        self.mark = start
        self.mark_durable = start if durable else 1 << 62
        self.mark_pending = False
        self.cursor = start
        """How far any view has come: nothing from here on was ever delivered."""
        self.recovered_below = 0
        """Everything unconfirmed below was perhaps delivered by an earlier run."""
        self.views: dict[str, View] = {}
        self.away = Spans()
        self._later: list[tuple[int, int, int]] = []
        self.consumers: list[Consumer] = []
        self.grouped = False
        """Whether messages were ever assigned: then those are busy too."""
        self.groups = Groups(self._put_back)
        self.hint: Consumer | None = None
        """Who probably holds what is confirmed next: spares a search through all consumers."""
        self.reader = 0
        """The session that reads it by sequences, and alone; 0 for none …"""
        self.taken = 0
        """… and below which sequence it was told of everything: that is as good as in flight."""

    @property
    def in_use(self) -> bool:
        """Somebody takes from it: a consumer that has not left, or a reader."""
        return self.reader != 0 or any(not consumer.detached for consumer in self.consumers)

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
        if self.groups.left:
            self.groups.let_go()
        return fresh

    def _forget(self, first: int, end: int) -> None:
        """Confirmed messages are no longer anywhere else."""
        if self.counts:
            self.counts.take(first, end)
        if self.history:
            for sequence in [known for known in self.history if first <= known < end]:
                del self.history[sequence]
        if self.groups.known:
            self.groups.known.take(first, end)
        left, by = end - first, self.hint
        if by is not None and by.inflight:
            left -= by.drop(first, end)
        if not left:
            return
        if self.reserved:
            self.reserved.take(first, end)
        if self.away:
            self.away.take(first, end)
        for view in self.views.values():
            view.remove(first, end)
        for consumer in self.consumers:
            if consumer is not by and consumer.inflight:
                consumer.drop(first, end)
            if consumer.assigned:
                consumer.assigned.take(first, end)

    def count_return(self, ranges: Sequence[Range], time_ms: int = 0, reason: str = "") -> None:
        """Log rule: these were delivered and came back; each counts one more delivery."""
        for first, end in ranges:
            for gap_first, gap_end in self.confirmed.gaps(first, end):
                self.counts.update(gap_first, gap_end, lambda count: count + 1)
                if reason:
                    self._remember(gap_first, gap_end, time_ms, reason)

    def _remember(self, first: int, end: int, time_ms: int, reason: str) -> None:
        for sequence in range(first, end):
            known = self.history.get(sequence)
            if known is None:
                if len(self.history) >= _HISTORY_MESSAGES_MAX:
                    return
                known = self.history[sequence] = []
            if len(known) < _HISTORY_RETURNS_MAX:
                known.append((time_ms, reason))

    def reserve(self, ranges: Sequence[Range]) -> None:
        """A prepared transaction has consumed these: nobody gets them before it is decided."""
        for first, end in ranges:
            for gap_first, gap_end in self.confirmed.gaps(first, end):
                self.reserved.put(gap_first, gap_end)
                self._send_away(gap_first, gap_end, RESERVED)
        if self.groups.left:
            self.groups.let_go()

    def unreserve(self, ranges: Sequence[Range]) -> None:
        """The transaction was rolled back: they are ready again."""
        for first, end in ranges:
            for piece_first, piece_end, _ in self.reserved.take(first, end):
                self.come_back(piece_first, piece_end)

    # --- consumers ------------------------------------------------------------------------------------

    def attach(
        self, consumer: Consumer, held: Sequence[Range] = (), selector: Filter | None = None, now_ms: int = 0
    ) -> list[Range]:
        """Add a consumer; what of `held` (from its earlier life) is again in flight with it.

        It is taken from whoever has it. Mostly that is its earlier life, whose end is not known here yet:
        left there, it would come back at that end, and be delivered again to somebody who holds it.
        """
        key = "" if selector is None else selector.canonical
        view = self.views.get(key)
        if view is None:
            view = self.views[key] = View(self, selector)
        view.consumers.append(consumer)
        consumer.view = view
        claimed = Spans()
        for first, end in held:
            for gap_first, gap_end in self.confirmed.gaps(first, min(end, self.cursor)):
                claimed.put(gap_first, gap_end)
        if claimed:
            self._claim(claimed)
        self.consumers.append(consumer)
        for first, end, _ in claimed:
            consumer.hold(first, end, now_ms)
        if self.groups.known:
            self.groups.take_over(consumer, view, claimed)
        return [(first, end) for first, end, _ in claimed]

    def _claim(self, claimed: Spans) -> None:
        """Take these out of wherever they are; `claimed` keeps what nobody else has a right to."""
        for first, end, why in list(self.away):
            for piece_first, piece_end, _ in claimed.overlap(first, end):
                if why in (DYING, RESERVED):
                    claimed.take(piece_first, piece_end)
                else:
                    self.away.take(piece_first, piece_end)
        for view in self.views.values():
            view.remove_all(claimed)
        for other in self.consumers:
            for first, end in overlaps(other.inflight, claimed):
                other.drop(first, end)
            for first, end in overlaps(other.assigned, claimed):
                other.assigned.take(first, end)

    def take_back(self, consumer: Consumer, ranges: Sequence[Range], due_ms: int = 0) -> list[Range]:
        """Take ranges back from a consumer, those that it really had: ready again, or from `due_ms` on."""
        back: list[Range] = []
        for first, end in ranges:
            for piece_first, piece_end, _ in consumer.inflight.take(first, end):
                back.append((piece_first, piece_end))
                consumer.credit.held -= piece_end - piece_first
                if due_ms:
                    self.away.put(piece_first, piece_end, due_ms)
                    heapq.heappush(self._later, (due_ms, piece_first, piece_end))
                else:
                    self._put_back(piece_first, piece_end)
        if self.groups.left:
            self.groups.let_go()
        return back

    def restart(self, consumer: Consumer) -> None:
        """Nobody has seen what a consumer has: ready again, uncounted. So is what waits for it: it is newer."""
        self.take_back(consumer, [(first, end) for first, end, _ in consumer.inflight])
        self.groups.unassign(consumer)

    def assign(self, consumer: Consumer, first: int, end: int) -> None:
        """Ready for the owner of their group, and for nobody else."""
        self.grouped = True
        consumer.assigned.put(first, end)
        for view in self.views.values():
            if view is not consumer.view:
                view.remove(first, end)

    def leave(self, consumer: Consumer) -> None:
        """A consumer takes no more; what it has in flight stays with it. Its other groups go to others."""
        self.groups.leave(consumer)
        view, consumer.view = consumer.view, None
        if view is not None:
            view.forsake(consumer)
            if not view.consumers:
                del self.views["" if view.selector is None else view.selector.canonical]
        self.groups.unassign(consumer)

    def detach(self, consumer: Consumer, due_ms: int = 0) -> list[Range]:
        """A consumer is gone; what it had in flight is returned. These ranges."""
        back = self.take_back(consumer, [(first, end) for first, end, _ in consumer.inflight], due_ms)
        self.leave(consumer)
        self.groups.gone(consumer)
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        if self.hint is consumer:
            self.hint = None
        return back

    # --- away and back --------------------------------------------------------------------------------

    def _put_back(self, first: int, end: int) -> None:
        for view in self.views.values():
            view.put_back(first, end)

    def _send_away(self, first: int, end: int, why: int) -> None:
        for view in self.views.values():
            view.remove(first, end)
        for consumer in self.consumers:
            consumer.drop(first, end)
            consumer.assigned.take(first, end)
        self.away.put(first, end, why)

    def bury(self, ranges: Sequence[Range]) -> list[Range]:
        """These become dead messages: taken out of sight until that is logged. Those that were in sight."""
        taken: list[Range] = []
        for first, end in ranges:
            for gap in self.confirmed.gaps(first, end):
                for piece_first, piece_end, why in list(self.away.pieces(*gap)):
                    if why not in (DYING, RESERVED):
                        self._send_away(piece_first, piece_end, DYING)
                        taken.append((piece_first, piece_end))
        return taken

    def come_back(self, first: int, end: int) -> None:
        """What was away in [first, end) is ready."""
        for piece_first, piece_end, _ in self.away.take(first, end):
            self._put_back(piece_first, piece_end)

    def come_due(self, now_ms: int) -> bool:
        """Returned messages whose time has come are ready; whether there were any."""
        later, found = self._later, False
        while later and later[0][0] <= now_ms:
            _, first, end = heapq.heappop(later)
            for piece_first, piece_end, why in self.away.overlap(first, end):
                if RESERVED < why <= now_ms:  # not if it was delivered meanwhile, and came back for longer
                    self.come_back(piece_first, piece_end)
                    found = True
        return found

    @property
    def due_ms(self) -> int:
        """When `come_due` has something to do; 0 for never."""
        return self._later[0][0] if self._later else 0

    # --- soft -----------------------------------------------------------------------------------------

    def recovered(self, tail: int) -> None:
        """The log has been replayed: whatever may have been delivered comes again, flagged."""
        self.recovered_below = min(self.mark, tail)
        self.mark_durable = self.mark
        self.cursor = max(self.confirmed.floor, self.recovered_below)
        self.views.clear()
        self.away = Spans([(first, end, RESERVED) for first, end, _ in self.reserved])

    def depth(self, tail: int) -> int:
        """How many messages are not confirmed."""
        floor = self.confirmed.floor
        return tail - floor - self.confirmed.count(floor, tail)

    def deliver(
        self, consumer: Consumer, first: int, end: int, size: int, now_ms: int = 0
    ) -> Iterator[tuple[int, int, int, bool]]:
        """[first, end) goes to a consumer: pieces (first, end, delivery count, redelivered).

        Whoever calls has taken it out of the consumer's view, or of what is assigned to it.
        """
        if len(self.views) > 1:
            for view in self.views.values():
                if view is not consumer.view:
                    view.remove(first, end)
        consumer.hold(first, end, now_ms)
        credit = consumer.credit
        credit.messages -= end - first
        credit.size -= size
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
        """For a checkpoint: the logged part only. Fields are only ever added at the end."""
        return [
            self.identity,
            self.name,
            self.shared,
            self.confirmed.floor,
            self.confirmed.serialize(),
            self.mark,
            list(self.counts),
            self.selector,
            self.pattern,
            [(first, end) for first, end, _ in self.reserved],
            list(self.history.items()),
            self.no_local,
        ]

    @classmethod
    def load(cls, dumped: Sequence[Any]) -> Subscription:
        """The inverse of `dump`, before `recovered`."""
        identity, name, shared, floor, bits, mark, counts, *more = dumped
        selector, pattern, reserved, history, *newer = more or ("", 0, [], [])
        subscription = cls(
            identity,
            name,
            durable=True,
            shared=bool(shared),
            start=floor,
            selector=selector,
            pattern=pattern,
            no_local=newer[0] if newer else None,
        )
        subscription.confirmed = Confirmed(floor, bits)
        subscription.mark = mark
        subscription.counts = Spans([(first, end, count) for first, end, count in counts])
        subscription.reserved = Spans([(first, end, 0) for first, end in reserved])
        subscription.history = {
            sequence: [(time_ms, reason) for time_ms, reason in returns] for sequence, returns in history
        }
        return subscription
