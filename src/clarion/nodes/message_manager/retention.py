"""Retention: what is confirmed stays readable for a while, by age and by size, where a policy says so.

From which sequence on a destination keeps what is confirmed is logged before anything older is freed, because
a replay must not take freed space for kept messages. What is not confirmed is never touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clarion.core.destination import Destination
from clarion.core.entries import Kind, Retain
from clarion.core.policies import Effective
from clarion.errors import JournalFull

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager


class Retention:
    """What confirmed messages are kept."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host

    def step(self) -> None:
        """Look after all destinations: called every second or so."""
        for destination in list(self._host.state.destinations.values()):
            self.look(destination)

    def look(self, destination: Destination) -> None:
        """Begin, go on or end to keep what one destination has confirmed, as its policy says now."""
        policy = self._host.policy(destination)
        retains = bool(policy.retain_ms or policy.retain_bytes)
        if not retains and not destination.retained_from:
            return
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
        sizes = [page.span + self._host.streaming.bytes_of(destination, page) for page in confirmed]
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
        self._host.log.after(lambda: self._host.release(destination, [(1, destination.tail)]))
