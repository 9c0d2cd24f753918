"""The one ordered log of a message manager, and the effects that wait for its durability.

Rules
    1. An entry is appended, then applied at once; every effect that leaves the process or frees space
       waits in `after` until the entry is durable (effects after durability).
    2. Effects run in the order of their entries.
    3. Everything runs on the event loop's thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from clarion.core.entries import Kind, Large, Publish, Stage
from clarion.core.state import State
from clarion.journal import Journal
from clarion.wire.batch import Buffer

Effect = Callable[[], None]


class EntryLog:
    """Append, apply, and hold effects."""

    def __init__(self, journal: Journal, state: State, settled: Callable[[], None]) -> None:
        self._journal = journal
        self._state = state
        self._waiting: deque[tuple[int, Effect]] = deque()
        self._settled = settled
        self._last = -1
        self.others_s = 0.0
        """When the last entry was written that is not a fragment, by the monotonic clock."""
        journal.on_durable = self._durable

    def write(self, kind: int, head: bytes) -> None:
        """Append and apply one entry. Raises `JournalFull` and changes nothing then."""
        location = self._journal.append(kind, head, reserve=True)
        self._last, self.others_s = location.position, time.monotonic()
        self._state.apply(location.index, kind, head, location.position, location.span)

    def publish(self, entry: Publish, batch: Buffer) -> tuple[int, int]:
        """`write` of a batch, which may not enter the reserve: (position, span)."""
        location = self._journal.append(Kind.PUBLISH, entry.encode(), batch)
        self._last, self.others_s = location.position, time.monotonic()
        self._state.apply_publish(location.index, entry, location.position, location.span)
        return location.position, location.span

    def stage(self, entry: Stage, batch: Buffer) -> None:
        """`publish` of a batch that is not visible yet."""
        self._write_with(Kind.STAGE, entry.encode(), batch)

    def large(self, entry: Large, batch: Buffer) -> tuple[int, int]:
        """`publish` or `stage` of a message with a large body: (position, span)."""
        return self._write_with(Kind.LARGE, entry.encode(), batch)

    def fragment(self, head: bytes, data: Buffer) -> tuple[int, int]:
        """`write` of a part of a large body, which may not enter the reserve: (position, span)."""
        return self._write_with(Kind.FRAGMENT, head, data)

    def transfer(self, head: bytes, batch: Buffer) -> tuple[int, int]:
        """`write` of messages that go from one destination to another: (position, span).

        They need room like those of producers: the reserve must not fill with dead messages.
        """
        return self._write_with(Kind.TRANSFER, head, batch)

    def _write_with(self, kind: int, head: bytes, body: Buffer) -> tuple[int, int]:
        location = self._journal.append(kind, head, body)
        self._last = location.position
        self._state.apply(location.index, kind, head, location.position, location.span)
        return location.position, location.span

    def after(self, effect: Effect) -> None:
        """Run `effect` when everything written so far is durable; at once if it already is."""
        if self._last < self._journal.durable:
            effect()
        else:
            self._waiting.append((self._last, effect))

    def wait(self, position: int, effect: Effect) -> None:
        """Run `effect` when a record that was appended just now, at `position`, is durable."""
        self._last = position
        self._waiting.append((position, effect))

    def _durable(self, durable: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] < durable:
            waiting.popleft()[1]()
        self._settled()
