"""The destinations of one pattern consumer: an inbox for each, taken from in turns.

Guarantees
    1. Messages of one destination come in the order of their deliveries.
    2. Every destination that has something waiting gets its turn, a delivered slice at a time, before
       another has its second.
    3. An inbox outlives the number that the broker gave it: after a reconnection it is claimed by its
       destination, and gets a new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from clarion.client.inbox import HELD_RANGES_MAX, Inbox, Part, Ranges


class Merged:
    """Inboxes by destination, and whose turn it is."""

    __slots__ = ("_make", "_turns", "by_name")

    def __init__(self, make: Callable[[str], Inbox]) -> None:
        self._make = make
        self._turns: deque[Inbox] = deque()
        """Those with parts that wait, each once."""
        self.by_name: dict[str, Inbox] = {}

    def numbered(self, number: int, name: str) -> Inbox:
        """The broker gives a destination its number for this connection."""
        inbox = self.by_name.get(name)
        if inbox is None:
            inbox = self.by_name[name] = self._make(name)
        inbox.number = number
        return inbox

    def deliver(self, part: Part) -> None:
        """A slice arrived."""
        inbox = part.inbox
        if not inbox.parts:
            self._turns.append(inbox)
        inbox.parts.append(part)

    def next_part(self) -> Part | None:
        """The part of whoever's turn it is."""
        if not self._turns:
            return None
        inbox = self._turns.popleft()
        part = inbox.next_part()
        if inbox.parts:
            self._turns.append(inbox)
        return part

    def drop_parts(self) -> list[tuple[Inbox, Ranges]]:
        """Forget what the application never saw: these ranges."""
        dropped = [(inbox, inbox.drop_parts()) for inbox in self._turns]
        self._turns.clear()
        return dropped

    def unnumbered(self) -> list[Inbox]:
        """Those of an earlier connection that have no number on this one."""
        return [inbox for inbox in self.by_name.values() if not inbox.number]

    def remove(self, inbox: Inbox) -> None:
        """Its destination is no more."""
        self.by_name.pop(inbox.destination, None)
        if inbox in self._turns:
            self._turns.remove(inbox)

    def detach(self) -> None:
        """Numbers end with the connection; what has nothing to claim is forgotten."""
        for inbox in list(self.by_name.values()):
            inbox.number = 0
            if inbox.idle:
                del self.by_name[inbox.destination]

    def claims(self) -> list[tuple[str, Ranges]]:
        """What to name as held after a reconnection, at most as many ranges as one consumer may name."""
        claimed: list[tuple[str, Ranges]] = []
        room = HELD_RANGES_MAX
        for name, inbox in self.by_name.items():
            ranges = inbox.claim()[:room]
            room -= len(ranges)
            if ranges:
                claimed.append((name, ranges))
        return claimed
