"""A connection: one link at a time to one of several servers, and the sessions on it.

Theory of operation
    state          stimulus                                next
    CONNECTING     a handshake is done                     CONNECTED
    CONNECTING     `connect_timeout` is over               CLOSED      ConnectionFailed
    CONNECTED      the link is lost                        RECONNECTING (or CLOSED with `reconnect=False`)
    RECONNECTING   a handshake is done                     CONNECTED   sessions resume
    RECONNECTING   `reconnect_timeout` is over             CLOSED      ConnectionLost for whoever waits
    any            the server refuses the user or version  CLOSED
    any            `close`                                 CLOSED

Guarantees
    1. Hosts are tried in turn; after each round there is a pause that doubles, with jitter.
    2. Everything that sessions want to write in one turn of the loop is one vectored write; a lone message
       (`Sender._send_alone`) is one of its own, and need not wait for that turn.
    3. The same complaint of servers about what we send, three times in a row, ends the connection: to
       send it again would not help.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Generator, Iterable, Sequence
from enum import StrEnum
from typing import Any, Self

from clarion import limits
from clarion.client import address as addresses
from clarion.client.host import Resumable
from clarion.client.link import Link, dial, now_ms
from clarion.client.numbered import NumberedSender
from clarion.client.outcome import again
from clarion.client.session import Session
from clarion.client.transaction import Prepared
from clarion.errors import (
    AuthenticationFailed,
    BadArgument,
    ClarionError,
    ConnectionFailed,
    ConnectionLost,
    HandshakeTimeout,
    HeartbeatMissed,
    LimitReached,
    ProtocolError,
    SlowReader,
    TooManyConnections,
    VersionMismatch,
)
from clarion.protocols.greetings import Welcome
from clarion.wire.batch import Buffer
from clarion.wire.frames import Frame

PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 5.0
COMPLAINTS_MAX = 3
COMPLAINT_MS_MAX = 30_000
"""A link that lasted longer was a good one: complaints are counted anew."""
_HOPELESS = (AuthenticationFailed, VersionMismatch)
_PASSING = (HeartbeatMissed, SlowReader, TooManyConnections, HandshakeTimeout)


class ConnectionState(StrEnum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    CLOSED = "closed"


class Connection:
    """Made by `connect`. Open it with `async with`, or by awaiting it."""

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        name: str | None = None,
        heartbeat_ms: int = limits.HEARTBEAT_MS_DEFAULT,
        connect_timeout: float = 10.0,
        reconnect: bool = True,
        reconnect_timeout: float | None = None,
        buffer_bytes: int = limits.CLIENT_BUFFER_BYTES,
        on_state: Callable[[ConnectionState], None] | None = None,
        threadsafe: bool = False,
    ) -> None:
        self._address = addresses.parse(url)
        if not limits.HEARTBEAT_MS_MIN <= heartbeat_ms <= limits.HEARTBEAT_MS_MAX:
            detail = f"{heartbeat_ms} is not between {limits.HEARTBEAT_MS_MIN} and {limits.HEARTBEAT_MS_MAX}"
            raise BadArgument(argument="heartbeat_ms", detail=detail)
        self._hello: dict[str, Any] = {"name": name, "heartbeat_ms": heartbeat_ms}
        self._connect_timeout = connect_timeout
        self._reconnect = reconnect
        self._reconnect_timeout = reconnect_timeout
        self._buffer_bytes = buffer_bytes
        self._threadsafe = threadsafe
        self.on_state = on_state
        """Called in the loop's thread with each new state."""
        self.state = ConnectionState.CONNECTING
        self.failure: ClarionError | None = None
        """Why it is over for good; None while it is not."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None
        self._welcome: Welcome | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._next_host = 0
        self._sessions: dict[int, Resumable] = {}
        self._channels = 0
        self.scheduled = False
        """A turn is asked for."""
        self._control: Session | None = None
        self._complaints = 0
        self._connected_at_ms = 0

    # --- for applications -------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Connection {self._address} {self.state}>"

    @property
    def closed(self) -> bool:
        """It is over, by `close` or by a failure."""
        return self.state is ConnectionState.CLOSED

    @property
    def server(self) -> str:
        """The name of the server of now, or of the last one."""
        return self.welcome.server

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that the server of now, or the last one, takes."""
        return self.welcome.batch_bytes_max

    def session(self, *, transacted: bool = False) -> Session:
        """A new session: `async with connection.session() as session`.

        Everything that is sent and received in a `transacted` one takes effect together, by its `commit`.
        """
        self._channels += 1
        return Session(self, self._channels, self._buffer_bytes, transacted)

    def numbered(self, producer: int, *, settled_below: int = 1) -> NumberedSender:
        """A sender of messages whose ids you give yourself, of one producer id: `async with connection.numbered(id)`.

        `settled_below`: lower sequences will never be sent again, see `NumberedSender.forget_below`. Another sender
        with this producer id, wherever it is, is over when this one is open.
        """
        self._channels += 1
        return NumberedSender(self, self._channels, producer, self._buffer_bytes, settled_below)

    async def command(self, verb: str, arguments: dict[str, Any] | None = None) -> Any:
        """Ask the broker something, outside of any session of yours: the verbs of docs/reference/requests.md."""
        return await (await self._own_session()).command(verb, arguments)

    async def commit(self, handles: str | Iterable[str], *, key: str | None = None, version: int | None = None) -> bool:
        """Commit prepared transactions, all or none: as `Session.commit`."""
        return await (await self._own_session()).commit(handles, key=key, version=version)

    async def committed_version(self, key: str) -> int | None:
        """The last version that was committed under `key`: as `Session.committed_version`."""
        return await (await self._own_session()).committed_version(key)

    async def prepared(self) -> list[Prepared]:
        """All prepared transactions that nobody has decided yet."""
        return await (await self._own_session()).prepared()

    async def resolve(self, handle: str, *, commit: bool) -> None:
        """Decide a prepared transaction by hand."""
        await (await self._own_session()).resolve(handle, commit=commit)

    async def _own_session(self) -> Session:
        if self._control is None or self._control.closed:
            self._control = self.session()
        return await self._control

    async def close(self) -> None:
        """End all sessions at once, and the connection. What is not answered fails with `ConnectionLost`."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            self._supervisor = None
        link = self._link
        if not self.closed:
            self._fail(ConnectionLost(detail="it was closed here"))
        if link is not None:
            await link.gone()

    # --- for sessions: `Host` ---------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    @property
    def welcome(self) -> Welcome:
        if self._welcome is None:
            raise ConnectionLost(detail="it was never opened")
        return self._welcome

    @property
    def writable(self) -> bool:
        return self._link is not None and not self._link.paused

    def wake(self) -> None:
        if not self.scheduled and self._loop is not None:
            self.scheduled = True
            if self._threadsafe:
                self._wake_loop(self._loop)
            else:
                self._loop.call_soon(self._turn)

    def _wake_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """From any thread. One that is interrupted here (Ctrl-C) must not leave word that a turn will come."""
        try:
            loop.call_soon_threadsafe(self._turn)
        except BaseException:
            self.scheduled = False
            raise

    def send(self, kind: int, channel: int, parts: Iterable[Buffer] = (), flags: int = 0) -> None:
        if self._link is not None:
            self._link.native.send(kind, channel, parts, flags)

    def write(self) -> None:
        if self._link is not None:
            self._link.flush()

    def register(self, session: Resumable) -> None:
        if self.failure is not None:
            raise again(self.failure)
        if self._welcome is None:
            raise ConnectionLost(detail="it was never opened")
        if len(self._sessions) >= limits.SESSIONS_PER_CONNECTION_MAX:
            raise LimitReached(what="sessions of one connection", limit=limits.SESSIONS_PER_CONNECTION_MAX)
        self._sessions[session._channel] = session
        if self._link is not None:
            session._connect()
            self.wake()

    def forget(self, channel: int) -> None:
        self._sessions.pop(channel, None)

    # --- for the link: `Owner` --------------------------------------------------------------------------

    def _received(self, frames: list[Frame]) -> None:
        sessions, ready = self._sessions, False
        for frame in frames:
            session = sessions.get(frame.channel)
            if session is not None and session._handle(frame):
                ready = True
        if ready:
            self._turn()

    def _flow(self) -> None:
        self.wake()

    def _detached(self, link: Link, error: ClarionError) -> None:
        if link is self._link:
            self._link = None
            for session in list(self._sessions.values()):
                session._detach()

    def _turn(self) -> None:
        """Everything that gathered since the last turn, in one write."""
        self.scheduled = False
        link = self._link
        if link is not None:
            for session in list(self._sessions.values()):
                session._turn()
            link.flush()

    # --- opening, losing, reconnecting --------------------------------------------------------------------

    async def _open(self) -> Self:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            try:
                link = await self._dial(self._connect_timeout, once=not self._reconnect)
            except BaseException as error:
                known = error if isinstance(error, ClarionError) else ConnectionLost(detail="opening was given up")
                self._fail(known)
                raise
            self._use(link)
            self._supervisor = self._loop.create_task(self._supervise(link), name="clarion connection")
        elif self.failure is not None:
            raise again(self.failure)
        return self

    def _use(self, link: Link) -> None:
        self._welcome = link.native.welcome
        self._connected_at_ms = now_ms()
        self._set_state(ConnectionState.CONNECTED)
        if not link.lost.done():
            self._link = link
            for session in list(self._sessions.values()):
                session._connect()
            self._turn()

    async def _supervise(self, link: Link) -> None:
        while True:
            error = await link.lost
            if not self._reconnect or self._hopeless(error):
                self._fail(error)
                return
            self._set_state(ConnectionState.RECONNECTING)
            try:
                link = await self._dial(self._reconnect_timeout)
            except ClarionError as failed:
                self._fail(failed)
                return
            self._use(link)

    def _hopeless(self, error: ClarionError) -> bool:
        """A new link would end in the same way."""
        if isinstance(error, _HOPELESS):
            return True
        if not isinstance(error, ProtocolError) or isinstance(error, _PASSING):
            self._complaints = 0
            return False
        lasted_ms = now_ms() - self._connected_at_ms
        self._complaints = 1 if lasted_ms > COMPLAINT_MS_MAX else self._complaints + 1
        return self._complaints >= COMPLAINTS_MAX

    async def _dial(self, limit_s: float | None, *, once: bool = False) -> Link:
        """Try hosts in turn until one answers, or the time is over."""
        started_ms, pause_s = now_ms(), PAUSE_S_MIN
        hosts = self._address.hosts
        last: ClarionError | None = None
        while True:
            for _ in hosts:
                host, port = hosts[self._next_host % len(hosts)]
                self._next_host += 1
                left_s = _left_s(started_ms, limit_s)
                if left_s <= 0:
                    break
                try:
                    return await dial(self, host, port, self._address, self._hello, min(left_s, 10.0))
                except _HOPELESS:
                    raise
                except ClarionError as error:
                    last = error
            pause = pause_s * (0.5 + random.random() / 2)
            if once or _left_s(started_ms, limit_s) <= pause:
                if isinstance(last, ConnectionFailed) and len(hosts) == 1:
                    raise ConnectionFailed(url=str(self._address), detail=str(last.facts.get("detail")))
                raise ConnectionFailed(url=str(self._address), detail=str(last))
            await asyncio.sleep(pause)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _fail(self, error: ClarionError) -> None:
        """It is over: everybody who waits is told."""
        keep = isinstance(error, ConnectionLost | ConnectionFailed | AuthenticationFailed | VersionMismatch)
        self.failure = error if keep else ConnectionLost(detail=str(error))
        link, self._link = self._link, None
        for session in list(self._sessions.values()):
            session._finish(again(self.failure))
        self._sessions.clear()
        if link is not None:
            link.close()
        self._set_state(ConnectionState.CLOSED)

    def _set_state(self, state: ConnectionState) -> None:
        if state is not self.state:
            self.state = state
            if self.on_state is not None:
                self.on_state(state)


def _left_s(started_ms: int, limit_s: float | None) -> float:
    return float("inf") if limit_s is None else limit_s - (now_ms() - started_ms) / 1000


def connect(
    url: str | Sequence[str],
    *,
    name: str | None = None,
    heartbeat_ms: int = limits.HEARTBEAT_MS_DEFAULT,
    connect_timeout: float = 10.0,
    reconnect: bool = True,
    reconnect_timeout: float | None = None,
    buffer_bytes: int = limits.CLIENT_BUFFER_BYTES,
    on_state: Callable[[ConnectionState], None] | None = None,
) -> Connection:
    """A connection to `clarion://[user:password@]host:port[,host:port…]`.

    Use it as `async with connect(url) as connection`, or `connection = await connect(url)`. It comes
    back by itself when it is lost (`reconnect`), for ever or for `reconnect_timeout` seconds.
    Raises `BadUrl` at once, `ConnectionFailed` when no server answered for `connect_timeout` seconds.
    """
    return Connection(
        url,
        name=name,
        heartbeat_ms=heartbeat_ms,
        connect_timeout=connect_timeout,
        reconnect=reconnect,
        reconnect_timeout=reconnect_timeout,
        buffer_bytes=buffer_bytes,
        on_state=on_state,
    )
