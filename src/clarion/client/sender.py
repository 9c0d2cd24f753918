"""The engine under a session's sending half: sealing, windows, refusals, answers, resending.

Theory of operation
    A batch is open, sealed, sent, stored, and, if its sender asked for that, delivered. At the end of
    the loop's turn `_pump` seals and sends what is open if nothing of that destination is on its way
    (a lone message goes at once); otherwise it stays open and grows until an answer comes or it is
    full. That is the whole linger: it adapts by itself to what the broker can take. After a message that was
    alone the next `send` does not even wait for the end of the turn (`_send_alone`).

Guarantees
    1. Never more than the producer window unanswered per destination, or one batch alone.
    2. A refusal stops its destination only; resending begins with the refused batch, in order.
    3. What is not answered is kept and sent again after a reconnection with the same ids; so is what
       was stored and is not yet delivered as its sender wants, so that the broker watches it again.
    4. What is stored holds up nothing, delivered or not: neither lane, nor floor, nor `flush`.
    5. A failure is told once: to whoever awaits the ticket, else by the next `flush`.

Threads: everything runs in the thread of the loop, except what says that other threads may call it
while they hold `lock`. Whatever is called by the connection takes the lock itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque

from clarion import ids, limits
from clarion.client.delivered import HOW, Deliveries
from clarion.client.host import Host
from clarion.client.lanes import MESSAGE_WEIGHT_BYTES, Lane
from clarion.client.options import Terms
from clarion.client.outbox import BATCH_KEPT_BYTES, Failures, OutBatch
from clarion.client.outcome import again, error_of, release
from clarion.errors import BadArgument, BadFrame, Blocked, ClarionError, ProducerForgotten, SessionClosed
from clarion.message import parse_destination
from clarion.wire import frames
from clarion.wire.frames import Type

REFUSED_S_MAX = 10.0
"""A refused batch is tried again after this, in case its RESUME was lost."""
LANES_MIN = 4_096
"""Lanes that have nothing to do are forgotten when there are more than this, and twice as many as had."""


class Sender:
    """What a session does for sending, below what applications call."""

    def __init__(self, host: Host, channel: int, buffer_bytes: int) -> None:
        self._host = host
        self._channel = channel
        self._buffer_bytes = buffer_bytes
        self._room_bytes = buffer_bytes * 3 // 4
        """The low-water mark: who waits for room goes on below it, and may send the rest without asking again."""
        self._producer = 0
        self._sequence = 1
        self._transaction = 0
        """The number of the transaction that messages belong to from now on; 0 is none."""
        self._attached = False
        self._closed = False
        self.lock = threading.Lock()
        """Guards the sending half where threads share a session."""
        self._lanes: dict[str, Lane] = {}
        self._lanes_max = LANES_MIN
        self._recent: OutBatch | None = None
        """The batch that the last message went into, if it was still open then."""
        self._active: dict[Lane, None] = {}
        """Lanes that may have something to send."""
        self._ahead: dict[Lane, None] = {}
        """Lanes that wait until the oldest unanswered batch of any lane is answered."""
        self._order: deque[OutBatch] = deque()
        """Sealed batches by sequence, from the oldest that is not answered."""
        self._by_first: dict[int, OutBatch] = {}
        """What an answer is expected for: also batches that were stored and are sent again."""
        self._deliveries = Deliveries()
        self._buffered = 0
        self._room: list[asyncio.Future[None]] = []
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        self._failures = Failures()

    async def _flush_sends(self) -> None:
        """Return when everything sent so far is stored, or has failed."""
        with self.lock:
            self._seal_all()
            last = self._sequence - 1
            self._trim()
            waiter = None
            if self._order and self._order[0].first <= last:
                waiter = self._host.loop.create_future()
                self._flushes.append((last, waiter))
        if waiter is not None:
            self._host.wake()
            await waiter

    def _begin_transaction(self, number: int) -> None:
        """Messages sent from now on belong to this transaction."""
        if number < 1:
            raise BadArgument(argument="transaction", detail=f"{number} is not a number of one")
        self._switch(number)

    def _end_transaction(self) -> None:
        """Messages sent from now on belong to none."""
        self._switch(0)

    def _switch(self, transaction: int) -> None:
        with self.lock:
            self._seal_all()
            self._transaction = transaction
        self._host.wake()

    # --- batches ------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._host.failure is not None:
            raise again(self._host.failure)
        if self._closed or not self._producer:
            raise SessionClosed()

    def _lane(self, destination: str) -> Lane:
        self._check_open()
        lane = self._lanes.get(destination)
        if lane is None:
            if not isinstance(destination, str):
                raise BadArgument(argument="destination", detail=f"it is a {type(destination).__name__}, not a str")
            parse_destination(destination, system=True)
            if len(self._lanes) >= self._lanes_max:
                self._lanes = {name: known for name, known in self._lanes.items() if not known.idle}
                self._lanes_max = max(LANES_MIN, 2 * len(self._lanes))
            lane = self._lanes[destination] = Lane(destination, self._host.welcome.batch_bytes_max)
        return lane

    def _check_room(self, lane: Lane) -> None:
        if self._buffered >= self._buffer_bytes:
            detail = f"{self._buffered} bytes wait for the broker, the buffer holds {self._buffer_bytes}"
            raise Blocked(destination=lane.destination, detail=detail)

    def _begin(self, lane: Lane, terms: Terms) -> OutBatch:
        batch = lane.open = OutBatch(lane, time.time_ns() // 1_000_000, terms, self._transaction)
        self._active[lane] = None
        self._host.wake()
        return batch

    def _seal(self, lane: Lane, offsets: bytes | None = None) -> None:
        batch = lane.open
        assert batch is not None
        lane.open = None
        if not batch.bodies:
            return
        batch.seal(self._producer + self._sequence, offsets)
        self._sealed(lane, batch)

    def _sealed(self, lane: Lane, batch: OutBatch) -> None:
        """A batch has its ids and its bytes: from now on it is kept until it is answered."""
        self._sequence += batch.count
        self._buffered += batch.size_bytes + BATCH_KEPT_BYTES
        lane.unanswered_bytes += batch.size_bytes
        lane.kept += 1
        lane.lone = batch.count == 1
        self._order.append(batch)
        self._by_first[batch.first] = batch
        if batch.delivery is not None:
            self._deliveries.add(batch)
        lane.waiting.append(batch)
        self._active[lane] = None

    def _seal_all(self) -> None:
        for lane in self._lanes.values():
            if lane.open is not None:
                self._seal(lane)

    def _send_alone(self, lane: Lane, body: bytes) -> OutBatch | None:
        """Send a plain message at once; None if there is anything that it should wait for, or go with.

        A lone message goes at the end of the loop's turn, because others may be sent in the same one. After a message
        that was alone nobody need look for company: that saves a turn. Many senders that share a session, or a
        burst, are not held apart for long: what is sent before the answer goes together, and the next time at the end
        of a turn.
        """
        host = self._host
        if (
            not lane.lone
            or self._order
            or lane.open is not None
            or lane.waiting
            or lane.sent
            or self._transaction
            or host.scheduled
            or not self._attached
            or not host.writable
            or self._buffered >= self._buffer_bytes
            or len(body) + MESSAGE_WEIGHT_BYTES >= lane.weight_target
        ):
            return None
        batch = OutBatch(lane, time.time_ns() // 1_000_000)
        batch.bodies.append(body)
        batch.claimed = 1
        batch.seal(self._producer + self._sequence)
        self._sealed(lane, batch)
        del self._active[lane]
        self._send_next(lane, batch.first)
        host.write()
        return batch

    def _pump(self) -> None:
        """Send what may be sent now. The connection calls it after every turn of the loop that had a reason."""
        if not self._active or not self._attached:
            return
        with self.lock:
            self._trim()
            for lane in list(self._active):
                if not self._pump_lane(lane):
                    return
                del self._active[lane]

    def _pump_lane(self, lane: Lane) -> bool:
        """False when the link takes no more for now."""
        window = self._host.welcome.producer_window_bytes
        while not lane.refused:
            if not lane.waiting:
                if lane.open is None or lane.sent:
                    return True
                self._seal(lane)
                if not lane.waiting:
                    return True
            batch = lane.waiting[0]
            floor = self._order[0].first if self._order else batch.first
            ahead = batch.first + batch.count - floor
            if ahead > limits.PRODUCER_WINDOW_MESSAGES:
                self._ahead[lane] = None
                return True
            if lane.sent and lane.used + batch.size_bytes > window:
                return True
            if not self._host.writable:
                return False
            self._send_next(lane, min(floor, batch.first))  # it is below when a stored one is sent again
        return True

    def _send_next(self, lane: Lane, floor: int) -> None:
        """Send the first batch that waits."""
        batch = lane.waiting.popleft()
        lane.sent[batch.first] = batch
        lane.used += batch.size_bytes
        assert batch.encoded is not None
        flags = batch.terms.until | (frames.RESEND if batch.resend else 0)
        if batch.stream:
            large = frames.LARGE.pack(batch.stream, batch.transaction, floor)
            self._host.send(Type.PUBLISH_LARGE, self._channel, (large, batch.encoded), flags)
        elif batch.transaction:
            head = frames.STAGED.pack(batch.transaction, floor)
            self._host.send(Type.STAGE, self._channel, (head, batch.encoded), flags)
        else:
            self._host.send(Type.PUBLISH, self._channel, (frames.FLOOR.pack(floor), batch.encoded), flags)

    def _trim(self) -> None:
        order = self._order
        while order and order[0].done:
            order.popleft()

    # --- answers ------------------------------------------------------------------------------------

    def _published(self, payload: memoryview) -> bool:
        """True if something may be sent now that waited for this.

        What is still open waits for the next turn: whoever was answered just now runs before, and what it sends next
        goes along. Else two senders that take turns would never share a batch.
        """
        with self.lock:
            for first, count, _zero in frames.SETTLED.iter_unpack(payload):
                self._settle(first, first + count, None)
            self._answered()
            if not self._active:
                return False
            if any(lane.waiting for lane in self._active):
                return True
            self._host.wake()
            return False

    def _publish_failed(self, payload: memoryview) -> None:
        first, count, _zero = frames.SETTLED.unpack_from(payload)
        error = frames.unpack(payload[frames.SETTLED.size :])
        with self.lock:
            self._settle(first, first + count, error_of(error))
            self._answered()

    def _delivered(self, payload: memoryview) -> None:
        with self.lock:
            for first, count, how in frames.SETTLED.iter_unpack(payload):
                if how not in HOW:
                    raise BadFrame(detail=f"DELIVERED with {how}")
                for batch in self._deliveries.covered(first, first + count):
                    assert batch.delivery is not None
                    batch.delivery.note(first - batch.first, first + count - batch.first, how)
                    if not batch.delivery.left:
                        self._deliveries.over()
                        # One that is to be answered, the first time or again, is let go by its answer.
                        if batch.done and batch.first not in self._by_first:
                            self._let_go(batch)
            self._answered()

    def _settle(self, first: int, end: int, error: ClarionError | None) -> None:
        while first < end:
            batch = self._by_first.pop(first, None)
            if batch is None:
                return
            lane = batch.lane
            lane.take(batch)
            if lane.open is not None or lane.waiting:
                self._active[lane] = None
            if not batch.done:
                lane.unanswered_bytes -= batch.size_bytes
                if error is not None:
                    self._failures.note(error, batch)
                batch.settle(error)
            if error is not None and batch.delivery is not None:
                self._give_up(batch, error)
            elif batch.delivery is None or not batch.delivery.left:
                self._let_go(batch)
            first += batch.count

    def _give_up(self, batch: OutBatch, error: ClarionError) -> None:
        """Nobody will say any more how it was delivered."""
        assert batch.delivery is not None
        if batch.delivery.left:
            batch.delivery.fail(error)
            self._deliveries.over()
        self._let_go(batch)

    def _let_go(self, batch: OutBatch) -> None:
        """Its bytes are not needed any more."""
        self._buffered -= batch.size_bytes + BATCH_KEPT_BYTES
        batch.encoded = None
        batch.lane.kept -= 1

    def _answered(self) -> None:
        order = self._order
        while order and order[0].done:  # `_trim`
            order.popleft()
        if self._ahead:
            self._active.update(self._ahead)
            self._ahead.clear()
        if self._flushes:
            floor = order[0].first if order else self._sequence
            for last, waiter in self._flushes:
                if last < floor and not waiter.done():
                    waiter.set_result(None)
            self._flushes = [(last, waiter) for last, waiter in self._flushes if last >= floor]
        if self._room and self._buffered < self._room_bytes:
            release(self._room)

    def _refused(self, payload: memoryview) -> None:
        (first,) = frames.FLOOR.unpack_from(payload)
        with self.lock:
            batch = self._by_first.get(first)
            if batch is not None and first in batch.lane.sent:
                batch.lane.back(first)
                batch.lane.refused = batch.lane.blocked = first
                self._host.loop.call_later(REFUSED_S_MAX, self._retry, batch)

    def _resume(self, payload: memoryview) -> None:
        (first,) = frames.FLOOR.unpack_from(payload)
        batch = self._by_first.get(first)
        if batch is not None:
            if batch.lane.blocked == first:
                batch.lane.blocked = 0
            self._retry(batch)

    def _retry(self, batch: OutBatch) -> None:
        lane = batch.lane
        if lane.refused == batch.first and self._by_first.get(batch.first) is batch:
            with self.lock:
                lane.refused = 0
                self._active[lane] = None
            self._host.wake()

    # --- connections come and go --------------------------------------------------------------------

    def _detach_sends(self) -> None:
        with self.lock:
            self._attached = False
            for lane in self._lanes.values():
                for batch in lane.sent.values():
                    batch.resend = True
                lane.back(0)
                lane.refused = lane.blocked = 0
            self._watch_again()
            for lane in self._lanes.values():
                if lane.waiting or lane.open is not None:
                    self._active[lane] = None

    def _watch_again(self) -> None:
        """What was stored and is not yet delivered is sent again: a broker watches for a connection, not for ever."""
        for batch in list(self._by_first.values()):
            if batch.done and batch.delivery is not None and not batch.delivery.left:
                del self._by_first[batch.first]
                batch.lane.take(batch)
                self._let_go(batch)
        for batch in self._deliveries:
            if batch.done and batch.first not in self._by_first:
                batch.resend = True
                self._by_first[batch.first] = batch
                batch.lane.waiting.append(batch)
        for lane in self._lanes.values():
            lane.put_in_order()

    def _attach_sends(self, producer: int) -> None:
        with self.lock:
            if self._producer and producer != self._producer:
                self._fail_batches(ProducerForgotten(producer=ids.format_id(self._producer)))
                self._sequence = 1
            self._producer = producer
            self._attached = True
            self._answered()

    def _fail_batches(self, error: ClarionError) -> None:
        for first, batch in list(self._by_first.items()):
            self._settle(first, first + batch.count, error)
        for batch in self._deliveries:
            self._give_up(batch, error)

    def _end_sends(self, error: ClarionError) -> None:
        """The session is over: whatever is not answered never will be."""
        with self.lock:
            self._attached = False
            self._closed = True
            self._seal_all()
            self._fail_batches(error)
            self._lanes.clear()
            self._active.clear()
            self._answered()
            release(self._room)
