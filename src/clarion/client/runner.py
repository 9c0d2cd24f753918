"""A thread with an event loop, for callers that block.

Guarantees: a call from the loop's own thread, or after `stop`, raises instead of hanging; `stop` joins
the thread; a wait that is interrupted or runs out cancels what it waited for; an interruption (Ctrl-C) at any
moment is neither lost nor leaves a lock held, which is why there is no `concurrent.futures` here.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from clarion.errors import ConnectionLost, Timeout

_Result = TypeVar("_Result")

WAIT_S_MAX = 0.5
"""A signal that comes in the moment in which a thread begins to wait is handled by Python only when that wait ends.
So no wait is longer than this, and Ctrl-C is never later."""


class _Asked(Generic[_Result]):
    """A coroutine that one thread hands to the loop and waits for."""

    __slots__ = ("_answered", "_error", "_result", "_task", "_work")

    def __init__(self, work: Coroutine[Any, Any, _Result]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._result: _Result
        self._error: BaseException | None = None
        self._answered = threading.Lock()
        """Released once, by the loop. Taking a lock is one step in C: an interruption comes before or after it."""
        self._answered.acquire()

    def begin(self) -> None:
        """In the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            self._result = await self._work
        except BaseException as error:
            self._error = error
        self._task = None  # its end runs callbacks, and what interrupts those is lost: not in the thread that waits
        self._answered.release()

    def cancel(self) -> None:
        """In the loop; also if `begin` was never called, or all is done."""
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()

    def wait(self, seconds: float) -> bool:
        """Whether there is an answer within that time."""
        return self._answered.acquire(timeout=seconds)

    def answer(self) -> _Result:
        """Once, after `wait` has said so."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it has this frame in its traceback
        return self._result


class Runner:
    """A thread with a loop."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self.stopped = False
        self.loop: asyncio.AbstractEventLoop = _new_loop()
        self.thread = threading.Thread(target=self._run, name="clarion", daemon=True)
        self.thread.start()
        self._started.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._started.set)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def call(self, work: Coroutine[Any, Any, _Result], timeout: float | None = None) -> _Result:
        """Run a coroutine in the loop and wait for it. An interrupted or late wait cancels it."""
        if self.stopped or threading.current_thread() is self.thread:
            work.close()
            raise ConnectionLost(detail="it was closed here" if self.stopped else "a callback cannot block its loop")
        asked = _Asked(work)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            self.loop.call_soon_threadsafe(asked.begin)
            while not asked.wait(WAIT_S_MAX if deadline is None else _left(deadline)):
                if deadline is not None and time.monotonic() >= deadline:
                    raise Timeout(limit_ms=int((timeout or 0) * 1000), detail="waiting for the client")
                if not self.thread.is_alive():
                    raise ConnectionLost(detail="it was closed here")
        except BaseException:
            if not self.stopped:
                self.loop.call_soon_threadsafe(asked.cancel)
            raise
        return asked.answer()

    def post(self, call: Callable[[], object]) -> None:
        """Run a function in the loop, soon, without waiting."""
        if not self.stopped:
            self.loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        """End the thread; nothing may be called after."""
        if not self.stopped:
            self.stopped = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            if threading.current_thread() is not self.thread:
                self.thread.join()


def _left(deadline: float) -> float:
    return max(0.0, min(WAIT_S_MAX, deadline - time.monotonic()))


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
