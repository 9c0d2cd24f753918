"""One timer for all connections: heartbeats, time-outs, closing ones that linger.

A heap of due times; an entry whose time is not its connection's `due_ms` any more is stale and passed
over. At most `TICKS_PER_SWEEP` connections are looked at in one turn of the loop, so that twenty
thousand that came together do not become due together for ever.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import Protocol

SWEEP_S = 0.05
TICKS_PER_SWEEP = 1_000
"""20,000 a second: twice what the most connections need."""


class Ticking(Protocol):
    """What is swept."""

    due_ms: int

    def tick(self, now_ms: int) -> int:
        """Do what is due; return when to be called again, 0 for never."""


class Sweeper:
    """Calls `tick` of everything scheduled, and `each_sweep` before."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now_ms: Callable[[], int], each_sweep: Callable[[int], None]
    ) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._each_sweep = each_sweep
        self._heap: list[tuple[int, int, Ticking]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_later(SWEEP_S, self._sweep)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()

    def schedule(self, ticking: Ticking, in_ms: int) -> None:
        """Tick it in `in_ms`, instead of when it was due before."""
        ticking.due_ms = self._now_ms() + in_ms
        heapq.heappush(self._heap, (ticking.due_ms, next(self._order), ticking))

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(SWEEP_S, self._sweep)
        now_ms = self._now_ms()
        self._each_sweep(now_ms)
        heap = self._heap
        for _ in range(TICKS_PER_SWEEP):
            if not heap or heap[0][0] > now_ms:
                return
            due_ms, _order, ticking = heapq.heappop(heap)
            if ticking.due_ms != due_ms:
                continue
            ticking.due_ms = 0
            again_ms = ticking.tick(now_ms)
            if again_ms:
                self.schedule(ticking, again_ms - now_ms)
