"""A thread with an event loop, for callers that block.

Guarantees: a call from the loop's own thread, or after `stop`, raises instead of hanging; `stop` joins
the thread; a wait that is interrupted or runs out cancels what it waited for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from clarion.errors import ConnectionLost, Timeout

_Result = TypeVar("_Result")


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
        future: Future[_Result] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise Timeout(limit_ms=int((timeout or 0) * 1000), detail="waiting for the client") from None
        except BaseException:
            future.cancel()
            raise

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


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
