"""The seam between the thread that appends and the disk that takes its time.

Guarantees
    1. Work handed to `submit` or `here` runs in order, one at a time; so does work handed to `allocate`.
    2. Every `done` and every scheduled callback runs on the appending thread, never inside the call
       that asked for it (unless the committer is inline and automatic).

Rules
    1. Work never raises: it returns what happened.
    2. No asyncio here: the threads are in `clarion.journal.threads`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from clarion.errors import InternalFault

Work = Callable[[], None]

PAUSES_MAX = 10_000


class Committer(Protocol):
    """What the journal needs to have done elsewhere, or later."""

    def on_idle(self, work: Work) -> None:
        """Work to be done by the writer each time it has been without any for a while."""
        ...

    def schedule(self, callback: Work) -> None:
        """Run on the appending thread, after what it does now."""
        ...

    def submit(self, work: Work, done: Work) -> None:
        """Work for the writer; then `done` on the appending thread."""
        ...

    def here(self, work: Work) -> bool:
        """The writer's work, done now by the appending thread: only while nothing is submitted, and if nobody else
        wants that thread. False: it was not done."""
        ...

    def allocate(self, work: Work, done: Work) -> None:
        """Work for the allocator; then `done` on the appending thread."""
        ...

    def post(self, callback: Work) -> None:
        """From the writer: run this on the appending thread before `done`."""
        ...

    def pause(self) -> bool:
        """From the writer: wait a little for the disk. False when there is nothing to wait for."""
        ...

    def close(self) -> None:
        """Finish all submitted work and callbacks, and end. Blocks."""
        ...


class InlineCommitter:
    """No threads: work is done when `run` or `step` is called, or at once if `auto`.

    Deterministic, so simulation and crash tests stop it between any two steps.
    """

    def __init__(self, *, auto: bool = False, waits_here: bool = False) -> None:
        self.auto = auto
        self.waits_here = waits_here
        """Whether `here` does what it is asked for."""
        self._steps: deque[Work] = deque()
        self._idle: Work | None = None
        self._idle_due = False
        self._running = False
        self._pauses = 0

    def on_idle(self, work: Work) -> None:
        self._idle = work

    def schedule(self, callback: Work) -> None:
        self._add(callback)

    def submit(self, work: Work, done: Work) -> None:
        self._idle_due = True
        self._add(work, done)

    def here(self, work: Work) -> bool:
        if self.waits_here:
            self._idle_due = True
            work()
        return self.waits_here

    def allocate(self, work: Work, done: Work) -> None:
        self._add(work, done)

    def post(self, callback: Work) -> None:
        # Inside a step of work; its `done` is next in the queue, and this goes before it.
        self._steps.appendleft(callback)

    def pause(self) -> bool:
        self._pauses += 1
        if self._pauses > PAUSES_MAX:
            raise InternalFault(detail="waited for a disk that stays full, and nothing else can run")
        return True

    def close(self) -> None:
        self.run()

    def _add(self, *steps: Work) -> None:
        self._steps.extend(steps)
        if self.auto and not self._running:
            self.run()

    def step(self) -> bool:
        """Do the next piece of work. False when there is none."""
        if not self._steps:
            if self._idle_due and self._idle is not None:
                self._idle_due = False
                self._idle()
                return True
            return False
        self._steps.popleft()()
        return True

    def run(self, *, idle: bool = True) -> None:
        """Do all work, also what it leads to; without `idle`, as if more were always to come."""
        if self._running:
            return
        self._running = True
        try:
            while (idle or self._steps) and self.step():
                pass
        finally:
            self._running = False
