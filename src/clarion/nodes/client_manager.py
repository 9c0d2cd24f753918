"""The client manager (CM): owns connections and sessions, and knows nothing of messages (B-01).

Theory of operation
    `listener` binds; a `Connection` turns bytes into frames; `relay` checks them and turns them into commands
    for message managers, and their commands into frames; `sweeper` is the one timer. This module starts and
    stops these, counts, and keeps the set of connections.

Rules
    1. It holds no state that must survive: clients reconnect to any client manager and say again what is open.
    2. No connection can harm another: each is bounded in memory and in time per turn, and what goes wrong
       while serving it ends it alone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

from clarion import limits
from clarion.bus.interface import Bus
from clarion.errors import AuthenticationFailed, ClarionError, ProtocolError, TooManyConnections
from clarion.instruments import Registry, ValueType
from clarion.nodes.connection import Connection
from clarion.nodes.identity import Identity
from clarion.nodes.listener import BACKLOG, bind
from clarion.nodes.logging import DEBUG, ERROR, INFO, event
from clarion.nodes.relay import Relay
from clarion.nodes.sweeper import Sweeper
from clarion.protocols.native import ServerConnection
from clarion.settings import Address, Settings, parse_address

STOP_S = 2.5
"""How long a stop waits for clients to read their GOODBYE."""
REFUSED_CONNECTIONS_MAX = 1_000
"""Connections beyond the limit that are being told so; more are cut off without a word."""

_log = logging.getLogger("clarion.cm")


class ClientManager:
    """One client manager on the running loop. `clock` gives monotonic milliseconds."""

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        identity: Identity,
        registry: Registry,
        *,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.bus = bus
        self.settings = settings.client_manager
        self.now_ms = clock or self._loop_ms
        self.relay = Relay(bus, identity, registry, self.now_ms, self.settings.answer_ms)
        bus.after_burst = self._flush
        self.sweeper = Sweeper(self.loop, self.now_ms, self.relay.sweep)
        self.address = parse_address(self.settings.listen)
        """Where it listens; with the real port once started."""
        self._name = settings.node.name
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._to_flush: list[Connection] = []
        self._empty: asyncio.Event | None = None
        self._declare(registry)

    def _declare(self, registry: Registry) -> None:
        def integer(name: str, unit: str, meaning: str, read: Callable[[], int]) -> None:
            registry.indicator(name, unit=unit, meaning=meaning, read=read, value_type=ValueType.INTEGER)

        integer("cm.connections", "connections", "clients connected", lambda: len(self._connections))
        integer("cm.sessions", "sessions", "sessions open", lambda: len(self.relay.sessions))
        self.frames_in = registry.tally("cm.frames_in", unit="frames", meaning="frames of sessions received")
        self.frames_out = registry.tally("cm.frames_out", unit="frames", meaning="frames of sessions sent")
        self.bytes_in = registry.tally("cm.bytes_in", unit="bytes", meaning="bytes read from clients")
        self.bytes_out = registry.tally("cm.bytes_out", unit="bytes", meaning="bytes written to clients")
        self._faults = registry.counter("cm.faults", unit="faults", meaning="internal faults while serving a client")
        self._errors = {
            code: registry.counter(
                f"cm.protocol_errors.{code.lower().replace('-', '_')}",
                unit="connections",
                meaning=f"connections ended by {kind.__name__}",
            )
            for code, kind in sorted(ClarionError.by_code.items())
            if issubclass(kind, ProtocolError | AuthenticationFailed)
        }

    def _loop_ms(self) -> int:
        return int(self.loop.time() * 1000)

    # --- start and stop -------------------------------------------------------------------------------

    async def start(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Serve clients on `sockets`, or on what `listen` says.

        Raises `AddressInUse`, `NoPermission`, `ConfigurationError`."""
        sockets = sockets or bind(self.address)
        self.address = Address(self.address.host, sockets[0].getsockname()[1])
        self.relay.start()
        self.sweeper.start()
        for listening in sockets:
            server = await self.loop.create_server(self._connection, sock=listening, backlog=BACKLOG)
            self._servers.append(server)
        event(_log, INFO, "listening", address=self.address)

    async def stop(self) -> None:
        """Accept nobody any more, say GOODBYE to all, end their sessions."""
        for server in self._servers:
            server.close()
        self._empty = asyncio.Event()
        for connection in tuple(self._connections):
            connection.end(None)
        if self._connections:
            try:
                await asyncio.wait_for(self._empty.wait(), STOP_S)
            except TimeoutError:
                for connection in tuple(self._connections):
                    connection.abort()
                await asyncio.sleep(0)
        self.sweeper.stop()
        self.relay.stop()
        await asyncio.sleep(0)  # a turn of the loop, in which a message manager hears of the ended sessions
        event(_log, INFO, "stopped_listening", address=self.address)

    def _connection(self) -> Connection:
        engine = ServerConnection(
            server=self._name,
            batch_bytes_max=self.settings.batch_bytes_max,
            producer_window_bytes=self.settings.producer_window_bytes,
            heartbeat_ms=self.settings.heartbeat_ms,
            authenticate=_authenticate,
        )
        return Connection(self, engine)

    # --- what connections tell ------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """A client came."""
        limit = self.settings.connections_max
        self._connections.add(connection)
        if self._empty is not None or len(self._connections) > limit + REFUSED_CONNECTIONS_MAX:
            connection.abort()
        elif len(self._connections) > limit:
            connection.end(TooManyConnections(limit=limit))
        else:
            self.sweeper.schedule(connection, limits.HANDSHAKE_MS_MAX + 1)
            event(_log, DEBUG, "connected", peer=connection.peer)

    def ended(self, connection: Connection, error: ClarionError | None) -> None:
        """A connection will close: its sessions are over."""
        self.relay.end_all(connection.sessions.values())
        connection.sessions.clear()
        if error is not None:
            counter = self._errors.get(error.code)
            if counter is not None:
                counter.add()
            event(_log, INFO, "connection_ended", peer=connection.peer, code=error.code, error=error)

    def disconnected(self, connection: Connection) -> None:
        """A connection is closed."""
        self.relay.end_all(connection.sessions.values())
        connection.sessions.clear()
        self._connections.discard(connection)
        event(_log, DEBUG, "disconnected", connections=len(self._connections))
        if self._empty is not None and not self._connections:
            self._empty.set()

    def log_fault(self, connection: Connection, error: Exception) -> None:
        """Something of ours went wrong."""
        self._faults.add()
        if _log.isEnabledFor(ERROR):
            facts: dict[str, Any] = {"facts": {"peer": connection.peer}}
            _log.error("fault", exc_info=error, extra=facts)

    # --- writing --------------------------------------------------------------------------------------

    def will_flush(self, connection: Connection) -> None:
        """Write what this connection has queued, once all that happens in this turn has happened."""
        if not self._to_flush and not self.relay.in_burst:
            self.loop.call_soon(self._flush)
        self._to_flush.append(connection)

    def _flush(self) -> None:
        self.relay.in_burst = False
        connections, self._to_flush = self._to_flush, []
        for connection in connections:
            connection.dirty = False
            connection.flush()


def _authenticate(authentication: dict[str, Any]) -> None:
    """There are no users yet, so nobody can be somebody."""
    mechanism = authentication.get("mechanism", "none")
    if mechanism != "none":
        raise AuthenticationFailed(detail=f"the mechanism {str(mechanism)[:40]!r} is not offered")
