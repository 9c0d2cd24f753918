"""What one consumer has received: parts of deliveries, credit, and what the application holds.

Guarantees
    1. Credit goes back when the application has taken messages, in chunks of half the prefetch or
       more, and adds up exactly to what was delivered (messages, and bytes of headers and bodies).
    2. `held` is what the application has seen and the broker has not yet confirmed as confirmed:
       after a reconnection it is claimed again, and nothing of it is delivered twice to us.
    3. Confirmations of one turn of the loop travel together, as ranges, and are kept until answered.

Pure but for the callback `mark`, which asks for a turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from crc32c import crc32c

from clarion import limits
from clarion.client.outcome import Outcome
from clarion.core.spans import Spans
from clarion.errors import BadBatch, ClarionError
from clarion.wire.batch import HEADER, Batch
from clarion.wire.frames import Slice, Type

HELD_RANGES_MAX = 65_536
"""Ranges claimed again after a reconnection; what is beyond comes again, flagged."""


class Part:
    """One slice of a delivery, and how far the application has taken it."""

    __slots__ = ("batch", "count", "credit_at", "credited", "delivery_count", "first", "index", "redelivered", "step")

    def __init__(self, delivered: Slice, half_messages: int, half_bytes: int) -> None:
        self.batch = batch = _checked(delivered.batch)
        self.first = delivered.first
        self.count = batch.count
        self.delivery_count = delivered.delivery_count
        self.redelivered = delivered.redelivered
        self.index = 0
        self.credited = 0
        # Credit is looked at every `step` messages: about half the prefetch, in messages or bytes.
        self.step = max(1, min(half_messages, self.count * half_bytes // max(1, len(batch.data))))
        self.credit_at = min(self.count, self.step)


def _checked(view: memoryview) -> Batch:
    """A batch whose bytes are what the broker sent. The broker checked the rest when it came in."""
    if len(view) < HEADER.size + 8:
        raise BadBatch(detail=f"{len(view)} bytes are shorter than any batch")
    batch = Batch(view)
    if batch.size != len(view) or batch.count < 1 or crc32c(view[4:]) != int.from_bytes(view[:4], "little"):
        raise BadBatch(detail="size or checksum of a delivery does not match")
    return batch


class Ack(Outcome):
    """Confirmations, or rejections, of one turn: sent together, answered frame by frame."""

    __slots__ = ("inbox", "kind", "ranges", "requests")

    def __init__(self, inbox: Inbox, kind: int) -> None:
        super().__init__()
        self.inbox = inbox
        self.kind = kind
        self.ranges = Spans()
        self.requests: dict[int, list[tuple[int, int]]] = {}
        """What each frame that is not answered yet carries, by request; empty until sent."""

    def chunks(self) -> Iterator[list[tuple[int, int]]]:
        """The ranges, as many at a time as a frame may have."""
        ranges = [(first, end) for first, end, _ in self.ranges]
        for at in range(0, len(ranges), limits.RANGES_PER_FRAME_MAX):
            yield ranges[at : at + limits.RANGES_PER_FRAME_MAX]


def done(inbox: Inbox) -> Ack:
    """A confirmation that there is nothing to do for."""
    ack = Ack(inbox, Type.CONFIRM)
    ack.settle()
    return ack


class Inbox:
    """The receiving end of one subscription."""

    __slots__ = (
        "_half_bytes",
        "_half_messages",
        "_mark",
        "confirming",
        "credit_bytes",
        "credit_messages",
        "current",
        "held",
        "parts",
        "rejecting",
        "unanswered",
    )

    def __init__(self, prefetch_messages: int, prefetch_bytes: int, mark: Callable[[], None]) -> None:
        self._half_messages = max(1, prefetch_messages // 2)
        self._half_bytes = max(1, prefetch_bytes // 2)
        self._mark = mark
        self.parts: deque[Part] = deque()
        self.current: Part | None = None
        self.held = Spans()
        self.credit_messages = 0
        self.credit_bytes = 0
        self.confirming: Ack | None = None
        self.rejecting: Ack | None = None
        self.unanswered: dict[Ack, None] = {}

    # --- deliveries -----------------------------------------------------------------------------------

    def deliver(self, delivered: Slice) -> None:
        """A slice arrived."""
        self.parts.append(Part(delivered, self._half_messages, self._half_bytes))

    def part(self) -> Part | None:
        """The part that has the next message; None when there is none."""
        current = self.current
        if current is not None and current.index < current.count:
            return current
        if not self.parts:
            return None
        self.current = current = self.parts.popleft()
        self.held.put(current.first, current.first + current.count)
        return current

    def give_credit(self, part: Part) -> None:
        """The application has taken `part` up to its index."""
        self.credit_messages += part.index - part.credited
        self.credit_bytes += part.batch.data_bytes(part.credited, part.index)
        part.credited = part.index
        part.credit_at = min(part.count, part.index + part.step)
        if self.credit_due:
            self._mark()

    @property
    def credit_due(self) -> bool:
        """Half of the prefetch is to be given back, in messages or bytes."""
        return self.credit_messages >= self._half_messages or self.credit_bytes >= self._half_bytes

    def unseen(self) -> list[tuple[int, int]]:
        """Drop what the application never saw: these ranges."""
        ranges: list[tuple[int, int]] = []
        current = self.current
        if current is not None and current.index < current.count:
            ranges.append((current.first + current.index, current.first + current.count))
            self.held.take(*ranges[0])
            current.count = current.index
        ranges += [(part.first, part.first + part.count) for part in self.parts]
        self.parts.clear()
        return ranges

    # --- confirmations --------------------------------------------------------------------------------

    def acknowledge(self, kind: int, first: int, end: int) -> Ack:
        """Confirm or reject a range with this turn's frame."""
        ack = self.confirming if kind == Type.CONFIRM else self.rejecting
        if ack is None:
            ack = Ack(self, kind)
            if kind == Type.CONFIRM:
                self.confirming = ack
            else:
                self.rejecting = ack
            self._mark()
        ack.ranges.put(first, end)
        return ack

    def take_acks(self) -> list[Ack]:
        """What was gathered, to be sent now; kept as unanswered."""
        acks = [ack for ack in (self.confirming, self.rejecting) if ack is not None]
        self.confirming = self.rejecting = None
        for ack in acks:
            self.unanswered[ack] = None
            self._let_go(ack)
        return acks

    def _let_go(self, ack: Ack) -> None:
        """Its messages are no more the application's. Done once for all of a turn, not per message."""
        for first, end, _ in ack.ranges:
            self.held.take(first, end)

    # --- connections come and go ----------------------------------------------------------------------

    def detach(self) -> None:
        """The connection is lost: unseen messages come again, rejected ones came back by themselves."""
        self.unseen()
        self.credit_messages = self.credit_bytes = 0
        self._returned()

    def _returned(self) -> None:
        """The end of the old session gave back what was rejected: to say it again could hit another's message."""
        rejections = [ack for ack in self.unanswered if ack.kind == Type.REJECT]
        if self.rejecting is not None:
            rejections.append(self.rejecting)
            self._let_go(self.rejecting)
            self.rejecting = None
        for ack in rejections:
            self.unanswered.pop(ack, None)
            ack.settle()

    def claim(self) -> list[tuple[int, int]]:
        """The connection is back. What to name as held: seen and not confirmed for certain."""
        self._returned()
        claimed = Spans([(first, end, 0) for first, end, _ in self.held])
        for ack in (*self.unanswered, self.confirming):
            if ack is not None:
                for first, end, _ in ack.ranges:
                    claimed.put(first, end)
        return [(first, end) for first, end, _ in claimed][:HELD_RANGES_MAX]

    def abandon(self, error: ClarionError) -> None:
        """The consumer failed: nothing more comes, and nothing can be confirmed."""
        self.unseen()
        self.held.clear()
        for ack in (*self.unanswered, self.confirming, self.rejecting):
            if ack is not None:
                ack.settle(error)
        self.unanswered.clear()
        self.confirming = self.rejecting = None

    @property
    def idle(self) -> bool:
        """Nothing is held and nothing waits for an answer."""
        return not (self.held or self.unanswered or self.confirming or self.rejecting)
