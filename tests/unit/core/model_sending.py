"""Producers of the model: batches with all their options, and transactions over several destinations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from clarion import ids
from clarion.core.destination import Destination
from clarion.core.entries import Change, Kind, Outcome, Prepared, ProducersClosed, Publish, Stage, runs_of
from clarion.core.sift import earliest_expiry_ms
from clarion.message import Headers, encode_headers
from clarion.wire.batch import Batch, encode
from tests.unit.core.model import IN_FLIGHT, Message, Range
from tests.unit.core.model_clients import Clients
from tests.unit.core.model_turns import DEAD, Client

PRODUCERS = [7 << ids.SEQUENCE_BITS, 8 << ids.SEQUENCE_BITS]


class Transaction(NamedTuple):
    """What a session does between two commits."""

    identity: bytes
    consumed: dict[Client, set[int]]


class Sending(Clients):
    """What producers do."""

    def __init__(self, source: random.Random, segment_bytes: int, cache_bytes: int) -> None:
        super().__init__(source, segment_bytes, cache_bytes)
        self.features: set[str] = set()
        self.depth_max = 20
        self._sequences = dict.fromkeys(PRODUCERS, 1)
        self._transaction = 0
        self.open: list[Transaction] = []
        self.prepared: list[bytes] = []
        self._version = 0

    def tell(self, *facts: object) -> None:
        """Say more about the present step."""

    # --- choosing -------------------------------------------------------------------------------------

    def some_destination(self, dead: float = 0.0) -> Destination:
        if dead and self.random.random() < dead:
            return self.state.destinations[DEAD]
        return self.random.choice([one for one in self.state.destinations.values() if one.identity != DEAD])

    def some_client(self, *, holding: bool = False) -> Client | None:
        known = list(self.clients.values())
        if holding:
            known = [one for one in known if one.holds] or known
        return self.random.choice(known) if known else None

    def free_of(self, client: Client) -> set[int]:
        """What it holds; mostly without what is part of a transaction."""
        if not self.open or self.random.random() < 0.05:
            return client.holds
        return client.holds.difference(*(one.consumed.get(client, ()) for one in self.open))

    def some_of(self, sequences: Sequence[int] | set[int]) -> list[Range]:
        """A part of these, as ranges: all, one, a few, or twice over."""
        known = sorted(sequences)
        if not known:
            return []
        how = self.random.randint(0, 3)
        if how == 0:
            return runs_of(known)
        if how == 1:
            first = self.random.choice(known)
            return [(first, first + 1)]
        chosen = sorted(self.random.sample(known, self.random.randint(1, len(known))))
        return runs_of(chosen) if how == 2 else [(n, n + 1) for n in chosen] + runs_of(chosen)

    # --- publishing -----------------------------------------------------------------------------------

    def messages(self, count: int, destination: Destination) -> tuple[list[Message], bytes, int]:
        """A batch: (messages, bytes, deliver at)."""
        chance = self.random
        producer = chance.choice(PRODUCERS)
        first_id = producer + self._sequences[producer]
        self._sequences[producer] += count
        priority = chance.choice([0, 4, 4, 9]) if "priorities" in self.features else 4
        made: list[Message] = []
        for index in range(count):
            color = chance.choice(["red", "blue"])
            number = chance.randint(0, 9)
            group = chance.choice([0, 1, 2, 3]) if "groups" in self.features else 0
            expires = chance.choice([0, self.now_ms + 50 * chance.randint(1, 120)]) if "expiry" in self.features else 0
            plain = not self.features & {"selectors", "expiry"}
            headers = (
                b""
                if plain
                else encode_headers(Headers(expires_at_ms=expires, properties={"color": color, "number": number}))
            )
            body = b"%d" % first_id * chance.randint(0, 2)
            made.append(
                Message(first_id + index, headers, body, priority, group, expires, self.now_ms, producer, color, number)
            )
        deliver_at = 0
        if "delays" in self.features and chance.random() < 0.3:
            deliver_at = self.now_ms + 50 * chance.randint(1, 60)
        times = [message.expires_ms for message in made if message.expires_ms]
        data = encode(
            str(destination).encode(),
            first_id,
            [message.body for message in made],
            [message.headers for message in made],
            [message.group for message in made] if any(message.group for message in made) else None,
            priority=priority,
            created_ms=self.now_ms,
            deliver_at_ms=deliver_at,
            expiry_first_ms=min(times, default=0),
            expiry_last_ms=max(times) if len(times) == count else 0,
        )
        return made, bytes(data), deliver_at

    def publish(self) -> None:
        destination = self.some_destination()
        if self.live.destinations[destination.identity].depth > self.depth_max or len(destination.stages) > 10:
            return
        self.store(destination, b"")

    def store(self, destination: Destination, transaction: bytes) -> None:
        """A batch of a producer: visible at once, or kept in the wings."""
        messages, data, deliver_at = self.messages(self.random.choice([1, 1, 2, 5, 20]), destination)
        batch = Batch.parse(data)
        staged = bool(transaction) or deliver_at > self.now_ms
        entry = Publish(
            destination.identity,
            batch.count,
            0 if staged else destination.tail,
            ids.sequence_of(batch.first_id),
            batch.first_id,
            self.now_ms,
            earliest_expiry_ms(batch, self.ttl_ms),
            batch.expiry_last_ms,
            batch.priority,
            self.random.choice([0, 0, 0, 1, 2]),
        )
        self.touched.add(destination.identity)
        self.tell(destination, batch.count, "staged" if staged else destination.tail)
        if staged:
            stage = Stage(entry, destination.stages.next_number, deliver_at, transaction)
            self.write(Kind.STAGE, stage, data, messages)
            return
        self.write(Kind.PUBLISH, entry, data, messages)
        page = destination.pages.last
        self.cache.published(destination.identity, page.first, page.first != entry.first, entry.first, batch)
        self.after_shown(destination)

    def after_shown(self, destination: Destination) -> None:
        """They are seen when they are durable."""
        tail = destination.tail

        def durable() -> None:
            destination.visible = max(destination.visible, tail)
            self.free(destination)

        self.after(durable)

    def close_producer(self) -> None:
        producer = self.random.choice(PRODUCERS)
        closed = ProducersClosed(producer.to_bytes(16, "big"), sorted(self.state.destinations))
        self.write(Kind.PRODUCERS_CLOSED, closed)

    # --- transactions ---------------------------------------------------------------------------------

    def begin(self) -> None:
        if len(self.open) < 3:
            self._transaction += 1
            identity = PRODUCERS[0].to_bytes(16, "big") + self._transaction.to_bytes(8, "big")
            self.open.append(Transaction(identity, {}))

    def produce(self) -> None:
        destination = self.some_destination()
        if self.open and len(destination.stages) < 10:
            self.store(destination, self.random.choice(self.open).identity)

    def consume(self) -> None:
        """Something that a client holds becomes part of a transaction."""
        client = self.some_client(holding=True)
        if not self.open or client is None:
            return
        taken = {s for one in self.open for s in one.consumed.get(client, ())}
        held = [s for f, e, _ in client.consumer.inflight for s in range(f, e) if s not in taken]
        chosen = {s for first, end in self.some_of(held) for s in range(first, end)}
        self.random.choice(self.open).consumed.setdefault(client, set()).update(chosen)

    def changes(self, transactions: list[bytes], *, committed: bool) -> dict[int, Change]:
        """What a decision does to each destination."""
        changes: dict[int, Change] = {}
        for transaction in transactions:
            for identity, numbers in self.state.transactions.stages.get(transaction, {}).items():
                destination = self.state.destinations.get(identity)
                if destination is None:
                    continue
                change = self._change(changes, destination)
                late = {n for n in numbers if self.live.destinations[identity].stages[n].due_ms > self.now_ms}
                if not committed:
                    change.dropped += runs_of(numbers)
                else:
                    change.visible += runs_of([number for number in numbers if number not in late])
                    change.delayed += runs_of(sorted(late))
            prepared = self.live.prepared.get(transaction)
            for identity, subscription, ranges in prepared.consumed if prepared else ():
                if identity in self.state.destinations:
                    change = self._change(changes, self.state.destinations[identity])
                    (change.confirmed if committed else change.returned).append((subscription, ranges))
        return changes

    @staticmethod
    def _change(changes: dict[int, Change], destination: Destination) -> Change:
        return changes.setdefault(destination.identity, Change(destination.identity, first=destination.tail))

    def decide(self, transactions: list[bytes], changes: dict[int, Change], *, committed: bool, key: str = "") -> None:
        """One entry, and its effects."""
        in_order = [changes[identity] for identity in sorted(changes)]
        self._version += 1
        reason = "" if committed else "because"
        self.tell(committed, [(c.destination, c.visible, c.delayed, c.confirmed, c.returned) for c in in_order])
        self.write(
            Kind.OUTCOME,
            Outcome(transactions, committed, self.now_ms, in_order, key, self._version if key else 0, reason),
        )
        for change in in_order:
            self._follow(self.state.destinations[change.destination], change)

    def _follow(self, destination: Destination, change: Change) -> None:
        self.touched.add(destination.identity)
        if change.visible:
            self.after_shown(destination)
        confirmed = [run for _, ranges in change.confirmed for run in ranges]

        def durable() -> None:
            if self.state.destinations.get(destination.identity) is not destination:
                return
            self.free(destination, confirmed)
            for identity, ranges in change.returned:
                subscription = destination.subscriptions.get(identity)
                if subscription is not None:
                    self.bury_worn(destination, subscription, ranges)
            dropped, destination.dropped = destination.dropped, []
            for position, span in dropped:
                self.release(position, span)

        self.after(durable)

    def _take_open(self) -> tuple[Transaction, list[tuple[Client, list[Range]]], bool] | None:
        """A transaction with what is still in flight with it; and whether all of it is."""
        if not self.open:
            return None
        chosen = self.open.pop(self.random.randrange(len(self.open)))
        consumed: list[tuple[Client, list[Range]]] = []
        whole = True
        for client, sequences in chosen.consumed.items():
            if client.consumer not in self.clients:
                whole &= not sequences
                continue
            held = sorted(s for s in sequences if client.subscription.place.get(s) == (IN_FLIGHT, client))
            whole &= len(held) == len(sequences)
            if held:
                consumed.append((client, runs_of(held)))
        return chosen, consumed, whole

    def commit(self) -> None:
        found = self._take_open()
        if found is None:
            return
        transaction, consumed, whole = found
        if not whole:
            self._abort(transaction.identity, consumed)
            return
        changes = self.changes([transaction.identity], committed=True)
        for client, ranges in consumed:
            change = self._change(changes, self.state.destinations[client.destination])
            change.confirmed.append((client.subscription.identity, ranges))
        if changes:
            self.decide([transaction.identity], changes, committed=True)
        for client, ranges in consumed:
            client.holds -= {s for first, end in ranges for s in range(first, end)}
            self.leave_if_done(client)

    def roll_back(self) -> None:
        found = self._take_open()
        if found is not None:
            self._abort(found[0].identity, found[1])

    def _abort(self, transaction: bytes, consumed: list[tuple[Client, list[Range]]]) -> None:
        changes = self.changes([transaction], committed=False)
        if changes:
            self.decide([transaction], changes, committed=False)
        for client, ranges in consumed:
            destination, subscription = self.real(client)
            if subscription.durable:
                self.give_back(client, ranges, "rolled back")
            else:
                self.confirm_ranges(destination, subscription, ranges)
                client.holds -= {s for first, end in ranges for s in range(first, end)}
            self.leave_if_done(client)

    def prepare(self) -> None:
        found = self._take_open()
        if found is None:
            return
        transaction, consumed, whole = found
        if not whole or not all(client.subscription.durable for client, _ in consumed):
            self._abort(transaction.identity, consumed)
            return
        kept = [(client.destination, client.subscription.identity, ranges) for client, ranges in consumed]
        self.tell(kept)
        self.write(Kind.PREPARED, Prepared(transaction.identity, self.now_ms, self.now_ms + 10_000, kept))
        self.prepared.append(transaction.identity)
        for client, ranges in consumed:
            self.touched.add(client.destination)
            client.holds -= {s for first, end in ranges for s in range(first, end)}
            self.leave_if_done(client)

    def decide_prepared(self) -> None:
        if self.prepared:
            chosen = self.random.sample(self.prepared, self.random.randint(1, len(self.prepared)))
            self.prepared = [one for one in self.prepared if one not in chosen]
            committed = self.random.random() < 0.6
            key = self.random.choice(["", "k1", "k2"]) if committed else ""
            self.decide(chosen, self.changes(chosen, committed=committed), committed=committed, key=key)
