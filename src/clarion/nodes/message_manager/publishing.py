"""Publishing: from a batch on the bus to an entry of the log, or a refusal.

Rules
    1. A batch is answered exactly once for each time it is received, except those that follow a
       refused one: they are dropped, because the client sends them again in order.
    2. PUBLISHED leaves only when the batch is durable, also for a double. Of a batch that is stored in part, as a
       producer that lost its memory may cut it, the missing messages are stored and no others.
    3. Admission (room.py) looks at the destination's quota, the journal's room beyond its reserve, and what is
       not durable yet; it never waits, so one full destination delays no other.
    4. Of a sparse batch exactly its sequences are stored, and known as stored: never what is in its gaps. It is of no
       transaction, without delay and large body, and nobody waits for its delivery.
    5. A batch of a transaction, or one with a time to be delivered at, is stored in the wings: it is confirmed
       alike, and seen when its transaction is committed and its time has come.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from clarion import ids, limits
from clarion.core.destination import Destination
from clarion.core.entries import Kind, Large, ProducersClosed, Publish, Stage
from clarion.core.policies import Effective
from clarion.core.producers import Verdict
from clarion.core.sift import earliest_expiry_ms
from clarion.core.sparse import Range, pack_runs, places, sequence_runs
from clarion.core.streams import Stream
from clarion.errors import (
    BadBatch,
    Blocked,
    ClarionError,
    JournalFull,
    LimitReached,
    MessageTooLarge,
    ProducerForgotten,
    ProducerTaken,
)
from clarion.nodes.message_manager.sessions import Session
from clarion.wire import frames
from clarion.wire.batch import IDS, Batch, Buffer
from clarion.wire.commands import Command

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_STAGED_BATCHES_MAX = 1_000_000
"""Batches in the wings of one destination."""
_UNTIL = frames.UNTIL_ANY | frames.UNTIL_EVERY
_Answer = tuple[int, int]
"""First producer sequence and count of a batch as it was received."""
_RUN_BYTES_MAX = 8
"""What a run of a sparse batch takes in the head of its entry."""


class Publishing:
    """The publishing side of a message manager."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._answers: deque[tuple[int, int, bytes]] = deque()
        """Position of an entry, session, what to tell it when that is durable: in the order of the entries."""
        registry = host.registry
        self._messages = registry.tally("mm.published", unit="messages", meaning="messages stored durably")
        self._bytes = registry.tally("mm.published_bytes", unit="bytes", meaning="batches stored durably")
        self._doubles = registry.counter("mm.doubles", unit="messages", meaning="resent messages dropped")
        self._before = registry.test_point("mm.before_publish", meaning="a batch is about to be logged")
        self._durable = registry.test_point("mm.before_published", meaning="a batch is durable, not yet confirmed")

    def handle(self, command: Command) -> None:
        """One PUBLISH."""
        floor = int(frames.FLOOR.unpack_from(command.payload)[0])
        self._take(command, floor, Batch(command.payload[frames.FLOOR.size :]), b"")

    def handle_staged(self, command: Command) -> None:
        """One STAGE: a batch of a transaction."""
        number, floor = frames.STAGED.unpack_from(command.payload)
        batch = Batch(command.payload[frames.STAGED.size :])
        self._take(command, floor, batch, self._host.transacting.identity(ids.producer_of(batch.first_id), number))

    def handle_large(self, command: Command) -> None:
        """One PUBLISH_LARGE: the message of a large body whose fragments are here."""
        stream, number, floor = frames.LARGE.unpack_from(command.payload)
        batch = Batch(command.payload[frames.LARGE.size :])
        transaction = self._host.transacting.identity(ids.producer_of(batch.first_id), number) if number else b""
        self._take(command, floor, batch, transaction, stream)

    def _take(self, command: Command, floor: int, batch: Batch, transaction: bytes, stream: bytes = b"") -> None:
        sessions = self._host.sessions
        session = sessions.get(command.session)
        first = batch.first_id & ids.SEQUENCE_MAX
        destination: Destination | None = None
        try:
            if sessions.taken and command.session in sessions.taken:
                raise ProducerTaken(producer=ids.format_id(sessions.taken[command.session]))
            destination = self._host.naming.resolve(batch.destination.decode())
            refused = session.refusing.get(destination.identity)
            if refused is None or first <= refused:
                self._judge(session, destination, batch, floor, command.flags, transaction, stream)
        except ClarionError as error:
            if destination is not None:
                self._host.room.let_pass(session, destination)
            self._fail(session, first, batch.count, error)

    def _judge(
        self,
        session: Session,
        destination: Destination,
        batch: Batch,
        floor: int,
        flags: int,
        transaction: bytes,
        stream: bytes,
    ) -> None:
        first = batch.first_id & ids.SEQUENCE_MAX
        producer = batch.first_id - first
        resend = bool(flags & frames.RESEND)
        runs: list[Range] | None = None
        if batch.flags & IDS:
            _check_sparse(batch, flags, transaction, stream)
            runs = sequence_runs(batch)
            verdict = destination.producers.judge_runs(producer, runs, floor, resend)
        else:
            verdict = destination.producers.judge(producer, first, first + batch.count, floor, resend)
        match verdict:
            case Verdict.NEW:
                if transaction:
                    self._host.transacting.check_open(session, transaction)
                body = self._host.streaming.whole(destination, stream, batch) if stream else None
                self._admit(session, destination, batch, [batch], floor, flags, transaction, body)
            case Verdict.TORN if not (transaction or stream or flags & _UNTIL):
                runs = runs or [(first, first + batch.count)]
                pieces = self._pieces(batch, destination.producers.missing_runs(producer, runs))
                if self._admit(session, destination, batch, pieces, floor, flags, b"", None):
                    self._doubles.add(batch.count - sum(piece.count for piece in pieces))
            case Verdict.DOUBLE:
                self._doubles.add(batch.count)
                if session.refusing.get(destination.identity) == first:
                    self._host.room.let_pass(session, destination)  # somebody else stored it meanwhile
                self._settle(session.identity, first, batch.count)
                if flags & _UNTIL:
                    self._host.watching.again(session.identity, destination, batch)
            case Verdict.FORGOTTEN:
                raise ProducerForgotten(producer=ids.format_id(producer))
            case Verdict.TOO_FAR:
                what = "messages of a producer beyond the oldest that is not settled"
                raise LimitReached(what=what, limit=limits.PRODUCER_WINDOW_MESSAGES)
            case Verdict.TOO_MANY:
                what = "runs of messages of a producer beyond the oldest that is not settled"
                raise LimitReached(what=what, limit=limits.PRODUCER_SPANS_MAX)
            case _:
                # Transactions, large bodies and watched deliveries are known by their batch: no client cuts those anew.
                raise BadBatch(detail=verdict.value)

    def _pieces(self, batch: Batch, missing: list[Range]) -> list[Batch]:
        """What to store of a batch of which only these sequences are missing: one batch, if that is possible.

        So a batch that is stored in thousands of places costs no thousands of entries.
        """
        ranges = places(batch, missing)
        size_max = batch.size + 4 * batch.count
        head_max = limits.FRAME_OVERHEAD_BYTES_MAX // 2 + _RUN_BYTES_MAX * len(missing)
        fits = size_max <= limits.BATCH_BYTES_MAX and size_max + 2 * head_max <= self._host.journal.record_bytes_max
        if len(ranges) > 1 and fits and not batch.deliver_at_ms:
            return [batch.picked(ranges)]
        return [batch.sliced(first, end) for first, end in ranges]

    def _admit(
        self,
        session: Session,
        destination: Destination,
        batch: Batch,
        pieces: list[Batch],
        floor: int,
        flags: int,
        transaction: bytes,
        body: Stream | None,
    ) -> bool:
        """Store the pieces of a batch that are missing, in most cases all of it as one. False: it is refused.

        A refusal in the middle leaves the pieces before it stored: when the batch comes again the others are missing.
        """
        policy = self._host.state.policies.effective(destination.name)
        for piece in pieces:
            if policy.message_bytes_max and piece.size > policy.message_bytes_max:
                self._check_sizes(piece, policy.message_bytes_max)
        first = batch.first_id & ids.SEQUENCE_MAX
        size = batch.size if len(pieces) == 1 else sum(piece.size for piece in pieces)
        room = self._host.room
        reason = room.lacks(destination, size, policy)
        if reason is None:
            if self._before.armed:
                self._before.fire()
            last = pieces[-1]
            try:
                for piece in pieces:
                    whole = (first, batch.count) if piece is last else None
                    self._store(session, destination, policy, piece, whole, floor, flags, transaction, body)
            except JournalFull:
                reason = "persistent memory is full"
            else:
                if session.refusing:
                    room.let_pass(session, destination)
                return True
        if policy.when_full == "fail":
            raise Blocked(destination=str(destination), detail=reason)
        room.refuse(session, destination, first, reason)
        return False

    def _store(
        self,
        session: Session,
        destination: Destination,
        policy: Effective,
        batch: Batch,
        whole: _Answer | None,
        floor: int,
        flags: int,
        transaction: bytes,
        body: Stream | None,
    ) -> None:
        """One entry for one batch; when it is durable `whole` is confirmed. Raises `JournalFull`, nothing changed."""
        now_ms = self._host.now_ms()
        staged = batch.deliver_at_ms > now_ms or bool(transaction)
        entry = Publish(
            destination.identity,
            batch.count,
            0 if staged else destination.tail,
            floor,
            batch.first_id,
            now_ms,
            earliest_expiry_ms(batch, policy.ttl_ms_max) if batch.expiry_first_ms or policy.ttl_ms_max else 0,
            batch.expiry_last_ms,
            batch.priority,
            (flags & _UNTIL) >> 1,
            pack_runs(sequence_runs(batch)) if batch.flags & IDS else b"",
        )
        if staged:
            self._stage(session, destination, batch, whole, entry, transaction, body)
            return
        if body is None:
            position, span = self._host.log.publish(entry, batch.buffer)
        else:
            position, span = self._host.log.large(_large(Stage(entry, 0, 0, b""), body), batch.buffer)
            self._host.streaming.completed(body)
        self._stored(session, destination, batch, whole, entry, position, span)

    @staticmethod
    def _check_sizes(batch: Batch, limit: int) -> None:
        for index in range(batch.count):
            size = batch.data_bytes(index, index + 1)
            if size > limit:
                raise MessageTooLarge(size=size, limit=limit)

    def _stage(
        self,
        session: Session,
        destination: Destination,
        batch: Batch,
        whole: _Answer | None,
        entry: Publish,
        transaction: bytes,
        body: Stream | None,
    ) -> None:
        """Store a batch in the wings."""
        if len(destination.stages) >= _STAGED_BATCHES_MAX:
            raise LimitReached(what=f"delayed batches of {destination}", limit=_STAGED_BATCHES_MAX)
        stage = Stage(entry, destination.stages.next_number, batch.deliver_at_ms, transaction)
        if body is None:
            self._host.log.stage(stage, batch.buffer)
        else:
            self._host.log.large(_large(stage, body), batch.buffer)
            self._host.streaming.completed(body)
        staged = destination.stages.get(stage.number)
        assert staged is not None
        self._host.journal.retain(staged.position, staged.span)
        session.published.add(destination.identity)
        if transaction:
            session.transactions.add(transaction)
        if entry.until:
            self._host.watching.expect(session.identity, entry.first_id)

        def durable() -> None:
            self._count(batch)
            if not transaction:
                self._host.clockwork.at(destination, batch.deliver_at_ms)

        self._host.room.pending_bytes += batch.size
        if whole is not None:
            self._settle(session.identity, *whole)
        self._host.log.after(durable)

    def _count(self, batch: Batch) -> None:
        """A batch no longer waits for the disk."""
        self._host.room.pending_bytes -= batch.size
        self._messages.total += batch.count
        self._bytes.total += batch.size

    def _stored(
        self,
        session: Session,
        destination: Destination,
        batch: Batch,
        whole: _Answer | None,
        entry: Publish,
        position: int,
        span: int,
    ) -> None:
        session.published.add(destination.identity)
        host = self._host
        host.journal.retain(position, span)
        page_first = destination.pages.last_first
        host.cache.published(destination.identity, page_first, page_first != entry.first, entry.first, batch)
        end = entry.first + entry.messages

        def durable() -> None:
            self._count(batch)
            if entry.until:
                host.watching.watch(session.identity, destination, entry)
            host.shown(destination, end)

        self._host.room.pending_bytes += batch.size
        if whole is not None:
            self._settle(session.identity, *whole)
        host.log.after(durable)

    def _settle(self, session: int, first: int, count: int) -> None:
        """Tell a session PUBLISHED when everything written so far is durable."""
        position, durable = self._host.log.last, self._host.journal.durable
        if position < durable and not self._answers:
            self._host.soon(self._answer_doubles)
        self._answers.append((position, session, frames.SETTLED.pack(first, count, 0)))

    def answer(self, durable: int) -> bool:
        """Tell every session what became durable: one frame each, however many batches. True if there was any."""
        answers = self._answers
        settled: dict[int, list[Buffer]] = {}
        while answers and answers[0][0] < durable:
            _position, session, said = answers.popleft()
            if self._durable.armed:
                self._durable.fire()
            if session in settled:
                settled[session].append(said)
            else:
                settled[session] = [said]
        for session in settled:
            self._host.send(session, frames.Type.PUBLISHED, settled[session])
        return bool(settled)

    def _answer_doubles(self) -> None:
        self.answer(self._host.journal.durable)

    def _fail(self, session: Session, first: int, count: int, error: ClarionError) -> None:
        payload = [frames.SETTLED.pack(first, count, 0), frames.pack(frames.error_facts(error))]
        self._host.send(session.identity, frames.Type.PUBLISH_FAILED, payload)

    def ended(self, session: Session, producer: int, clean: bool) -> None:
        """A session is over; a clean end lets its producer be forgotten."""
        self._host.room.forget(session)
        if clean and session.published:
            known = sorted(session.published & self._host.state.destinations.keys())
            entry = ProducersClosed(producer.to_bytes(16, "big"), known)
            try:
                self._host.log.write(Kind.PRODUCERS_CLOSED, entry.encode())
            except JournalFull:
                pass  # it is then forgotten by age


def _check_sparse(batch: Batch, flags: int, transaction: bytes, stream: bytes) -> None:
    """Raises `BadBatch` for what goes with ids that follow each other only."""
    what = {
        "in a transaction": transaction,
        "with a large body": stream,
        "with a time of delivery": batch.deliver_at_ms,
        "that waits for its delivery": flags & _UNTIL,
    }
    for said, is_so in what.items():
        if is_so:
            raise BadBatch(detail=f"a sparse batch {said}")


def _large(stage: Stage, body: Stream) -> Large:
    return Large(stage, body.number, body.size)
