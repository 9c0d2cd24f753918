"""One client's connection: bytes of a socket to frames of sessions, and back.

Guarantees
    1. Everything of one turn of the loop is written by one call.
    2. A client that breaks the rules, or is too slow to read, loses its connection and delays nobody:
       at most `FRAMES_PER_TURN` of its frames are handled before others have their turn, and what
       waits for it is bounded.
    3. An error is told by GOODBYE as the last frame. Input that is still under way is then read and
       thrown away for a moment, because closing a socket with unread input would destroy that frame.
    4. Reading never stops because a destination is full.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from clarion import limits
from clarion.errors import ClarionError, InternalFault, SlowReader
from clarion.nodes.sessions import Session
from clarion.protocols.native import ServerConnection, State
from clarion.wire.batch import Buffer
from clarion.wire.frames import Frame

if TYPE_CHECKING:
    from clarion.nodes.client_manager import ClientManager

FRAMES_PER_TURN = 64
"""About 2 ms of one-message batches."""
LINGER_MS = 2_000
"""How long a connection that was told GOODBYE may take to close."""
TICK_MS_MIN, TICK_MS_MAX = 25, 2_000


class Connection(asyncio.Protocol):
    """Between a transport and the manager."""

    __slots__ = (
        "_manager",
        "_rest",
        "_transport",
        "closing",
        "dirty",
        "due_ms",
        "engine",
        "identity",
        "paused",
        "ready",
        "sessions",
    )

    def __init__(self, manager: ClientManager, engine: ServerConnection) -> None:
        self._manager = manager
        self._transport: asyncio.Transport | None = None
        self._rest: list[Frame] = []
        self.engine = engine
        self.identity = 0
        """Unique: the id of its first session."""
        self.sessions: dict[int, Session] = {}
        """By channel."""
        self.due_ms = 0
        """When the manager looks at it again; 0 when never."""
        self.dirty = False
        self.ready = False
        self.paused = False
        """So much waits for the client that its size is to be looked at."""
        self.closing = False

    # --- the transport --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(
            limits.CONNECTION_WAITING_BYTES_HIGH, limits.CONNECTION_WAITING_BYTES_LOW
        )
        self.engine.tick(self._manager.now_ms())
        self._manager.connected(self)

    def data_received(self, data: bytes) -> None:
        manager = self._manager
        manager.bytes_in.total += len(data)
        if self.closing:
            return
        try:
            received = self.engine.receive(data, manager.now_ms())
        except ClarionError as error:
            self.end(error)
            return
        except Exception as error:
            self.fault(error)
            return
        if not self.ready and self.engine.state is State.READY:
            self.ready = True
            manager.sweeper.schedule(self, self._tick_ms())
        manager.frames_in.total += len(received)
        manager.bus.hold()
        try:
            self._handle(received)
        finally:
            manager.bus.release()

    def _handle(self, received: list[Frame]) -> None:
        """Handle some frames now; the rest, if there is one, when others had their turn."""
        if len(received) > FRAMES_PER_TURN:
            received, self._rest = received[:FRAMES_PER_TURN], received[FRAMES_PER_TURN:]
        elif self._rest:
            self._rest = []
        handle = self._manager.relay.handle
        try:
            for frame in received:
                handle(self, frame)
                if self.closing:
                    return
        except ClarionError as error:
            self.end(error)
            return
        except Exception as error:
            self.fault(error)
            return
        if self._rest and self._transport is not None:
            self._transport.pause_reading()
            self._manager.loop.call_soon(self._go_on)
        elif self.engine.state is State.CLOSING:
            self.end(None)
        if self.engine.outgoing:
            self.flush()

    def _go_on(self) -> None:
        if self.closing or self._transport is None:
            return
        self._handle(self._rest)
        if not self._rest and not self.closing:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.closing = True
        self._rest = []
        self.due_ms = 0
        self._manager.disconnected(self)

    def pause_writing(self) -> None:
        """More waits for the client than is good: message managers hold back what is for it."""
        self.paused = True
        self._manager.relay.flow(self.sessions.values(), paused=True)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.paused = False
        self._manager.relay.flow(self.sessions.values(), paused=False)

    # --- writing --------------------------------------------------------------------------------------

    def reply(self, kind: int, channel: int, parts: list[Buffer], flags: int = 0) -> None:
        """Queue a frame; it is written at the end of this turn of the loop."""
        if not self.closing:
            self.engine.send(kind, channel, parts, flags)
            manager = self._manager
            manager.frames_out.total += 1
            if not self.dirty:
                self.dirty = True
                manager.will_flush(self)

    def flush(self) -> None:
        """Write all that is queued."""
        transport, engine = self._transport, self.engine
        outgoing = engine.outgoing
        if outgoing and transport is not None:
            engine.outgoing = []
            self._manager.bytes_out.total += sum(map(len, outgoing))
            transport.writelines(outgoing)
            if self.paused and not self.closing:
                waiting = transport.get_write_buffer_size()
                if waiting > self._manager.settings.waiting_bytes_max:
                    self._ended(SlowReader(waiting=waiting))
                    # Without GOODBYE, for which there is no room.
                    self._manager.loop.call_soon(self.abort)

    def tick(self, now_ms: int) -> int:
        """Heartbeats and time-outs. Returns when to be called again, 0 for never."""
        if self.closing:
            self.abort()
            return 0
        try:
            self.engine.tick(now_ms)
        except ClarionError as error:
            self.end(error)
            return 0
        self.flush()
        return now_ms + self._tick_ms()

    def _tick_ms(self) -> int:
        return min(TICK_MS_MAX, max(TICK_MS_MIN, self.engine.heartbeat_ms // 4))

    # --- the end --------------------------------------------------------------------------------------

    def end(self, error: ClarionError | None) -> None:
        """Say GOODBYE, end the sessions, and close when the client has had a moment to read it."""
        if self.closing:
            return
        if self.engine.state is State.CLOSING:  # the client said it first
            error = error or self.engine.peer_error
        self.engine.goodbye(error)
        self._ended(error)
        transport = self._transport
        if transport is None:
            return
        try:
            self.flush()
            if transport.can_write_eof():
                transport.write_eof()
            transport.resume_reading()
        except (OSError, RuntimeError):
            self.abort()
            return
        self._manager.sweeper.schedule(self, LINGER_MS)

    def fault(self, error: Exception) -> None:
        """Something of ours went wrong while serving this client: it costs this connection only."""
        self._manager.log_fault(self, error)
        self.end(error if isinstance(error, InternalFault) else InternalFault(detail=str(error)))

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _ended(self, error: ClarionError | None) -> None:
        self.closing = True
        self._rest = []
        self._manager.ended(self, error)

    @property
    def peer(self) -> str:
        """The client's address, for the log."""
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "?"
