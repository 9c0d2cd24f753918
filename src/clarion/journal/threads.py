"""The real committer: one writer thread and one allocator thread beside an event loop.

Guarantees
    1. The loop never waits for the disk, except for `here`, which looks first whether anybody else wants the loop.
       Both threads are joined by `close`; none is left behind.
    2. Without memory or descriptors the first work is refused, and nothing is left of the attempt; later the threads
       pause, and go on where they were. `close` that raised for want of memory is called again, and goes on.

Rules
    1. The only place in the journal that knows an event loop, and of it only `call_soon`,
       `call_soon_threadsafe` and readers (asyncio's and uvloop's are the same).
    2. What comes back goes through one queue, so its order is the order of the work.
    3. Both ways are rung by an eventfd, because writing to it gives up the interpreter: who is woken finds
       it free. A lock or a `SimpleQueue` wakes the other thread while its own still holds the interpreter,
       so that it falls asleep again: 7 futex calls for a lone commit, and here 0.1 (`benchmarks/latency.py
       --counts`); where both threads share a core, 20 us there and back instead of 55.
"""

from __future__ import annotations

import asyncio
import os
import queue
import select
import threading
import time
from collections import deque

from clarion.journal.committer import Work
from clarion.threads import AGAIN_S, NO_MEMORY, SureThread

IDLE_SECONDS = 0.02
"""So long without work, and the writer notes what is durable. Shorter would dirty the header's page
between any two lone commits, and each sync would write it too."""
PAUSE_SECONDS = 0.2

_Job = tuple[Work, Work]


class _InHand:
    """What a thread is doing, and how far it is."""

    __slots__ = ("job", "posted", "worked")

    def __init__(self) -> None:
        self.job: _Job | None = None
        self.worked = self.posted = False


class ThreadCommitter:
    """A writer and an allocator, for a journal whose caller is the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: deque[_Job | None] = deque()
        self._allocations: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._completed: deque[Work] = deque()
        self._scheduled: deque[Work] = deque()
        self._closing = threading.Event()
        self._idle: Work | None = None
        self._writer = SureThread(self._write, "journal-writer")
        self._allocator = SureThread(self._allocate, "journal-allocator")
        self._writing, self._allocating = _InHand(), _InHand()
        self._poll: select.epoll | None = None
        self._writer_bell = self._loop_bell = -1
        self._is_down = False
        self._knocks = _knocks_of(loop)
        self._worked_here = False
        self._awake = False
        """The writer will look whether there is something to note, without being rung."""
        self._thread = 0
        """The loop's; 0 before the first work."""

    def on_idle(self, work: Work) -> None:
        self._idle = work

    def schedule(self, callback: Work) -> None:
        self._scheduled.append(callback)
        self._loop.call_soon(self._run_scheduled)

    def submit(self, work: Work, done: Work) -> None:
        if not self._thread:
            self._start()
        self._jobs.append((work, done))
        os.eventfd_write(self._writer_bell, 1)

    def here(self, work: Work) -> bool:
        knocks = self._knocks
        if knocks is None or not self._thread or knocks.poll(0):
            return False
        work()
        # Written before the other is read, here and by the writer: one of the two sees it.
        self._worked_here = True
        if not self._awake:
            self._awake = True
            os.eventfd_write(self._writer_bell, 1)
        return True

    def allocate(self, work: Work, done: Work) -> None:
        if not self._thread:
            self._start()
        self._allocations.put((work, done))

    def post(self, callback: Work) -> None:
        self._completed.append(callback)
        os.eventfd_write(self._loop_bell, 1)

    def pause(self) -> bool:
        return not self._closing.wait(PAUSE_SECONDS)

    def close(self) -> None:
        if not self._thread or self._is_down:
            return
        self._run_scheduled()
        self._closing.set()
        self._allocations.put(None)
        self._allocator.join()
        self._run_completed()
        self._end_writer()
        self._run_completed()
        self._take_down()
        self._is_down = True

    def _end_writer(self) -> None:
        if self._writer.is_alive():
            self._jobs.append(None)
            os.eventfd_write(self._writer_bell, 1)
            self._writer.join()

    def _start(self) -> None:
        """All of it, or nothing."""
        try:
            self._writer_bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._loop_bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._poll = select.epoll()
            # By edges, so that nobody need read it: one system call, with a time limit, for one piece of work.
            self._poll.register(self._writer_bell, select.EPOLLIN | select.EPOLLET)
            self._loop.add_reader(self._loop_bell, self._rung)
            self._writer.start()
            self._allocator.start()
            self._thread = threading.get_ident()
        except BaseException:
            while True:
                try:
                    self._undo()
                    break
                except NO_MEMORY:
                    time.sleep(AGAIN_S)
            raise

    def _undo(self) -> None:
        self._end_writer()
        self._let_go()
        self._jobs.clear()
        self._writer = SureThread(self._write, "journal-writer")
        self._allocator = SureThread(self._allocate, "journal-allocator")

    def _take_down(self) -> None:
        """The loop lets its bell go before that is closed, and must do so in its own thread."""
        if self._loop.is_closed():
            self._close_bells()
        elif self._thread == threading.get_ident():
            self._let_go()
        else:
            try:
                self._loop.call_soon_threadsafe(self._let_go)
            except RuntimeError:  # closed meanwhile
                self._close_bells()

    def _let_go(self) -> None:
        if self._loop_bell >= 0:
            self._loop.remove_reader(self._loop_bell)
        self._close_bells()

    def _close_bells(self) -> None:
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.close()
        for bell in self._loop_bell, self._writer_bell:
            if bell >= 0:
                os.close(bell)
        self._loop_bell = self._writer_bell = -1

    def _rung(self) -> None:
        os.eventfd_read(self._loop_bell)
        self._run_completed()

    def _run_scheduled(self) -> None:
        while self._scheduled:
            self._scheduled.popleft()()

    def _run_completed(self) -> None:
        while True:
            try:
                callback = self._completed.popleft()
            except IndexError:  # asked for, not asked about: `close` may do the same in another thread
                return
            callback()

    def _write(self) -> None:
        jobs, hand, bell = self._jobs, self._writing, self._poll
        assert bell is not None
        while True:
            if hand.job is None:
                if not jobs:
                    if not bell.poll(IDLE_SECONDS if self._awake else None, 1) and not jobs:
                        self._awake = False
                        if self._worked_here:
                            self._worked_here, self._awake = False, True
                        elif self._idle is not None:
                            self._idle()
                    continue
                job = jobs.popleft()
                if job is None:
                    return
                hand.job = job
            self._finish(hand, hand.job[0])
            self._awake = True

    def _allocate(self) -> None:
        hand = self._allocating
        while True:
            if hand.job is None:
                job = self._allocations.get()
                if job is None:
                    return
                hand.job = job
            self._finish(hand, _nothing if self._closing.is_set() else hand.job[0])

    def _finish(self, hand: _InHand, work: Work) -> None:
        """Each step once, however often there is no memory for it."""
        assert hand.job is not None
        if not hand.worked:
            work()
            hand.worked = True
        if not hand.posted:
            self._completed.append(hand.job[1])
            hand.posted = True
        os.eventfd_write(self._loop_bell, 1)
        hand.worked = hand.posted = False
        hand.job = None


def _knocks_of(loop: asyncio.AbstractEventLoop) -> select.poll | None:
    """Tells whether anything is ready for the loop; None where the loop does not say what it waits with."""
    backend = getattr(loop, "_get_backend_id", None)
    if backend is None:
        return None
    knocks = select.poll()
    knocks.register(backend(), select.POLLIN)
    return knocks


def _nothing() -> None:
    return None
