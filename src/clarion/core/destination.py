"""One destination: a log of messages numbered by a sequence, plus its subscriptions.

Theory of operation
    A queue has exactly one subscription, shared and durable; a topic has any number. A message is
    released when every subscription has confirmed it (A-08): its page is freed and the journal may
    reuse the space, unless the destination retains what is confirmed. Messages become visible to dispatch
    when their entry is durable; delayed ones and those of transactions wait in the wings (`stages`) without a
    sequence.

Rules
    1. Pure. `apply_*` methods are called in log order only, and for one log give one state.
    2. `tail` is the next sequence to be ordered; `visible` is the first that is not durable yet.
       `released_below <= floor of every subscription <= tail`.
    3. The only per-message work is arithmetic on ranges.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import msgspec

from clarion import ids, limits
from clarion.core.entries import Change, Large, Publish, Stage, Transfer
from clarion.core.pages import Page, Pages
from clarion.core.producers import Producers
from clarion.core.spans import Spans
from clarion.core.sparse import unpack_runs
from clarion.core.stages import Staged, Stages
from clarion.core.subscription import Range, Subscription

QUEUE, TOPIC = "queue", "topic"
QUEUE_SUBSCRIPTION = 1
EXPIRY_STEP_MS = 1_000
"""Times of expiry are gathered in steps of this, so that a run of messages is one span."""
_AWAITED_MAX = 65_536


class Destination:
    """The durable state of one destination, and the soft state that hangs on it."""

    __slots__ = (
        "_floors",
        "applied",
        "awaited",
        "bytes_quota",
        "bytes_streamed",
        "dropped",
        "dropped_streams",
        "expiring",
        "expiry_next_ms",
        "identity",
        "kind",
        "large",
        "lost_messages",
        "name",
        "next_subscription",
        "pages",
        "priorities",
        "producers",
        "retained_from",
        "served",
        "stages",
        "subscriptions",
        "tail",
        "visible",
    )

    def __init__(self, identity: int, kind: str, name: str, segment_bytes: int, bytes_quota: int) -> None:
        self.identity = identity
        self.kind = kind
        self.name = name
        self.bytes_quota = bytes_quota
        self.pages = Pages(segment_bytes)
        self.producers = Producers()
        self.stages = Stages()
        self.subscriptions: dict[int, Subscription] = {}
        self.next_subscription = QUEUE_SUBSCRIPTION
        self.tail = 1
        self.visible = 1
        self.applied = 0
        """The last log entry that this state reflects."""
        self.lost_messages = 0
        self.priorities = Spans()
        """Of messages whose priority is not the default."""
        self.expiring = Spans()
        """Messages that expire: no earlier than this, in steps."""
        self.expiry_next_ms = 0
        """The earliest of these; 0 for never. Never later than the truth."""
        self.awaited: dict[int, tuple[int, int, int]] = {}
        """Batches whose producer wants to know of their delivery: first id → (first, messages, until)."""
        self.retained_from = 0
        """Confirmed messages from here on are kept; 0 when none are."""
        self.dropped: list[tuple[int, int]] = []
        """(position, bytes) of staged batches that were dropped, until the host has released them. Soft."""
        self.served = 0
        """The subscription that took the last turn to its end; 0: all had theirs. Soft."""
        self.large: dict[int, int] = {}
        """Messages with a large body, by ascending sequence: the numbers of their streams (`clarion.core.streams`)."""
        self.dropped_streams: list[int] = []
        """As `dropped`: the streams of staged batches. Soft."""
        self.bytes_streamed = 0
        """What large bodies take of the journal, those included that are on their way here. Soft."""
        self._floors: list[tuple[int, int]] = []
        if kind == QUEUE:
            self.add_subscription("", durable=True, shared=True, start=1)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def bytes_live(self) -> int:
        """What it holds of the journal."""
        return self.pages.bytes_live + self.stages.bytes_live + self.bytes_streamed

    # --- applied from the log -------------------------------------------------------------------------

    def apply_publish(self, entry: Publish, position: int, span: int) -> None:
        """A batch was stored at `position`; span 0 says that its body is lost."""
        sequence = entry.first_id & ids.SEQUENCE_MAX
        producer = entry.first_id - sequence
        if entry.runs:
            self.producers.record_runs(producer, unpack_runs(sequence, entry.runs), entry.floor)
        else:
            self.producers.record(producer, sequence, sequence + entry.messages, entry.floor)
        self._show(entry, position, span)

    def apply_large(self, entry: Large, position: int, span: int) -> None:
        """A message with a large body was stored, visible or in the wings."""
        batch, number, _, _ = entry.stage
        if number:
            self.apply_stage(entry.stage, position, span).stream = entry.stream
            return
        producer, sequence = ids.producer_of(batch.first_id), ids.sequence_of(batch.first_id)
        self.producers.record(producer, sequence, sequence + batch.messages, batch.floor)
        self._show(batch, position, span, alone=True)
        if span:
            self.large[batch.first] = entry.stream

    def _show(self, entry: Publish, position: int, span: int, *, alone: bool = False) -> None:
        """A batch takes its place in the sequence."""
        first, end = entry.first, entry.first + entry.messages
        if first > self.tail:
            self._lose(self.tail, first)
        self.tail = end
        if not span:
            self._lose(first, end)
            return
        self.pages.append(first, entry.messages, position, span, entry.stored_ms, alone=alone)
        if entry.priority != limits.PRIORITY_DEFAULT:
            self.priorities.put(first, end, entry.priority)
        if entry.expiry_first_ms:
            self.expect_expiry(first, end, entry.expiry_first_ms)
        if entry.until:
            self._await(entry)

    def expect_expiry(self, first: int, end: int, time_ms: int) -> None:
        """Some message of [first, end) expires at `time_ms`, none before."""
        step = time_ms // EXPIRY_STEP_MS * EXPIRY_STEP_MS
        self.expiring.put(first, end, step)
        self.expiry_next_ms = min(self.expiry_next_ms or step, step)

    def _await(self, entry: Publish) -> None:
        if len(self.awaited) >= _AWAITED_MAX:  # what every durable subscription has confirmed is told, or soon is
            floor = min((one.confirmed.floor for one in self.subscriptions.values() if one.durable), default=self.tail)
            self.awaited = {key: row for key, row in self.awaited.items() if row[0] + row[1] > floor}
        self.awaited[entry.first_id] = (entry.first, entry.messages, entry.until)

    def apply_stage(self, entry: Stage, position: int, span: int) -> Staged:
        """A batch was stored and waits in the wings."""
        batch = entry.batch
        producer, sequence = ids.producer_of(batch.first_id), ids.sequence_of(batch.first_id)
        self.producers.record(producer, sequence, sequence + batch.messages, batch.floor)
        staged = Staged(entry, position, span)
        if not entry.transaction:
            staged.subscriptions_end = self.next_subscription
        self.stages.add(staged)
        return staged

    def apply_change(self, change: Change, time_ms: int) -> None:
        """An outcome, or a time that has come."""
        first = change.first
        for staged in self.stages.take(change.visible):
            self._show(staged.batch._replace(first=first, stored_ms=time_ms), staged.position, staged.span, alone=True)
            if staged.stream and staged.span:
                self.large[first] = staged.stream
            self._pass_over(first, first + staged.batch.messages, staged.subscriptions_end)
            first += staged.batch.messages
        self.stages.delay(change.delayed, self.next_subscription)
        for staged in self.stages.take(change.dropped):
            if staged.span:
                self.dropped.append((staged.position, staged.span))
            if staged.stream:
                self.dropped_streams.append(staged.stream)
        for identity, ranges in change.confirmed:
            if (subscription := self.subscriptions.get(identity)) is not None:
                subscription.confirm(ranges, self.tail)
        for identity, ranges in change.returned:
            if (subscription := self.subscriptions.get(identity)) is not None:
                subscription.count_return(ranges)
                subscription.unreserve(ranges)

    def _pass_over(self, first: int, end: int, subscriptions_end: int) -> None:
        """A delayed message is for the subscriptions that there were when it was sent (JMS 2.0, 7.9)."""
        if self.kind == TOPIC and subscriptions_end:
            for subscription in self.subscriptions.values():
                if subscription.identity >= subscriptions_end:
                    subscription.confirm([(first, end)], self.tail)

    def apply_transfer(self, entry: Transfer, position: int, span: int) -> None:
        """Messages came from another destination; nobody resends them."""
        self._show(
            Publish(
                self.identity, entry.messages, entry.first, 0, 0, entry.stored_ms,
                entry.expiry_first_ms, entry.expiry_last_ms, entry.priority,
            ),
            position,
            span,
            alone=True,
        )  # fmt: skip
        if span:
            self.large.update((entry.first + place, stream) for place, stream in entry.streams)
        if entry.subscription:
            for subscription in self.subscriptions.values():
                if subscription.identity != entry.subscription:
                    subscription.confirm([(entry.first, entry.first + entry.messages)], self.tail)

    def apply_discard(self, ranges: Sequence[Range]) -> None:
        """An administrator removed messages, or they are damaged: nobody will get them."""
        for subscription in self.subscriptions.values():
            subscription.confirm(ranges, self.tail)

    def _lose(self, first: int, end: int) -> None:
        self.lost_messages += end - first
        self.tail = max(self.tail, end)
        self.apply_discard([(first, end)])

    def add_subscription(
        self,
        name: str,
        *,
        durable: bool,
        shared: bool,
        start: int,
        identity: int | None = None,
        selector: str = "",
        pattern: int = 0,
        no_local: bool | None = None,
    ) -> Subscription:
        """A subscription from `start` on; `identity` is given when it comes from the log."""
        if identity is None:
            identity = self.next_subscription
        self.next_subscription = max(self.next_subscription, identity + 1)
        subscription = Subscription(
            identity,
            name,
            durable=durable,
            shared=shared,
            start=start,
            selector=selector,
            pattern=pattern,
            no_local=no_local,
        )
        self.subscriptions[identity] = subscription
        heapq.heappush(self._floors, (start, identity))
        return subscription

    def remove_subscription(self, identity: int) -> Subscription | None:
        """It owes no confirmation any more."""
        removed = self.subscriptions.pop(identity, None)
        if len(self._floors) > 2 * len(self.subscriptions) + 16:  # many came and went above one that stays behind
            self._floors = [(kept.confirmed.floor, kept.identity) for kept in self.subscriptions.values()]
            heapq.heapify(self._floors)
        return removed

    def has_consumers(self) -> bool:
        """Is there anybody to deliver to?"""
        return any(subscription.consumers for subscription in self.subscriptions.values())

    def held_below(self) -> int:
        """Everything below is confirmed, or a reader has it; 0 if there is no reader that has anything."""
        every = self.subscriptions.values()
        if not any(subscription.taken for subscription in every):
            return 0
        return min(max(subscription.taken, subscription.confirmed.floor) for subscription in every)

    # --- release --------------------------------------------------------------------------------------

    def floor(self) -> int:
        """The lowest sequence that a subscription still owes a confirmation for."""
        floors = self._floors
        while floors:
            known, identity = floors[0]
            subscription = self.subscriptions.get(identity)
            if subscription is None:
                heapq.heappop(floors)
            elif subscription.confirmed.floor != known:
                heapq.heapreplace(floors, (subscription.confirmed.floor, identity))
            else:
                return known
        return self.tail

    def release(self, ranges: Sequence[Range] = ()) -> list[Page]:
        """Free the pages that nobody needs: all below the floor, and those inside `ranges` above it."""
        floor = min(self.floor(), self.visible)
        if self.retained_from:
            floor = min(floor, self.retained_from)
        freed = self.pages.free_below(floor)
        if self.priorities:
            self.priorities.cut_below(floor)
        if self.expiring:
            self.expiring.cut_below(floor)
        if self.retained_from:
            return freed
        for first, end in ranges:
            if end <= floor:
                continue
            for page in self.pages.overlapping(max(first, floor), end):
                if page.end <= self.visible and self.is_confirmed(page.first, page.end):
                    self.pages.free(page)
                    freed.append(page)
        return freed

    def release_large(self, ranges: Sequence[Range] = ()) -> list[int]:
        """As `release`, of large bodies: the numbers of the streams, one for each message. Exact, not by pages."""
        if not self.large:
            return []
        floor = min(self.floor(), self.visible)
        if self.retained_from:
            floor, ranges = min(floor, self.retained_from), ()
        gone: list[int] = []
        for sequence in self.large:
            if sequence >= floor:
                break
            gone.append(sequence)
        for first, end in ranges:
            inside = range(max(first, floor), min(end, self.visible))
            among = inside if len(inside) < len(self.large) else [one for one in self.large if one in inside]
            gone += [one for one in among if one in self.large and self.is_confirmed(one, one + 1)]
        return [self.large.pop(sequence) for sequence in dict.fromkeys(gone)]

    def is_confirmed(self, first: int, end: int) -> bool:
        """Has every subscription confirmed all of [first, end)?"""
        return all(subscription.confirmed.covers(first, end) for subscription in self.subscriptions.values())

    def owed(self, first: int, end: int) -> list[Range]:
        """The runs of [first, end) that some subscription has not confirmed, or that are retained."""
        if 0 < self.retained_from < end:
            return [*self.unconfirmed(first, self.retained_from), (max(first, self.retained_from), end)]
        return self.unconfirmed(first, end)

    def unconfirmed(self, first: int, end: int) -> list[Range]:
        """The runs of [first, end) that some subscription has not confirmed."""
        runs = Spans()
        for subscription in self.subscriptions.values():
            for gap_first, gap_end in subscription.confirmed.gaps(first, end):
                runs.put(gap_first, gap_end)
        return [(run_first, run_end) for run_first, run_end, _ in runs]

    def refine(self) -> list[tuple[int, int]]:
        """Count only what is still owed of pages that are partly confirmed: (position, bytes) that live no more.

        A few messages that nobody confirms would otherwise hold whole pages. So counted, compaction sees how
        little their segments hold, and moves just the messages that are still owed.
        """
        if self.retained_from:
            return []
        floor = self.floor()
        subscriptions = self.subscriptions.values()
        reached = max((subscription.cursor for subscription in subscriptions), default=floor)
        gone: list[tuple[int, int]] = []
        for page in self.pages.overlapping(floor, reached):
            total = page.end - page.first
            owed = sum(total - subscription.confirmed.count(page.first, page.end) for subscription in subscriptions)
            live = max(1, page.span * owed // total)
            if live < page.live:
                self.pages.shrink(page, live)
                gone.append((page.position, page.live - live))
        return gone

    def depth(self) -> int:
        """Messages that some subscription has not confirmed (the most of any of them)."""
        return max((subscription.depth(self.tail) for subscription in self.subscriptions.values()), default=0)

    # --- checkpoints ----------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """The logged state, for a checkpoint. Fields are only ever added at the end."""
        durable = [subscription.dump() for subscription in self.subscriptions.values() if subscription.durable]
        return msgspec.msgpack.encode(
            [
                self.identity,
                self.kind,
                self.name,
                self.bytes_quota,
                self.applied,
                self.tail,
                self.next_subscription,
                self.lost_messages,
                self.pages.dump(),
                self.producers.dump(),
                durable,
                list(self.priorities),
                list(self.expiring),
                [(key.to_bytes(16, "big"), row) for key, row in self.awaited.items()],
                self.retained_from,
                self.stages.dump(),
                list(self.large.items()),
            ]
        )

    @classmethod
    def load(cls, data: bytes, segment_bytes: int) -> Destination:
        """The inverse of `dump`, before replay."""
        (
            identity, kind, name, quota, applied, tail, next_subscription, lost, pages, producers, durable, *more,
        ) = msgspec.msgpack.decode(data)  # fmt: skip
        self = cls(identity, kind, name, segment_bytes, quota)
        self.applied, self.tail, self.visible = applied, tail, tail
        self.lost_messages = lost
        self.pages = Pages.load(segment_bytes, pages)
        self.producers = Producers.load(producers)
        self.subscriptions.clear()
        self._floors.clear()
        for dumped in durable:
            subscription = Subscription.load(dumped)
            self.subscriptions[subscription.identity] = subscription
            heapq.heappush(self._floors, (subscription.confirmed.floor, subscription.identity))
        self.next_subscription = next_subscription
        if more:
            priorities, expiring, awaited, self.retained_from, stages, *large = more
            self.priorities = Spans([tuple(span) for span in priorities])
            for first, end, step in expiring:
                self.expect_expiry(first, end, step)
            self.awaited = {int.from_bytes(key, "big"): tuple(row) for key, row in awaited}
            self.stages = Stages.load(stages)
            self.large = dict(large[0]) if large else {}
        return self

    def recovered(self) -> None:
        """All entries are replayed and durable."""
        self.visible = self.tail
        self.dropped.clear()
        self.dropped_streams.clear()
        for subscription in self.subscriptions.values():
            subscription.recovered(self.tail)
