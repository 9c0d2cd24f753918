"""One lane per destination of a session: its open batch, what waits for the window, what waits for an answer.

Guarantees
    1. In a lane batches are sent in the order of their sequences, also when they are sent again.
    2. One batch of a lane is open at a time, so that messages keep their order whatever their
       priorities and times are.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING

from clarion import limits
from clarion.errors import MessageTooLarge
from clarion.wire import batch as wire

if TYPE_CHECKING:
    from clarion.client.outbox import OutBatch

MESSAGE_WEIGHT_BYTES = limits.BATCH_BYTES_TARGET // limits.BATCH_MESSAGES_TARGET
"""Added to each message's size, so that one comparison bounds bytes and count of a batch."""
_COLUMN_BYTES = 4

_first = attrgetter("first")


class Lane:
    """The batches of one destination."""

    __slots__ = (
        "blocked",
        "destination",
        "kept",
        "lone",
        "name",
        "open",
        "refused",
        "sent",
        "unanswered_bytes",
        "used",
        "waiting",
        "weight_max",
        "weight_target",
    )

    def __init__(self, destination: str, batch_bytes_max: int) -> None:
        self.destination = destination
        self.name = destination.encode()
        self.open: OutBatch | None = None
        self.waiting: deque[OutBatch] = deque()
        self.sent: dict[int, OutBatch] = {}
        self.used = 0
        """Bytes of `sent`: what of the producer window is used."""
        self.unanswered_bytes = 0
        """Bytes of everything that is sealed and has never been answered."""
        self.kept = 0
        """Sealed batches whose bytes are kept: not answered, or not yet delivered as their sender wants."""
        self.lone = False
        """The last batch was one message: the next one is likely to be one, too."""
        self.refused = 0
        """The sequence that was refused and must come next; 0 when nothing is."""
        self.blocked = 0
        """As `refused`, but until the broker says that it goes on: trying again does not change it."""
        fixed = wire.HEADER_BYTES + len(self.name) + 3
        self.weight_max = batch_bytes_max - fixed
        self.weight_target = min(limits.BATCH_BYTES_TARGET, self.weight_max // 2)

    @property
    def idle(self) -> bool:
        """It holds nothing that it would be missed for."""
        return self.open is None and not self.kept

    def check_size(self, body: int, headers: int, has_group: bool) -> None:
        """Raises `MessageTooLarge` for a message that does not fit a batch of its own."""
        columns = _COLUMN_BYTES * (2 + (headers > 0) + has_group)
        if headers + body + columns > self.weight_max:
            limit = self.weight_max - headers - columns
            raise MessageTooLarge(size=headers + body, limit=max(0, limit))

    def back(self, first: int) -> None:
        """Everything sent from sequence `first` on waits again, in order."""
        again = [batch for sequence, batch in self.sent.items() if sequence >= first]
        for batch in again:
            del self.sent[batch.first]
            self.used -= batch.size_bytes
        self.waiting.extendleft(reversed(again))

    def put_in_order(self) -> None:
        """Batches that were answered once are waiting again, and come before those that were not."""
        self.waiting = deque(sorted(self.waiting, key=_first))

    def take(self, batch: OutBatch) -> None:
        """A batch was answered."""
        if self.sent.pop(batch.first, None) is not None:
            self.used -= batch.size_bytes
        elif batch in self.waiting:
            self.waiting.remove(batch)
        if self.refused == batch.first:
            self.refused = 0
        if batch.first >= self.blocked:
            self.blocked = 0
