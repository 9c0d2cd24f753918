"""A sender for whoever has ids of his own: messages that were numbered, and stored, before they are sent.

Theory of operation
    The id of a message is a producer id and a sequence, both given by the owner. What is sent twice, by this sender
    or by a later one after a crash, cut into the same batches or others, is stored once: destinations remember
    which sequences of the producer they have, from a *floor* on. Below the floor everything counts as stored.

Guarantees
    1. `send` returns when its messages are durable. What is not answered is sent again after a reconnection.
    2. Messages for one destination are sent in the order of the calls, also when calls overlap.
    3. The floor never covers a message that may still come: it rises over sequences that this sender has seen
       stored, without a gap from where the owner began, and over those that the owner has given up by
       `forget_below`. That nothing lower is unanswered says nothing: an earlier life may have left a gap, which
       is sent tomorrow.
    4. One sender for each producer id: the one that began last. The other gets `ProducerTaken` from what it sends
       then and later; it stores nothing any more, and does not take the id back when its connection returns.
    5. A sequence belongs to one destination. Sent to two, it is stored in both only as long as the floor is below it.

What a destination no longer remembers (it remembers 16,384 producers) is stored again rather than refused: never lost.
Not for several threads. Messages have no expiry, group, delay or priority here.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Self

from clarion import ids
from clarion.client.cutting import Messages
from clarion.client.host import Host
from clarion.client.outbox import BATCH_KEPT_BYTES
from clarion.client.outcome import Outcome, again, error_of, release
from clarion.client.sender import LANES_MIN, REFUSED_S_MAX
from clarion.client.sequences import Flying, Stored
from clarion.errors import BadArgument, ClarionError, ProducerTaken, SessionClosed
from clarion.message import parse_destination
from clarion.wire import frames
from clarion.wire.batch import Buffer
from clarion.wire.frames import Frame, Type

WINDOWS_AHEAD = 2
"""How many producer windows of a destination are encoded ahead of the answers; the rest stays in the caller's lists."""


class _Call(Outcome):
    """One `send`: settled when the last of its batches is answered, with the first failure."""

    __slots__ = ("failed", "failures", "left")

    def __init__(self) -> None:
        super().__init__()
        self.left = 1
        """Batches without an answer, and one until the last batch is made."""
        self.failed: ClarionError | None = None
        self.failures = 0

    def answered(self, error: ClarionError | None = None) -> None:
        if error is not None:
            self.failed = self.failed or error
            self.failures += 1
        self.left -= 1
        if not self.left:
            self.settle(self.failed)


class _Part:
    """One encoded batch, until it is answered."""

    __slots__ = ("call", "encoded", "end", "first", "lane", "sequences", "size_bytes")

    def __init__(self, call: _Call, lane: _Lane, sequences: Sequence[int], encoded: bytearray) -> None:
        self.call = call
        self.lane = lane
        self.sequences = sequences
        """Ascending; a `range` if they follow each other, anything else of a sparse batch."""
        self.first = sequences[0]
        self.end = sequences[-1] + 1
        self.encoded = encoded
        self.size_bytes = len(encoded)


class _Lane:
    """One destination: what waits for the window, what waits for an answer, in the order of the calls."""

    __slots__ = ("end", "name", "refused", "sent", "turn", "unanswered_bytes", "used", "waiting")

    def __init__(self, destination: str) -> None:
        self.name = destination.encode()
        self.turn = asyncio.Lock()
        """Whose call makes batches; the next one when all of its are made."""
        self.waiting: deque[_Part] = deque()
        self.sent: dict[int, _Part] = {}
        """By first sequence, ascending."""
        self.end = 0
        """Where the last one of `sent` ends."""
        self.used = 0
        """Bytes of `sent`."""
        self.unanswered_bytes = 0
        self.refused = 0

    @property
    def idle(self) -> bool:
        """It holds nothing that it would be missed for."""
        return not (self.waiting or self.sent or self.turn.locked())

    def back(self, first: int) -> list[_Part]:
        """Everything sent from sequence `first` on waits again, in order."""
        parts = [part for sequence, part in self.sent.items() if sequence >= first]
        for part in parts:
            del self.sent[part.first]
            self.used -= part.size_bytes
        self.waiting.extendleft(reversed(parts))
        return parts


class NumberedSender:
    """Made by `Connection.numbered`. Open it with `async with`, by awaiting it, or by the first `send`."""

    def __init__(self, host: Host, channel: int, producer: int, buffer_bytes: int, settled_below: int = 1) -> None:
        if not 0 < producer < 1 << 128 or ids.sequence_of(producer):
            raise BadArgument(argument="producer", detail="it is not a producer id")
        self._host = host
        self._channel = channel
        self._buffer_bytes = buffer_bytes
        self._sender = secrets.token_bytes(frames.SENDER_BYTES)
        self._registered = self._attached = self._closing = False
        self._error: ClarionError | None = None
        """Why it is over."""
        self._opened = Outcome()
        self._left = Outcome()
        self._lanes: dict[str, _Lane] = {}
        self._lanes_max = LANES_MIN
        self._active: dict[_Lane, None] = {}
        """Lanes that may have something to send."""
        self._stalled: dict[_Lane, None] = {}
        """Lanes whose next messages are on their way already, by an earlier call: they wait for any answer."""
        self._refused: dict[int, _Lane] = {}
        self._by_first: dict[int, _Part] = {}
        self._flying = Flying()
        """Sequences that an answer is expected for: none of them is sent a second time before that."""
        self._stored = Stored()
        self._given_up = 1
        self._buffered = 0
        self._calls: set[_Call] = set()
        self._room: list[asyncio.Future[None]] = []
        self._idle: list[asyncio.Future[None]] = []
        self.producer = producer
        self.forget_below(settled_below)

    # --- for applications -------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(flush=kind is None)

    @property
    def closed(self) -> bool:
        return self._error is not None

    @property
    def floor(self) -> int:
        """Everything below is stored, or never comes again."""
        return self._stored.floor

    async def send(
        self,
        destination: str,
        sequences: int | Sequence[int],
        bodies: Sequence[Buffer],
        headers: Sequence[bytes],
        times_ms: Sequence[int] | None = None,
    ) -> None:
        """Send messages with the ids `producer + sequences[i]`; return when all of them are durable.

        `sequences` ascend, with any gaps: what is left out may be sent later, or to somewhere else. An integer is the
        first of sequences that follow each other. `headers` are encoded (`message.encode_headers`), `times_ms` Unix
        times of origin. The lists and what they hold must not change until it returns. Any number of calls may wait
        at a time. If some messages fail, the first failure is raised when all that were sent are answered; those that
        did not fail are stored, and may be sent again. So is what a cancelled call has begun to send: it goes on.

        Raises `BadArgument` and `MessageTooLarge` before anything is sent, `ProducerTaken` when another sender has
        the producer id, `LimitReached` for sequences too far above the floor.
        """
        if self._error is not None or self._closing:
            raise again(self._error or SessionClosed())
        lane = self._lane(destination)
        messages = Messages(lane.name, bodies, headers, times_ms, self._host.welcome.batch_bytes_max, sequences)
        if bodies and messages.first < self._given_up:
            raise BadArgument(argument="sequences", detail=f"{messages.first} was given up: below {self._given_up}")
        call = _Call()
        self._calls.add(call)
        try:
            async with lane.turn:
                await self._make(call, lane, messages)
            call.answered()
            await call.wait()
        except ClarionError as error:
            if call.failures > 1:
                error.add_note(f"and {call.failures - 1} more batches of this call")
            raise
        finally:
            self._calls.discard(call)
            self._look_idle()

    async def _make(self, call: _Call, lane: _Lane, messages: Messages) -> None:
        """Encode batches as fast as answers come; the lane is ours."""
        await self._open()
        ahead_bytes = WINDOWS_AHEAD * self._host.welcome.producer_window_bytes
        for low, high in messages.cuts:
            while lane.unanswered_bytes >= ahead_bytes or self._buffered >= self._buffer_bytes:
                room = self._host.loop.create_future()
                self._room.append(room)
                await room
            if self._error is not None:
                raise again(self._error)
            if call.failed is not None:
                return
            encoded = messages.encode(low, high, self.producer, time.time_ns() // 1_000_000)
            part = _Part(call, lane, messages.sequences(low, high), encoded)
            call.left += 1
            lane.waiting.append(part)
            lane.unanswered_bytes += part.size_bytes
            self._buffered += part.size_bytes + BATCH_KEPT_BYTES
            self._active[lane] = None
            self._host.wake()

    def forget_below(self, sequence: int) -> None:
        """Nothing below `sequence` will ever be sent again, by this sender or any later one: the broker may forget it.

        For whoever knows: what was confirmed is safe in his own memory, or was given up. Needed where sequences have
        gaps, because what the broker remembers grows with each gap above the floor.
        """
        if not 1 <= sequence <= ids.SEQUENCE_MAX:
            raise BadArgument(argument="sequence", detail=f"{sequence} is not one")
        for lane in self._lanes.values():
            for part in (*lane.sent.values(), *lane.waiting):
                if part.first < sequence:
                    raise BadArgument(argument="sequence", detail=f"{part.first} has no answer yet")
        self._given_up = max(self._given_up, sequence)
        self._stored.rise(sequence)

    async def close(self, *, flush: bool = True) -> None:
        """End it: calls that wait are answered first, unless told otherwise. The broker remembers the producer."""
        self._closing = True
        try:
            while flush and self._error is None and (self._calls or self._buffered):
                idle = self._host.loop.create_future()
                self._idle.append(idle)
                await idle
            if self._attached:
                self._attached = False
                self._host.send(Type.CLOSE, self._channel)
                self._host.wake()
                await self._left.wait()
        finally:
            self._finish(SessionClosed())

    # --- sending --------------------------------------------------------------------------------------

    async def _open(self) -> Self:
        if not self._opened.done:
            if not self._registered:
                self._registered = True
                self._host.register(self)
            await self._opened.wait()
        if self._error is not None:
            raise again(self._error)
        return self

    def _lane(self, destination: str) -> _Lane:
        lane = self._lanes.get(destination)
        if lane is None:
            parse_destination(destination, system=True)
            if len(self._lanes) >= self._lanes_max:
                self._lanes = {name: known for name, known in self._lanes.items() if not known.idle}
                self._lanes_max = max(LANES_MIN, 2 * len(self._lanes))
            lane = self._lanes[destination] = _Lane(destination)
        return lane

    def _turn(self) -> None:
        """Send what may be sent now."""
        if self._attached:
            for lane in list(self._active):
                if not self._pump(lane):
                    return
                del self._active[lane]

    def _pump(self, lane: _Lane) -> bool:
        """False when the link takes no more for now."""
        window_bytes = self._host.welcome.producer_window_bytes
        while lane.waiting and not lane.refused:
            part = lane.waiting[0]
            # One that does not ascend waits until the broker has nothing of this destination to refuse any more.
            if lane.sent and (lane.used + part.size_bytes > window_bytes or part.first < lane.end):
                return True
            if self._flying.meets(part.sequences):
                self._stalled[lane] = None
                return True
            if not self._host.writable:
                return False
            lane.waiting.popleft()
            lane.sent[part.first] = part
            lane.end = part.end
            lane.used += part.size_bytes
            self._by_first[part.first] = part
            self._flying.add(part.sequences)
            floor = frames.FLOOR.pack(min(self.floor, part.first))
            # Without RESEND, always: rather stored twice by a broker that has forgotten us than not at all.
            self._host.send(Type.PUBLISH, self._channel, (floor, part.encoded))
        return True

    # --- answers --------------------------------------------------------------------------------------

    def _handle(self, frame: Frame) -> bool:
        """A frame of this channel."""
        kind, payload = frame.type, frame.payload
        if kind == Type.PUBLISHED:
            for first, count, _zero in frames.SETTLED.iter_unpack(payload):
                self._settle(first, first + count, None)
            self._answered()
        elif kind == Type.PUBLISH_FAILED:
            first, count, _zero = frames.SETTLED.unpack_from(payload)
            error = error_of(frames.unpack(payload[frames.SETTLED.size :]))
            if isinstance(error, ProducerTaken):
                self._host.send(Type.CLOSE, self._channel)
                self._finish(error)
            else:
                self._settle(first, first + count, error)
                self._answered()
        elif kind == Type.REFUSED:
            self._refuse(frames.FLOOR.unpack_from(payload)[0])
        elif kind == Type.RESUME:
            self._retry(frames.FLOOR.unpack_from(payload)[0])
        elif kind == Type.OPENED:
            self._attached = True
            self._active.update(dict.fromkeys(self._lanes.values()))
            self._opened.settle()
        elif kind == Type.CLOSED:
            self._left.settle()
        return True

    def _settle(self, first: int, end: int, error: ClarionError | None) -> None:
        """An answer names a first sequence and a number of messages: of a sparse batch it is for that one alone."""
        while first < end:
            part = self._by_first.pop(first, None)
            if part is None:
                return
            self._flying.remove(part.sequences)
            lane = part.lane
            del lane.sent[part.first]
            lane.used -= part.size_bytes
            self._active[lane] = None
            if error is None:
                self._stored.add(part.sequences)
            self._let_go(part, error)
            first = part.end

    def _let_go(self, part: _Part, error: ClarionError | None) -> None:
        part.lane.unanswered_bytes -= part.size_bytes
        self._buffered -= part.size_bytes + BATCH_KEPT_BYTES
        part.call.answered(error)

    def _answered(self) -> None:
        self._stored.rise()
        self._active.update(self._stalled)
        self._stalled.clear()
        release(self._room)
        self._look_idle()

    def _look_idle(self) -> None:
        if self._idle and not self._calls and not self._buffered:
            release(self._idle)

    def _refuse(self, first: int) -> None:
        part = self._by_first.get(first)
        if part is not None:
            self._take_back(part.lane, first)
            part.lane.refused = first
            self._refused[first] = part.lane
            self._host.loop.call_later(REFUSED_S_MAX, self._retry, first)

    def _retry(self, first: int) -> None:
        lane = self._refused.pop(first, None)
        if lane is not None:
            lane.refused = 0
            self._active[lane] = None
            self._host.wake()

    def _take_back(self, lane: _Lane, first: int) -> None:
        for part in lane.back(first):
            del self._by_first[part.first]
            self._flying.remove(part.sequences)

    # --- connections come and go --------------------------------------------------------------------

    def _connect(self) -> None:
        said = {
            "producer": self.producer.to_bytes(16, "big"),
            "sender": self._sender,
            "resumed": self._opened.done,
        }
        self._host.send(Type.OPEN, self._channel, (frames.pack(said),))

    def _detach(self) -> None:
        self._attached = False
        self._refused.clear()
        for lane in self._lanes.values():
            lane.refused = 0
            self._take_back(lane, 0)
        if self._closing:
            self._left.settle()

    def _finish(self, error: ClarionError) -> None:
        """The end, for whatever reason. Nothing waits for ever."""
        if self._error is None:
            self._error = error
        self._attached = False
        self._refused.clear()
        self._active.clear()
        self._stalled.clear()
        for lane in self._lanes.values():
            self._take_back(lane, 0)
            while lane.waiting:
                self._let_go(lane.waiting.popleft(), again(self._error))
        self._opened.settle(again(self._error))
        self._left.settle()
        release(self._room)
        release(self._idle)
        self._host.forget(self._channel)
