"""The blocking twin: the same client, with its loop in a thread of its own.

Guarantees
    1. Every call may be made from any thread; threads may share connections, sessions and consumers.
    2. Heartbeats go on whatever the application's threads do.
    3. `send_nowait` appends under a lock and wakes the loop once per burst, not per message.
    4. `close` ends the thread. What was not closed is closed at the interpreter's exit, without
       waiting for answers.

No logic of its own: each call hands a coroutine of `clarion.client` to the loop and waits for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import msgspec

from clarion import client, limits
from clarion.client.blocking_consumer import BatchConsumer, Confirmable, Consumer, acknowledged
from clarion.client.connection import ConnectionState
from clarion.client.outbox import Body
from clarion.client.runner import Runner
from clarion.client.subscription import ReceiveOptions
from clarion.errors import ClarionError
from clarion.message import Message, PropertyValue

_Result = TypeVar("_Result")


class Ticket(msgspec.Struct, gc=False, eq=False):
    """A message given to `send_nowait`."""

    _ticket: client.Ticket
    _runner: Runner

    @property
    def done(self) -> bool:
        """It is answered, well or not."""
        return self._ticket.done

    def result(self, timeout: float | None = None) -> str:
        """Wait until the message is durable, and return its id. Raises `Timeout`."""
        return self._runner.call(_awaited(self._ticket), timeout)


async def _awaited(ticket: client.Ticket) -> str:
    return await ticket


class Session:
    """As `clarion.client.Session`, without `await`."""

    def __init__(self, connection: Connection, session: client.Session) -> None:
        self._connection = connection  # keeps it open
        self._runner = connection._runner
        self._session = session
        self._lock = session.lock
        self._send_nowait = session.send_nowait

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        self.close(flush=kind is None)

    @property
    def closed(self) -> bool:
        return self._session.closed

    @property
    def buffered_bytes(self) -> int:
        return self._session.buffered_bytes

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
        """Queue a message. Raises `Blocked` when the client's buffer is full."""
        with self._lock:
            ticket = self._send_nowait(
                destination,
                body,
                properties=properties,
                reply_to=reply_to,
                correlation_id=correlation_id,
                type=type,
                content_type=content_type,
            )
        return Ticket(ticket, self._runner)

    def send(
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
        """Send a message and return its id once it is durable."""
        return self._runner.call(
            self._session.send(
                destination,
                body,
                properties=properties,
                reply_to=reply_to,
                correlation_id=correlation_id,
                type=type,
                content_type=content_type,
            )
        )

    def writable(self) -> None:
        """Return when `send_nowait` takes messages again."""
        self._runner.call(self._session.writable())

    def flush(self) -> None:
        """Return when everything sent or confirmed so far is durable."""
        self._runner.call(self._session.flush())

    def receive(self, destination: str, **options: Unpack[ReceiveOptions]) -> Consumer:
        """A consumer of single messages: options as of `clarion.client.Session.receive`."""
        made = self._runner.call(_made(self._session.receive, destination, options))
        return Consumer(self, self._runner, made)

    def receive_batches(self, destination: str, **options: Unpack[ReceiveOptions]) -> BatchConsumer:
        """A consumer of whole batches."""
        made = self._runner.call(_made(self._session.receive_batches, destination, options))
        return BatchConsumer(self, self._runner, made)

    def confirm(self, *what: Confirmable | Sequence[Confirmable]) -> None:
        """Confirm messages and batches together."""
        self._runner.call(acknowledged(what))

    def browse(self, destination: str, *, start: int = 0, count: int | None = None) -> Iterator[Message]:
        """Look at messages without consuming them."""
        browsing = self._session.browse(destination, start=start, count=count)
        try:
            while found := self._runner.call(_some(browsing)):
                yield from found
        finally:
            self._runner.call(browsing.aclose())

    def request(self, verb: str, arguments: dict[str, Any] | None = None) -> Any:
        """Ask the broker something."""
        return self._runner.call(self._session.request(verb, arguments))

    def close(self, *, flush: bool = True) -> None:
        """End the session: everything sent is made durable first, unless told otherwise."""
        if not self._runner.stopped:
            self._runner.call(self._session.close(flush=flush))


async def _made(make: Callable[..., _Result], destination: str, options: ReceiveOptions) -> _Result:
    return make(destination, **options)


async def _some(browsing: Any, most: int = 1_000) -> list[Message]:
    found: list[Message] = []
    async for message in browsing:
        found.append(message)
        if len(found) == most:
            break
    return found


class Connection:
    """As `clarion.client.Connection`, without `await`."""

    def __init__(self, runner: Runner, connection: client.Connection) -> None:
        self._runner = runner
        self._connection = connection
        self._close = weakref.finalize(self, _close, runner, connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._connection)

    @property
    def closed(self) -> bool:
        return self._connection.closed

    @property
    def state(self) -> ConnectionState:
        return self._connection.state

    @property
    def server(self) -> str:
        return self._connection.server

    def session(self) -> Session:
        """A new session, open already: `with connection.session() as session`."""
        return Session(self, self._runner.call(_opened(self._connection.session())))

    def request(self, verb: str, arguments: dict[str, Any] | None = None) -> Any:
        """Ask the broker something, outside of any session of yours."""
        return self._runner.call(self._connection.request(verb, arguments))

    def close(self) -> None:
        """End all sessions and the connection, and join the thread."""
        self._close()


def _close(runner: Runner, connection: client.Connection) -> None:
    """Also when a connection is dropped, or the interpreter ends."""
    with suppress(ClarionError):
        runner.call(connection.close())
    runner.stop()


async def _opened(opening: Any) -> Any:
    return await opening


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
    """A connection, open already: `with clarion.sync.connect(url) as connection`.

    Arguments as of `clarion.connect`; `on_state` is called in the connection's own thread.
    """
    connection = client.Connection(
        url,
        name=name,
        heartbeat_ms=heartbeat_ms,
        connect_timeout=connect_timeout,
        reconnect=reconnect,
        reconnect_timeout=reconnect_timeout,
        buffer_bytes=buffer_bytes,
        on_state=on_state,
        threadsafe=True,
    )
    runner = Runner()
    try:
        return Connection(runner, runner.call(_opened(connection)))
    except BaseException:
        runner.stop()
        raise
