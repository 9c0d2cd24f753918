"""A naive model of what a message manager must remember: one record per message and subscription.

No ranges, no pages, no views: a dictionary of what each subscription is still owed, filled and emptied message by
message. It is fed the same entries as the real state, before they are encoded, and knows nothing else of it. The places
of messages (with whom they are, or why nobody may have them now) are kept beside, and are forgotten in a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from clarion.core.entries import (
    Change,
    Create,
    Drop,
    Due,
    Kind,
    Mark,
    Outcome,
    Prepared,
    Publish,
    Ranges,
    Retain,
    Returned,
    Stage,
    Subscribe,
    Transfer,
    Unsubscribe,
)

IN_FLIGHT, ASSIGNED, LATER, DYING, RESERVED = "in flight", "assigned", "later", "dying", "reserved"
Place = tuple[str, object]
Range = tuple[int, int]


class Message(NamedTuple):
    """One message, as its sender knows it."""

    identity: int
    headers: bytes
    body: bytes
    priority: int
    group: int
    expires_ms: int
    created_ms: int
    producer: int
    color: str
    number: int

    @property
    def size(self) -> int:
        return len(self.headers) + len(self.body)


SELECTORS: dict[str, Callable[[Message], bool]] = {
    "": lambda message: True,
    "color = 'red'": lambda message: message.color == "red",
    "color <> 'red'": lambda message: message.color not in ("", "red"),  # of what has no color, nothing is known
    "number >= 5": lambda message: message.number >= 5,
}


class ModelSubscription:
    """What one subscription is owed; and, forgotten in a crash, where each message is."""

    def __init__(self, entry: Subscribe, kind: str, index: int, *, durable: bool = True) -> None:
        self.identity = entry.subscription
        self.entry = entry
        self.kind = kind
        self.durable = durable
        self.index = index
        """The entry that made it."""
        self.owed: dict[int, int] = {}
        """Sequence → how often it came back."""
        self.history: dict[int, list[tuple[int, str]]] = {}
        self.reserved: set[int] = set()
        self.mark = entry.start
        # Soft from here on.
        self.place: dict[int, Place] = {}
        """Absent: ready."""
        self.touched: set[int] = set()
        """What was in flight, assigned or away: it may come out of order."""
        self.came_back: set[int] = set()
        self.seen_below = 0
        """What may have been seen in an earlier life."""

    def copy(self) -> ModelSubscription:
        """What a crash leaves of it."""
        twin = ModelSubscription(self.entry, self.kind, self.index, durable=self.durable)
        twin.owed = dict(self.owed)
        twin.history = {sequence: list(returns) for sequence, returns in self.history.items()}
        twin.reserved = set(self.reserved)
        twin.mark = self.mark
        return twin

    def recovered(self, tail: int) -> None:
        """A new life: whatever may have been delivered was perhaps seen."""
        self.seen_below = min(self.mark, tail)
        self.place = dict.fromkeys(self.reserved, (RESERVED, None))
        self.touched = set(range(self.seen_below))
        self.came_back = set(self.touched)

    def within(self, ranges: Iterable[Range]) -> list[int]:
        """What of these ranges it is owed."""
        return [sequence for first, end in ranges for sequence in self.owed if first <= sequence < end]

    def confirm(self, ranges: Iterable[Range]) -> None:
        for sequence in self.within(ranges):
            self.owed.pop(sequence, None)
            self.place.pop(sequence, None)
            self.reserved.discard(sequence)
            self.history.pop(sequence, None)

    def count(self, ranges: Iterable[Range], time_ms: int = 0, reason: str = "") -> None:
        for sequence in self.within(ranges):
            self.owed[sequence] += 1
            if reason:
                self.history.setdefault(sequence, []).append((time_ms, reason))

    def reserve(self, ranges: Iterable[Range]) -> None:
        for sequence in self.within(ranges):
            self.reserved.add(sequence)
            self.put(sequence, (RESERVED, None))

    def unreserve(self, ranges: Iterable[Range]) -> None:
        for sequence in self.within(ranges):
            if sequence in self.reserved:
                self.reserved.discard(sequence)
                self.ready(sequence)

    # --- soft -----------------------------------------------------------------------------------------

    def put(self, sequence: int, place: Place) -> None:
        self.place[sequence] = place
        self.touched.add(sequence)

    def ready(self, sequence: int) -> None:
        """Ready again."""
        self.place.pop(sequence, None)
        self.came_back.add(sequence)


class ModelStage(NamedTuple):
    """A batch that is stored and not visible."""

    messages: Sequence[Message]
    due_ms: int
    transaction: bytes
    until: int
    record: int
    """The index of its entry."""
    for_whom: frozenset[int] | None = None
    """The subscriptions that there were when it was sent, if it is delayed; None: all when it is shown."""


class ModelDestination:
    """One destination."""

    def __init__(self, entry: Create, index: int) -> None:
        self.identity, self.kind, self.name = entry.destination, entry.kind, entry.name
        self.messages: dict[int, Message] = {}
        self.shown_at: dict[int, tuple[int, int]] = {}
        """Sequence → (entry that stored it, entry that showed it)."""
        self.tail = 1
        self.stages: dict[int, ModelStage] = {}
        self.stages_ever = 0
        self.retained_from = 0
        self.awaited: dict[int, tuple[int, int, int]] = {}
        """Batches whose producer wants to know: first id → (first, messages, until)."""
        self.subscriptions: dict[int, ModelSubscription] = {}
        self._kept: set[int] = set()
        self._kept_tail = 1
        self.entry = entry
        if self.kind == "queue":
            self.subscriptions[1] = ModelSubscription(
                Subscribe(self.identity, 1, "", shared=True, start=1), self.kind, index
            )

    def copy(self) -> ModelDestination:
        """What a crash leaves of it. Messages are shared: those beyond the tail are never looked at."""
        twin = ModelDestination(self.entry, 0)
        twin.messages, twin.shown_at, twin.tail, twin.retained_from = (
            self.messages,
            self.shown_at,
            self.tail,
            self.retained_from,
        )
        durable = frozenset(key for key, one in self.subscriptions.items() if one.durable)
        twin.stages_ever = self.stages_ever
        twin.stages = {
            number: one if one.for_whom is None else one._replace(for_whom=one.for_whom & durable)
            for number, one in self.stages.items()
        }
        twin.awaited = dict(self.awaited)
        twin._kept, twin._kept_tail = set(self._kept), self._kept_tail
        twin.subscriptions = {key: one.copy() for key, one in self.subscriptions.items() if one.durable}
        return twin

    def show(
        self,
        first: int,
        messages: Sequence[Message],
        stored: int,
        shown: int,
        *,
        until: int = 0,
        lost: bool = False,
        for_whom: frozenset[int] | None = None,
    ) -> None:
        """Messages take their places in the sequence; those that are lost are owed to nobody."""
        assert first == self.tail, "sequences are given without gaps"
        if until and not lost:
            self.awaited[messages[0].identity] = (first, len(messages), until)
        for message in messages:
            self.messages[self.tail] = message
            self.shown_at[self.tail] = (stored, shown)
            for subscription in () if lost else self.subscriptions.values():
                if for_whom is None or subscription.identity in for_whom:
                    subscription.owed[self.tail] = 0
            self.tail += 1

    def change(self, change: Change, index: int, lost: set[int]) -> None:
        first = change.first
        for number in _numbers(change.visible):
            stage = self.stages.pop(number)
            is_lost = stage.record in lost
            self.show(
                first, stage.messages, stage.record, index, until=stage.until, lost=is_lost, for_whom=stage.for_whom
            )
            first += len(stage.messages)
        for number in _numbers(change.delayed):
            stage = self.stages[number]
            self.stages[number] = stage._replace(transaction=b"", for_whom=frozenset(self.subscriptions))
        for number in _numbers(change.dropped):
            del self.stages[number]
        for identity, ranges in change.confirmed:
            if identity in self.subscriptions:
                self.subscriptions[identity].confirm(ranges)
        for identity, ranges in change.returned:
            if identity in self.subscriptions:
                self.subscriptions[identity].count(ranges)
                self.subscriptions[identity].unreserve(ranges)

    @property
    def floor(self) -> int:
        return min((min(one.owed, default=self.tail) for one in self.subscriptions.values()), default=self.tail)

    @property
    def depth(self) -> int:
        return max((len(one.owed) for one in self.subscriptions.values()), default=0)

    def kept(self) -> set[int]:
        """What must still be there: owed to somebody, or retained, ever since it was shown."""
        known = self._kept.union(range(self._kept_tail, self.tail))
        owed, retained = self.owed(), self.retained_from or self.tail
        self._kept, self._kept_tail = {n for n in known if n in owed or n >= retained}, self.tail
        return self._kept

    def owed(self) -> set[int]:
        """What anybody is owed."""
        return set().union(*(one.owed for one in self.subscriptions.values()))


class ModelState:
    """Everything that survives a crash, if all of it was durable."""

    def __init__(self) -> None:
        self.destinations: dict[int, ModelDestination] = {}
        self.prepared: dict[bytes, Prepared] = {}
        self.outcomes: dict[bytes, str | None] = {}
        self.keys: dict[str, int] = {}
        self.lost: set[int] = set()
        """Entries whose bodies were found damaged by a replay."""
        self.rotten: set[int] = set()
        """Entries whose bodies are damaged, as somebody finds out who reads them."""

    def copy(self) -> ModelState:
        twin = ModelState()
        twin.destinations = {key: one.copy() for key, one in self.destinations.items()}
        twin.prepared, twin.outcomes, twin.keys = dict(self.prepared), dict(self.outcomes), dict(self.keys)
        twin.lost, twin.rotten = set(self.lost), set(self.rotten)
        return twin

    def apply(self, index: int, kind: int, entry: Any, messages: Sequence[Message]) -> None:
        """What one entry says, message by message."""
        match entry:
            case Create():
                self.destinations[entry.destination] = ModelDestination(entry, index)
            case Drop():
                del self.destinations[entry.destination]
            case Publish():
                self.destinations[entry.destination].show(entry.first, messages, index, index, until=entry.until)
            case Ranges():
                self._ranges(kind, entry)
            case Mark():
                subscription = self._subscription(entry.destination, entry.subscription)
                if subscription is not None:
                    subscription.mark = max(subscription.mark, entry.mark)
            case Returned():
                subscription = self._subscription(entry.destination, entry.subscription)
                if subscription is not None:
                    subscription.count(entry.ranges, entry.time_ms, entry.reason)
            case Subscribe():
                self.add(ModelSubscription(entry, self.destinations[entry.destination].kind, index))
            case Unsubscribe():
                del self.destinations[entry.destination].subscriptions[entry.subscription]
            case Retain():
                self.destinations[entry.destination].kept()  # what is not kept by now does not come again
                self.destinations[entry.destination].retained_from = entry.first
            case Stage():
                destination = self.destinations[entry.batch.destination]
                whom = None if entry.transaction else frozenset(destination.subscriptions)
                stage = ModelStage(messages, entry.due_ms, entry.transaction, entry.batch.until, index, whom)
                destination.stages[entry.number] = stage
                destination.stages_ever += 1
            case Due():
                self.destinations[entry.change.destination].change(entry.change, index, self.lost)
            case Prepared():
                self._prepare(entry)
            case Outcome():
                self._outcome(entry, index)
            case Transfer():
                self._transfer(entry, messages, index)

    def add(self, subscription: ModelSubscription) -> None:
        """A subscription is owed everything from its start on."""
        destination = self.destinations[subscription.entry.destination]
        destination.kept()
        destination.subscriptions[subscription.identity] = subscription
        subscription.owed = dict.fromkeys(range(subscription.entry.start, destination.tail), 0)

    def _subscription(self, destination: int, identity: int) -> ModelSubscription | None:
        found = self.destinations.get(destination)
        return None if found is None else found.subscriptions.get(identity)

    def _ranges(self, kind: int, entry: Ranges) -> None:
        if kind == Kind.DISCARD:
            for subscription in self.destinations[entry.destination].subscriptions.values():
                subscription.confirm(entry.ranges)
            return
        found = self._subscription(entry.destination, entry.subscription)
        if found is not None:
            if kind == Kind.CONFIRM:
                found.confirm(entry.ranges)
            else:
                found.count(entry.ranges)

    def _prepare(self, entry: Prepared) -> None:
        self.prepared[entry.transaction] = entry
        for destination, identity, ranges in entry.consumed:
            subscription = self._subscription(destination, identity)
            if subscription is not None:
                subscription.reserve(ranges)

    def _outcome(self, entry: Outcome, index: int) -> None:
        for change in entry.changes:
            if change.destination in self.destinations:
                self.destinations[change.destination].change(change, index, self.lost)
        for transaction in entry.transactions:
            self.prepared.pop(transaction, None)
            self.outcomes[transaction] = None if entry.committed else entry.reason
        if entry.key:
            self.keys[entry.key] = entry.version

    def _transfer(self, entry: Transfer, messages: Sequence[Message], index: int) -> None:
        target = self.destinations[entry.destination]
        target.show(entry.first, messages, index, index)
        if entry.subscription:
            for subscription in target.subscriptions.values():
                if subscription.identity != entry.subscription:
                    subscription.confirm([(entry.first, entry.first + len(messages))])
        source = self._subscription(entry.source, entry.source_subscription)
        if source is not None:
            source.confirm(entry.ranges)

    def lose(self, index: int) -> None:
        """The body of the entry `index` is gone: nobody who was there in time will get its messages."""
        self.lost.add(index)
        for destination in self.destinations.values():
            for sequence, (stored, shown) in destination.shown_at.items():
                if stored == index and sequence < destination.tail:
                    destination.awaited.pop(destination.messages[sequence].identity, None)
                    for subscription in destination.subscriptions.values():
                        if subscription.index < shown:
                            subscription.confirm([(sequence, sequence + 1)])


def _numbers(runs: Iterable[Range]) -> list[int]:
    return [number for first, end in runs for number in range(first, end)]
