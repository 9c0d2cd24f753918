"""The destination against a naive model: one Python object per message, no ranges, no pages.

The plain path, without options: random interleavings of publish, deliver, confirm, reject, sessions that die,
checkpoints, crashes and recovery (`test_semantics_model` has all the rest). The log is a list; replaying it (from
a checkpoint taken at a random moment) must give the same durable state.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from clarion.core.cache import PageCache
from clarion.core.consumer import Consumer, Credit
from clarion.core.destination import QUEUE_SUBSCRIPTION, Destination
from clarion.core.dispatch import dispatch
from clarion.core.entries import Create, Kind, Mark, Publish, Ranges, Subscribe
from clarion.core.state import State
from clarion.core.subscription import Subscription
from clarion.wire.batch import Batch, encode

SEGMENT_BYTES = 1 << 20


@dataclass
class ModelSubscription:
    """Each message is confirmed or not; counts of returns."""

    confirmed: set[int] = field(default_factory=set)
    returns: dict[int, int] = field(default_factory=dict)
    start: int = 1


class World:
    """A message manager without a host: a log in a list, durability at once."""

    def __init__(self, seed: int, kind: str) -> None:
        self.random = random.Random(seed)
        self.kind = kind
        self.log: list[tuple[int, int, bytes, int, int]] = []
        self.position = 4096
        self.producer_sequence = 1
        self.bodies: dict[int, bytes] = {}
        self.model: dict[int, ModelSubscription] = {}
        self.delivered_below: dict[int, int] = {}
        self.state = State(SEGMENT_BYTES)
        self.cache = PageCache(1 << 30)
        self.checkpoint: tuple[int, list[bytes]] | None = None
        self.write(Kind.CREATE, Create(1, kind, "d", 1 << 40).encode())
        self.consumers: list[Consumer] = []
        if kind == "queue":
            self.model[QUEUE_SUBSCRIPTION] = ModelSubscription()
        else:
            for name in ("a", "b"):
                self.subscribe(name)

    @property
    def destination(self) -> Destination:
        return self.state.destinations[1]

    def write(self, kind: int, head: bytes, body: bytes = b"") -> None:
        span = 64 + len(body)
        self.log.append((len(self.log) + 1, kind, head, self.position, span))
        self.state.apply(*self.log[-1])
        self.position += span

    def subscribe(self, name: str) -> None:
        destination = self.destination
        identity = destination.next_subscription
        self.write(Kind.SUBSCRIBE, Subscribe(1, identity, name, True, destination.tail).encode())
        self.model[identity] = ModelSubscription(start=destination.tail)

    # --- steps ----------------------------------------------------------------------------------------

    def publish(self) -> None:
        destination = self.destination
        bodies = [self.random.randbytes(self.random.randint(0, 40)) for _ in range(self.random.randint(1, 8))]
        data = bytes(encode(b"d", (9 << 48) + self.producer_sequence, bodies))
        first = destination.tail
        entry = Publish(1, len(bodies), first, self.producer_sequence, (9 << 48) + self.producer_sequence)
        self.producer_sequence += len(bodies)
        self.write(Kind.PUBLISH, entry.encode(), data)
        page = destination.pages.last
        self.cache.published(1, page.first, page.first != first, first, Batch(data))
        destination.visible = destination.tail
        self.bodies |= dict(enumerate(bodies, first))

    def attach(self) -> None:
        subscription = self.random.choice(list(self.destination.subscriptions.values()))
        number = self.random.randint(1, 1 << 30)
        consumer = Consumer(1, number, subscription, Credit(20, 300, unconfirmed_max=25))
        subscription.attach(consumer)
        self.consumers.append(consumer)

    def deliver(self) -> None:
        turn = dispatch(self.destination, self.cache, self.random.choice([50, 10_000]))
        for subscription in turn.marks:
            mark = max(subscription.mark, subscription.cursor) + 7
            self.write(Kind.MARK, Mark(1, subscription.identity, mark).encode())
            subscription.mark_durable, subscription.mark_pending = mark, False
        assert not turn.missing
        assert not turn.damaged
        for consumer, slices in turn.deliveries.items():
            for first, count, redelivered, parts in slices:
                batch = Batch.parse(b"".join(parts))
                self.check_delivery(consumer, first, count, redelivered, batch)

    def check_delivery(self, consumer: Consumer, first: int, count: int, redelivered: bool, batch: Batch) -> None:
        identity = consumer.subscription.identity
        model = self.model[identity]
        for index in range(batch.count):
            sequence = first + index
            assert sequence not in model.confirmed, "a confirmed message came again"
            assert bytes(batch.record(index)[1]) == self.bodies[sequence]
            returns = model.returns.get(sequence, 0)
            maybe_seen = sequence < consumer.subscription.recovered_below
            assert redelivered == (returns > 0 or maybe_seen)
            assert count == max(returns + 1, 2 if maybe_seen else 1)

    def some_ranges(self, consumer: Consumer) -> list[tuple[int, int]]:
        held = [n for first, end, _ in consumer.inflight for n in range(first, end)]
        chosen = sorted(self.random.sample(held, self.random.randint(0, len(held))))
        return [(n, n + 1) for n in chosen]

    def confirm(self) -> None:
        if not self.consumers:
            return
        consumer = self.random.choice(self.consumers)
        subscription = consumer.subscription
        ranges = self.some_ranges(consumer)
        if self.random.random() < 0.3:
            ranges = [(first, end) for first, end, _ in consumer.inflight]
        if ranges:
            subscription.hint = self.random.choice([None, consumer])
            self.write(Kind.CONFIRM, Ranges(1, subscription.identity, ranges).encode())
            self.model[subscription.identity].confirmed |= {n for f, e in ranges for n in range(f, e)}
            self.destination.release(ranges)
        consumer.credit.add(20, 300)

    def reject(self) -> None:
        if self.consumers:
            consumer = self.random.choice(self.consumers)
            self.give_back(consumer.subscription, consumer.subscription.take_back(consumer, self.some_ranges(consumer)))

    def give_back(self, subscription: Subscription, back: list[tuple[int, int]]) -> None:
        if back:
            self.write(Kind.RETURN, Ranges(1, subscription.identity, back).encode())
            returns = self.model[subscription.identity].returns
            for first, end in back:
                for sequence in range(first, end):
                    returns[sequence] = returns.get(sequence, 0) + 1

    def die(self) -> None:
        if self.consumers:
            consumer = self.consumers.pop(self.random.randrange(len(self.consumers)))
            self.give_back(consumer.subscription, consumer.subscription.detach(consumer))

    def unseen(self) -> None:
        """A consumer leaves and gives back, uncounted, what its application never saw."""
        if self.consumers:
            consumer = self.consumers.pop(self.random.randrange(len(self.consumers)))
            everything = [(first, end) for first, end, _ in consumer.inflight]
            consumer.subscription.take_back(consumer, everything)
            consumer.subscription.detach(consumer)

    def refine(self) -> None:
        """Upkeep when space is short: what is confirmed of a page counts no more, the page stays."""
        before = self.destination.pages.bytes_live
        gone = self.destination.refine()
        assert all(size > 0 for _position, size in gone)
        assert self.destination.pages.bytes_live == before - sum(size for _position, size in gone)
        assert self.destination.pages.bytes_live == sum(page.live for page in self.destination.pages)

    def take_checkpoint(self) -> None:
        parts = self.state.dump()
        gathered = [next(parts)]
        index = len(self.log)
        self.publish()  # entries go on while a checkpoint is made
        gathered += list(parts)
        self.checkpoint = (index, gathered)

    def crash(self) -> None:
        before = self.durable_state()
        self.state = State(SEGMENT_BYTES)
        index, parts = self.checkpoint or (0, [])
        self.state.load(parts)
        for entry in self.log[index:]:
            self.state.apply(*entry)
        self.state.recovered()
        self.destination.release([(1, self.destination.tail)])
        self.consumers.clear()
        assert self.durable_state() == before
        self.cache = PageCache(1 << 30)
        self.reload()

    def reload(self) -> None:
        """What a host does: read the pages again (all of them at once)."""
        for _index, kind, head, _position, _span in self.log:
            if kind == Kind.PUBLISH:
                entry = Publish.decode(head)
                page = self.destination.pages.find(entry.first)
                if page is not None:
                    bodies = [self.bodies[n] for n in range(entry.first, entry.first + entry.messages)]
                    batch = Batch(bytes(encode(b"d", entry.first_id, bodies)))
                    self.cache.published(1, page.first, page.first != entry.first, entry.first, batch)

    def durable_state(self) -> list[object]:
        destination = self.destination
        return [
            destination.tail,
            destination.producers.dump(),
            [
                (s.identity, s.name, s.confirmed.floor, s.confirmed.gaps(1, destination.tail), list(s.counts), s.mark)
                for s in destination.subscriptions.values()
            ],
        ]

    def check(self) -> None:
        destination = self.destination
        for identity, subscription in destination.subscriptions.items():
            model = self.model[identity]
            owed = [n for n in range(model.start, destination.tail) if n not in model.confirmed]
            assert subscription.depth(destination.tail) == len(owed)
            places: list[int] = []
            for consumer in subscription.consumers:
                held = [n for f, e, _ in consumer.inflight for n in range(f, e)]
                assert consumer.held == consumer.credit.held == len(held) <= consumer.credit.unconfirmed_max
                places += held
            for view in subscription.views.values():  # one, for there is no selector, while anybody is attached
                places += [n for f, e, _ in view.returned for n in range(f, e)]
                places += [n for n in range(view.cursor, destination.tail) if n not in model.confirmed]
                assert sorted(places) == owed, "each unconfirmed message is in exactly one place"
            for sequence in owed:
                assert destination.pages.find(sequence) is not None, "an unconfirmed message was released"


STEPS = ["publish"] * 4 + [
    "attach",
    "deliver",
    "deliver",
    "deliver",
    "confirm",
    "confirm",
    "reject",
    "die",
    "unseen",
    "refine",
]


@pytest.mark.parametrize("kind", ["queue", "topic"])
@pytest.mark.parametrize("seed", range(3))
def test_a08_random_lives_of_a_destination_match_a_naive_model(seed: int, kind: str) -> None:
    world = World(seed, kind)
    for step in range(300):
        what = world.random.choice([*STEPS, "take_checkpoint" if step % 5 == 0 else "publish"])
        if step % 60 == 59:
            what = "crash"
        getattr(world, what)()
        world.check()


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a08_everything_is_released_when_the_last_subscription_has_confirmed(kind: str) -> None:
    world = World(99, kind)
    for _ in range(50):
        world.publish()
    identities = list(world.destination.subscriptions)
    for identity in identities:
        assert world.destination.pages.bytes_live > 0
        world.write(Kind.CONFIRM, Ranges(1, identity, [(1, world.destination.tail)]).encode())
        world.destination.release()
    assert world.destination.pages.bytes_live == 0
    assert len(world.destination.pages) == 0
    assert world.destination.depth() == 0
