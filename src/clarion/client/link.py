"""One TCP connection to one server: bytes to frames and back, heartbeats, its end.

Guarantees: `lost` is resolved exactly once, with the reason; after that nothing is handed out. The
heartbeat comes from the loop, so it goes on while handlers await; one that blocks the loop for
three heartbeats costs the connection (the blocking twin has the loop in a thread of its own).
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any, Protocol, cast

from clarion.client.address import Address
from clarion.errors import ClarionError, ConnectionFailed, ConnectionLost, InternalFault
from clarion.protocols.greetings import Welcome
from clarion.protocols.native import ClientConnection, State
from clarion.wire.frames import Frame

SOFTWARE = "clarion-python/0.1"
CLOSE_S_MAX = 2.0


def now_ms() -> int:
    """The clock of heartbeats."""
    return time.monotonic_ns() // 1_000_000


class Owner(Protocol):
    """The connection, as its link sees it."""

    def _received(self, frames: list[Frame]) -> None: ...

    def _flow(self) -> None: ...

    def _detached(self, link: Link, error: ClarionError) -> None: ...


class Link(asyncio.Protocol):
    """The protocol object of a transport."""

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.native = ClientConnection()
        self.paused = False
        self.welcomed: asyncio.Future[Welcome] = loop.create_future()
        self.lost: asyncio.Future[ClarionError] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()

    def flush(self) -> None:
        """Write what is queued."""
        native, transport = self.native, self._transport
        outgoing = native.outgoing
        if outgoing:
            native.outgoing = []
            if transport is not None and not transport.is_closing():
                try:
                    transport.writelines(outgoing)
                except RuntimeError:
                    pass  # of uvloop, when the transport was closed under us; `connection_lost` tells

    def close(self, error: ClarionError | None = None) -> None:
        """Say goodbye and close once everything is written."""
        self.native.goodbye(error)
        self.flush()
        self._end(error or ConnectionLost(detail="it was closed here"))
        if self._transport is not None:
            self._transport.close()

    async def gone(self) -> None:
        """Return when the transport is closed; it is cut off if the server does not read what is left."""
        if self._transport is not None:
            await asyncio.wait([self._gone], timeout=CLOSE_S_MAX)
            if self._transport is not None:
                self._transport.abort()

    def _end(self, error: ClarionError) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.lost.done():
            self.lost.set_result(error)
            self._owner._detached(self, error)
        if not self.welcomed.done():
            self.welcomed.set_exception(error)
            self.welcomed.exception()  # looked at: nobody need await it

    def _tick(self) -> None:
        try:
            self.native.tick(now_ms())
        except ClarionError as error:
            self.close(error)
            return
        self.flush()
        self._timer = self._loop.call_later(self.native.heartbeat_ms / 3000, self._tick)

    # --- asyncio.Protocol -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self.lost.done():
            return
        native = self.native
        try:
            received = native.receive(data, time.monotonic_ns() // 1_000_000)
            if native.welcome is not None and not self.welcomed.done():
                self.welcomed.set_result(native.welcome)
                self._tick()
            if received:
                self._owner._received(received)
            if native.state is State.CLOSING and not self.lost.done():
                native.receive(b"", now_ms())  # raises what the server said
        except ClarionError as error:
            self.close(error)
        except Exception as error:
            context = {"message": "a frame could not be handled", "exception": error, "protocol": self}
            self._loop.call_exception_handler(context)
            self.close(InternalFault(detail=repr(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionLost(detail=str(exc) if exc else "the server closed it"))
        self._transport = None
        if not self._gone.done():
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._owner._flow()


async def dial(owner: Owner, host: str, port: int, address: Address, hello: dict[str, Any], limit_s: float) -> Link:
    """A link whose handshake is done. Raises `ConnectionFailed`, or what the server refuses with."""
    loop = asyncio.get_running_loop()
    link = Link(owner, loop)
    try:
        async with asyncio.timeout(limit_s):
            await loop.create_connection(lambda: link, host, port)
            link.native.hello(software=SOFTWARE, authentication=address.authentication, **hello)
            link.flush()
            await link.welcomed
    except (OSError, TimeoutError) as error:
        link.close()
        detail = str(error) or f"no answer within {limit_s:.1f} s"
        raise ConnectionFailed(url=f"{host}:{port}", detail=detail) from None
    except BaseException:
        link.close()
        raise
    return link
