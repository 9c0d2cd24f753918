"""Who confirms, and when: the acknowledgement modes of consumers.

    individual   the application, message by message or batch by batch (`Inbox` as it is)
    client       the application, for everything that its session has received so far (`ClientInbox`)
    auto         the consumer, when the application comes back for the next; then it waits until that is durable,
                 so a crash makes one message at most come again (`Following`)
    dups_ok      the consumer as well, but many at a time and without waiting (`Following`, lazy)
    transaction  the commit of a transacted session (`TransactedInbox`)

What an application has left without an exception, it has done: only then `Following` confirms the last one.
What raised is given back at once, and comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from clarion.client.inbox import Inbox, Owner
from clarion.client.outcome import Outcome
from clarion.core.spans import Spans
from clarion.errors import BadArgument
from clarion.wire.frames import Type

LAZY_MESSAGES = 1_000
LAZY_S = 0.1
"""A lazy consumer confirms when it has so many messages, or after so long."""


class Several(Outcome):
    """Done when all of them are."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Iterable[Outcome]) -> None:
        super().__init__()
        self._parts = list(parts)

    async def wait(self) -> None:
        """Return when all are done. Raises what the first of them failed with."""
        for part in self._parts:
            await part.wait()


class SessionWide(Owner, Protocol):
    """The consumer, as an inbox sees it that confirms for its whole session."""

    def _confirm_received(self) -> Outcome: ...


class ClientInbox(Inbox):
    """A confirmation is for all that the session has received in this mode."""

    __slots__ = ("_session_wide",)

    def __init__(self, owner: SessionWide, number: int, destination: str) -> None:
        super().__init__(owner, number, destination)
        self._session_wide = owner

    def acknowledge(self, kind: int, first: int, end: int) -> Outcome:
        if kind != Type.CONFIRM:
            return super().acknowledge(kind, first, end)
        if self.over:
            self._too_late()  # raises if the session is
        return self._session_wide._confirm_received()


class TransactedInbox(Inbox):
    """What is received here belongs to the transaction of the session."""

    __slots__ = ()

    def acknowledge(self, kind: int, first: int, end: int) -> Outcome:
        raise BadArgument(argument="message", detail="in a transacted session commit confirms, and rollback rejects")

    def give_back(self, first: int, end: int, reason: str | None, delay_ms: int | None) -> Outcome:
        return self.acknowledge(Type.REJECT, first, end)


class Following:
    """Confirms behind the application's back: what it was handed before the present one."""

    __slots__ = ("_count", "_gathered", "_timer", "last", "lazy")

    def __init__(self, *, lazy: bool) -> None:
        self.lazy = lazy
        self.last: tuple[Inbox, int, int] | None = None
        """What the application has in its hands."""
        self._gathered: dict[Inbox, Spans] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def handed(self, inbox: Inbox, first: int, end: int) -> None:
        """The application gets this now."""
        self.last = (inbox, first, end)

    async def came_back(self) -> None:
        """It wants the next: the last one is done. Raises what its confirmation failed with."""
        last, self.last = self.last, None
        if last is not None:
            if self.lazy:
                self.gather(*last)
            else:
                await confirmed(*last)

    def leave(self, *, clean: bool) -> None:
        """It goes away, without an exception or with one."""
        last, self.last = self.last, None
        if last is not None:
            if clean:
                last[0].confirm_held(last[1], last[2])
            else:
                rejected(*last)
        self.flush()

    def gather(self, inbox: Inbox, first: int, end: int) -> None:
        """Confirm this soon, together with others."""
        self._gathered.setdefault(inbox, Spans()).put(first, end)
        self._count += end - first
        if self._count >= LAZY_MESSAGES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LAZY_S, self.flush)

    def flush(self) -> None:
        """Confirm what was gathered, without waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered = self._gathered, {}
        self._count = 0
        for inbox, spans in gathered.items():
            for first, end, _ in spans:
                inbox.confirm_held(first, end)


async def confirmed(inbox: Inbox, first: int, end: int) -> None:
    """Confirm what of it is still held, and wait until that is durable."""
    for ack in inbox.confirm_held(first, end):
        await ack.wait()


def rejected(inbox: Inbox, first: int, end: int) -> None:
    """Give back what of it is still held."""
    if not inbox.over:
        for piece in inbox.held.overlap(first, end):
            Inbox.acknowledge(inbox, Type.REJECT, *piece[:2])
