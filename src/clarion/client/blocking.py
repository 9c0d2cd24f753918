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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import msgspec

from clarion import client, limits
from clarion.client.blocking_consumer import BatchConsumer, Confirmable, Consumer, acknowledged
from clarion.client.blocking_reading import ReadingSession
from clarion.client.bodies import BlockingReader
from clarion.client.connection import ConnectionState
from clarion.client.delivered import How
from clarion.client.options import SendOptions
from clarion.client.outbox import Body
from clarion.client.runner import Runner
from clarion.client.session import REPLY_S
from clarion.client.sources import StreamSource
from clarion.client.subscription import ReceiveOptions
from clarion.client.transaction import Prepared, PreparedHandle
from clarion.errors import ClarionError, TransactionRolledBack
from clarion.message import Message

_Result = TypeVar("_Result")


class Ticket(msgspec.Struct, gc=False, eq=False):
    """A message given to `send_nowait`."""

    _ticket: client.Ticket
    _runner: Runner

    @property
    def done(self) -> bool:
        """It is answered, well or not."""
        return self._ticket.done

    @property
    def how(self) -> How | None:
        """How it was delivered, if it was sent with `until`: as of `clarion.client.Ticket`."""
        return self._ticket.how

    def result(self, timeout: float | None = None) -> str:
        """Wait until the message is durable, or, with `until`, delivered; return its id. Raises `Timeout`."""
        return self._runner.call(_awaited(self._ticket), timeout)


async def _awaited(ticket: client.Ticket) -> str:
    return await ticket


class Session(ReadingSession):
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

    @property
    def transacted(self) -> bool:
        return self._session.transacted

    # --- sending ------------------------------------------------------------------------------------------

    def send_nowait(self, destination: str, body: Body, **options: Unpack[SendOptions]) -> Ticket:
        """Queue a message. Raises `Blocked` when the client's buffer is full."""
        try:
            with self._lock:
                ticket = self._send_nowait(destination, body, **options)
        except TransactionRolledBack:
            self._told()
            raise
        return Ticket(ticket, self._runner)

    def try_send(self, destination: str, body: Body, **options: Unpack[SendOptions]) -> Ticket | None:
        """As `send_nowait`, but None instead of `Blocked`, and for a refused destination that has enough waiting."""
        try:
            with self._lock:
                ticket = self._session.try_send(destination, body, **options)
        except TransactionRolledBack:
            self._told()
            raise
        return None if ticket is None else Ticket(ticket, self._runner)

    def send_many_nowait(self, destination: str, bodies: Iterable[Body], **options: Unpack[SendOptions]) -> None:
        """Queue a message for each body: all, or none by an error."""
        try:
            with self._lock:
                self._session.send_many_nowait(destination, bodies, **options)
        except TransactionRolledBack:
            self._told()
            raise

    def is_blocked(self, destination: str | None = None) -> bool:
        """The buffer is full, or the broker has refused messages for `destination`."""
        with self._lock:
            return self._session.is_blocked(destination)

    def send(self, destination: str, body: Body, **options: Unpack[SendOptions]) -> str:
        """Send a message and return its id once it is durable, or, with `until`, delivered."""
        return self._runner.call(self._session.send(destination, body, **options))

    def send_many(self, destination: str, bodies: Iterable[Body], **options: Unpack[SendOptions]) -> None:
        """Send a message for each body; return when all are durable, or, with `until`, delivered."""
        self._runner.call(self._session.send_many(destination, bodies, **options))

    def send_stream(
        self,
        destination: str,
        reader: StreamSource,
        *,
        size: int | None = None,
        key: str | None = None,
        chunk: int = limits.FRAGMENT_BYTES_MAX,
        **options: Unpack[SendOptions],
    ) -> str:
        """Send a message whose body is read little by little, however large: as of `clarion.client.Session`."""
        sending = self._session.send_stream(destination, reader, size=size, key=key, chunk=chunk, **options)
        return self._runner.call(sending)

    def open_body(self, message: Message, offset: int = 0) -> BlockingReader:
        """The body of any message, a browsed or a dead one too, little by little."""
        return BlockingReader(self._runner, self._session.open_body(message, offset))

    def _told(self) -> None:
        """A thread of the application was told that its transaction was rolled back: it begins anew, without
        what was received since."""
        with suppress(ClarionError):
            self._runner.call(_given_back(self._session))

    def writable(self) -> None:
        """Return when `send_nowait` takes messages again."""
        self._runner.call(self._session.writable())

    def flush(self) -> None:
        """Return when everything sent or confirmed so far is durable."""
        self._runner.call(self._session.flush())

    # --- consuming ----------------------------------------------------------------------------------------

    def receive(self, destination: str, **options: Unpack[ReceiveOptions]) -> Consumer:
        """A consumer of single messages: options as of `clarion.client.Session.receive`."""
        made = self._runner.call(_made(lambda: self._session.receive(destination, **options)))
        return Consumer(self, self._runner, made)

    def receive_batches(self, destination: str, **options: Unpack[ReceiveOptions]) -> BatchConsumer:
        """A consumer of whole batches."""
        made = self._runner.call(_made(lambda: self._session.receive_batches(destination, **options)))
        return BatchConsumer(self, self._runner, made)

    def confirm(self, *what: Confirmable | Sequence[Confirmable]) -> None:
        """Confirm messages and batches together."""
        self._runner.call(acknowledged(what))

    def recover(self) -> None:
        """Give back everything that was received and not confirmed: it comes again."""
        self._runner.call(self._session.recover())

    def browse(
        self, destination: str, *, selector: str | None = None, start: int = 0, count: int | None = None
    ) -> Iterator[Message]:
        """Look at messages from sequence `start` on, at most `count`, without consuming them."""
        browsing = self._session.browse(destination, selector=selector, start=start, count=count)
        try:
            while found := self._runner.call(_some(browsing)):
                yield from found
        finally:
            if not self._runner.stopped:
                self._runner.call(browsing.aclose())

    # --- transactions -------------------------------------------------------------------------------------

    def commit(
        self, handles: str | Iterable[str] | None = None, *, key: str | None = None, version: int | None = None
    ) -> bool:
        """Commit the transaction of this session; or, with `handles`, prepared ones of anybody: all or none."""
        return self._runner.call(self._session.commit(handles, key=key, version=version))

    def committed_version(self, key: str) -> int | None:
        """The last version that was committed under `key`; None if there was none."""
        return self._runner.call(self._session.committed_version(key))

    def rollback(self) -> None:
        """Forget everything that was sent since the last commit; what was received comes again."""
        self._runner.call(self._session.rollback())

    def prepare(self, expires: float | None = None) -> PreparedHandle:
        """End the transaction of this session without deciding it: that does whoever gets the handle."""
        return self._runner.call(self._session.prepare(expires))

    def prepared(self) -> list[Prepared]:
        """All prepared transactions that nobody has decided yet."""
        return self._runner.call(self._session.prepared())

    def resolve(self, handle: str, *, commit: bool) -> None:
        """Decide a prepared transaction by hand."""
        self._runner.call(self._session.resolve(handle, commit=commit))

    # --- requests and replies -----------------------------------------------------------------------------

    def request(
        self, destination: str, body: Body, *, timeout: float | None = REPLY_S, **options: Unpack[SendOptions]
    ) -> Message:
        """Send a message and return the reply to it. Raises `NoReply` when none came within `timeout` seconds."""
        return self._runner.call(self._session.request(destination, body, timeout=timeout, **options))

    def reply(self, message: Message, body: Body, **options: Unpack[SendOptions]) -> str:
        """Answer a request: to where it asks for, with its correlation id."""
        return self._runner.call(self._session.reply(message, body, **options))

    def temporary_queue(self) -> str:
        """A new queue of this session: anybody may send to it, only this connection consume; it ends with it."""
        return self._runner.call(self._session.temporary_queue())

    def temporary_topic(self) -> str:
        """A new topic, likewise."""
        return self._runner.call(self._session.temporary_topic())

    def command(self, verb: str, arguments: dict[str, Any] | None = None) -> Any:
        """Ask the broker something: the verbs of docs/reference/requests.md."""
        return self._runner.call(self._session.command(verb, arguments))

    def close(self, *, flush: bool = True) -> None:
        """End the session: everything sent is made durable first, unless told otherwise."""
        if not self._runner.stopped:
            self._runner.call(self._session.close(flush=flush))


async def _made(make: Callable[[], _Result]) -> _Result:
    return make()


async def _given_back(session: client.Session) -> None:
    if session._transactions is not None:
        session._transactions.give_back_received()


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

    @property
    def batch_bytes_max(self) -> int:
        return self._connection.batch_bytes_max

    def session(self, *, transacted: bool = False) -> Session:
        """A new session, open already: `with connection.session() as session`."""
        return Session(self, self._runner.call(_opened(self._connection.session(transacted=transacted))))

    def command(self, verb: str, arguments: dict[str, Any] | None = None) -> Any:
        """Ask the broker something, outside of any session of yours."""
        return self._runner.call(self._connection.command(verb, arguments))

    def commit(self, handles: str | Iterable[str], *, key: str | None = None, version: int | None = None) -> bool:
        """Commit prepared transactions, all or none: as `Session.commit`."""
        return self._runner.call(self._connection.commit(handles, key=key, version=version))

    def committed_version(self, key: str) -> int | None:
        """The last version that was committed under `key`; None if there was none."""
        return self._runner.call(self._connection.committed_version(key))

    def prepared(self) -> list[Prepared]:
        """All prepared transactions that nobody has decided yet."""
        return self._runner.call(self._connection.prepared())

    def resolve(self, handle: str, *, commit: bool) -> None:
        """Decide a prepared transaction by hand."""
        self._runner.call(self._connection.resolve(handle, commit=commit))

    def close(self) -> None:
        """End all sessions and the connection, and join the thread."""
        self._close()


def _close(runner: Runner, connection: client.Connection) -> None:
    """Also when a connection is dropped, or the interpreter ends."""
    try:
        with suppress(ClarionError):
            runner.call(connection.close())
    finally:  # an interruption, too, leaves no thread behind
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
