"""The one ordered log of a message manager, and the effects that wait for its durability.

Rules
    1. An entry is appended, then applied at once; every effect that leaves the process or frees space
       waits in `after` until the entry is durable (effects after durability).
    2. Effects run in the order of their entries. Before them come the answers to producers, on which nothing here
       depends: while one is on its way, the loop has time for the rest (`benchmarks/latency.py`).
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

    def __init__(
        self,
        journal: Journal,
        state: State,
        *,
        answer: Callable[[int], bool],
        soon: Callable[[Effect], None],
        settled: Effect,
    ) -> None:
        """`answer` tells producers what is durable, and whether there was something to tell; `soon` calls back after
        that has left; `settled` is called after the effects of a commit."""
        self._journal = journal
        self._state = state
        self._waiting: deque[tuple[int, Effect]] = deque()
        self._answer = answer
        self._soon = soon
        self._settled = settled
        self.last = -1
        """Where the last entry begins."""
        self.others_s = 0.0
        """When somebody last published or settled messages that have no large body, by the monotonic clock."""

    def write(self, kind: int, head: bytes, *, others: bool = False) -> None:
        """Append and apply one entry. Raises `JournalFull` and changes nothing then.

        `others`: large bodies make way for whoever waits for it.
        """
        location = self._journal.append(kind, head, reserve=True)
        self.last = location.position
        if others:
            self.others_s = time.monotonic()
        self._state.apply(location.index, kind, head, location.position, location.span)

    def publish(self, entry: Publish, batch: Buffer) -> tuple[int, int]:
        """`write` of a batch, which may not enter the reserve: (position, span)."""
        location = self._journal.append(Kind.PUBLISH, entry.encode(), batch)
        self.last, self.others_s = location.position, time.monotonic()
        self._state.apply_publish(location.index, entry, location.position, location.span)
        return location.position, location.span

    def stage(self, entry: Stage, batch: Buffer) -> None:
        """`publish` of a batch that is not visible yet."""
        self._write_with(Kind.STAGE, entry.encode(), batch)
        self.others_s = time.monotonic()

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
        self.last = location.position
        self._state.apply(location.index, kind, head, location.position, location.span)
        return location.position, location.span

    def after(self, effect: Effect) -> None:
        """Run `effect` when everything written so far is durable; at once if it already is."""
        if self.last < self._journal.durable and not self._waiting:
            effect()
        else:
            self._waiting.append((self.last, effect))

    def wait(self, position: int, effect: Effect) -> None:
        """Run `effect` when a record that was appended just now, at `position`, is durable."""
        self.last = position
        self._waiting.append((position, effect))

    def on_durable(self, durable: int) -> None:
        """The journal got so far."""
        if self._answer(durable):
            self._soon(self._run)
        else:
            self._run()

    def _run(self) -> None:
        """All effects of what is durable by now."""
        waiting, durable = self._waiting, self._journal.durable
        while waiting and waiting[0][0] < durable:
            waiting.popleft()[1]()
        self._settled()
