"""Consumers: a subscription as an async iterator and an async context manager.

Theory of operation
    state      stimulus                      next       effect
    NEW        first use                     STARTING   SUBSCRIBE
    STARTING   REPLY                         READY      deliveries come
    STARTING   ERROR                         ENDED      whoever waits gets the error
    READY      connection lost               STARTING   unseen messages dropped, then SUBSCRIBE with `held`
    READY      CONSUMER_CLOSED               ENDED      whoever waits gets the error
    any        `close`, `break`, session end ENDED      UNSUBSCRIBE with what was never seen

    An ended consumer stays known to its session while the application holds messages of it: they can
    still be confirmed, also after a reconnection.

Leaving: a bare `async for` ends the consumer with the loop, also by `break` (the iterator is an async
generator, which the event loop closes when the loop drops it). Within `async with` the block ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

from clarion.client.inbox import Ack, Inbox, Part, done
from clarion.client.outcome import Outcome, again, release
from clarion.client.received import ReceivedBatch, ReceivedMessage
from clarion.client.subscription import Subscription
from clarion.errors import ClarionError, NoSuchSubscription
from clarion.wire import frames
from clarion.wire.frames import Slice, Type

if TYPE_CHECKING:
    from clarion.client.session import Session


class State(IntEnum):
    NEW = 0
    STARTING = 1
    READY = 2
    ENDED = 3


class Receiver:
    """What both kinds of consumers share."""

    def __init__(self, session: Session, number: int, wanted: Subscription, timeout: float | None) -> None:
        self._session = session
        self._number = number
        self._wanted = wanted
        self._timeout = timeout
        self._inbox = Inbox(wanted.prefetch_messages, wanted.prefetch_bytes, self._mark)
        self._state = State.NEW
        self._started = Outcome()
        self._left = Outcome()
        self._error: ClarionError | None = None
        self._entered = False
        self._known = False
        """The broker has this consumer, ended or not: confirmations may be sent."""
        self._delete = False
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def destination(self) -> str:
        return self._wanted.destination

    async def __aenter__(self) -> Self:
        await self._start()
        self._entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, *, delete: bool = False) -> None:
        """Leave: what was prefetched goes back. `delete` also removes a durable subscription."""
        if self._state is not State.ENDED:
            self._delete = delete
            self._end()
        await self._left.wait()
        if self._delete:  # there was no consumer to say it with, or it was lost on the way
            self._delete = False
            with suppress(NoSuchSubscription):
                await self._session._delete(self._wanted.destination, self._wanted.subscription)

    async def confirm(self, first: int, end: int) -> None:
        """Confirm the sequences from `first` to before `end`; returns when that is durable."""
        await self._acknowledge(Type.CONFIRM, first, end).wait()

    async def reject(self, first: int, end: int) -> None:
        """Give back the sequences from `first` to before `end`."""
        await self._acknowledge(Type.REJECT, first, end).wait()

    def _acknowledge(self, kind: int, first: int, end: int) -> Ack:
        if self._error is not None:  # the end of the session or the connection too
            raise again(self._error)
        if self._state is State.ENDED and self._inbox.idle:
            self._session._check_open()
            return done(self._inbox)  # everything was confirmed or given back before
        return self._inbox.acknowledge(kind, first, end)

    # --- for iterating --------------------------------------------------------------------------------

    async def _start(self) -> None:
        if self._state is State.NEW:
            self._session._check_open()
            self._state = State.STARTING
            self._subscribe()
        await self._started.wait()

    async def _next_part(self, idle_s: float | None) -> Part | None:
        """The part with the next message; None at the end or after `idle_s` without one."""
        await self._start()
        while True:
            part = self._inbox.part()
            if part is not None:
                return part
            if self._error is not None:
                raise again(self._error)
            if self._state is State.ENDED or not await self._wait(idle_s):
                return None

    async def _wait(self, idle_s: float | None) -> bool:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        timer = None if idle_s is None else loop.call_later(idle_s, _expire, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            expired = waiter in self._waiters  # `release` empties the list
            if expired:
                self._waiters.remove(waiter)
        return not expired

    def _leave_loop(self) -> None:
        """A loop is left: without waiting, for the event loop may be at its end."""
        if not self._entered and self._state is not State.ENDED:
            self._end()

    def _mark(self) -> None:
        self._session._mark(self)

    # --- the session's side ---------------------------------------------------------------------------

    def _subscribe(self) -> None:
        """Ask for deliveries, or, when ended, only to claim what is held."""
        if not self._session._attached:
            return
        wanted, ended = self._wanted, self._state is State.ENDED
        request = {
            "consumer": self._number,
            "destination": wanted.destination,
            "subscription": wanted.subscription,
            "durable": wanted.durable,
            "shared": wanted.shared,
            "credit_messages": 0 if ended else wanted.prefetch_messages,
            "credit_bytes": 0 if ended else wanted.prefetch_bytes,
            "unconfirmed_max": wanted.unconfirmed_max,
            "held": self._inbox.claim(),
        }
        self._session._ask(Type.SUBSCRIBE, request, self._subscribed)

    def _subscribed(self, _result: Any, error: ClarionError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self._known = True
        for ack in list(self._inbox.unanswered):
            chunks = list(ack.requests.values())
            ack.requests.clear()
            for chunk in chunks:
                self._send_ack(ack, chunk)
        if self._state is State.STARTING:
            self._state = State.READY
        elif self._state is State.ENDED:
            self._unsubscribe([])
        self._started.settle()
        self._mark()

    def _deliver(self, delivered: Slice) -> None:
        if self._state is State.ENDED:
            self._give_back(delivered.first, delivered.first + Part(delivered, 1, 1).count)
            return
        self._inbox.deliver(delivered)
        if self._waiters:
            release(self._waiters)

    def _give_back(self, first: int, end: int) -> None:
        """A delivery crossed our UNSUBSCRIBE, and nobody has seen it: say so, or reject it if that is too late."""

        def answered(_result: Any, error: ClarionError | None) -> None:
            if error is not None:
                self._inbox.acknowledge(Type.REJECT, first, end)

        if self._session._attached:
            request = {"consumer": self._number, "unseen": [(first, end)], "delete": False}
            self._session._ask(Type.UNSUBSCRIBE, request, answered)

    def _turn(self) -> None:
        """Send credit and confirmations that have gathered."""
        inbox, session = self._inbox, self._session
        if not self._known:
            return
        if inbox.credit_due and self._state is State.READY:
            credit = frames.CREDIT.pack(self._number, inbox.credit_messages, inbox.credit_bytes)
            session._host.send(Type.CREDIT, session._channel, (credit,))
            inbox.credit_messages = inbox.credit_bytes = 0
        for ack in inbox.take_acks():
            for chunk in ack.chunks():
                self._send_ack(ack, chunk)

    def _send_ack(self, ack: Ack, chunk: list[tuple[int, int]]) -> None:
        session = self._session

        def answered(_result: Any, error: ClarionError | None) -> None:
            ack.requests.pop(request, None)
            if error is not None and not ack.done:
                if not ack.watched:
                    session._failures.note(error)
                ack.settle(error)
            if not ack.requests:
                ack.settle()
                self._inbox.unanswered.pop(ack, None)
                session._forget_if_idle(self)

        request = session._expect(answered)
        ack.requests[request] = chunk
        session._host.send(ack.kind, session._channel, (frames.pack_ack(self._number, request, chunk),))

    def _end(self) -> None:
        """Leave now; `_left` is settled when the broker knows."""
        new, self._state = self._state is State.NEW, State.ENDED
        unseen = self._inbox.unseen()
        release(self._waiters)
        self._started.settle()
        if self._known:
            self._unsubscribe(unseen)
        elif new or not self._session._attached:
            self._settle_left()
        # else: SUBSCRIBE is on its way, and its answer will be followed by UNSUBSCRIBE

    def _unsubscribe(self, unseen: list[tuple[int, int]]) -> None:
        request = {"consumer": self._number, "unseen": unseen, "delete": self._delete}
        self._session._ask(Type.UNSUBSCRIBE, request, self._unsubscribed)

    def _unsubscribed(self, _result: Any, error: ClarionError | None) -> None:
        self._delete = False
        self._left.settle(error)
        self._session._forget_if_idle(self)

    def _settle_left(self) -> None:
        """The broker has no such consumer, or no more."""
        self._left.settle()
        self._session._forget_if_idle(self)

    def _fail(self, error: ClarionError) -> None:
        """The broker ended it, or never took it."""
        self._error = error
        self._state = State.ENDED
        self._known = False
        self._inbox.abandon(error)
        self._started.settle(error)
        self._left.settle()
        release(self._waiters)
        self._session._drop(self)

    def _detach(self) -> None:
        self._known = False
        self._inbox.detach()
        if self._state is State.READY:
            self._state = State.STARTING
        elif self._state is State.ENDED:
            self._settle_left()

    def _attach(self) -> None:
        if self._state is State.STARTING or (self._state is State.ENDED and not self._inbox.idle):
            self._subscribe()


class Consumer(Receiver):
    """Messages one at a time. `async for` over it, or `receive` for single ones."""

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self._messages()

    async def receive(self, timeout: float | None = None) -> ReceivedMessage | None:  # noqa: ASYNC109
        """The next message; None when none came within `timeout` seconds, or the consumer is closed."""
        part = await self._next_part(timeout)
        return None if part is None else self._take(part)

    def _take(self, part: Part) -> ReceivedMessage:
        index = part.index
        part.index = index + 1
        if part.index >= part.credit_at:
            self._inbox.give_credit(part)
        return ReceivedMessage(self, part, index)

    async def _messages(self) -> AsyncGenerator[ReceivedMessage, None]:
        inbox = self._inbox
        try:
            while True:
                part = inbox.current
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
        return self._batches()

    async def receive(self, timeout: float | None = None) -> ReceivedBatch | None:  # noqa: ASYNC109
        """The next batch; None when none came within `timeout` seconds, or the consumer is closed."""
        part = await self._next_part(timeout)
        if part is None:
            return None
        part.index = part.count
        self._inbox.give_credit(part)
        return ReceivedBatch(self, part)

    async def _batches(self) -> AsyncGenerator[ReceivedBatch, None]:
        try:
            while (batch := await self.receive(self._timeout)) is not None:
                yield batch
        finally:
            self._leave_loop()


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
