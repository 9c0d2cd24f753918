"""Consumers: a subscription as an async iterator and an async context manager.

Leaving: a bare `async for` ends the consumer with the loop, also by `break` (an async generator is
closed by the event loop when the loop drops it; the modes `auto` and `dups_ok` have an iterator that
also sees how it was left). Within `async with` the block ends it.

One task at a time: with `auto` and `dups_ok`, whoever asks for the next message says that the last
one is done, whoever had that.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from clarion.client.inbox import Part
from clarion.client.leaving import left_cleanly
from clarion.client.received import ReceivedBatch, ReceivedMessage
from clarion.client.receiver import Receiver

_Item = TypeVar("_Item", bound=ReceivedMessage | ReceivedBatch, covariant=True)


class Consumer(Receiver):
    """Messages one at a time. `async for` over it, or `receive` for single ones."""

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self._messages() if self._following is None else _Iteration(self)

    async def receive(self, timeout: float | None = None) -> ReceivedMessage | None:  # noqa: ASYNC109
        """The next message; None when none came within `timeout` seconds, or the consumer is closed."""
        following = self._following
        if following is not None:
            await following.came_back()
        part = await self._next_part(timeout)
        if part is None:
            return None
        message = self._take(part)
        if following is not None:
            following.handed(part.inbox, message.sequence, message.sequence + 1)
        return message

    def _take(self, part: Part) -> ReceivedMessage:
        index = part.index
        part.index = index + 1
        if part.index >= part.credit_at:
            self._give_credit(part)
        return ReceivedMessage(part, index)

    async def _messages(self) -> AsyncGenerator[ReceivedMessage, None]:
        try:
            while True:
                part = self._current
                if part is None or part.index >= part.count:
                    part = await self._next_part(self._timeout)
                    if part is None:
                        return
                yield self._take(part)
        finally:
            self._leave_loop()


class BatchConsumer(Receiver):
    """Messages as they were delivered, many at a time."""

    def __aiter__(self) -> AsyncIterator[ReceivedBatch]:
        return self._batches() if self._following is None else _Iteration(self)

    async def receive(self, timeout: float | None = None) -> ReceivedBatch | None:  # noqa: ASYNC109
        """The next batch; None when none came within `timeout` seconds, or the consumer is closed."""
        following = self._following
        if following is not None:
            await following.came_back()
        part = await self._next_part(timeout)
        if part is None:
            return None
        part.index = part.count
        self._give_credit(part)
        if following is not None:
            following.handed(part.inbox, part.first, part.first + part.count)
        return ReceivedBatch(part)

    async def _batches(self) -> AsyncGenerator[ReceivedBatch, None]:
        try:
            while (batch := await self.receive(self._timeout)) is not None:
                yield batch
        finally:
            self._leave_loop()


class _Receives(Protocol[_Item]):
    """Either kind of consumer."""

    _session: Any
    _timeout: float | None

    async def receive(self, timeout: float | None = None) -> _Item | None: ...  # noqa: ASYNC109

    def _leave_loop(self, *, clean: bool = True) -> None: ...


class _Iteration(Generic[_Item]):
    """One `async for` over a consumer that confirms by itself; tells it how the loop was left."""

    def __init__(self, consumer: _Receives[_Item]) -> None:
        self._consumer = consumer
        self._user = 0
        self._over = False

    def __aiter__(self) -> AsyncIterator[_Item]:
        return self

    def __anext__(self) -> Coroutine[Any, Any, _Item]:
        self._user = id(sys._getframe(1))
        return self._next()

    async def _next(self) -> _Item:
        try:
            item = await self._consumer.receive(self._consumer._timeout)
        except BaseException:
            self._over = True
            self._consumer._leave_loop(clean=False)
            raise
        if item is None:
            self._over = True
            self._consumer._leave_loop()
            raise StopAsyncIteration
        return item

    def __del__(self) -> None:
        if self._over or not self._user:
            return
        clean, consumer = left_cleanly(sys._getframe(1), self._user), self._consumer
        loop = consumer._session._host.loop
        if asyncio._get_running_loop() is loop:
            consumer._leave_loop(clean=clean)
            return
        with suppress(RuntimeError):  # the loop is closed, and everything with it
            loop.call_soon_threadsafe(lambda: consumer._leave_loop(clean=clean))
