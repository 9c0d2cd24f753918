"""What nobody needs any more gives its space back, and producers that wait for room hear of it.

Rule
    Space is given up when everything written so far is durable: what it is judged by may hold entries that a crash
    would undo.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clarion.core.destination import Destination
from clarion.core.pages import Page
from clarion.core.subscription import Range

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_RESUME_MS = 5
"""Room that comes back is gathered for so long before producers that wait are told."""


class Freeing:
    """See the module."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._resuming = False

    def release_dropped(self, destination: Destination) -> None:
        """Batches of a transaction that was rolled back need their space no more."""
        dropped, destination.dropped = destination.dropped, []
        for position, span in dropped:
            self._host.journal.release(position, span)
        streams, destination.dropped_streams = destination.dropped_streams, []
        self._host.streaming.space.let_go(destination, streams)

    def release(self, destination: Destination, ranges: Sequence[Range] = ()) -> None:
        """Free what nobody needs, of these sequences."""
        freed = destination.release(ranges)
        for page in freed:
            self._host.cache.drop(destination.identity, page.first)
        large = destination.release_large(ranges) if destination.large else []
        if freed or large:
            self._host.log.after(lambda: self._give_up(destination, freed, large))
        else:
            self.room_came()

    def _give_up(self, destination: Destination, freed: list[Page], large: list[int]) -> None:
        for page in freed:
            self._host.journal.release(page.position, page.live)
        if large:
            self._host.streaming.space.let_go(destination, large)
        self.room_came()

    def room_came(self) -> None:
        """Producers that wait for room may go on, soon."""
        if self._host.room.waiting and not self._resuming:
            self._resuming = True
            self._host.later(_RESUME_MS, self._resume)

    def _resume(self) -> None:
        self._resuming = False
        self._host.room.resume()
