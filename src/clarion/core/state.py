"""The state of a message manager: a function of its log.

`apply` is the one door through which durable state changes, in live operation and in replay alike. It
depends on nothing but the entries: no clock, no hash order, no thread. A checkpoint is a list of parts: the
tables that belong to no destination, then one part per destination, each as of its own entry, made while
entries go on; replay passes over, for each part, the entries it already reflects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from clarion import limits
from clarion.core import entries
from clarion.core.destination import Destination
from clarion.core.entries import Kind, SetPattern
from clarion.core.leases import Leases
from clarion.core.policies import PolicyTable, parse_policy
from clarion.core.streams import Streams
from clarion.core.transactions import Transactions

_PIECE_BYTES = limits.CHECKPOINT_PART_BYTES_MAX - 64


class State:
    """All destinations of one message manager, and what belongs to none of them."""

    __slots__ = (
        "_appliers",
        "_by_name",
        "_tables_applied",
        "applied",
        "destinations",
        "leases",
        "next_destination",
        "next_pattern",
        "patterns",
        "policies",
        "segment_bytes",
        "streams",
        "transactions",
    )

    def __init__(self, segment_bytes: int, policies: PolicyTable | None = None) -> None:
        self.segment_bytes = segment_bytes
        self.destinations: dict[int, Destination] = {}
        self._by_name: dict[str, Destination] = {}
        self.next_destination = 1
        self.applied = 0
        self._tables_applied = 0
        """What the tables reflected when they were loaded: earlier entries change them no more."""
        self.transactions = Transactions()
        self.streams = Streams()
        self.leases = Leases()
        self.policies = policies or PolicyTable()
        self.patterns: dict[int, SetPattern] = {}
        """Durable subscriptions to patterns, by number."""
        self.next_pattern = 1
        self._appliers: dict[int, Callable[[int, bytes], None]] = {
            Kind.MARK: self._mark,
            Kind.CREATE: self._create,
            Kind.DROP: self._drop,
            Kind.SUBSCRIBE: self._subscribe,
            Kind.UNSUBSCRIBE: self._unsubscribe,
            Kind.PRODUCERS_CLOSED: self._producers_closed,
            Kind.OUTCOME: self._outcome,
            Kind.DUE: self._due_time,
            Kind.PREPARED: self._prepared,
            Kind.POLICY: self._policy,
            Kind.PATTERN: self._pattern,
            Kind.RETURNED: self._returned,
            Kind.RETAIN: self._retain,
            Kind.STREAM_DROPPED: self._stream_dropped,
            Kind.LEASE: self._lease,
        }

    def find(self, name: str) -> Destination | None:
        """By bare name: queues and topics share one name space."""
        return self._by_name.get(name)

    def apply(self, index: int, kind: int, head: bytes, position: int = 0, span: int = 0) -> None:
        """Apply one entry; span 0 for one with a batch says that the batch is lost."""
        self.applied = index
        match kind:
            case Kind.PUBLISH:
                self.apply_publish(index, entries.Publish.decode(head), position, span)
            case Kind.CONFIRM | Kind.RETURN | Kind.DISCARD:
                self._apply_ranges(index, kind, entries.Ranges.decode(head))
            case Kind.STAGE:
                self._stage(index, entries.Stage.decode(head), position, span)
            case Kind.FRAGMENT:
                self._fragment(index, entries.Fragment.decode(head), position, span)
            case Kind.LARGE:
                self._large(index, entries.Large.decode(head), position, span)
            case Kind.TRANSFER:
                self._transfer(index, entries.Transfer.decode(head), position, span)
            case _:
                applier = self._appliers.get(kind)
                if applier is None:
                    raise AssertionError(f"entry {index} has the unknown kind {kind}")
                applier(index, head)

    def apply_publish(self, index: int, entry: entries.Publish, position: int, span: int) -> None:
        """`apply` for the entry that is most frequent, already decoded."""
        self.applied = index
        destination = self.destinations.get(entry.destination)
        if destination is not None and index > destination.applied:  # as `_due`
            destination.applied = index
            destination.apply_publish(entry, position, span)

    def _due(self, identity: int, index: int) -> Destination | None:
        """The destination of an entry, unless it is gone or already reflects the entry."""
        destination = self.destinations.get(identity)
        if destination is None or index <= destination.applied:
            return None
        destination.applied = index
        return destination

    def _apply_ranges(self, index: int, kind: int, entry: entries.Ranges) -> None:
        destination = self._due(entry.destination, index)
        if destination is None:
            return
        if kind == Kind.DISCARD:
            destination.apply_discard(entry.ranges)
            return
        subscription = destination.subscriptions.get(entry.subscription)
        if subscription is None:
            return
        if kind == Kind.CONFIRM:
            subscription.confirm(entry.ranges, destination.tail)
        else:
            subscription.count_return(entry.ranges)

    # --- destinations and subscriptions ---------------------------------------------------------------

    def _create(self, index: int, head: bytes) -> None:
        entry = entries.Create.decode(head)
        self.next_destination = max(self.next_destination, entry.destination + 1)
        if entry.destination in self.destinations or index <= self._tables_applied:
            return  # it is known, or was dropped before its part of the checkpoint was made
        destination = Destination(entry.destination, entry.kind, entry.name, self.segment_bytes, entry.quota_bytes)
        destination.applied = index
        self._add(destination)
        for number in entry.patterns:
            pattern = self.patterns.get(number)
            if pattern is not None:
                destination.add_subscription(
                    pattern.name,
                    durable=True,
                    shared=pattern.shared,
                    start=1,
                    selector=pattern.selector,
                    pattern=number,
                    no_local=pattern.no_local,
                )

    def _add(self, destination: Destination) -> None:
        self.destinations[destination.identity] = destination
        self._by_name[destination.name] = destination

    def _drop(self, index: int, head: bytes) -> None:
        destination = self._due(entries.Drop.decode(head).destination, index)
        if destination is not None:
            del self.destinations[destination.identity]
            del self._by_name[destination.name]
            if destination.stages:
                self.transactions.dropped(destination.identity)
        if index > self._tables_applied:
            self.streams.drop_destination(entries.Drop.decode(head).destination)

    def _subscribe(self, index: int, head: bytes) -> None:
        entry = entries.Subscribe.decode(head)
        if (destination := self._due(entry.destination, index)) is not None:
            destination.add_subscription(
                entry.name,
                durable=True,
                shared=entry.shared,
                start=entry.start,
                identity=entry.subscription,
                selector=entry.selector,
                pattern=entry.pattern,
                no_local=entry.no_local,
            )

    def _unsubscribe(self, index: int, head: bytes) -> None:
        entry = entries.Unsubscribe.decode(head)
        if (destination := self._due(entry.destination, index)) is not None:
            destination.remove_subscription(entry.subscription)

    def _mark(self, index: int, head: bytes) -> None:
        mark = entries.Mark.decode(head)
        if (destination := self._due(mark.destination, index)) is not None:
            subscription = destination.subscriptions.get(mark.subscription)
            if subscription is not None:
                subscription.mark = max(subscription.mark, mark.mark)

    def _producers_closed(self, index: int, head: bytes) -> None:
        closed = entries.ProducersClosed.decode(head)
        for identity in closed.destinations:
            if (destination := self._due(identity, index)) is not None:
                destination.producers.close(int.from_bytes(closed.producer, "big"))

    def _returned(self, index: int, head: bytes) -> None:
        entry = entries.Returned.decode(head)
        if (destination := self._due(entry.destination, index)) is not None:
            subscription = destination.subscriptions.get(entry.subscription)
            if subscription is not None:
                subscription.count_return(entry.ranges, entry.time_ms, entry.reason)

    def _retain(self, index: int, head: bytes) -> None:
        entry = entries.Retain.decode(head)
        if (destination := self._due(entry.destination, index)) is not None:
            destination.retained_from = entry.first

    # --- stages and transactions ----------------------------------------------------------------------

    def _stage(self, index: int, entry: entries.Stage, position: int, span: int) -> None:
        if (destination := self._due(entry.batch.destination, index)) is not None:
            destination.apply_stage(entry, position, span)
            if entry.transaction:
                self.transactions.staged(entry.transaction, destination.identity, entry.number)

    def _fragment(self, index: int, entry: entries.Fragment, position: int, span: int) -> None:
        if index > self._tables_applied:
            destination, number, stream, offset, size, checksum, stored_ms = entry
            self.streams.append(number, stream, destination, offset, size, checksum, stored_ms, position, span)

    def _large(self, index: int, entry: entries.Large, position: int, span: int) -> None:
        batch, number, _, transaction = entry.stage
        if index > self._tables_applied:
            self.streams.complete(entry.stream, batch.first_id, entry.size)
        if (destination := self._due(batch.destination, index)) is not None:
            destination.apply_large(entry, position, span)
            if transaction:
                self.transactions.staged(transaction, destination.identity, number)

    def _stream_dropped(self, index: int, head: bytes) -> None:
        if index > self._tables_applied:
            self.streams.drop(entries.StreamDropped.decode(head).streams)

    def _outcome(self, index: int, head: bytes) -> None:
        entry = entries.Outcome.decode(head)
        for change in entry.changes:
            if (destination := self._due(change.destination, index)) is not None:
                destination.apply_change(change, entry.time_ms)
        if index > self._tables_applied:
            self.transactions.apply_outcome(entry)

    def _due_time(self, index: int, head: bytes) -> None:
        entry = entries.Due.decode(head)
        if (destination := self._due(entry.change.destination, index)) is not None:
            destination.apply_change(entry.change, entry.time_ms)

    def _prepared(self, index: int, head: bytes) -> None:
        entry = entries.Prepared.decode(head)
        if index > self._tables_applied:
            self.transactions.apply_prepared(entry)
        consumed: dict[int, list[tuple[int, list[entries.Range]]]] = {}
        for identity, number, ranges in entry.consumed:
            consumed.setdefault(identity, []).append((number, ranges))
        for identity, of_subscriptions in consumed.items():
            if (destination := self._due(identity, index)) is not None:
                for number, ranges in of_subscriptions:
                    subscription = destination.subscriptions.get(number)
                    if subscription is not None:
                        subscription.reserve(ranges)

    def _transfer(self, index: int, entry: entries.Transfer, position: int, span: int) -> None:
        if (target := self._due(entry.destination, index)) is not None:
            target.apply_transfer(entry, position, span)
        if (source := self._due(entry.source, index)) is not None:
            subscription = source.subscriptions.get(entry.source_subscription)
            if subscription is not None:
                subscription.confirm(entry.ranges, source.tail)

    # --- tables ---------------------------------------------------------------------------------------

    def _policy(self, index: int, head: bytes) -> None:
        entry = entries.SetPolicy.decode(head)
        if index <= self._tables_applied:
            return
        if entry.policy is None:
            self.policies.remove(entry.pattern)
        else:
            self.policies.set(entry.pattern, parse_policy(entry.policy))

    def _pattern(self, index: int, head: bytes) -> None:
        entry = entries.SetPattern.decode(head)
        if index <= self._tables_applied:
            return
        self.next_pattern = max(self.next_pattern, entry.number + 1)
        if entry.name:
            self.patterns[entry.number] = entry
        else:
            self.patterns.pop(entry.number, None)

    def _lease(self, index: int, head: bytes) -> None:
        if index > self._tables_applied:
            self.leases.apply(entries.SetLease.decode(head))

    # --- checkpoints ----------------------------------------------------------------------------------

    def dump(self) -> Iterator[bytes]:
        """Checkpoint parts, each made when it is asked for; entries may be applied in between.

        A destination that comes or goes meanwhile is put right by the entries that are replayed.
        """
        patterns = [pattern.encode() for pattern in self.patterns.values()]
        tables: list[Any] = [self.next_destination, self.applied]
        tables += [self.transactions.dump(), self.policies.dump(), self.next_pattern, patterns, self.streams.dump()]
        tables.append(self.leases.dump())
        identities = list(self.destinations)  # as of the tables: whatever is made from here on is replayed
        yield from _pieces(0, msgspec.msgpack.encode(tables))
        for identity in identities:
            destination = self.destinations.get(identity)
            if destination is not None:
                yield from _pieces(identity, destination.dump())

    def load(self, parts: list[bytes]) -> None:
        """The inverse of `dump`, into an empty state, before replay."""
        gathered: list[bytes] = []
        for part in parts:
            identity, last, piece = msgspec.msgpack.decode(part)
            gathered.append(piece)
            if not last:
                continue
            data = b"".join(gathered)
            gathered.clear()
            if identity:
                self._add(Destination.load(data, self.segment_bytes))
            else:
                self._load_tables(msgspec.msgpack.decode(data))
        for destination in self.destinations.values():
            for staged in destination.stages:
                if staged.transaction:
                    self.transactions.staged(staged.transaction, destination.identity, staged.number)

    def _load_tables(self, tables: list[Any]) -> None:
        self.next_destination, self.applied, *more = tables
        self._tables_applied = self.applied
        if more:
            transactions, policies, self.next_pattern, patterns, *newer = more
            self.transactions = Transactions.load(transactions)
            self.policies.load(policies)
            self.patterns = {entry.number: entry for entry in map(SetPattern.decode, patterns)}
            if newer:
                self.streams = Streams.load(newer[0])
            if len(newer) > 1:
                self.leases = Leases.load(newer[1])

    def count_streams(self) -> None:
        """After a replay: large bodies that no message needs are gone; destinations know what theirs take."""
        references = [
            (destination.identity, number)
            for destination in self.destinations.values()
            for number in (*destination.large.values(), *(staged.stream for staged in destination.stages))
            if number
        ]
        self.streams.count(references)
        for stream in self.streams:
            for identity, times in stream.held.items():
                if (destination := self.destinations.get(identity)) is not None:
                    destination.bytes_streamed += times * stream.bytes_live

    def recovered(self) -> None:
        """Replay is over and everything is durable."""
        for destination in self.destinations.values():
            destination.recovered()


def _pieces(identity: int, data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), _PIECE_BYTES):
        last = at + _PIECE_BYTES >= len(data)
        yield msgspec.msgpack.encode([identity, last, data[at : at + _PIECE_BYTES]])
