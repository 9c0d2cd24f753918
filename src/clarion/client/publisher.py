"""The sending half of a session: batches, windows, refusals, resending.

Theory of operation
    `send_nowait` adds to the open batch of its destination. At the end of the loop's turn `pump`
    seals and sends it if nothing of that destination is on its way (a lone message goes at once);
    otherwise it stays open and grows until an answer comes or it is full. That is the whole linger:
    it adapts by itself to what the broker can take.

Guarantees
    1. Never more than the producer window unanswered per destination, or one batch alone.
    2. A refusal stops its destination only; resending begins with the refused batch, in order.
    3. What is not answered is kept and sent again after a reconnection with the same ids.
    4. A failure is told once: to whoever awaits the ticket, else by the next `flush`.

Threads: everything runs in the thread of the loop, except `send_nowait`, which other threads may
call while they hold `lock` (the blocking twin does). Everything else here takes the lock itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque

from clarion import ids, limits
from clarion.client.host import Host
from clarion.client.outbox import MESSAGE_WEIGHT_BYTES, Body, Failures, Lane, OutBatch, Ticket, as_bytes
from clarion.client.outcome import again, error_of, release
from clarion.errors import Blocked, ClarionError, ProducerForgotten, SessionClosed
from clarion.message import Headers, PropertyValue, encode_headers, parse_destination
from clarion.wire import frames
from clarion.wire.frames import Type

REFUSED_S_MAX = 10.0
"""A refused batch is tried again after this, in case its RESUME was lost."""


class Publisher:
    """What a session does for sending."""

    def __init__(self, host: Host, channel: int, buffer_bytes: int) -> None:
        self._host = host
        self._channel = channel
        self._buffer_bytes = buffer_bytes
        self._producer = 0
        self._sequence = 1
        self._attached = False
        self._closed = False
        self.lock = threading.Lock()
        """Guards the sending half where threads share a session."""
        self._lanes: dict[str, Lane] = {}
        self._active: dict[Lane, None] = {}
        """Lanes that may have something to send."""
        self._ahead: dict[Lane, None] = {}
        """Lanes that wait until the oldest unanswered batch of any lane is answered."""
        self._order: deque[OutBatch] = deque()
        """Sealed batches by sequence, from the oldest that is not answered."""
        self._by_first: dict[int, OutBatch] = {}
        self._buffered = 0
        self._room: list[asyncio.Future[None]] = []
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        self._failures = Failures()

    # --- for applications ---------------------------------------------------------------------------

    def send_nowait(
        self,
        destination: str,
        body: Body,
        *,
        properties: dict[str, PropertyValue] | None = None,
        reply_to: str | None = None,
        correlation_id: str | None = None,
        type: str | None = None,
        content_type: str | None = None,
    ) -> Ticket:
        """Queue a message; the ticket can be awaited for its id. Raises `Blocked` when the buffer is full.

        Hot: below 1 µs with only a destination and bytes (benchmark: tests/unit/client/cost.py).
        """
        lane = self._lanes.get(destination)
        if lane is None:
            lane = self._lane(destination)
        if body.__class__ is not bytes:
            body = as_bytes(body)
        batch = lane.open
        if batch is None:
            batch = self._begin(lane)
        bodies = batch.bodies
        index = len(bodies)
        weight = batch.weight + len(body) + MESSAGE_WEIGHT_BYTES
        if (
            properties is not None
            or reply_to is not None
            or correlation_id is not None
            or type is not None
            or content_type is not None
            or batch.headers is not None
        ):
            headers = encode_headers(
                Headers(reply_to, correlation_id, None, type, content_type, properties=properties or None)
            )
            if batch.headers is None:
                batch.headers = [b""] * index
            batch.headers.append(headers)
            weight += len(headers)
        bodies.append(body)
        batch.weight = weight
        if weight >= lane.weight_target:
            return self._full(lane, batch)
        return Ticket(batch, index)

    async def send(
        self,
        destination: str,
        body: Body,
        *,
        properties: dict[str, PropertyValue] | None = None,
        reply_to: str | None = None,
        correlation_id: str | None = None,
        type: str | None = None,
        content_type: str | None = None,
    ) -> str:
        """Send a message and return its id once it is durable. Waits for room if there is none."""
        while True:
            try:
                ticket = self.send_nowait(
                    destination,
                    body,
                    properties=properties,
                    reply_to=reply_to,
                    correlation_id=correlation_id,
                    type=type,
                    content_type=content_type,
                )
            except Blocked:
                await self.writable()
            else:
                return await ticket

    async def writable(self) -> None:
        """Return when `send_nowait` takes messages again: at once unless the buffer is full."""
        while self._buffered >= self._buffer_bytes and not self._closed:
            waiter = self._host.loop.create_future()
            self._room.append(waiter)
            await waiter
        self._check_open()

    @property
    def buffered_bytes(self) -> int:
        """What is sealed and not answered yet; beyond the buffer `send_nowait` raises `Blocked`."""
        return self._buffered

    async def _flush_sends(self) -> None:
        with self.lock:
            for lane in self._lanes.values():
                if lane.open is not None:
                    self._seal(lane)
            last = self._sequence - 1
            self._trim()
            waiter = None
            if self._order and self._order[0].first <= last:
                waiter = self._host.loop.create_future()
                self._flushes.append((last, waiter))
        if waiter is not None:
            self._host.wake()
            await waiter

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
            parse_destination(destination, system=True)
            lane = Lane(destination, destination.encode(), self._host.welcome.batch_bytes_max)
            self._lanes[destination] = lane
        return lane

    def _begin(self, lane: Lane) -> OutBatch:
        if self._buffered >= self._buffer_bytes:
            detail = f"{self._buffered} bytes wait for the broker, the buffer holds {self._buffer_bytes}"
            raise Blocked(destination=lane.destination, detail=detail)
        batch = lane.open = OutBatch(lane, time.time_ns() // 1_000_000)
        self._active[lane] = None
        self._host.wake()
        return batch

    def _full(self, lane: Lane, batch: OutBatch) -> Ticket:
        """The open batch has reached its target with the message just added."""
        index = len(batch.bodies) - 1
        headers = batch.headers[-1] if batch.headers is not None else b""
        body = batch.bodies[-1]
        alone = len(headers) + len(body) + MESSAGE_WEIGHT_BYTES >= lane.weight_target
        if not alone:
            self._seal(lane)
            self._host.wake()
            return Ticket(batch, index)
        # A large message goes in a batch of its own, so that no batch can exceed the limit.
        batch.bodies.pop()
        if batch.headers is not None:
            batch.headers.pop()
        batch.weight -= len(headers) + len(body) + MESSAGE_WEIGHT_BYTES
        if not batch.bodies:
            lane.open = None
        lane.check_size(len(headers), len(body))
        if batch.bodies:
            self._seal(lane)
        batch = self._begin(lane)
        batch.bodies.append(body)
        batch.headers = [headers] if headers else None
        self._seal(lane)
        return Ticket(batch, 0)  # `_begin` has woken the host

    def _seal(self, lane: Lane) -> None:
        batch = lane.open
        assert batch is not None
        lane.open = None
        if not batch.bodies:
            return
        batch.seal(self._producer + self._sequence)
        self._sequence += batch.count
        self._buffered += batch.bytes
        self._order.append(batch)
        self._by_first[batch.first] = batch
        lane.waiting.append(batch)
        self._active[lane] = None

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
            if lane.sent and lane.used + batch.bytes > window:
                return True
            if not self._host.writable:
                return False
            lane.waiting.popleft()
            lane.sent[batch.first] = batch
            lane.used += batch.bytes
            assert batch.encoded is not None
            flags = frames.RESEND if batch.resend else 0
            self._host.send(Type.PUBLISH, self._channel, (frames.FLOOR.pack(floor), batch.encoded), flags)
        return True

    def _trim(self) -> None:
        order = self._order
        while order and order[0].done:
            order.popleft()

    # --- answers ------------------------------------------------------------------------------------

    def _published(self, payload: memoryview) -> None:
        with self.lock:
            for first, count, _zero in frames.SETTLED.iter_unpack(payload):
                self._settle(first, first + count, None)
            self._answered()

    def _publish_failed(self, payload: memoryview) -> None:
        first, count, _zero = frames.SETTLED.unpack_from(payload)
        error = frames.unpack(payload[frames.SETTLED.size :])
        with self.lock:
            self._settle(first, first + count, error_of(error))
            self._answered()

    def _settle(self, first: int, end: int, error: ClarionError | None) -> None:
        while first < end:
            batch = self._by_first.pop(first, None)
            if batch is None:
                return
            lane = batch.lane
            lane.take(batch)
            if lane.refused == first:
                lane.refused = 0
            self._buffered -= batch.bytes
            batch.encoded = None
            self._active[lane] = None
            if error is not None:
                self._failures.note(error, batch)
            batch.settle(error)
            first += batch.count

    def _answered(self) -> None:
        self._trim()
        floor = self._order[0].first if self._order else self._sequence
        if self._ahead:
            self._active.update(self._ahead)
            self._ahead.clear()
        if self._flushes:
            for last, waiter in self._flushes:
                if last < floor and not waiter.done():
                    waiter.set_result(None)
            self._flushes = [(last, waiter) for last, waiter in self._flushes if last >= floor]
        if self._room and self._buffered < self._buffer_bytes:
            release(self._room)

    def _refused(self, payload: memoryview) -> None:
        (first,) = frames.FLOOR.unpack_from(payload)
        with self.lock:
            batch = self._by_first.get(first)
            if batch is not None and first in batch.lane.sent:
                batch.lane.back(first)
                batch.lane.refused = first
                self._host.loop.call_later(REFUSED_S_MAX, self._retry, batch)

    def _resume(self, payload: memoryview) -> None:
        (first,) = frames.FLOOR.unpack_from(payload)
        batch = self._by_first.get(first)
        if batch is not None:
            self._retry(batch)

    def _retry(self, batch: OutBatch) -> None:
        lane = batch.lane
        if not batch.done and lane.refused == batch.first:
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
                lane.refused = 0
                if lane.waiting or lane.open is not None:
                    self._active[lane] = None

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

    def _end_sends(self, error: ClarionError) -> None:
        """The session is over: whatever is not answered never will be."""
        with self.lock:
            self._attached = False
            self._closed = True
            for lane in self._lanes.values():
                if lane.open is not None:
                    self._seal(lane)
            self._fail_batches(error)
            self._lanes.clear()
            self._active.clear()
            self._answered()
            release(self._room)
