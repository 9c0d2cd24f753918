"""The sending end of a link in an event loop: for recipients, which may allocate.

Guarantees
    1. What `put` counts as stored is durable at the other end.
    2. A connection that breaks, or says nothing for `SILENCE_S_MAX`, ends every wait with `ConnectionLost`, and calls
       `lost` once.
    3. Whatever bytes come, they cost the connection at most.

Rule: in the thread of its loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from clarion import limits
from clarion.errors import ClarionError, ConnectionFailed, ConnectionLost, MessageTooLarge, ProtocolError
from clarion.events.memory.layout import Recorded

from . import frames
from .frames import Frame, Heartbeat, Hello, Incoming, Role, Type

BEAT_S = 10.0
SILENCE_S_MAX = 30.0


class AsyncLink(asyncio.BufferedProtocol):
    """One connection to the server of another event system. Made by `connect`."""

    def __init__(self, peer: str, unasked: Callable[[Frame], None], lost: Callable[[], None]) -> None:
        self.peer = peer
        self.welcome = Hello(peer, Role.MULTIPLEX)
        """What the server said of itself."""
        self._unasked = unasked
        self._lost = lost
        self._incoming = Incoming(limits.EVENT_LINK_FRAME_BYTES_DEFAULT)
        self._room = limits.EVENT_LINK_FRAME_BYTES_DEFAULT
        self._transport: asyncio.Transport | None = None
        self._number = 0
        self._beats = 0
        self._answers: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        self._problem = ""
        self._greeted = False
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(
        cls,
        address: tuple[str, int],
        timeout_s: float,
        *,
        hello: Hello,
        unasked: Callable[[Frame], None],
        lost: Callable[[], None] = lambda: None,
    ) -> AsyncLink:
        """Connect and greet. Raises `ConnectionFailed` if nobody (or somebody else) is there in time.

        `unasked` gets every frame that the server sends by itself, valid while it runs.
        """
        peer = f"{address[0]}:{address[1]}"
        link = cls(peer, unasked, lost)
        try:
            async with asyncio.timeout(timeout_s):
                await link._loop.create_connection(lambda: link, *address)
                await link._greet(hello)
        except TimeoutError:
            link.close()
            raise ConnectionFailed(url=peer, detail=f"no answer within {timeout_s} s") from None
        except (OSError, ClarionError) as error:
            link.close()
            raise ConnectionFailed(url=peer, detail=str(error)) from None
        except BaseException:
            link.close()
            raise
        link._greeted = True
        link._timer = link._loop.call_later(BEAT_S, link._beat)
        return link

    async def _greet(self, hello: Hello) -> None:
        kind, payload = await self._ask(Type.HELLO, frames.pack_hello(hello))
        if kind == Type.ERROR:
            raise frames.unpack_error(memoryview(payload))
        if kind != Type.HELLO:
            raise ProtocolError(detail=f"HELLO was answered by type {kind}")
        self.welcome = frames.unpack_hello(memoryview(payload))
        self._room = self.welcome.frame_bytes_max
        if self.welcome.role != hello.role:
            raise ProtocolError(detail=f"{self.welcome.name} is no {hello.role.name.lower()}er")

    @property
    def broken(self) -> bool:
        return self._transport is None

    def close(self) -> None:
        """Let it go. `lost` is not called."""
        self._lost = _nothing
        self._abort("closed here")

    # --- sending ------------------------------------------------------------------------------------

    async def put(self, section: int, events: Sequence[Recorded]) -> tuple[int, ClarionError | None]:
        """Send events under their own ids. How many from the first on are stored, and what refused the next one.

        One frame after the other: what follows a refused event must not be stored before it.
        """
        stored = 0
        while stored < len(events):
            whole, count = self._packed(section, events, stored)
            if not count:
                size = len(events[stored].headers) + len(events[stored].body)
                return stored, MessageTooLarge(size=size, limit=self._room - frames.PUT_OVERHEAD_BYTES)
            kind, payload = await self._transmit(whole)
            if kind == Type.ERROR:
                return stored, frames.unpack_error(memoryview(payload))
            if kind != Type.STORED:
                raise self._wrong(f"PUT was answered by type {kind}")
            stored += count
        return stored, None

    def _packed(self, section: int, events: Sequence[Recorded], at: int) -> tuple[bytes, int]:
        """A PUT with as many events as fit; how many."""
        self._number = self._number + 1 & 0xFFFFFFFF
        buffer = memoryview(bytearray(self._room))
        end, count = frames.begin_put(buffer, frames.pack_producer(section)), 0
        for number in range(at, len(events)):
            event = events[number]
            rest = memoryview(frames.rest_of(event))
            reached = frames.add_record(buffer, end, frames.pack_producer(event.producer), event.sequence, rest)
            if not reached:
                break
            end = reached
            count += 1
        return bytes(buffer[: frames.end_put(buffer, end, count, self._number)]), count

    def _transmit(self, whole: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send a frame that has the last number; its answer."""
        if self._transport is None:
            raise self._gone()
        answer = self._answers[self._number] = self._loop.create_future()
        self._transport.write(whole)
        return answer

    async def _ask(self, kind: int, payload: bytes) -> tuple[int, bytes]:
        self._number = self._number + 1 & 0xFFFFFFFF
        return await self._transmit(frames.frame(kind, payload, self._number))

    def send(self, kind: int, payload: bytes) -> None:
        """Send a frame that has no answer. Raises `ConnectionLost`."""
        if self._transport is None:
            raise self._gone()
        self._transport.write(frames.frame(kind, payload))

    def _beat(self) -> None:
        if self._transport is None:
            return
        if self._loop.time() - self._heard_s > SILENCE_S_MAX:
            self._abort("silent")
            return
        self._beats += 1
        self.send(Type.HEARTBEAT, frames.pack_heartbeat(Heartbeat(self._beats)))
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    # --- asyncio ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._abort(str(error) if error is not None else "closed by the other end")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._incoming.room()

    def buffer_updated(self, count: int) -> None:
        self._heard_s = self._loop.time()
        self._incoming.received(count)
        try:
            while self._transport is not None and (frame := self._incoming.peek()) is not None:
                self._received(frame)
                self._incoming.drop()
        except ProtocolError as error:
            self._abort(str(error))

    def _received(self, frame: Frame) -> None:
        answer = self._answers.pop(frame.number, None) if frame.number else None
        if answer is not None:
            if not answer.done():
                answer.set_result((frame.type, bytes(frame.payload)))
        elif not frame.number:
            if frame.type == Type.ERROR:
                raise ProtocolError(detail=str(frames.unpack_error(frame.payload)))
            if frame.type != Type.HEARTBEAT:
                self._unasked(frame)

    # --- the end --------------------------------------------------------------------------------------

    def _abort(self, problem: str) -> None:
        transport, self._transport = self._transport, None
        self._problem = self._problem or problem
        if transport is not None:
            transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(self._gone())
                answer.exception()  # it is nobody's fault if nobody waits any more
        lost, self._lost = self._lost, _nothing
        if self._greeted:
            lost()

    def _gone(self) -> ConnectionLost:
        return ConnectionLost(detail=f"link to {self.peer}: {self._problem or 'not connected'}")

    def _wrong(self, detail: str) -> ProtocolError:
        self._abort(detail)
        return ProtocolError(detail=f"link to {self.peer}: {detail}")


def _nothing() -> None:
    return None
