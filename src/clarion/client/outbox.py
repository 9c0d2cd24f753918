"""What waits to be sent and to be answered: tickets, batches, and one lane per destination.

Guarantees
    1. A batch is encoded once, when it is sealed; the bytes are kept until it is answered.
    2. Sealing gives a batch the next sequences of its producer, so a ticket knows its id from its batch.
    3. In a lane batches are sent in the order of their sequences, also when they are sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

import msgspec

from clarion import limits
from clarion.client.outcome import Outcome, again
from clarion.errors import BadArgument, ClarionError, MessageTooLarge
from clarion.ids import SEQUENCE_MAX, format_id
from clarion.wire import batch as wire

MESSAGE_WEIGHT_BYTES = limits.BATCH_BYTES_TARGET // limits.BATCH_MESSAGES_TARGET
"""Added to each message's size, so that one comparison bounds bytes and count of a batch."""


Body = bytes | bytearray | memoryview | str


class OutBatch(Outcome):
    """One batch: open while messages are added, then sealed, then answered."""

    __slots__ = (
        "awaited",
        "bodies",
        "count",
        "created_ms",
        "encoded",
        "first_id",
        "headers",
        "lane",
        "resend",
        "weight",
    )

    def __init__(self, lane: Lane, created_ms: int) -> None:
        super().__init__()
        self.lane = lane
        self.created_ms = created_ms
        self.bodies: list[bytes] = []
        self.headers: list[bytes] | None = None
        self.weight = 0
        self.count = 0
        self.first_id = 0
        self.encoded: bytearray | None = None
        self.resend = False
        """It was sent on a connection that was lost: the broker may have it."""
        self.awaited: set[int] | None = None
        """Which of its tickets somebody has awaited: the others' failures are told by `flush`."""

    @property
    def first(self) -> int:
        """Its first producer sequence, once sealed."""
        return self.first_id & _SEQUENCE

    @property
    def bytes(self) -> int:
        """Its size, once sealed and until answered."""
        return len(self.encoded) if self.encoded is not None else 0

    def seal(self, first_id: int) -> None:
        """Fix its ids and encode it."""
        self.first_id = first_id
        self.count = len(self.bodies)
        self.encoded = wire.encode(self.lane.name, first_id, self.bodies, self.headers, created_ms=self.created_ms)
        self.bodies = []
        self.headers = None

    def all_awaited(self) -> bool:
        """Every ticket has somebody who gets the failure."""
        return self.awaited is not None and len(self.awaited) == self.count


_SEQUENCE = SEQUENCE_MAX
_FAILURES_MAX = 64


class Ticket(msgspec.Struct, gc=False, eq=False):
    """A message given to `send_nowait`: await it for the id, once the message is durable.

    No future and no dictionary behind it, only its place in a batch: 0.1 µs to make.
    """

    _batch: OutBatch
    _index: int

    @property
    def done(self) -> bool:
        """It is answered, well or not."""
        return self._batch.done

    def __await__(self) -> Generator[object, None, str]:
        batch = self._batch
        if batch.awaited is None:
            batch.awaited = {self._index}
        else:
            batch.awaited.add(self._index)
        yield from batch.wait().__await__()
        return format_id(batch.first_id + self._index)


class Lane:
    """One destination of one session: its open batch, what waits for the window, what waits for an answer."""

    __slots__ = ("destination", "name", "open", "refused", "sent", "used", "waiting", "weight_max", "weight_target")

    def __init__(self, destination: str, name: bytes, batch_bytes_max: int) -> None:
        self.destination = destination
        self.name = name
        self.open: OutBatch | None = None
        self.waiting: deque[OutBatch] = deque()
        self.sent: dict[int, OutBatch] = {}
        self.used = 0
        """Bytes of `sent`: what of the producer window is used."""
        self.refused = 0
        """The sequence that was refused and must come next; 0 when nothing is."""
        fixed = wire.HEADER_BYTES + len(name) + 3
        self.weight_max = batch_bytes_max - fixed
        self.weight_target = min(limits.BATCH_BYTES_TARGET, self.weight_max // 2)

    def check_size(self, headers: int, body: int) -> None:
        """Raises `MessageTooLarge` for a message that does not fit a batch of its own."""
        columns = 12 if headers else 8
        if headers + body + columns > self.weight_max:
            limit = self.weight_max - headers - columns
            raise MessageTooLarge(size=headers + body, limit=max(0, limit))

    def back(self, first: int) -> None:
        """Everything sent from sequence `first` on waits again, in order."""
        again = [batch for sequence, batch in self.sent.items() if sequence >= first]
        for batch in again:
            del self.sent[batch.first]
            self.used -= batch.bytes
        self.waiting.extendleft(reversed(again))

    def take(self, batch: OutBatch) -> None:
        """A batch was answered."""
        if self.sent.pop(batch.first, None) is not None:
            self.used -= batch.bytes
        elif batch in self.waiting:
            self.waiting.remove(batch)

    def unanswered(self) -> list[OutBatch]:
        """Sealed and not answered, in order."""
        return [*self.sent.values(), *self.waiting]


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
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if isinstance(body, str):
        return body.encode()
    raise BadArgument(argument="body", detail=f"it is a {type(body).__name__}, not bytes or str")
