"""The thread that an engine lives in: made when the system opens, never ended by what happens to the engine.

Theory of operation
    An engine holds nothing that persistent memory does not hold. So whatever stops it, want of memory or of
    descriptors, an error of the disk under its ledger, a fault of ours, the thread waits a moment and starts it anew
    from persistent memory. Recording events goes on meanwhile: it needs none of this.

Guarantee: `close` returns when the engine has let everything go, or after `CLOSE_S_MAX`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable

import uvloop

AGAIN_S_MIN = 0.2
AGAIN_S_MAX = 5.0
CLOSE_S_MAX = 30.0

_logger = logging.getLogger("clarion.events")

Serve = Callable[[asyncio.Event], Awaitable[None]]
"""Runs an engine until the event is set."""


class EngineThread:
    """Runs `serve` again and again in a thread of its own."""

    def __init__(self, serve: Serve, name: str = "clarion-events") -> None:
        self._serve = serve
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._closing = threading.Event()
        self._bell: Callable[[], None] | None = None
        self.problem = ""
        """What stopped the engine last, until it runs again."""
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    # --- from other threads -------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that the engine runs in; None while there is none."""
        return self._loop

    def close(self) -> bool:
        """Stop the engine and the thread. False if it hangs."""
        self._closing.set()
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:  # it has just closed
                pass
        self._thread.join(CLOSE_S_MAX)
        return not self._thread.is_alive()

    # --- in the thread ------------------------------------------------------------------------------

    def _main(self) -> None:
        pause_s = AGAIN_S_MIN
        while not self._closing.is_set():
            try:
                began_s = time.monotonic()
                if self._run_once():  # it wants to begin anew
                    pause_s = AGAIN_S_MIN
                    continue
                if time.monotonic() - began_s > AGAIN_S_MAX:
                    pause_s = AGAIN_S_MIN
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, AGAIN_S_MAX)
            except BaseException:  # no memory even for this: without a pause of its own it would take a whole core
                time.sleep(AGAIN_S_MIN)

    def _run_once(self) -> bool:
        """One loop, from its start to whatever ends it; whether that was no error."""
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._run())
            return True
        except BaseException as error:  # whatever it was: the truth is in persistent memory
            self._note(error)
            return False
        finally:
            self._loop = self._stop = None

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        if self._closing.is_set():
            return
        await self._serve(self._stop)

    def _note(self, error: BaseException) -> None:
        try:
            self.problem = f"{type(error).__name__}: {error}"
            _logger.error("the engine stopped and starts again: %s", self.problem, exc_info=error)
        except MemoryError:
            self.problem = "MemoryError"
