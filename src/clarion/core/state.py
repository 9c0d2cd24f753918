"""The state of a message manager: a function of its log.

`apply` is the one door through which durable state changes, in live operation and in replay alike. It
depends on nothing but the entries: no clock, no hash order, no thread. A checkpoint is a list of parts,
one per destination, each as of its own entry, made while entries go on; replay passes over, for
each destination, the entries it already reflects.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from clarion import limits
from clarion.core import entries
from clarion.core.destination import Destination
from clarion.core.entries import Kind

_PIECE_BYTES = limits.CHECKPOINT_PART_BYTES_MAX - 64


class State:
    """All destinations of one message manager."""

    __slots__ = ("_by_name", "applied", "destinations", "next_destination", "segment_bytes")

    def __init__(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.destinations: dict[int, Destination] = {}
        self._by_name: dict[str, Destination] = {}
        self.next_destination = 1
        self.applied = 0

    def find(self, name: str) -> Destination | None:
        """By bare name: queues and topics share one name space."""
        return self._by_name.get(name)

    def apply(self, index: int, kind: int, head: bytes, position: int = 0, span: int = 0) -> None:
        """Apply one entry; span 0 for a publish says that its body is lost."""
        self.applied = index
        match kind:
            case Kind.PUBLISH:
                self.apply_publish(index, entries.Publish.decode(head), position, span)
            case Kind.CONFIRM | Kind.RETURN | Kind.DISCARD:
                self._apply_ranges(index, kind, entries.Ranges.decode(head))
            case Kind.MARK:
                mark = entries.Mark.decode(head)
                if (destination := self._due(mark.destination, index)) is not None:
                    subscription = destination.subscriptions.get(mark.subscription)
                    if subscription is not None:
                        subscription.mark = max(subscription.mark, mark.mark)
            case Kind.CREATE:
                self._create(index, entries.Create.decode(head))
            case Kind.DROP:
                self._drop(index, entries.Drop.decode(head))
            case Kind.SUBSCRIBE:
                subscribe = entries.Subscribe.decode(head)
                if (destination := self._due(subscribe.destination, index)) is not None:
                    destination.add_subscription(
                        subscribe.name,
                        durable=True,
                        shared=subscribe.shared,
                        start=subscribe.start,
                        identity=subscribe.subscription,
                    )
            case Kind.UNSUBSCRIBE:
                unsubscribe = entries.Unsubscribe.decode(head)
                if (destination := self._due(unsubscribe.destination, index)) is not None:
                    destination.remove_subscription(unsubscribe.subscription)
            case Kind.PRODUCERS_CLOSED:
                closed = entries.ProducersClosed.decode(head)
                for identity in closed.destinations:
                    if (destination := self._due(identity, index)) is not None:
                        destination.producers.close(int.from_bytes(closed.producer, "big"))
            case _:
                raise AssertionError(f"entry {index} has the unknown kind {kind}")

    def apply_publish(self, index: int, entry: entries.Publish, position: int, span: int) -> None:
        """`apply` for the entry that is most frequent, already decoded."""
        self.applied = index
        if (destination := self._due(entry.destination, index)) is not None:
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

    def _create(self, index: int, entry: entries.Create) -> None:
        self.next_destination = max(self.next_destination, entry.destination + 1)
        if entry.destination in self.destinations:
            return
        destination = Destination(entry.destination, entry.kind, entry.name, self.segment_bytes, entry.quota_bytes)
        destination.applied = index
        self._add(destination)

    def _add(self, destination: Destination) -> None:
        self.destinations[destination.identity] = destination
        self._by_name[destination.name] = destination

    def _drop(self, index: int, entry: entries.Drop) -> None:
        destination = self._due(entry.destination, index)
        if destination is not None:
            del self.destinations[destination.identity]
            del self._by_name[destination.name]

    # --- checkpoints ----------------------------------------------------------------------------------

    def dump(self) -> Iterator[bytes]:
        """Checkpoint parts, each made when it is asked for; entries may be applied in between.

        A destination that comes or goes meanwhile is put right by the entries that are replayed.
        """
        yield msgspec.msgpack.encode([0, True, msgspec.msgpack.encode([self.next_destination, self.applied])])
        for identity in list(self.destinations):
            destination = self.destinations.get(identity)
            if destination is None:
                continue
            data = destination.dump()
            for at in range(0, len(data), _PIECE_BYTES):
                last = at + _PIECE_BYTES >= len(data)
                yield msgspec.msgpack.encode([identity, last, data[at : at + _PIECE_BYTES]])

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
                self.next_destination, self.applied = msgspec.msgpack.decode(data)

    def recovered(self) -> None:
        """Replay is over and everything is durable."""
        for destination in self.destinations.values():
            destination.recovered()
