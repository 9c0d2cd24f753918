"""Publishing: from a batch on the bus to an entry of the log, or a refusal.

Rules
    1. A batch is answered exactly once for each time it is received, except those that follow a
       refused one: they are dropped, because the client sends them again in order.
    2. PUBLISHED leaves only when the batch is durable, also for a double.
    3. Admission looks at the destination's quota, the journal's room beyond its reserve, and what is
       not durable yet; it never waits, so one full destination delays no other.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from clarion import ids, limits
from clarion.core.destination import Destination
from clarion.core.entries import Kind, ProducersClosed, Publish
from clarion.core.producers import Verdict
from clarion.errors import BadBatch, ClarionError, JournalFull, ProducerForgotten
from clarion.nodes.message_manager.sessions import Session
from clarion.wire import frames
from clarion.wire.batch import Batch
from clarion.wire.commands import Command

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_LOW_WATER = 0.9
"""Producers are resumed when a destination holds less than this part of its quota."""


class Publishing:
    """The publishing side of a message manager."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._settled: dict[int, list[bytes]] = {}
        self._waiting: OrderedDict[tuple[int, int], int] = OrderedDict()
        """(destination, session) → refused sequence, in the order of refusal."""
        self.pending_bytes = 0
        self._pending_bytes_max = host.settings.message_manager.publish_pending_bytes_max
        registry = host.registry
        self._messages = registry.counter("mm.published", unit="messages", meaning="messages stored durably")
        self._bytes = registry.counter("mm.published_bytes", unit="bytes", meaning="batches stored durably")
        self._doubles = registry.counter("mm.doubles", unit="messages", meaning="resent messages dropped")
        self._refusals = registry.counter("mm.refusals", unit="batches", meaning="batches refused for want of room")
        self._before = registry.test_point("mm.before_publish", meaning="a batch is about to be logged")
        self._durable = registry.test_point("mm.before_published", meaning="a batch is durable, not yet confirmed")

    @property
    def waiting(self) -> int:
        """How many producers wait for room."""
        return len(self._waiting)

    def handle(self, command: Command) -> None:
        """One PUBLISH."""
        floor = int(frames.FLOOR.unpack_from(command.payload)[0])
        batch = Batch(command.payload[frames.FLOOR.size :])
        session = self._host.sessions.get(command.session)
        first = ids.sequence_of(batch.first_id)
        destination: Destination | None = None
        try:
            destination = self._host.resolve(batch.destination.decode())
            self._judge(session, destination, batch, floor, bool(command.flags & frames.RESEND))
        except ClarionError as error:
            if destination is not None:
                self._let_pass(session, destination)
            self._fail(session, first, batch.count, error)

    def _judge(self, session: Session, destination: Destination, batch: Batch, floor: int, resend: bool) -> None:
        producer, first = ids.producer_of(batch.first_id), ids.sequence_of(batch.first_id)
        refused = session.refusing.get(destination.identity)
        if refused is not None and first > refused:
            return
        match destination.producers.judge(producer, first, first + batch.count, floor, resend):
            case Verdict.NEW:
                self._admit(session, destination, batch, first, floor)
            case Verdict.DOUBLE:
                self._doubles.add(batch.count)
                self._host.log.after(lambda: self._settle(session.identity, first, batch.count))
            case Verdict.FORGOTTEN:
                raise ProducerForgotten(producer=ids.format_id(producer))
            case verdict:
                raise BadBatch(detail=verdict.value)

    def _admit(self, session: Session, destination: Destination, batch: Batch, first: int, floor: int) -> None:
        reason = self._no_room(destination, batch.size)
        if reason is None:
            self._before()
            entry = Publish(destination.identity, batch.count, destination.tail, floor, batch.first_id)
            try:
                position, span = self._host.log.publish(entry, batch.buffer)
            except JournalFull:
                reason = "persistent memory is full"
            else:
                self._stored(session, destination, batch, first, entry, position, span)
                return
        self._refusals.add()
        session.refusing[destination.identity] = first
        self._waiting[destination.identity, session.identity] = first
        payload = [frames.FLOOR.pack(first), frames.pack({"destination": str(destination), "reason": reason})]
        self._host.send(session.identity, frames.Type.REFUSED, payload)

    def _no_room(self, destination: Destination, size: int) -> str | None:
        quota = self._host.quota_bytes(destination)
        if destination.pages.bytes_live + size > quota:
            return f"its quota of {quota} bytes is used up"
        if self._host.journal.room() < size:
            return "persistent memory is full"
        if self.pending_bytes + size > self._pending_bytes_max:
            return "too much is waiting for the disk"
        return None

    def _stored(
        self,
        session: Session,
        destination: Destination,
        batch: Batch,
        first: int,
        entry: Publish,
        position: int,
        span: int,
    ) -> None:
        self._let_pass(session, destination)
        session.published.add(destination.identity)
        host = self._host
        host.journal.retain(position, span)
        page = destination.pages.last
        host.cache.published(destination.identity, page.first, page.first != entry.first, entry.first, batch)
        size, count, end = batch.size, batch.count, entry.first + entry.messages
        self.pending_bytes += size

        def durable() -> None:
            self._durable()
            self.pending_bytes -= size
            self._messages.add(count)
            self._bytes.add(size)
            destination.visible = end
            self._settle(session.identity, first, count)
            host.delivery.wake(destination)
            if not destination.subscriptions:
                host.release(destination)

        host.log.after(durable)

    def _let_pass(self, session: Session, destination: Destination) -> None:
        """The refused batch has its answer: what follows it is no longer dropped."""
        session.refusing.pop(destination.identity, None)
        self._waiting.pop((destination.identity, session.identity), None)

    def _settle(self, session: int, first: int, count: int) -> None:
        if not self._settled:
            self._host.soon(self.flush)  # the log flushes sooner, when a commit was the reason
        self._settled.setdefault(session, []).append(frames.SETTLED.pack(first, count, 0))

    def flush(self) -> None:
        """Tell every session what became durable: one frame each, however many batches."""
        if self._settled:
            settled, self._settled = self._settled, {}
            for session, confirmations in settled.items():
                self._host.send(session, frames.Type.PUBLISHED, [b"".join(confirmations)])

    def _fail(self, session: Session, first: int, count: int, error: ClarionError) -> None:
        payload = [frames.SETTLED.pack(first, count, 0), frames.pack(frames.error_facts(error))]
        self._host.send(session.identity, frames.Type.PUBLISH_FAILED, payload)

    # --- room comes back ------------------------------------------------------------------------------

    def resume(self) -> None:
        """Let producers go on that wait for room: first come, first served, as many as fit."""
        if not self._waiting:
            return
        # A little more than none, so that nobody is resumed for one batch; little also of a small journal.
        margin = min(limits.PRODUCER_WINDOW_BYTES // 16, self._host.upkeep.capacity_bytes // 64)
        room = self._host.journal.room() - margin
        budget = min(room, self._pending_bytes_max - self.pending_bytes)
        granted: dict[int, int] = {}
        for (identity, session), first in list(self._waiting.items()):
            if budget <= 0:
                return
            destination = self._host.state.destinations.get(identity)
            if destination is None or self._host.sessions.find(session) is None:
                del self._waiting[identity, session]
                continue
            used = destination.pages.bytes_live + granted.get(identity, 0)
            if used >= self._host.quota_bytes(destination) * _LOW_WATER:
                continue
            granted[identity] = granted.get(identity, 0) + limits.PRODUCER_WINDOW_BYTES
            budget -= limits.PRODUCER_WINDOW_BYTES
            del self._waiting[identity, session]
            payload = [frames.FLOOR.pack(first), str(destination).encode()]
            self._host.send(session, frames.Type.RESUME, payload)

    def ended(self, session: Session, producer: int, clean: bool) -> None:
        """A session is over; a clean end lets its producer be forgotten."""
        for identity in session.refusing:
            self._waiting.pop((identity, session.identity), None)
        if clean and session.published:
            known = sorted(session.published & self._host.state.destinations.keys())
            entry = ProducersClosed(producer.to_bytes(16, "big"), known)
            try:
                self._host.log.write(Kind.PRODUCERS_CLOSED, entry.encode())
            except JournalFull:
                pass  # it is then forgotten by age
