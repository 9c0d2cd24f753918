"""What one consumer has received: parts of deliveries, credit, and what the application holds.

Guarantees
    1. Credit goes back when the application has taken messages, in chunks of half the prefetch or
       more, and adds up exactly to what was delivered (messages, and bytes of headers and bodies).
    2. `held` is what the application has seen and the broker has not yet confirmed as confirmed:
       after a reconnection it is claimed again, and nothing of it is delivered twice to us.
    3. Confirmations of one turn of the loop travel together, as ranges, and are kept until answered.

Pure but for the owner's `_mark`, which asks for a turn. A consumer has one inbox; one of a pattern has one
for each destination (`clarion.client.merged`), and they share their credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from crc32c import crc32c

from clarion import limits
from clarion.client.outcome import Outcome, again
from clarion.core.spans import Spans
from clarion.errors import BadBatch, ClarionError
from clarion.wire import frames
from clarion.wire.batch import HEADER, Batch
from clarion.wire.frames import Slice, Type

HELD_RANGES_MAX = 65_536
"""Ranges claimed again after a reconnection; what is beyond comes again, flagged."""

Ranges = list[tuple[int, int]]


class Owner(Protocol):
    """The consumer, as its inboxes see it."""

    def _mark(self, inbox: Inbox) -> None:
        """Something is to be sent."""

    def _check_open(self) -> None:
        """Raises when the session is over."""


class Part:
    """One slice of a delivery, and how far the application has taken it."""

    __slots__ = (
        "batch",
        "count",
        "credit_at",
        "credited",
        "delivery_count",
        "first",
        "inbox",
        "index",
        "redelivered",
        "step",
    )

    def __init__(self, inbox: Inbox, delivered: Slice, credit: Credit) -> None:
        self.inbox = inbox
        self.batch = batch = _checked(delivered.batch)
        self.first = delivered.first
        self.count = batch.count
        self.delivery_count = delivered.delivery_count
        self.redelivered = delivered.redelivered
        self.index = 0
        self.credited = 0
        # Credit is looked at every `step` messages: about half the prefetch, in messages or bytes.
        half_bytes = self.count * credit.half_bytes // max(1, len(batch.data))
        self.step = max(1, min(credit.half_messages, half_bytes))
        self.credit_at = min(self.count, self.step)


def _checked(view: memoryview) -> Batch:
    """A batch whose bytes are what the broker sent. The broker checked the rest when it came in."""
    if len(view) < HEADER.size + 8:
        raise BadBatch(detail=f"{len(view)} bytes are shorter than any batch")
    batch = Batch(view)
    if batch.size != len(view) or batch.count < 1 or crc32c(view[4:]) != int.from_bytes(view[:4], "little"):
        raise BadBatch(detail="size or checksum of a delivery does not match")
    return batch


class Credit:
    """What the application has taken and the broker may deliver again."""

    __slots__ = ("bytes", "half_bytes", "half_messages", "messages")

    def __init__(self, prefetch_messages: int, prefetch_bytes: int) -> None:
        self.half_messages = max(1, prefetch_messages // 2)
        self.half_bytes = max(1, prefetch_bytes // 2)
        self.clear()

    def clear(self) -> None:
        """It was given, or what it was for is no more."""
        self.messages = 0
        self.bytes = 0

    def add(self, part: Part) -> bool:
        """The application has taken `part` up to its index: whether it is time to give credit."""
        self.messages += part.index - part.credited
        self.bytes += part.batch.data_bytes(part.credited, part.index)
        part.credited = part.index
        part.credit_at = min(part.count, part.index + part.step)
        return self.due

    @property
    def due(self) -> bool:
        """Half of the prefetch is to be given back, in messages or bytes."""
        return self.messages >= self.half_messages or self.bytes >= self.half_bytes


class Ack(Outcome):
    """Confirmations, or rejections, of one turn: sent together, answered frame by frame."""

    __slots__ = ("delay_ms", "kind", "ranges", "reason", "requests")

    def __init__(self, kind: int, reason: str | None = None, delay_ms: int | None = None) -> None:
        super().__init__()
        self.kind = kind
        self.reason = reason
        self.delay_ms = delay_ms
        self.ranges = Spans()
        self.requests: dict[int, Ranges] = {}
        """What each frame that is not answered yet carries, by request; empty until sent."""

    def chunks(self) -> Iterator[Ranges]:
        """The ranges, as many at a time as a frame may have."""
        ranges = [(first, end) for first, end, _ in self.ranges]
        for at in range(0, len(ranges), limits.RANGES_PER_FRAME_MAX):
            yield ranges[at : at + limits.RANGES_PER_FRAME_MAX]

    def payload(self, consumer: int, request: int, chunk: Ranges) -> bytes:
        """One frame of it."""
        if self.kind != Type.RETURN:
            return frames.pack_ack(consumer, request, chunk)
        said = {"request": request, "consumer": consumer, "ranges": chunk, "reason": self.reason}
        return frames.pack({**said, "delay_ms": self.delay_ms})


def done() -> Ack:
    """A confirmation that there is nothing to do for."""
    ack = Ack(Type.CONFIRM)
    ack.settle()
    return ack


class Inbox:
    """The receiving end of one subscription: consumer number `number` of the session."""

    __slots__ = (
        "_owner",
        "confirming",
        "destination",
        "error",
        "held",
        "number",
        "over",
        "parts",
        "rejecting",
        "returning",
        "unanswered",
    )

    def __init__(self, owner: Owner, number: int, destination: str) -> None:
        self._owner = owner
        self.number = number
        """0: the broker has not given it one, or the connection that it was for is lost."""
        self.destination = destination
        self.parts: deque[Part] = deque()
        self.held = Spans()
        self.over = False
        """Nothing can be confirmed here any more: because of `error`, or because nothing is left."""
        self.error: ClarionError | None = None
        self.confirming: Ack | None = None
        self.rejecting: Ack | None = None
        self.returning: dict[tuple[str | None, int | None], Ack] = {}
        """Rejections with their reasons and delays."""
        self.unanswered: dict[Ack, None] = {}

    # --- deliveries -----------------------------------------------------------------------------------

    def next_part(self) -> Part:
        """The oldest part, which the application takes now."""
        part = self.parts.popleft()
        self.held.put(part.first, part.first + part.count)
        return part

    def drop_parts(self) -> Ranges:
        """Forget what the application never saw: these ranges."""
        ranges = [(part.first, part.first + part.count) for part in self.parts]
        self.parts.clear()
        return ranges

    # --- confirmations --------------------------------------------------------------------------------

    def acknowledge(self, kind: int, first: int, end: int) -> Outcome:
        """The application confirms or rejects a range: it goes with this turn's frame."""
        if self.over:
            return self._too_late()
        ack = self.confirming if kind == Type.CONFIRM else self.rejecting
        if ack is None:
            ack = Ack(kind)
            if kind == Type.CONFIRM:
                self.confirming = ack
            else:
                self.rejecting = ack
            self._owner._mark(self)
        ack.ranges.put(first, end)
        if kind != Type.CONFIRM:
            self.held.take(first, end)  # so that nothing confirms it meanwhile
        return ack

    def give_back(self, first: int, end: int, reason: str | None, delay_ms: int | None) -> Outcome:
        """Reject a range, with a reason and a delay if there are any."""
        if reason is None and delay_ms is None:
            return self.acknowledge(Type.REJECT, first, end)
        if self.over:
            return self._too_late()
        ack = self.returning.get((reason, delay_ms))
        if ack is None:
            ack = self.returning[reason, delay_ms] = Ack(Type.RETURN, reason, delay_ms)
            self._owner._mark(self)
        ack.ranges.put(first, end)
        self.held.take(first, end)
        return ack

    def confirm_held(self, first: int, end: int) -> list[Outcome]:
        """Confirm what of a range the application still holds."""
        pieces = [] if self.over else self.held.overlap(first, end)
        return [Inbox.acknowledge(self, Type.CONFIRM, *piece[:2]) for piece in pieces]

    def _too_late(self) -> Ack:
        if self.error is not None:  # the end of the session or the connection too
            raise again(self.error)
        self._owner._check_open()
        return done()  # everything was confirmed or given back before

    def pending(self) -> list[Ack]:
        """Every confirmation and rejection that is not answered yet, sent or not."""
        gathered = (self.confirming, self.rejecting, *self.returning.values())
        return [*self.unanswered, *(ack for ack in gathered if ack is not None)]

    def take_acks(self) -> list[Ack]:
        """What was gathered, to be sent now; kept as unanswered."""
        acks = [ack for ack in (self.confirming, self.rejecting, *self.returning.values()) if ack is not None]
        self.confirming = self.rejecting = None
        self.returning.clear()
        for ack in acks:
            self.unanswered[ack] = None
            for first, end, _ in ack.ranges:  # done once for all of a turn, not per message
                self.held.take(first, end)
        return acks

    # --- connections come and go ----------------------------------------------------------------------

    def detach(self) -> None:
        """The connection is lost: unseen messages come again, rejected ones came back by themselves."""
        self.drop_parts()
        self._returned()

    def _returned(self) -> None:
        """The end of the old session gave back what was rejected: to say it again could hit another's message."""
        for ack in self.pending():
            if ack.kind != Type.CONFIRM:
                self.unanswered.pop(ack, None)
                ack.settle()
        self.rejecting = None
        self.returning.clear()

    def forget(self) -> None:
        """What was held comes again, or is gone with its destination: there is nothing to claim or confirm."""
        self.held.clear()
        for ack in self.pending():
            ack.settle()
        self.unanswered.clear()
        self.confirming = self.rejecting = None
        self.returning.clear()

    def claim(self) -> Ranges:
        """The connection is back. What to name as held: seen and not confirmed for certain."""
        self._returned()
        claimed = Spans([(first, end, 0) for first, end, _ in self.held])
        for ack in self.pending():
            for first, end, _ in ack.ranges:
                claimed.put(first, end)
        return [(first, end) for first, end, _ in claimed][:HELD_RANGES_MAX]

    def abandon(self, error: ClarionError) -> None:
        """The consumer failed: nothing more comes, and nothing can be confirmed."""
        self.over = True
        self.error = error
        self.drop_parts()
        self.held.clear()
        for ack in self.pending():
            ack.settle(error)
        self.unanswered.clear()
        self.confirming = self.rejecting = None
        self.returning.clear()

    @property
    def idle(self) -> bool:
        """Nothing is held and nothing waits for an answer."""
        return not (self.held or self.unanswered or self.confirming or self.rejecting or self.returning)
