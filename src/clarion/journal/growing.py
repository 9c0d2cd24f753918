"""New segments, prepared beside the traffic before they are needed.

Guarantees
    1. One at a time, on the allocator's thread; nobody waits for it who has room.
    2. While others wait for short commits it goes gently: in small steps, with rests between them as long as the steps,
       unless there is no room meanwhile.
    3. A disk or a memory that is full stops growth and nothing else; the next occasion tries again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from clarion.journal.committer import Committer
from clarion.journal.space import Claim, Space
from clarion.journal.store import Store

REST_S_MAX = 0.005
"""Between two steps of preparing a segment, however slow the disk is."""


def _never() -> bool:
    return False


class Growing:
    """The segments of one journal that are on their way."""

    def __init__(self, store: Store, space: Space, committer: Committer, grown: Callable[[bool], None]) -> None:
        """`grown` is called on the appending thread after each attempt, with whether there is a segment more."""
        self.is_shared: Callable[[], bool] = _never
        """For any thread: whether somebody waits for short commits."""
        self.closing = False
        self._store = store
        self._space = space
        self._committer = committer
        self._grown = grown
        self._allocating = False
        self._created: int | None = None

    def grow(self) -> None:
        """Begin to prepare a segment, if one is wanted and none is on its way."""
        if self._allocating or self.closing or not self._space.wants_growth:
            return
        self._allocating = True
        self._committer.allocate(self._create, self._done)

    def _create(self) -> None:
        try:
            self._created = self._store.create(self._pace)
        except (OSError, MemoryError):
            self._created = None

    def _pace(self, took_s: float) -> bool:
        """Between two steps: rest as long as the last one took, if there is room meanwhile. Whether they are to be
        small. On the allocator's thread."""
        if self.closing or not self.is_shared():
            return False
        room = self._space.room_base(Claim.PRODUCER)
        if room >= self._space.usable_bytes:
            time.sleep(min(took_s, REST_S_MAX))
        return room > 0

    def _done(self) -> None:
        self._allocating = False
        created, self._created = self._created, None
        self._space.pending = self._store.pending
        self._space.growth_blocked = created is None
        if created is not None:
            self._space.free.append(created)
            self.grow()
        self._grown(created is not None)
