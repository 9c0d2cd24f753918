"""Ids of the last events, by which a recipient that minds doubles knows them.

What may come twice is what was processed and not yet confirmed when something crashed: the last deliveries, not more.
So a bounded window is enough. It holds ids one by one and never "everything up to": events of one producer need not
come in order (filters, retries of one source while another goes on), and what was never seen must never be dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from clarion import limits


class RecentIds:
    """A window over the ids that were added last, oldest first."""

    __slots__ = ("_known", "_order")

    def __init__(self, ids: Iterable[str] = (), maximum: int = limits.EVENT_IDS_REMEMBERED) -> None:
        self._order: deque[str] = deque(maxlen=maximum)
        self._known: set[str] = set()
        self.update(ids)

    def __contains__(self, identity: object) -> bool:
        return identity in self._known

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def add(self, identity: str) -> bool:
        """False if it was there: then nothing changes."""
        if identity in self._known:
            return False
        if len(self._order) == self._order.maxlen:
            self._known.discard(self._order[0])
        self._order.append(identity)
        self._known.add(identity)
        return True

    def update(self, ids: Iterable[str]) -> None:
        """Add all of them, in their order."""
        for identity in ids:
            self.add(identity)
