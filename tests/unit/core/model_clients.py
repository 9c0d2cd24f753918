"""Clients of the model: they come, settle, hold on to what they have, and go."""

from __future__ import annotations

import random
from collections.abc import Sequence

from clarion.core.consumer import Consumer
from clarion.core.destination import Destination
from clarion.core.entries import Kind, Ranges, Returned, runs_of
from clarion.core.subscription import Subscription
from clarion.selector import compile_selector
from tests.unit.core.model import DYING, IN_FLIGHT, LATER, RESERVED, Range
from tests.unit.core.model_turns import Client, Purse, Turns


class Clients(Turns):
    """What clients do."""

    def __init__(self, source: random.Random, segment_bytes: int, cache_bytes: int) -> None:
        super().__init__(source, segment_bytes, cache_bytes)
        self.ghosts: list[Client] = []
        """Whose connection or server is gone: they may come back with what they hold."""
        self.deliveries_max = 0
        self._number = 0

    def real(self, client: Client) -> tuple[Destination, Subscription]:
        return self.state.destinations[client.destination], client.consumer.subscription

    # --- they come ------------------------------------------------------------------------------------

    def attach(
        self,
        destination: Destination,
        subscription: Subscription,
        selector: str,
        purse: Purse,
        *,
        held: Sequence[Range] = (),
        visibility_ms: int = 0,
        ignored: int = 0,
    ) -> Client:
        """A consumer, perhaps one that comes back."""
        self._number += 1
        ignores = (lambda producer: producer == ignored) if ignored else None
        consumer = Consumer(1, self._number, subscription, purse.credit, visibility_ms=visibility_ms, ignores=ignores)
        model = self.model_of(subscription, destination)
        client = Client(consumer, purse, destination.identity, model, selector, ignored)
        delivered_below = subscription.cursor
        got = subscription.attach(consumer, held, compile_selector(selector) if selector else None, self.now_ms)
        claimed = {sequence for first, end in got for sequence in range(first, end)}
        expected = {
            sequence
            for sequence in model.within(held)
            if sequence < delivered_below and model.place.get(sequence, ("", None))[0] not in (DYING, RESERVED)
        }
        assert claimed == expected, f"held: got {sorted(claimed)}, expected {sorted(expected)}"
        unknown = {n for n in claimed if n < model.seen_below or n not in model.touched}
        for sequence in claimed:
            model.put(sequence, (IN_FLIGHT, client))
            model.came_back.add(sequence)
            if visibility_ms:
                client.deadlines[sequence] = self.now_ms + visibility_ms
        client.holds |= claimed
        for other in self.clients.values():
            if other.subscription is model:
                self.unassign(other)  # the owner of a group may be another one now
        self._note_shared_groups(client, claimed, unknown)
        self.clients[consumer] = client
        purse.clients.append(client)
        return client

    def _note_shared_groups(self, client: Client, claimed: set[int], unknown: set[int]) -> None:
        """Claims may tear a group apart: it is with two consumers because it is so, or because nobody knew of it."""
        messages, model = self.live.destinations[client.destination].messages, client.subscription
        elsewhere = {
            messages[n].group for n, place in model.place.items() if place[0] == IN_FLIGHT and n not in claimed
        }
        for sequence in claimed:
            if sequence in unknown or messages[sequence].group in elsewhere:
                self.unguarded.add((client.destination, model.identity, sequence))

    # --- they settle ----------------------------------------------------------------------------------

    def confirm(self, client: Client, ranges: list[Range]) -> None:
        """As its message manager does: only what was delivered and is not confirmed."""
        destination, subscription = self.real(client)
        floor, cursor = subscription.confirmed.floor, subscription.cursor
        within = [(max(first, floor), min(end, cursor)) for first, end in ranges]
        ranges = [(f, e) for f, e in within if f < e and not subscription.confirmed.covers(f, e)]
        subscription.hint = client.consumer
        if ranges:
            self.confirm_ranges(destination, subscription, ranges)
        client.holds = {held for held in client.holds if not any(first <= held < end for first, end in ranges)}
        self.leave_if_done(client)

    def give_back(self, client: Client, ranges: list[Range], reason: str = "", delay_ms: int = 0) -> None:
        """What it has of these comes back, counted; perhaps later, perhaps as a dead message."""
        destination, subscription = self.real(client)
        self.touched.add(destination.identity)
        model = client.subscription
        due_ms = self.now_ms + delay_ms if delay_ms else 0
        back = subscription.take_back(client.consumer, ranges, due_ms)
        expected = {s for s in model.within(ranges) if model.place.get(s) == (IN_FLIGHT, client)}
        assert {s for first, end in back for s in range(first, end)} == expected
        for sequence in expected:
            model.ready(sequence)
            if due_ms:
                model.put(sequence, (LATER, due_ms))
        client.holds -= expected
        self.count(destination, subscription, back, reason)

    def count(self, destination: Destination, subscription: Subscription, back: list[Range], reason: str) -> None:
        if not back:
            return
        if not subscription.durable:
            subscription.count_return(back, self.now_ms, reason)
            self.model_of(subscription, destination).count(back, self.now_ms, reason)
        elif reason:
            entry = Returned(destination.identity, subscription.identity, back, self.now_ms, reason)
            self.write(Kind.RETURNED, entry)
        else:
            self.write(Kind.RETURN, Ranges(destination.identity, subscription.identity, back))
        self.bury_worn(destination, subscription, back)

    def bury_worn(self, destination: Destination, subscription: Subscription, ranges: list[Range]) -> None:
        """What came back too often becomes dead."""
        if not self.deliveries_max:
            return
        model = self.model_of(subscription, destination)
        worn = sorted(s for s in model.within(ranges) if model.owed[s] >= self.deliveries_max)
        if worn:
            self.bury(destination, subscription, runs_of(worn), "worn")

    def bury(self, destination: Destination, subscription: Subscription, ranges: list[Range], reason: str) -> None:
        """Out of sight until it is logged."""
        self.touched.add(destination.identity)
        model = self.model_of(subscription, destination)
        taken = subscription.bury(ranges)
        expected = {s for s in model.within(ranges) if model.place.get(s, ("", None))[0] not in (DYING, RESERVED)}
        assert {s for first, end in taken for s in range(first, end)} == expected
        for sequence in expected:
            model.put(sequence, (DYING, None))
        if taken:
            self.dying.append((destination, subscription, taken, reason))

    # --- they go --------------------------------------------------------------------------------------

    def part(self, client: Client, unseen: list[Range]) -> None:
        """It takes no more, and keeps what it has seen. What it has not seen goes back, uncounted."""
        destination, subscription = self.real(client)
        self.touched.add(destination.identity)
        client.consumer.credit.detached = True
        client.parted = True
        for first, end in subscription.take_back(client.consumer, unseen):
            for sequence in range(first, end):
                client.subscription.ready(sequence)
                client.holds.discard(sequence)
        subscription.leave(client.consumer)
        self.unassign(client)
        self.leave_if_done(client)

    def restart(self, client: Client) -> None:
        """Nobody has seen what it has: it goes back, uncounted, and so does what waits for it."""
        destination, subscription = self.real(client)
        self.touched.add(destination.identity)
        model = client.subscription
        theirs = [sequence for sequence, place in model.place.items() if place == (IN_FLIGHT, client)]
        subscription.restart(client.consumer)
        for sequence in theirs:
            model.ready(sequence)
            client.holds.discard(sequence)
        self.unassign(client)
        self.leave_if_done(client)

    def leave_if_done(self, client: Client) -> None:
        if client.parted and not client.consumer.inflight and client.consumer in self.clients:
            self._detach(client)

    def _detach(self, client: Client) -> None:
        destination, subscription = self.real(client)
        self.touched.add(destination.identity)
        back = subscription.detach(client.consumer)
        assert not back, "it was all given back before"
        self.unassign(client)
        del self.clients[client.consumer]
        client.purse.clients.remove(client)
        if not subscription.durable and not subscription.consumers:
            destination.remove_subscription(subscription.identity)
            del self.live.destinations[destination.identity].subscriptions[subscription.identity]
            self.free(destination, [(1, destination.tail)])

    def end(self, client: Client) -> None:
        """Its session is over: what it has comes back, counted. Its application may still hold it."""
        client.consumer.credit.detached = True
        client.parted = True
        ghost = set(client.holds)
        everything = [(first, end) for first, end, _ in client.consumer.inflight]
        self.give_back(client, everything)
        self._detach(client)
        client.holds = ghost
        self.ghosts.append(client)
