"""Temporary destinations of a session, and the replies that come to one of them.

Guarantees
    1. A temporary destination keeps its name over reconnections: it is made again before anything else is
       said on the new connection. What was in it is gone.
    2. All requests of a session share one queue for their replies; a reply finds its request by the
       correlation id, whatever the order. Late ones and strangers are confirmed and dropped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from clarion import ids
from clarion.client.inbox import Inbox
from clarion.client.outcome import Outcome, again
from clarion.client.receiver import Receiver
from clarion.client.subscription import wanted_of
from clarion.core.wellknown import TEMPORARY
from clarion.errors import BadArgument, BadBatch, ClarionError
from clarion.message import Message
from clarion.wire.frames import Slice, Type

if TYPE_CHECKING:
    from clarion.client.channel import Channel

Kind = Literal["queue", "topic"]


class _Temporary(Outcome):
    """One destination, and whether it was made."""

    __slots__ = ("kind", "name")

    def __init__(self, name: str, kind: Kind) -> None:
        super().__init__()
        self.name = name
        self.kind = kind


class Temporaries:
    """The temporary destinations of a session."""

    def __init__(self, session: Channel) -> None:
        self._session = session
        self._count = 0
        self._made: list[_Temporary] = []
        self._replies: Replies | None = None
        self._beginning = asyncio.Lock()

    async def make(self, kind: Kind) -> str:
        """A new one; its name."""
        session = self._session
        session._check_open()
        self._count += 1
        temporary = _Temporary(f"{TEMPORARY}{ids.format_id(session._producer)}.{self._count}", kind)
        self._made.append(temporary)
        if session._attached:
            self._ask(temporary)
        try:
            await temporary.wait()
        except ClarionError:
            self._made.remove(temporary)
            raise
        return f"{kind}:{temporary.name}"

    async def replies(self) -> Replies:
        """The receiver of replies, which is there after this."""
        async with self._beginning:
            if self._replies is None or self._replies._error is not None:
                queue = await self.make("queue")
                self._replies = self._session._add(Replies(self._session, self._session._number(), wanted_of(queue)))
            await self._replies._start()
            return self._replies

    def attach(self) -> None:
        """There is a new connection, and nothing was said on it yet."""
        for temporary in self._made:
            self._ask(temporary)

    def end(self, error: ClarionError) -> None:
        """The session is over."""
        for temporary in self._made:
            temporary.settle(error)

    def _ask(self, temporary: _Temporary) -> None:
        arguments = {"name": temporary.name, "kind": temporary.kind}
        request = {"verb": "temporary", "arguments": arguments}
        self._session._ask(Type.REQUEST, request, lambda _result, error: temporary.settle(error))


class Replies(Receiver):
    """The consumer of a session's replies: hands each to whoever waits for it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._count = 0

    def expect(self, correlation: str | None) -> tuple[str, asyncio.Future[Message]]:
        """Somebody waits for the reply with this id, or with a new one. To be followed by `forget`."""
        if correlation is None:
            self._count += 1
            correlation = str(self._count)
        if correlation in self._waiting:
            raise BadArgument(argument="correlation_id", detail=f"a request with {correlation!r} waits for its reply")
        reply = self._waiting[correlation] = asyncio.get_running_loop().create_future()
        return correlation, reply

    def forget(self, correlation: str) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(correlation, None)

    def _deliver(self, inbox: Inbox, delivered: Slice) -> None:
        super()._deliver(inbox, delivered)
        while (part := self._part()) is not None:
            part.index = part.count
            self._give_credit(part)
            inbox.acknowledge(Type.CONFIRM, part.first, part.first + part.count)
            for index in range(part.count):
                self._hand_over(Message(part.batch, index, part.first + index, part.delivery_count, part.redelivered))

    def _hand_over(self, message: Message) -> None:
        try:
            correlation = message.correlation_id
        except BadBatch:  # a foreign sender's mistake: it is nobody's reply
            return
        reply = self._waiting.get(correlation or "")
        if reply is not None and not reply.done():
            reply.set_result(message)

    def _fail(self, error: ClarionError) -> None:
        super()._fail(error)
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(again(error))
                reply.exception()  # looked at: it may be that nobody awaits it
