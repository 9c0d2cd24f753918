"""A session: sending, consuming, transactions and requests on one channel of a connection.

Guarantees
    1. A session outlives its connections: after a reconnection it opens again with its producer id,
       consumers claim what the application holds, and unanswered batches, confirmations and
       repeatable commands are sent again.
    2. Leaving `async with` without an exception waits until everything sent and confirmed is durable.
       A transacted session rolls back what was not committed, however it is left.
    3. After its end every call raises `SessionClosed`, or what the connection failed with.

Not for several threads: `clarion.sync` is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import suppress
from typing import Any, Self, Unpack

from clarion import limits
from clarion.client.acknowledging import Several
from clarion.client.bodies import BodyReader
from clarion.client.commands import Call, Restart
from clarion.client.consumer import BatchConsumer, Consumer
from clarion.client.host import Host
from clarion.client.inbox import Inbox
from clarion.client.options import SendOptions
from clarion.client.outbox import Body
from clarion.client.outcome import Outcome
from clarion.client.reading import ReadingSession
from clarion.client.received import Confirmable, each
from clarion.client.receiver import State
from clarion.client.sources import StreamSource
from clarion.client.subscription import BATCHES, ReceiveOptions, duration_ms, wanted_of
from clarion.client.transaction import Prepared, PreparedHandle, Transactions
from clarion.errors import BadArgument, ClarionError, ConnectionLost, NoReply, SessionClosed
from clarion.message import Message, parse_destination
from clarion.wire.batch import Batch
from clarion.wire.frames import Type

BROWSE_MESSAGES = 1_000
REPLY_S = 30.0
"""How long `request` waits for a reply unless told otherwise."""


class Session(ReadingSession):
    """Made by `Connection.session`. Open it with `async with`, or by awaiting it."""

    def __init__(self, host: Host, channel: int, buffer_bytes: int, transacted: bool = False) -> None:
        super().__init__(host, channel, buffer_bytes, transacted)
        self._registered = False

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(flush=kind is None)

    async def _open(self) -> Self:
        if not self._registered:
            self._registered = True
            self._host.register(self)
        await self._opened.wait()
        self._check_open()
        return self

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def transacted(self) -> bool:
        """Everything sent and received belongs to a transaction."""
        return self._transactions is not None

    async def flush(self) -> None:
        """Return when everything sent or confirmed so far is durable.

        Raises the first failure of a `send_nowait` or `confirm_nowait` that nobody awaited; each is
        told once.
        """
        self._check_open()
        await self._flush_sends()
        first: ClarionError | None = None
        for receiver in list(self._receivers.values()):
            if receiver._following is not None:
                receiver._following.flush()
            for inbox in receiver._inboxes():
                for ack in inbox.pending():
                    try:
                        await ack.wait()
                    except ClarionError as error:
                        first = first or error
        if first is not None:
            raise first
        self._failures.tell()
        self._check_open()  # it may have ended while we waited

    async def close(self, *, flush: bool = True) -> None:
        """End the session: everything sent is made durable first, unless told otherwise.

        A transaction that is open is rolled back.
        """
        if self._closing or self._closed:
            await self._left.wait()
            return
        for receiver in list(self._receivers.values()):
            receiver._let_go(clean=flush)
        if self._transactions is not None:
            self._transactions.close()
        try:
            if flush and self._producer and self._host.failure is None and self._transactions is None:
                await self.flush()
        finally:
            self._closing = True
            try:
                if self._attached:
                    for receiver in list(self._receivers.values()):
                        if receiver._state is not State.ENDED:
                            receiver._end()
                    self._turn()
                    self._host.send(Type.CLOSE, self._channel)
                    self._attached = False
                    self._host.wake()
                    await self._left.wait()
            finally:
                self._finish(SessionClosed())

    # --- large bodies -----------------------------------------------------------------------------------

    async def send_stream(
        self,
        destination: str,
        reader: StreamSource,
        *,
        size: int | None = None,
        key: str | None = None,
        chunk: int = limits.FRAGMENT_BYTES_MAX,
        **options: Unpack[SendOptions],
    ) -> str:
        """Send a message whose body is read little by little, however large; return its id once it is durable.

        `reader` is a binary file, an iterable or asynchronous iterable of bytes, or bytes. Other messages go between
        its parts. After a lost connection it goes on where the broker is. With a `key` (one for each
        message) so does another process that sends the same body again: to the same destination, from
        its beginning; if the message was stored, that returns its id and sends nothing. `size`, if it is
        known and cannot be seen, lets a body that is too large fail at once. Without a key, a body of
        at most `chunk` bytes is sent as an ordinary message. Options as of `send`.
        """
        return await self._uploads.send(destination, reader, size, key, chunk, options)

    def open_body(self, message: Message, offset: int = 0) -> BodyReader:
        """The body of any message, a browsed or a dead one too, little by little: as `ReceivedMessage.stream`."""
        return BodyReader(self, message.destination, message, offset)

    # --- consuming ------------------------------------------------------------------------------------

    def receive(self, destination: str, **options: Unpack[ReceiveOptions]) -> Consumer:
        """A consumer of single messages, of a destination or of every topic that a pattern matches.

        Options are described at `ReceiveOptions`. `ack` says who confirms:

        - `"individual"`: each message is confirmed by `message.confirm()`.
        - `"auto"`: a message is confirmed when the application comes back for the next one, or leaves the loop
          without an exception; with an exception it comes again. Waits until the confirmation is
          durable, so at most one message comes again after a crash.
        - `"client"`: `message.confirm()` confirms everything that this session has received so far, over all
          its consumers of this mode; `recover` gives everything back that is not confirmed.
        - `"dups_ok"`: as auto, but many at a time, and nothing waits for it.

        In a transacted session the transaction confirms.
        """
        wanted = wanted_of(destination, self.transacted, **options)
        return self._add(Consumer(self, self._number(), wanted))

    def receive_batches(self, destination: str, **options: Unpack[ReceiveOptions]) -> BatchConsumer:
        """A consumer of whole batches: the fast form of `receive`, with the same options, and more sent ahead."""
        wanted = wanted_of(destination, self.transacted, **(BATCHES | options))
        return self._add(BatchConsumer(self, self._number(), wanted))

    async def confirm(self, *what: Confirmable | Iterable[Confirmable]) -> None:
        """Confirm messages and batches together; returns when all of it is durable."""
        acks = {ack: None for item in what for one in each(item) for ack in [one._confirm()]}
        for ack in acks:
            await ack.wait()

    async def recover(self) -> None:
        """Give back everything that was received and not confirmed: it comes again, flagged and counted.

        It comes in its order, and before anything that was not received yet.
        """
        self._check_open()
        if self._transactions is not None:
            raise BadArgument(argument="session", detail="it is transacted: rollback does this")
        acks: list[Outcome] = []
        for receiver in self._receivers.values():
            if receiver._following is not None:
                receiver._following.flush()
                receiver._following.last = None
        stopped = self._stop_seen()
        for receiver in list(self._receivers.values()):
            for inbox, ranges in receiver._seen():
                acks += [Inbox.acknowledge(inbox, Type.REJECT, first, end) for first, end in ranges]
        if stopped:
            self._turn()  # the rejections go before
            with suppress(ConnectionLost):  # its end gave everything back
                await self._call(Restart("recover", {}, stopped))
        await Several(acks).wait()

    async def browse(
        self, destination: str, *, selector: str | None = None, start: int = 0, count: int | None = None
    ) -> AsyncGenerator[Message, None]:
        """Look at messages from sequence `start` on, at most `count`, without consuming them."""
        parse_destination(destination, system=True)
        left = count
        at: int | None = start
        while at is not None and left != 0:
            wanted = BROWSE_MESSAGES if left is None else min(left, BROWSE_MESSAGES)
            arguments = {"destination": destination, "from": at, "messages": wanted, "bytes": limits.MIB}
            if selector:
                arguments["selector"] = selector
            result = await self.command("browse", arguments)
            for first, delivery_count, redelivered, data in result["slices"]:
                batch = Batch(data)
                for index in range(batch.count):
                    if left == 0:
                        return
                    left = None if left is None else left - 1
                    yield Message(batch, index, first + index, delivery_count, redelivered)
            at = result["next"]

    # --- transactions -----------------------------------------------------------------------------------

    async def commit(
        self,
        handles: str | Iterable[str] | None = None,
        *,
        key: str | None = None,
        version: int | None = None,
    ) -> bool:
        """Commit the transaction of this session; or, with `handles`, prepared ones of anybody: all or none.

        Everything sent becomes visible and everything received is confirmed, in one step; returns when that is
        durable. Safe over a lost connection: it is asked again, and answered the same way. Raises
        `TransactionRolledBack` if the transaction came to nothing; then what it consumed comes again, and
        a new transaction has begun. Whether one that is cancelled while it waits was done is not known.

        With `key` and `version`, False means that nothing was done, because `version` is not newer than the
        last one that was committed under `key`. Then `handles` may be empty: it only remembers the version.
        Raises `NoSuchHandle` for one that was resolved, or has expired.
        """
        if handles is None:
            if key is not None or version is not None:
                raise BadArgument(argument="key", detail="it is for prepared transactions")
            await self._own_transactions().commit()
            return True
        texts = _texts(handles)
        call = await self._call(Call("commit_prepared", {"handles": texts, "key": key, "version": version}))
        committed = bool(call.result["committed"])
        if not committed and call.times_asked > 1 and call.result["version"] == version:
            # Was it we, before the connection was lost? Then the handles are gone.
            committed = not {one.handle for one in await self.prepared()}.intersection(texts)
        return committed

    async def committed_version(self, key: str) -> int | None:
        """The last version that was committed under `key`; None if there was none."""
        version: int | None = (await self.command("committed_version", {"key": key}))["version"]
        return version

    async def rollback(self) -> None:
        """Forget everything that was sent since the last commit; what was received comes again, before newer ones."""
        await self._own_transactions().rollback()

    async def prepare(self, expires: float | None = None) -> PreparedHandle:
        """End the transaction of this session without deciding it: that does whoever gets the handle.

        Unless somebody does within `expires` seconds (by default a day), it is rolled back.
        """
        expires_ms = None if expires is None else duration_ms("expires", expires, least_ms=1)
        return await self._own_transactions().prepare(expires_ms)

    async def prepared(self) -> list[Prepared]:
        """All prepared transactions that nobody has decided yet."""
        return [
            Prepared(PreparedHandle(one["handle"]), one["destinations"], one["messages"], one["expires_at_ms"])
            for one in await self.command("prepared")
        ]

    async def resolve(self, handle: str, *, commit: bool) -> None:
        """Decide a prepared transaction by hand. Raises `NoSuchHandle`.

        Safe over a lost connection: it is asked again, and answered the same way.
        """
        await self.command("resolve", {"handle": str(handle), "commit": commit})

    def _own_transactions(self) -> Transactions:
        self._check_open()
        if self._transactions is None:
            raise BadArgument(argument="session", detail="it is not transacted")
        return self._transactions

    # --- requests and replies ---------------------------------------------------------------------------

    async def request(
        self,
        destination: str,
        body: Body,
        *,
        timeout: float | None = REPLY_S,  # noqa: ASYNC109
        **options: Unpack[SendOptions],
    ) -> Message:
        """Send a message and return the reply to it. Any number of requests may wait at once.

        Raises `NoReply` when none came within `timeout` seconds; one that comes later is dropped.
        """
        self._check_open()
        if self._transactions is not None:
            detail = "nobody sees the request before commit: ask in another session"
            raise BadArgument(argument="session", detail=detail)
        if options.get("reply_to") is not None:
            raise BadArgument(argument="reply_to", detail="the reply comes to the session's own queue")
        replies = await self._temporaries.replies()
        correlation, reply = replies.expect(options.get("correlation_id"))
        options["correlation_id"], options["reply_to"] = correlation, replies.destination
        try:
            async with asyncio.timeout(timeout):
                await self.send(destination, body, **options)
                return await reply
        except TimeoutError:
            raise NoReply(destination=destination, limit_ms=round((timeout or 0) * 1000)) from None
        finally:
            replies.forget(correlation)

    async def reply(self, message: Message, body: Body, **options: Unpack[SendOptions]) -> str:
        """Answer a request: to where it asks for, with its correlation id (or its id, if it has none)."""
        to = message.reply_to
        if to is None:
            raise BadArgument(argument="message", detail="it asks for no reply")
        options.setdefault("correlation_id", message.correlation_id or message.id)
        return await self.send(to, body, **options)

    async def temporary_queue(self) -> str:
        """A new queue of this session: anybody may send to it, only this connection consume; it ends with it."""
        return await self._temporaries.make("queue")

    async def temporary_topic(self) -> str:
        """A new topic, likewise."""
        return await self._temporaries.make("topic")


def _texts(handles: str | Iterable[str]) -> list[str]:
    """Handles as they go over the wire."""
    return [str(handles)] if isinstance(handles, str) else [str(handle) for handle in handles]
