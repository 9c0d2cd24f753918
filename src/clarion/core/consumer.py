"""A consumer as its message manager sees it: what it may be sent, and what it holds.

Credit is an object of its own, because a consumer of a pattern is one consumer of each matching
destination and shares one credit among all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from clarion import limits
from clarion.core.spans import Spans

if TYPE_CHECKING:
    from clarion.core.subscription import Subscription
    from clarion.core.view import View


class Credit:
    """What may still be sent: messages and bytes, returned on receipt; and a bound on what is unconfirmed."""

    __slots__ = ("detached", "held", "messages", "paused", "size", "starved", "stopped", "unconfirmed_max")

    def __init__(self, messages: int, size: int, unconfirmed_max: int = limits.UNCONFIRMED_MESSAGES_DEFAULT) -> None:
        self.messages = messages
        self.size = size
        """In bytes."""
        self.unconfirmed_max = unconfirmed_max
        self.held = 0
        """How many messages are in flight."""
        self.detached = False
        """No more is wanted; what is in flight may still be confirmed."""
        self.paused = False
        """The connection is full: there is a turn again when that has drained."""
        self.stopped = 0
        """How many requests to begin again are not answered yet: until then nothing is sent."""
        self.starved: set[int] = set()
        """Destinations that had something for it when it had no room: these are woken when it has."""

    def add(self, messages: int, size: int) -> None:
        """More credit, up to the bound."""
        self.messages = min(self.messages + messages, limits.CONSUMER_CREDIT_MESSAGES_MAX)
        self.size = min(self.size + size, limits.CONSUMER_CREDIT_BYTES_MAX)

    @property
    def room(self) -> int:
        """How many messages may be sent now."""
        if self.detached or self.paused or self.stopped or self.size <= 0:
            return 0
        return min(self.messages, self.unconfirmed_max - self.held)


class Consumer:
    """One consumer of one subscription."""

    __slots__ = (
        "assigned",
        "credit",
        "deadlines",
        "ignores",
        "inflight",
        "number",
        "session",
        "subscription",
        "view",
        "visibility_ms",
    )

    def __init__(
        self,
        session: int,
        number: int,
        subscription: Subscription,
        credit: Credit,
        *,
        visibility_ms: int = 0,
        ignores: Callable[[int], bool] | None = None,
    ) -> None:
        self.session = session
        self.number = number
        self.subscription = subscription
        self.credit = credit
        self.view: View | None = None
        """Through which it sees its subscription, while it takes part in it."""
        self.inflight = Spans()
        """What it holds; with a visibility, until when."""
        self.assigned = Spans()
        """Ready for it alone: messages of the groups that it owns."""
        self.visibility_ms = visibility_ms
        self.deadlines: deque[tuple[int, int, int]] = deque()
        """(time, first, end): when to look for what is still unconfirmed. Only with a visibility."""
        self.ignores = ignores
        """Says of a producer that its messages are not wanted: those of the own connection (no-local)."""

    @property
    def room(self) -> int:
        """How many messages it may be sent now."""
        return self.credit.room

    @property
    def detached(self) -> bool:
        return self.credit.detached

    @property
    def held(self) -> int:
        """How many messages are in flight with it, of this destination."""
        return self.inflight.total()

    def is_slow(self, visible: int) -> bool:
        """It has no room although something waits for it, below `visible` of its destination."""
        return self.room <= 0 and not self.detached and self.subscription.depth(visible) > self.held

    def hold(self, first: int, end: int, now_ms: int) -> None:
        """[first, end) is in flight with it from now on."""
        deadline_ms = now_ms + self.visibility_ms if self.visibility_ms and now_ms else 0
        self.inflight.put(first, end, deadline_ms)
        self.credit.held += end - first
        if deadline_ms:
            self.deadlines.append((deadline_ms, first, end))

    def overdue(self, now_ms: int) -> list[tuple[int, int]]:
        """What it has had for longer than its visibility; each time is told once.

        What came back meanwhile and went to it again has a time of its own.
        """
        found: list[tuple[int, int]] = []
        while self.deadlines and self.deadlines[0][0] <= now_ms:
            _, first, end = self.deadlines.popleft()
            found += [piece[:2] for piece in self.inflight.overlap(first, end) if 0 < piece[2] <= now_ms]
        return found

    def drop(self, first: int, end: int) -> int:
        """[first, end) is in flight with it no more; how many were."""
        gone = sum(piece_end - piece_first for piece_first, piece_end, _ in self.inflight.take(first, end))
        self.credit.held -= gone
        return gone
