"""Retention: what is confirmed stays readable for a while, by age and by size, where a policy says so.

From which sequence on a destination keeps what is confirmed is logged before anything older is freed, because
a replay must not take freed space for kept messages. What is not confirmed is never touched.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from clarion.core.destination import Destination
from clarion.core.entries import Kind, Retain
from clarion.core.policies import Effective
from clarion.errors import JournalFull

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager


_LOOKED_MAX = 500
"""Destinations that are looked at in one turn of the event loop: some milliseconds."""


class Retention:
    """What confirmed messages are kept."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._keeping: dict[int, Destination] = {}
        """Those that keep something, or should: only they change with time."""

    def step(self) -> None:
        """Look after those that keep something: called every second or so."""
        destinations = self._host.state.destinations
        for identity, destination in list(self._keeping.items()):
            if destinations.get(identity) is destination:
                self.look(destination)
            else:
                del self._keeping[identity]

    async def look_at_all(self) -> None:
        """After a start, and after a policy has changed: returns when every destination follows it."""
        destinations = self._host.state.destinations
        every = list(destinations.items())
        for at in range(0, len(every), _LOOKED_MAX):
            for identity, destination in every[at : at + _LOOKED_MAX]:
                if destinations.get(identity) is destination:
                    self.look(destination)
            await asyncio.sleep(0)

    def look(self, destination: Destination) -> None:
        """Begin, go on or end to keep what one destination has confirmed, as its policy says now."""
        policy = self._host.policy(destination)
        retains = bool(policy.retain_ms or policy.retain_bytes)
        if not retains and not destination.retained_from:
            self._keeping.pop(destination.identity, None)
            return
        self._keeping[destination.identity] = destination
        if not retains:
            self._retain(destination, 0)
        elif not destination.retained_from:
            self._retain(destination, min(destination.floor(), destination.visible))
        else:
            first = self._first_kept(destination, policy)
            if first > destination.retained_from:
                self._retain(destination, first)

    def _first_kept(self, destination: Destination, policy: Effective) -> int:
        """Where the messages begin that are young enough and fit; never beyond what somebody owes."""
        floor = min(destination.floor(), destination.visible)
        confirmed = destination.pages.ending_below(floor)
        sizes = [page.span + self._host.streaming.space.bytes_of(destination, page) for page in confirmed]
        kept_bytes = sum(sizes)
        oldest_ms = self._host.now_ms() - policy.retain_ms if policy.retain_ms else 0
        first = destination.retained_from
        for page, size in zip(confirmed, sizes, strict=True):
            # The next page's time says when this one's last message was stored, at the latest.
            too_old = bool(policy.retain_ms) and page.stored_ms < oldest_ms
            too_many = bool(policy.retain_bytes) and kept_bytes > policy.retain_bytes
            if not too_old and not too_many:
                break
            kept_bytes -= size
            first = page.end
        return first

    def make_room(self, destination: Destination) -> None:
        """The destination is full: what is only kept goes first."""
        floor = min(destination.floor(), destination.visible)
        if 0 < destination.retained_from < floor:
            self._retain(destination, floor)

    def _retain(self, destination: Destination, first: int) -> None:
        try:
            self._host.log.write(Kind.RETAIN, Retain(destination.identity, first).encode())
        except JournalFull:
            return
        self._host.log.after(lambda: self._host.freeing.release(destination, [(1, destination.tail)]))
