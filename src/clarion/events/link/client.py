"""The sending end of a link: blocking, for threads that must not need memory.

Guarantees
    1. After `connect`, `put_group` and `await_stored` use buffers and a socket that are there already:
       they start no thread, open no file, and allocate nothing larger than a number or a view.
    2. What was put is durable at the other end when `await_stored` returned. When a call raises `ConnectionLost`
       nothing is known about what was on its way, and the link is of no use any more: only `close` may follow.
    3. Every wait has a deadline.

Rule: one thread at a time. A signal handler that emits uses the link of its own ring.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence

from clarion import limits
from clarion.errors import ClarionError, ConnectionFailed, ConnectionLost, MessageTooLarge, ProtocolError
from clarion.events.memory.layout import KIND_FOREIGN, ORIGIN, Recorded
from clarion.journal import record as records

from . import frames
from .frames import Frame, Held, Hello, Incoming, Role, Type

Address = tuple[str, int]


class Link:
    """One connection to the server of another event system. Made by `connect`."""

    def __init__(self, connection: socket.socket, peer: str, frame_bytes_max: int) -> None:
        self._socket = connection
        self.peer = peer
        self.broken = False
        self._outgoing = memoryview(bytearray(b"\1" * frame_bytes_max))
        self._incoming = Incoming(frame_bytes_max)
        self._number = 0
        self._unanswered = 0
        self._room = frame_bytes_max
        """What one frame may have: the smaller of our limit and the server's."""
        self.welcome = Hello(peer, Role.PARTNER)
        """What the server said of itself."""
        self.unasked: Callable[[int, memoryview], None] | None = None
        """Called with type and payload of what the server sends by itself, while something else is awaited."""

    @classmethod
    def connect(
        cls,
        address: Address,
        timeout_s: float,
        *,
        hello: Hello,
        frame_bytes_max: int = limits.EVENT_LINK_FRAME_BYTES_DEFAULT,
    ) -> Link:
        """Connect and greet. Raises `ConnectionFailed` if nobody (or somebody else) is there in time."""
        peer = f"{address[0]}:{address[1]}"
        deadline_s = time.monotonic() + timeout_s
        try:
            connection = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise ConnectionFailed(url=peer, detail=str(error)) from None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = cls(connection, peer, frame_bytes_max)
            link.greet(hello, deadline_s)
            return link
        except (ProtocolError, ConnectionLost) as error:
            connection.close()
            raise ConnectionFailed(url=peer, detail=str(error)) from None
        except BaseException:
            connection.close()
            raise

    def greet(self, hello: Hello, deadline_s: float) -> dict[int, Held]:
        """Name sections; returns what the other end holds of each. May be repeated for further sections."""
        limited = Hello(hello.name, hello.role, hello.epoch, len(self._outgoing), hello.memory, hello.sections)
        number = self.send(Type.HELLO, frames.pack_hello(limited), deadline_s=deadline_s)
        answer = self._answer(number, deadline_s)
        if answer.type == Type.ERROR:
            raise frames.unpack_error(answer.payload)
        if answer.type != Type.HELLO:
            raise ProtocolError(detail=f"HELLO was answered by type {answer.type}")
        self.welcome = frames.unpack_hello(answer.payload)
        self._room = min(len(self._outgoing), self.welcome.frame_bytes_max)
        self._incoming.drop()
        return {one.producer: one for one in self.welcome.sections}

    # --- what emit() uses ---------------------------------------------------------------------------

    def put_group(self, producer: bytes, group: memoryview, first: int, end: int, deadline_s: float) -> None:
        """Send the records `first` to before `end` of a ring, as they lie in its staging buffer."""
        buffer = self._outgoing[: self._room]
        at, count, offset = frames.begin_put(buffer, producer), 0, 0
        for _ in range(first, end):
            _, magic, kind, _, _, _, head_bytes, body_bytes, index = records._HEADER.unpack_from(group, offset)
            if magic != records.MAGIC:
                raise ProtocolError(detail=f"the group of records {first} to {end} has none at byte {offset}")
            start = offset + records.HEADER_BYTES
            offset = (start + head_bytes + body_bytes + records.ALIGN_BYTES - 1) & -records.ALIGN_BYTES
            rest = group[start : start + head_bytes + body_bytes]
            origin, sequence = producer, index
            if kind == KIND_FOREIGN:
                origin, sequence = ORIGIN.unpack_from(rest)
                rest = rest[ORIGIN.size :]
            reached = frames.add_record(buffer, at, origin, sequence, rest)
            if not reached:
                if not count:
                    raise MessageTooLarge(size=len(rest), limit=self._room - frames.PUT_OVERHEAD_BYTES)
                self._put(buffer, at, count, deadline_s)
                count = 0
                reached = frames.add_record(buffer, frames.begin_put(buffer, producer), origin, sequence, rest)
                if not reached:
                    raise MessageTooLarge(size=len(rest), limit=self._room - frames.PUT_OVERHEAD_BYTES)
            at = reached
            count += 1
        if count:
            self._put(buffer, at, count, deadline_s)

    def await_stored(self, deadline_s: float) -> None:
        """Until everything that was put is durable. Raises what the other end refused it with, or `ConnectionLost`."""
        refused: ClarionError | None = None
        while self._unanswered:
            answer = self._answer(self._number - self._unanswered + 1, deadline_s)
            self._unanswered -= 1
            if answer.type == Type.ERROR:
                refused = refused or frames.unpack_error(answer.payload)
            elif answer.type == Type.STORED:
                frames.unpack_stored(answer.payload)
            else:
                self.broken = True
                raise ProtocolError(detail=f"PUT was answered by type {answer.type}")
            self._incoming.drop()
        if refused is not None:
            raise refused

    # --- what may allocate --------------------------------------------------------------------------

    def put_recorded(self, producer: int, events: Sequence[Recorded], deadline_s: float) -> None:
        """Send events of the section with this producer id, under their own ids."""
        buffer = self._outgoing[: self._room]
        section = frames.pack_producer(producer)
        at, count = frames.begin_put(buffer, section), 0
        for event in events:
            origin, rest = frames.pack_producer(event.producer), memoryview(frames.rest_of(event))
            reached = frames.add_record(buffer, at, origin, event.sequence, rest)
            if not reached and count:
                self._put(buffer, at, count, deadline_s)
                count = 0
                reached = frames.add_record(buffer, frames.begin_put(buffer, section), origin, event.sequence, rest)
            if not reached:
                raise MessageTooLarge(size=len(rest), limit=self._room - frames.PUT_OVERHEAD_BYTES)
            at = reached
            count += 1
        if count:
            self._put(buffer, at, count, deadline_s)

    def send(self, kind: int, payload: bytes, *, flags: int = 0, deadline_s: float) -> int:
        """Send one frame other than PUT; returns its number."""
        if self._unanswered:
            raise ProtocolError(detail="await_stored comes first")
        if len(payload) > len(self._outgoing) - frames.HEADER_BYTES:
            raise MessageTooLarge(size=len(payload), limit=len(self._outgoing) - frames.HEADER_BYTES)
        self._outgoing[frames.HEADER_BYTES : frames.HEADER_BYTES + len(payload)] = payload
        self._number = self._number + 1 & 0xFFFFFFFF
        size = frames.seal(self._outgoing, kind, len(payload), self._number, flags)
        self._transmit(self._outgoing[:size], deadline_s)
        return self._number

    def ask(self, kind: int, payload: bytes, deadline_s: float) -> tuple[int, bytes]:
        """Send one frame and wait for its answer: (type, payload)."""
        answer = self._answer(self.send(kind, payload, deadline_s=deadline_s), deadline_s)
        refused = frames.unpack_error(answer.payload) if answer.type == Type.ERROR else None
        kept = answer.type, bytes(answer.payload)
        self._incoming.drop()
        if refused is not None:
            raise refused
        return kept

    def collect(self, deadline_s: float) -> Frame | None:
        """The next frame that the other end sends by itself (a confirmation), or None at the deadline.

        The frame is valid until `collected`."""
        try:
            return self._next(deadline_s)
        except ConnectionLost:
            if self.broken:
                raise
            return None

    def collected(self) -> None:
        """What `collect` returned is done with."""
        self._incoming.drop()

    def hung_up(self) -> bool:
        """While nothing is awaited: whether the other end has closed the link, or says what nobody asked for."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.broken = True
        self._socket.close()

    # --- bytes --------------------------------------------------------------------------------------

    def _put(self, buffer: memoryview, at: int, count: int, deadline_s: float) -> None:
        self._number = self._number + 1 & 0xFFFFFFFF
        self._transmit(buffer[: frames.end_put(buffer, at, count, self._number)], deadline_s)
        self._unanswered += 1

    def _transmit(self, data: memoryview, deadline_s: float) -> None:
        if self.broken:
            raise self._lost("it broke before")
        complete = False
        try:
            self._socket.settimeout(max(deadline_s - time.monotonic(), 0.001))
            self._socket.sendall(data)
            complete = True
        except OSError as error:
            raise self._lost(str(error)) from None
        finally:
            if not complete:  # also when a signal's handler raised: part of a frame may have left
                self.broken = True

    def _answer(self, number: int, deadline_s: float) -> Frame:
        """The answer to what has this number. It stays in the buffer until it is dropped."""
        while True:
            try:
                frame = self._next(deadline_s)
            except ConnectionLost:
                self.broken = True  # an answer that comes later would be taken for another's
                raise
            if frame.number == number & 0xFFFFFFFF:
                return frame
            if self.unasked is not None:
                self.unasked(frame.type, frame.payload)
            self._incoming.drop()

    def _next(self, deadline_s: float) -> Frame:
        while (frame := self._peek()) is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise self._lost("no answer in time")
            try:
                self._socket.settimeout(left_s)
                count = self._socket.recv_into(self._incoming.room())
            except TimeoutError:
                continue
            except OSError as error:
                self.broken = True
                raise self._lost(str(error)) from None
            if not count:
                self.broken = True
                raise self._lost("closed by the other end")
            self._incoming.received(count)
        return frame

    def _lost(self, detail: str) -> ConnectionLost:
        return ConnectionLost(detail=f"link to {self.peer}: {detail}")

    def _peek(self) -> Frame | None:
        try:
            return self._incoming.peek()
        except ProtocolError:
            self.broken = True
            raise
