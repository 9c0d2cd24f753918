"""The engine of a consumer: its subscription, what it was delivered, and what goes back to the broker.

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

    A consumer of a pattern has an inbox for every topic that the broker has named by MERGED, under the
    number that came with it. Credit, prefetch and the end belong to the consumer itself. The end of
    one of its topics (CONSUMER_CLOSED with that number) is the end of that inbox only.

    After `recover` and `rollback` it begins again: what the application never saw goes back with what comes again,
    and whatever arrives before the broker has answered is dropped, for it comes once more. So what comes
    again comes first, in its order.

    In a transacted session nothing is left to claim after a reconnection: `Transactions` has taken what
    was seen, for the broker has rolled back. Of a temporary destination nothing is claimed either: what
    was in it is gone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

from clarion.client.acknowledging import Following
from clarion.client.inbox import Ack, Inbox, Part, Ranges
from clarion.client.intake import Intake
from clarion.client.outcome import Outcome, again, release
from clarion.client.subscription import Subscription
from clarion.errors import ClarionError, JournalFull, NoSuchDestination, NoSuchSubscription
from clarion.wire import frames
from clarion.wire.frames import Slice, Type

if TYPE_CHECKING:
    from clarion.client.channel import Channel


class State(IntEnum):
    NEW = 0
    STARTING = 1
    READY = 2
    ENDED = 3


class Receiver(Intake):
    """What both kinds of consumers share."""

    def __init__(self, session: Channel, number: int, wanted: Subscription) -> None:
        super().__init__(number, wanted)
        self._session = session
        self._timeout = wanted.timeout
        self._following: Following | None = None
        if wanted.ack in ("auto", "dups_ok"):
            self._following = Following(lazy=wanted.ack == "dups_ok")
        self._state = State.NEW
        self._started = Outcome()
        self._left = Outcome()
        self._error: ClarionError | None = None
        self._entered = False
        self._subscribed_before = False
        self._known = False
        """The broker has this consumer, ended or not: confirmations may be sent."""
        self._delete = False
        self._restarts = 0
        """How many requests to begin again are not answered yet."""
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def destination(self) -> str:
        return self._wanted.destination

    async def __aenter__(self) -> Self:
        await self._start()
        self._entered = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._let_go(clean=kind is None)
        await self.close()

    async def close(self, *, delete: bool = False) -> None:
        """Leave: what was prefetched goes back. `delete` also removes a durable subscription."""
        if self._state is not State.ENDED:
            self._delete = delete
            self._let_go(clean=True)
            self._end()
        await self._left.wait()
        if self._delete:  # there was no consumer to say it with, or it was lost on the way
            self._delete = False
            with suppress(NoSuchSubscription):
                await self._session._delete(self._wanted.destination, self._wanted.subscription)

    async def confirm(self, first: int, end: int) -> None:
        """Confirm the sequences from `first` to before `end`; returns when that is durable. Not of a pattern."""
        await self._only_inbox().acknowledge(Type.CONFIRM, first, end).wait()

    async def reject(self, first: int, end: int) -> None:
        """Give back the sequences from `first` to before `end`. Not of a pattern."""
        await self._only_inbox().acknowledge(Type.REJECT, first, end).wait()

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
            part = self._part()
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

    def _leave_loop(self, *, clean: bool = True) -> None:
        """A loop is left: without waiting, for the event loop may be at its end."""
        self._let_go(clean=clean)
        if not self._entered and self._state is not State.ENDED:
            self._end()

    def _let_go(self, *, clean: bool) -> None:
        """What the application has in its hands is done, or came to nothing."""
        if self._following is not None:
            self._following.leave(clean=clean)

    def _confirm_received(self) -> Outcome:
        """For a message of mode `client`."""
        return self._session._confirm_received()

    def _check_open(self) -> None:
        self._session._check_open()

    def _mark(self, inbox: Inbox) -> None:
        self._session._mark(inbox, self)

    # --- the session's side ---------------------------------------------------------------------------

    def _subscribe(self) -> None:
        """Ask for deliveries, or, when ended, only to claim what is held."""
        if not self._session._attached:
            return
        wanted, ended = self._wanted, self._state is State.ENDED
        request = {
            "consumer": self._number,
            **wanted.asked(first=not self._subscribed_before, seen_end=self._seen_end),
            "credit_messages": 0 if ended else wanted.prefetch_messages,
            "credit_bytes": 0 if ended else wanted.prefetch_bytes,
            "held": self._inbox.claim(),
        }
        if self._merged is not None:
            request["held_merged"] = self._merged.claims()
        self._session._ask(Type.SUBSCRIBE, request, self._subscribed)

    def _subscribed(self, _result: Any, error: ClarionError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self._known = self._subscribed_before = True
        self._send_again(self._inbox)
        if self._merged is not None:  # all that are still there have got their numbers before this
            for inbox in self._merged.unnumbered():
                self._abandon_topic(inbox, NoSuchDestination(destination=inbox.destination))
        if self._state is State.STARTING:
            self._state = State.READY
        elif self._state is State.ENDED:
            self._unsubscribe([])
        self._started.settle()
        for inbox in (self._inbox, *self._inboxes()):  # what has gathered since the connection was lost
            self._mark(inbox)

    def _merge(self, number: int, name: str) -> Inbox | None:
        """The broker has given a topic of this pattern a number."""
        if self._merged is None:
            return None
        inbox = self._merged.numbered(number, name)
        self._send_again(inbox)
        self._mark(inbox)
        return inbox

    def _stop(self) -> None:
        """It is to begin again: nothing is taken in until the broker has answered."""
        self._restarts += 1
        self._return_unseen()

    def _go_on(self) -> None:
        """It begins again: what comes now begins with the oldest."""
        self._restarts = max(0, self._restarts - 1)

    def _deliver(self, inbox: Inbox, delivered: Slice) -> None:
        if self._restarts:
            self._pass_by(inbox, delivered)
            return
        if self._state is State.ENDED:
            self._give_back(inbox, delivered.first, delivered.first + Part(inbox, delivered, self._credit).count)
            return
        self._take_in(inbox, delivered)
        if self._waiters:
            release(self._waiters)

    def _give_back(self, inbox: Inbox, first: int, end: int) -> None:
        """A delivery crossed our UNSUBSCRIBE, and nobody has seen it: say so, or reject it if that is too late."""
        session = self._session

        def answered(_result: Any, error: ClarionError | None) -> None:
            if error is not None and inbox.number:  # and if that is too late as well, the broker has it back
                rejection = frames.pack_ack(inbox.number, 0, [(first, end)])
                session._host.send(Type.REJECT, session._channel, (rejection,))
                session._host.wake()

        if session._attached:
            request = self._unseen_request([(inbox, [(first, end)])], delete=False)
            session._ask(Type.UNSUBSCRIBE, request, answered)

    def _unseen_request(self, unseen: list[tuple[Inbox, Ranges]], *, delete: bool) -> dict[str, Any]:
        mine = [one for inbox, ranges in unseen if inbox is self._inbox for one in ranges]
        request: dict[str, Any] = {"consumer": self._number, "unseen": mine, "delete": delete}
        if self._merged is not None:
            merged: dict[int, Ranges] = {}
            for inbox, ranges in unseen:
                if ranges:
                    merged.setdefault(inbox.number, []).extend(ranges)
            request["unseen_merged"] = list(merged.items())
        return request

    def _turn(self, inbox: Inbox) -> None:
        """Send credit and confirmations that have gathered."""
        session, credit = self._session, self._credit
        if not self._known:
            return
        if credit.due and self._state is State.READY:
            given = frames.CREDIT.pack(self._number, credit.messages, credit.bytes)
            session._host.send(Type.CREDIT, session._channel, (given,))
            credit.clear()
        if inbox.number:
            for ack in inbox.take_acks():
                for chunk in ack.chunks():
                    self._send_ack(inbox, ack, chunk)

    def _send_again(self, inbox: Inbox) -> None:
        """Confirmations that were on their way when the connection was lost."""
        for ack in list(inbox.unanswered):
            chunks = list(ack.requests.values())
            ack.requests.clear()
            for chunk in chunks:
                self._send_ack(inbox, ack, chunk)

    def _send_ack(self, inbox: Inbox, ack: Ack, chunk: Ranges) -> None:
        session = self._session

        def answered(_result: Any, error: ClarionError | None) -> None:
            ack.requests.pop(request, None)
            if isinstance(error, JournalFull) and ack.kind == Type.CONFIRM and not inbox.over:
                for first, end in chunk:  # it may be confirmed once more, or given back
                    inbox.held.put(first, end)
            if error is not None and not ack.done:
                if not ack.watched:
                    session._failures.note(error)
                ack.settle(error)
            if not ack.requests:
                ack.settle()
                inbox.unanswered.pop(ack, None)
                session._forget_if_idle(self)

        request = session._expect(answered)
        ack.requests[request] = chunk
        session._host.send(ack.kind, session._channel, (ack.payload(inbox.number, request, chunk),))

    def _end(self) -> None:
        """Leave now; `_left` is settled when the broker knows."""
        new, self._state = self._state is State.NEW, State.ENDED
        unseen = self._drop_unseen()
        release(self._waiters)
        self._started.settle()
        if self._known:
            self._unsubscribe(unseen)
        elif new or not self._session._attached:
            self._settle_left()
        # else: SUBSCRIBE is on its way, and its answer will be followed by UNSUBSCRIBE

    def _unsubscribe(self, unseen: list[tuple[Inbox, Ranges]]) -> None:
        request = self._unseen_request(unseen, delete=self._delete)
        self._session._ask(Type.UNSUBSCRIBE, request, self._unsubscribed)

    def _unsubscribed(self, _result: Any, error: ClarionError | None) -> None:
        self._delete = False
        self._left.settle(error)
        self._session._forget_if_idle(self)

    def _settle_left(self) -> None:
        """The broker has no such consumer, or no more."""
        self._left.settle()
        self._session._forget_if_idle(self)

    def _closed(self, inbox: Inbox, error: ClarionError) -> None:
        """The broker ended the consumer, or the part of it that one topic of a pattern is."""
        if self._merged is None or inbox is self._inbox:
            self._fail(error)
            return
        self._abandon_topic(inbox, error)
        self._session._forget_if_idle(self)

    def _fail(self, error: ClarionError) -> None:
        """The broker ended it, or never took it."""
        self._error = error
        self._state = State.ENDED
        self._known = False
        self._drop_unseen()
        for inbox in (self._inbox, *self._inboxes()):
            inbox.abandon(error)
        self._let_go(clean=False)
        self._started.settle(error)
        self._left.settle()
        release(self._waiters)
        self._session._drop(self)

    def _detach(self) -> None:
        self._known = False
        self._restarts = 0
        self._drop_unseen()
        self._note_seen()
        self._credit.clear()
        for inbox in self._inboxes():
            inbox.detach()
            if self._wanted.temporary:
                inbox.forget()
        if self._merged is not None:
            self._merged.detach()
        if self._state is State.READY:
            self._state = State.STARTING
        elif self._state is State.ENDED:
            self._settle_left()

    def _attach(self) -> None:
        if self._state is State.STARTING or (self._state is State.ENDED and not self._idle):
            self._subscribe()


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
