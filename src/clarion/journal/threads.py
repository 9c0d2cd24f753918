"""The real committer: one writer thread and one allocator thread beside an event loop.

Guarantees
    The loop never waits for the disk. Both threads are joined by `close`; none is left behind.

Rules
    1. The only place in the journal that knows an event loop, and of it only `call_soon` and
       `call_soon_threadsafe` (asyncio's and uvloop's are the same).
    2. What comes back goes through one queue, so its order is the order of the work.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque

from clarion.journal.committer import Work

IDLE_SECONDS = 0.02
"""So long without work, and the writer notes what is durable. Shorter would dirty the header's page
between any two lone commits, and each sync would write it too."""
PAUSE_SECONDS = 0.2

_Job = tuple[Work, Work]


class ThreadCommitter:
    """A writer and an allocator, for a journal whose caller is the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._allocations: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._completed: deque[Work] = deque()
        self._scheduled: deque[Work] = deque()
        self._closing = threading.Event()
        self._idle: Work | None = None
        self._writer = threading.Thread(target=self._write, name="journal-writer")
        self._allocator = threading.Thread(target=self._allocate, name="journal-allocator")
        self._started = False

    def on_idle(self, work: Work) -> None:
        self._idle = work

    def schedule(self, callback: Work) -> None:
        self._scheduled.append(callback)
        self._loop.call_soon(self._run_scheduled)

    def submit(self, work: Work, done: Work) -> None:
        self._start()
        self._jobs.put((work, done))

    def allocate(self, work: Work, done: Work) -> None:
        self._start()
        self._allocations.put((work, done))

    def post(self, callback: Work) -> None:
        self._completed.append(callback)
        try:
            self._loop.call_soon_threadsafe(self._run_completed)
        except RuntimeError:
            # The loop is closed already: `close` runs what came back after it.
            pass

    def pause(self) -> bool:
        return not self._closing.wait(PAUSE_SECONDS)

    def close(self) -> None:
        if self._started:
            self._run_scheduled()
            self._closing.set()
            self._allocations.put(None)
            self._allocator.join()
            self._run_completed()
            self._jobs.put(None)
            self._writer.join()
            self._run_completed()

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._writer.start()
            self._allocator.start()

    def _run_scheduled(self) -> None:
        while self._scheduled:
            self._scheduled.popleft()()

    def _run_completed(self) -> None:
        while self._completed:
            self._completed.popleft()()

    def _write(self) -> None:
        wait_seconds: float | None = None
        while True:
            try:
                job = self._jobs.get(timeout=wait_seconds)
            except queue.Empty:
                wait_seconds = None
                if self._idle is not None:
                    self._idle()
                continue
            if job is None:
                return
            work, done = job
            work()
            self.post(done)
            wait_seconds = IDLE_SECONDS

    def _allocate(self) -> None:
        while (job := self._allocations.get()) is not None:
            work, done = job
            if not self._closing.is_set():
                work()
            self.post(done)
