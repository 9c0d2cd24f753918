"""What waits to be sent and to be answered: batches, tickets, and failures that nobody has been told of.

Guarantees
    1. A batch is encoded once, when it is sealed; the bytes are kept until it is answered, or, if its
       sender wants that, until its last message is delivered.
    2. Sealing gives a batch the next sequences of its producer, so a ticket knows its id from its batch.
    3. All messages of a batch have the same terms and belong to the same transaction, or to none.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from clarion.client.delivered import Delivery, How
from clarion.client.lanes import MESSAGE_WEIGHT_BYTES, Lane
from clarion.client.options import PLAIN, Choice, Terms
from clarion.client.outcome import Outcome, again
from clarion.client.prepacked import Packed
from clarion.errors import BadArgument, ClarionError
from clarion.ids import SEQUENCE_MAX, format_id
from clarion.wire import batch as wire

BATCH_KEPT_BYTES = 512
"""What a sealed batch costs besides its encoded bytes: counted, so that small ones cannot fill the memory unseen."""

Body = bytes | bytearray | memoryview | str


class _Expiry:
    """When the messages of a batch expire, as its header says it."""

    __slots__ = ("count", "first_ms", "last_ms")

    def __init__(self) -> None:
        self.count = 0
        self.first_ms = 0
        self.last_ms = 0

    def add(self, expires_at_ms: int, count: int) -> None:
        self.first_ms = min(self.first_ms, expires_at_ms) if self.count else expires_at_ms
        self.last_ms = max(self.last_ms, expires_at_ms)
        self.count += count


class OutBatch(Outcome):
    """One batch: open while messages are added, then sealed, then answered (`done`: stored, or failed)."""

    __slots__ = (
        "awaited",
        "bodies",
        "claimed",
        "count",
        "created_ms",
        "delivery",
        "destination",
        "easy_weight_max",
        "encoded",
        "expiry",
        "first",
        "first_id",
        "groups",
        "headers",
        "lane",
        "plain",
        "resend",
        "size_bytes",
        "stream",
        "terms",
        "transaction",
        "weight",
    )

    def __init__(self, lane: Lane, created_ms: int, terms: Terms = PLAIN, transaction: int = 0) -> None:
        self.done = False  # as `Outcome`, without the call
        self.error = None
        self._waiters = None
        self.lane = lane
        self.destination = lane.destination
        self.created_ms = created_ms
        self.terms = terms
        self.transaction = transaction
        self.plain = terms == PLAIN
        """Nothing of it needs more than bodies."""
        self.easy_weight_max = lane.weight_target if self.plain else 0
        """A message without any options may simply be added to `bodies` while all weighs less; 0 once it is sealed."""
        self.bodies: list[bytes] = []
        self.headers: list[bytes] | None = None
        self.groups: list[int] | None = None
        self.expiry: _Expiry | None = None
        self.weight = 0
        self.count = 0
        self.first_id = 0
        self.first = 0
        """Its first producer sequence, once sealed."""
        self.encoded: bytearray | None = None
        self.size_bytes = 0
        """Its size encoded, once sealed."""
        self.delivery: Delivery | None = None
        """Once sealed, if its sender wants to know of its delivery."""
        self.resend = False
        """It was sent on a connection that was lost: the broker may have it."""
        self.stream = b""
        """The id of the large body that it is the message of; empty for none."""
        self.awaited: set[int] | None = None
        """Which of its tickets somebody has awaited: the others' failures are told by `flush`."""
        self.claimed = 0
        """How many of its messages have no ticket, but somebody who waits for them."""

    def add(self, body: bytes, data_bytes: int, choice: Choice) -> None:
        """Add a message that has the terms of the batch; `data_bytes` is the size of its headers and body."""
        self._prepare(choice, 1)
        if self.headers is not None:
            self.headers.append(choice.headers)
        if self.groups is not None:
            self.groups.append(choice.group_hash)
        self.bodies.append(body)
        self.weight += data_bytes + MESSAGE_WEIGHT_BYTES

    def add_list(self, bodies: list[bytes], data_bytes: int, choice: Choice) -> None:
        """Add messages with the same options; the list becomes the batch's own."""
        count = len(bodies)
        self._prepare(choice, count)
        if self.headers is not None:
            self.headers += [choice.headers] * count
        if self.groups is not None:
            self.groups += [choice.group_hash] * count
        if self.bodies:
            self.bodies += bodies
        else:
            self.bodies = bodies
        self.weight += data_bytes + MESSAGE_WEIGHT_BYTES * count

    def _prepare(self, choice: Choice, count: int) -> None:
        if choice.headers and self.headers is None:
            self.headers = [b""] * len(self.bodies)
            self.plain = False
            self.easy_weight_max = 0
        if choice.group_hash and self.groups is None:
            self.groups = [0] * len(self.bodies)
        if choice.expires_at_ms:
            if self.expiry is None:
                self.expiry = _Expiry()
            self.expiry.add(choice.expires_at_ms, count)

    def seal(self, first_id: int, offsets: bytes | None = None) -> None:
        """Fix its ids and encode it; `offsets` are those of its records, if they are known already."""
        self.easy_weight_max = 0
        count = self.count = len(self.bodies)
        self.first_id = first_id
        self.first = first_id & SEQUENCE_MAX
        if count == 1 and self.plain and self.groups is None and self.expiry is None:
            self.encoded = wire.encode_lone(self.lane.name, first_id, self.bodies[0], self.created_ms)
            self.size_bytes = len(self.encoded)
            self.bodies = []
            return
        expiry = self.expiry
        self.encoded = wire.encode(
            self.lane.name,
            first_id,
            self.bodies,
            self.headers,
            self.groups,
            priority=self.terms.priority,
            created_ms=self.created_ms,
            deliver_at_ms=self.terms.deliver_at_ms,
            expiry_first_ms=expiry.first_ms if expiry is not None else 0,
            expiry_last_ms=expiry.last_ms if expiry is not None and expiry.count == count else 0,
            offsets=offsets,
        )
        self.size_bytes = len(self.encoded)
        self.bodies = []
        self.headers = None
        self.groups = None
        if self.terms.until:
            self.delivery = Delivery(count)

    def seal_packed(self, first_id: int, packed: Packed) -> None:
        """`seal` of a batch that never was open: its messages came encoded."""
        self.easy_weight_max = 0
        self.count = packed.count
        self.first_id = first_id
        self.first = first_id & SEQUENCE_MAX
        self.encoded = packed.encode(self.lane.name, first_id, self.created_ms)
        self.size_bytes = len(self.encoded)

    def all_awaited(self) -> bool:
        """Every message has somebody who gets the failure."""
        return self.claimed + (len(self.awaited) if self.awaited is not None else 0) >= self.count


class Ticket(msgspec.Struct, gc=False, eq=False):
    """A message given to `send_nowait`: await it for the id, once the message is durable.

    If it was sent with `until="any"` or `"every"`, once it is delivered: `how` says how.
    No future and no dictionary behind it, only its place in a batch: 0.1 µs to make.
    """

    _batch: OutBatch
    _index: int

    @property
    def done(self) -> bool:
        """It is answered, well or not: awaiting it does not wait."""
        batch = self._batch
        if batch.delivery is None or batch.error is not None:
            return batch.done
        return batch.done and batch.delivery.known(self._index)

    @property
    def how(self) -> How | None:
        """How it was delivered: `confirmed`, `unwanted` (no subscription), `expired` or `dead`. None until it was."""
        delivery = self._batch.delivery
        return delivery.how(self._index) if delivery is not None else None

    def __await__(self) -> Generator[object, None, str]:
        batch = self._batch
        if batch.awaited is None:
            batch.awaited = {self._index}
        else:
            batch.awaited.add(self._index)
        yield from batch.wait().__await__()
        if batch.delivery is not None:
            yield from batch.delivery.wait(self._index).__await__()
        return format_id(batch.first_id + self._index)


class BatchTicket(msgspec.Struct, gc=False, eq=False):
    """A batch given to `send_packed`: await it for the id of its first message, once the batch is durable.

    The ids of the others follow.
    """

    _batch: OutBatch

    @property
    def done(self) -> bool:
        """It is answered, well or not: awaiting it does not wait."""
        return self._batch.done

    @property
    def count(self) -> int:
        """How many messages it has."""
        return self._batch.count

    def __await__(self) -> Generator[object, None, str]:
        batch = self._batch
        batch.claimed = batch.count
        yield from batch.wait().__await__()
        return format_id(batch.first_id)


_FAILURES_MAX = 64


class Failures:
    """Failures that nobody has been told of yet; the first few, and never twice."""

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: list[tuple[ClarionError, OutBatch | None]] = []

    def note(self, error: ClarionError, batch: OutBatch | None = None) -> None:
        """A batch failed, or a confirmation."""
        if len(self._noted) < _FAILURES_MAX:
            self._noted.append((error, batch))

    def tell(self) -> None:
        """Raise the first one whose tickets were not all awaited, and forget all."""
        untold = [error for error, batch in self._noted if batch is None or not batch.all_awaited()]
        self._noted.clear()
        if untold:
            error = again(untold[0])
            if len(untold) > 1:
                error.add_note(f"and {len(untold) - 1} more since the last flush")
            raise error


def as_bytes(body: Body) -> bytes:
    """A body as bytes that cannot change any more. Raises `BadArgument` for anything but bytes and text."""
    if body.__class__ is bytes:
        return body
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if isinstance(body, str):
        try:
            return body.encode()
        except UnicodeEncodeError:
            raise BadArgument(argument="body", detail="it is not valid Unicode") from None
    raise BadArgument(argument="body", detail=f"it is a {type(body).__name__}, not bytes or str")
