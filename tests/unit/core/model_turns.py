"""Turns of the model: what consumers get, and what must be true of it."""

from __future__ import annotations

import random

from clarion.core import sift
from clarion.core.consumer import Consumer, Credit
from clarion.core.destination import TOPIC, Destination
from clarion.core.dispatch import dispatch
from clarion.core.entries import Kind, Mark, Ranges
from clarion.core.subscription import Subscription
from clarion.core.turn import DeliverySlice, Turn
from clarion.wire.batch import Batch
from tests.unit.core.model import (
    ASSIGNED,
    DYING,
    IN_FLIGHT,
    SELECTORS,
    Message,
    ModelDestination,
    ModelSubscription,
    Range,
)
from tests.unit.core.model_host import Host

DEAD = 1
"""The destination of dead messages."""


class Purse:
    """What a client remembers of a credit."""

    def __init__(self, messages: int, size: int, unconfirmed_max: int) -> None:
        self.credit = Credit(messages, size, unconfirmed_max)
        self.messages, self.size = messages, size
        self.clients: list[Client] = []


class Client:
    """A consumer as its application knows it."""

    def __init__(
        self,
        consumer: Consumer,
        purse: Purse,
        destination: int,
        subscription: ModelSubscription,
        selector: str,
        ignored: int,
    ) -> None:
        self.consumer, self.purse = consumer, purse
        self.destination = destination
        self.subscription = subscription
        self.selector = selector
        self.ignored = ignored
        """A producer whose messages it does not want; 0 for none."""
        self.holds: set[int] = set()
        """What its application has not settled, wherever that is by now."""
        self.deadlines: dict[int, int] = {}
        self.last: dict[int, int] = {}
        """Priority → the last sequence that came in order."""
        self.parted = False

    def wants(self, message: Message) -> bool:
        return SELECTORS[self.selector](message) and message.producer != self.ignored

    def __repr__(self) -> str:
        return f"<client {self.consumer.number}>"


class Turns(Host):
    """The clients, and what they are sent."""

    def __init__(self, source: random.Random, segment_bytes: int, cache_bytes: int) -> None:
        super().__init__(segment_bytes, cache_bytes)
        self.random = source
        self.clients: dict[Consumer, Client] = {}
        self.dying: list[tuple[Destination, Subscription, list[Range], str]] = []
        self.mark_messages = 7
        self.ttl_ms = 0
        """How long a message may wait at most; 0 for as long as it wants."""
        self.group_last: dict[tuple[int, int, str, int, int], int] = {}
        self.unguarded: set[tuple[int, int, int]] = set()
        """Claimed by somebody else than the owner of their group: these may be with two consumers at a time."""

    def model_of(self, subscription: Subscription, destination: Destination) -> ModelSubscription:
        return self.live.destinations[destination.identity].subscriptions[subscription.identity]

    def is_expired(self, destination: int, message: Message) -> bool:
        """Nobody may have it any more."""
        ends = [message.expires_ms, message.created_ms + self.ttl_ms if self.ttl_ms and destination != DEAD else 0]
        return any(0 < end <= self.now_ms for end in ends)

    # --- groups ---------------------------------------------------------------------------------------

    def unassign(self, client: Client) -> None:
        """What waited for a client and does no more is ready for others."""
        model = client.subscription
        still = {s for first, end, _ in client.consumer.assigned for s in range(first, end)}
        others = any(one.subscription is model and one.selector != client.selector for one in self.clients.values())
        for sequence in [s for s, place in model.place.items() if place == (ASSIGNED, client) and s not in still]:
            del model.place[sequence]
            if others:  # whoever has another selector has an owner of its own for each group, and may be further
                model.came_back.add(sequence)

    def let_go(self) -> None:
        """What waited for somebody who left, and has settled something since, may be ready for others."""
        for client in self.clients.values():
            if client.parted and client.consumer.subscription.grouped:
                self.unassign(client)
                places, messages = client.subscription.place, self.live.destinations[client.destination].messages
                waiting = {messages[n].group for n, place in places.items() if place == (ASSIGNED, client)}
                held = {messages[n].group for n, place in places.items() if place == (IN_FLIGHT, client)}
                assert waiting <= held, "something waits for nothing"

    # --- turns ----------------------------------------------------------------------------------------

    def dispatch(self, destination: Destination, bytes_max: int) -> None:
        """One turn, and all that follows from it."""
        self.touched.add(destination.identity)
        self.let_go()
        limits = {
            one.identity: min(destination.visible, one.mark_durable) for one in destination.subscriptions.values()
        }
        before = _progress(destination)
        ttl_ms = 0 if destination.identity == DEAD else self.ttl_ms
        turn = dispatch(destination, self.cache, bytes_max, self.now_ms, ttl_ms)
        assert not turn.more or turn.expired or _progress(destination) != before, "it would turn for ever"
        model = self.live.destinations[destination.identity]
        self._set_aside(destination, model, turn)
        lowest: dict[tuple[int, str], int] = {}
        for consumer, slices in turn.deliveries.items():
            client = self.clients[consumer]
            self._receive(client, model, slices, limits[client.subscription.identity], lowest)
        self._pay(turn)
        self._adopt_assigned(destination, model)
        self._check_left(destination, model, turn, limits, lowest)
        for subscription, run in turn.unwanted:
            self.confirm_ranges(destination, subscription, [run])
        for page in turn.missing:
            if self.is_durable(page):
                self.cache.loaded(destination.identity, page.first, self.read(destination.identity, page))
        for subscription in turn.marks:
            self._mark(destination, subscription)
        for first, end in turn.damaged:
            self.give_up(destination, model, first, end)

    def _receive(
        self,
        client: Client,
        model: ModelDestination,
        slices: list[DeliverySlice],
        limit: int,
        lowest: dict[tuple[int, str], int],
    ) -> None:
        subscription = client.subscription
        before = before_assigned = 99
        for first, count, redelivered, parts in slices:
            batch = Batch.parse(b"".join(parts))
            for index in range(batch.count):
                sequence = first + index
                message = model.messages[sequence]
                headers, body = batch.record(index)
                assert (bytes(headers), bytes(body)) == (message.headers, message.body), "another message"
                assert batch.first_id + index == message.identity
                was = subscription.place.get(sequence)
                assert sequence in subscription.owed, "a confirmed message came again"
                assert was is None or was == (ASSIGNED, client), f"{sequence} was {was} and came all the same"
                assert sequence < limit, "it is not visible, or a crash would not flag it"
                assert not self.is_expired(client.destination, message), "it came after its time"
                assert client.wants(message), "it is not wanted"
                seen = sequence < subscription.seen_below
                returns = subscription.owed[sequence]
                assert redelivered == (returns > 0 or seen)
                assert count == max(returns + 1, 2 if seen else 1)
                if was is not None:
                    assert message.priority <= before_assigned, "a lower priority went before, of what was assigned"
                    before_assigned = message.priority
                else:
                    assert message.priority <= before, "a lower priority went before"
                    before = message.priority
                    key = (subscription.identity, client.selector)
                    lowest[key] = min(lowest.get(key, 99), message.priority)
                self._check_order(client, sequence, message)
                subscription.put(sequence, (IN_FLIGHT, client))
                client.holds.add(sequence)
                if client.consumer.visibility_ms:
                    client.deadlines[sequence] = self.now_ms + client.consumer.visibility_ms
                client.purse.messages -= 1
                client.purse.size -= message.size

    def _check_order(self, client: Client, sequence: int, message: Message) -> None:
        subscription = client.subscription
        if sequence not in subscription.touched:
            assert sequence > client.last.get(message.priority, 0), "out of order"
            client.last[message.priority] = sequence
        if not message.group:
            return
        key = (client.destination, subscription.identity, client.selector, message.group, message.priority)
        if sequence not in subscription.came_back:
            assert sequence > self.group_last.get(key, 0), "out of the order of its group"
            self.group_last[key] = sequence
        messages = self.live.destinations[client.destination].messages
        for other, (where, who) in subscription.place.items():
            if where == IN_FLIGHT and who is not client and messages[other].group == message.group:
                assert isinstance(who, Client)
                fine = who.selector != client.selector or (client.destination, subscription.identity, other) in (
                    self.unguarded
                )
                assert fine, f"{other} and {sequence} are of one group and with two consumers"

    def _set_aside(self, destination: Destination, model: ModelDestination, turn: Turn) -> None:
        """What a turn found to be expired, or not wanted."""
        for real, (first, end) in turn.expired:
            subscription = model.subscriptions[real.identity]
            for sequence in range(first, end):
                where = subscription.place.get(sequence, (ASSIGNED, None))[0]
                assert sequence in subscription.owed and where == ASSIGNED
                assert self.is_expired(model.identity, model.messages[sequence]), "it could have been delivered"
                subscription.put(sequence, (DYING, None))
            self.dying.append((destination, real, [(first, end)], "expired"))
        for real, (first, end) in turn.unwanted:
            subscription = model.subscriptions[real.identity]
            assert destination.kind == TOPIC
            wanting = [self.clients[consumer] for consumer in real.consumers if not self.clients[consumer].parted]
            for sequence in range(first, end):
                assert sequence in subscription.owed and sequence not in subscription.place
                assert not any(client.wants(model.messages[sequence]) for client in wanting), "it was wanted"

    def _pay(self, turn: Turn) -> None:
        """Credit is never exceeded, but by one message that is larger than what is left."""
        last = {
            consumer: Batch(b"".join(slices[-1][3])).data_bytes(
                -1 + Batch(b"".join(slices[-1][3])).count, Batch(b"".join(slices[-1][3])).count
            )
            for consumer, slices in turn.deliveries.items()
        }
        for consumer in turn.deliveries:
            purse = self.clients[consumer].purse
            assert purse.messages >= 0, "more messages than credit"
            if purse.size < 0:
                excess = max(size for other, size in last.items() if self.clients[other].purse is purse)
                assert purse.size + excess > 0, "more than one message too many"
            assert consumer.credit.held <= consumer.credit.unconfirmed_max

    def _adopt_assigned(self, destination: Destination, model: ModelDestination) -> None:
        """Which messages wait for one consumer is the dispatcher's choice; that they may is checked."""
        for real in destination.subscriptions.values():
            if not real.grouped:
                continue
            subscription = model.subscriptions[real.identity]
            for consumer in real.consumers:
                client = self.clients[consumer]
                for first, end, _ in consumer.assigned:
                    for sequence in range(first, end):
                        if subscription.place.get(sequence) != (ASSIGNED, client):
                            message = model.messages[sequence]
                            assert sequence in subscription.owed and sequence not in subscription.place
                            assert message.group, "assigned without a group"
                            assert client.parted or client.wants(message)
                            assert not self.is_expired(model.identity, message)
                            subscription.put(sequence, (ASSIGNED, client))

    def _check_left(
        self,
        destination: Destination,
        model: ModelDestination,
        turn: Turn,
        limits: dict[int, int],
        lowest: dict[tuple[int, str], int],
    ) -> None:
        """What could have been delivered and was not has a reason, and somebody knows that it waits."""
        there = self.there(model)
        excused = (
            turn.more
            or turn.missing
            or turn.damaged
            or any(
                len(consumer.assigned) >= sift._ASSIGNED_SPANS_MAX
                for one in destination.subscriptions.values()
                for consumer in one.consumers
            )
        )
        for real in destination.subscriptions.values():
            subscription = model.subscriptions[real.identity]
            for view in real.views.values():
                clients = [self.clients[consumer] for consumer in view.consumers]
                if not clients:
                    continue
                waiting = [
                    message.priority
                    for sequence in subscription.owed
                    if sequence < limits[real.identity] and sequence not in subscription.place and sequence in there
                    if clients[0].wants(message := model.messages[sequence])
                    and not self.is_expired(model.identity, message)
                ]
                best = max(waiting, default=-1)
                assert best <= lowest.get((real.identity, clients[0].selector), 99), "a higher priority was left"
                for client in clients:
                    if waiting or client.consumer.assigned:
                        if client.consumer.room > 0:
                            assert excused, "something waits for it, and it has room"
                        elif not turn.more:
                            starved = client.consumer.credit.starved
                            assert (
                                destination.identity in starved
                                or excused
                                or not (client.consumer.assigned or all(other.consumer.room <= 0 for other in clients))
                            ), "nobody will wake it"

    def _mark(self, destination: Destination, subscription: Subscription) -> None:
        mark = max(subscription.mark, subscription.cursor) + self.mark_messages
        self.write(Kind.MARK, Mark(destination.identity, subscription.identity, mark))

        def durable() -> None:
            subscription.mark_durable = mark
            subscription.mark_pending = False

        self.after(durable)

    def give_up(self, destination: Destination, model: ModelDestination, first: int, end: int) -> None:
        """What no page holds is given up; nothing but what was damaged on purpose, or freed before it was asked for."""
        assert self.there(model).isdisjoint(range(first, end)), f"something of [{first}, {end}) is gone"
        self.write(Kind.DISCARD, Ranges(destination.identity, 0, [(first, end)]))
        self.after(lambda: self.free(destination, [(first, end)]))

    def confirm_ranges(self, destination: Destination, subscription: Subscription, ranges: list[Range]) -> None:
        """By an entry if the subscription is durable."""
        self.touched.add(destination.identity)
        if subscription.durable:
            self.write(Kind.CONFIRM, Ranges(destination.identity, subscription.identity, ranges))
        else:
            subscription.confirm(ranges, destination.tail)
            self.model_of(subscription, destination).confirm(ranges)
        self.after(lambda: self.free(destination, ranges))

    def there(self, model: ModelDestination) -> set[int]:
        """What must be stored: not damaged, nor confirmed by all, and not kept, before somebody came who wants it."""
        gone = self.live.lost | self.live.rotten
        return {n for n in model.kept() if model.shown_at[n][0] not in gone} if gone else model.kept()


def _progress(destination: Destination) -> list[object]:
    """What changes whenever a turn does anything."""
    return [
        (
            view.cursor,
            view.returned.total(),
            [pool.total() for pool in (view._pools or {}).values()],
            [(consumer.held, consumer.assigned.total()) for consumer in view.consumers],
        )
        for subscription in destination.subscriptions.values()
        for view in sorted(subscription.views.values(), key=id)
    ]
