"""One destination: a log of messages numbered by a sequence, plus its subscriptions.

Theory of operation
    A queue has exactly one subscription, shared and durable; a topic has any number. A message is
    released when every subscription has confirmed it (A-08): its page is freed and the journal may
    reuse the space. Messages become visible to dispatch when their entry is durable.

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

from clarion import ids
from clarion.core.entries import Publish
from clarion.core.pages import Page, Pages
from clarion.core.producers import Producers
from clarion.core.spans import Spans
from clarion.core.subscription import Range, Subscription

QUEUE, TOPIC = "queue", "topic"
QUEUE_SUBSCRIPTION = 1


class Destination:
    """The durable state of one destination, and the soft state that hangs on it."""

    __slots__ = (
        "_floors",
        "applied",
        "bytes_quota",
        "identity",
        "kind",
        "lost_messages",
        "name",
        "next_subscription",
        "pages",
        "producers",
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
        self.subscriptions: dict[int, Subscription] = {}
        self.next_subscription = QUEUE_SUBSCRIPTION
        self.tail = 1
        self.visible = 1
        self.applied = 0
        """The last log entry that this state reflects."""
        self.lost_messages = 0
        self._floors: list[tuple[int, int]] = []
        if kind == QUEUE:
            self.add_subscription("", durable=True, shared=True, start=1)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    # --- applied from the log -------------------------------------------------------------------------

    def apply_publish(self, entry: Publish, position: int, span: int) -> None:
        """A batch was stored at `position`; span 0 says that its body is lost."""
        end = entry.first + entry.messages
        if entry.first > self.tail:
            self._lose(self.tail, entry.first)
        self.tail = end
        producer, sequence = ids.producer_of(entry.first_id), ids.sequence_of(entry.first_id)
        self.producers.record(producer, sequence, sequence + entry.messages, entry.floor)
        if span:
            self.pages.append(entry.first, entry.messages, position, span)
        else:
            self._lose(entry.first, end)

    def apply_discard(self, ranges: Sequence[Range]) -> None:
        """An administrator removed messages, or they are damaged: nobody will get them."""
        for subscription in self.subscriptions.values():
            subscription.confirm(ranges, self.tail)

    def _lose(self, first: int, end: int) -> None:
        self.lost_messages += end - first
        self.tail = max(self.tail, end)
        self.apply_discard([(first, end)])

    def add_subscription(
        self, name: str, *, durable: bool, shared: bool, start: int, identity: int | None = None
    ) -> Subscription:
        """A subscription from `start` on; `identity` is given when it comes from the log."""
        if identity is None:
            identity = self.next_subscription
        self.next_subscription = max(self.next_subscription, identity + 1)
        subscription = Subscription(identity, name, durable=durable, shared=shared, start=start)
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

    def find_subscription(self, name: str) -> Subscription | None:
        """By its name; plain ones have none."""
        return next((found for found in self.subscriptions.values() if name and found.name == name), None)

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
        freed = self.pages.free_below(floor)
        for first, end in ranges:
            if end <= floor:
                continue
            for page in self.pages.overlapping(max(first, floor), end):
                if page.end <= self.visible and self.is_confirmed(page.first, page.end):
                    self.pages.free(page)
                    freed.append(page)
        return freed

    def is_confirmed(self, first: int, end: int) -> bool:
        """Has every subscription confirmed all of [first, end)?"""
        return all(subscription.confirmed.covers(first, end) for subscription in self.subscriptions.values())

    def owed(self, first: int, end: int) -> list[Range]:
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
        """The logged state, for a checkpoint."""
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
            ]
        )

    @classmethod
    def load(cls, data: bytes, segment_bytes: int) -> Destination:
        """The inverse of `dump`, before replay."""
        (
            identity, kind, name, quota, applied, tail, next_subscription, lost, pages, producers, durable,
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
        return self

    def recovered(self) -> None:
        """All entries are replayed and durable."""
        self.visible = self.tail
        for subscription in self.subscriptions.values():
            subscription.recovered(self.tail)
