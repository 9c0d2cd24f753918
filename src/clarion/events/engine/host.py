"""The thread that an engine lives in: made when the system opens, never ended by what happens to the engine.

Theory of operation
    An engine holds nothing that persistent memory does not hold. So whatever stops it, want of memory or of
    descriptors, an error of the disk under its ledger, a fault of ours, the thread waits a moment and starts it anew
    from persistent memory. Recording events goes on meanwhile: it needs none of this.

    Want of memory may also stop it in silence: a task that was to be woken is not, and waits for ever. So a second
    thread watches, and where there was no memory for a while the engine begins anew as soon as there is.

Guarantees
    1. `close` returns when the engine has let everything go, or after `CLOSE_S_MAX`.
    2. No engine starts without memory, and none lives longer than the next want of it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from clarion.events.engine.ending import end
from clarion.threads import NO_MEMORY, SureThread

AGAIN_S_MIN = 0.2
AGAIN_S_MAX = 5.0
CLOSE_S_MAX = 30.0
WATCH_S = 1.0
END_S_MAX = 20.0
STARVED_END_S_MAX = 5.0
"""An engine that has not ended so long after it was told to waits for what will not come; the more so after want of
memory."""
ENOUGH_BYTES = 1 << 20
"""Where there is so much, an engine can start."""

_logger = logging.getLogger("clarion.events")

Serve = Callable[[asyncio.Event], Awaitable[None]]
"""Runs an engine until the event is set."""


class EngineThread:
    """Runs `serve` again and again in a thread of its own."""

    def __init__(self, serve: Serve, name: str = "clarion-events") -> None:
        self._serve = serve
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ending: asyncio.AbstractEventLoop | None = None
        """The loop that there is until it is closed."""
        self._closing = threading.Event()
        self._unwatched = threading.Lock()
        """Held as long as there is somebody to watch."""
        self.starved = False
        """There was no memory, and the engine has not begun anew since."""
        self._told_at_s: float | None = None
        """When it was told to."""
        self.problem = ""
        """What stopped the engine last, until it runs again."""
        self._unwatched.acquire()
        self._watcher = SureThread(self._watch, f"{name}-watch", daemon=True)
        self._thread = SureThread(self._main, name, daemon=True)
        self._watcher.start()
        self._thread.start()

    # --- from other threads -------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that the engine runs in; None while there is none."""
        return self._loop

    def close(self) -> bool:
        """Stop the engine and the thread. False if it hangs."""
        self._closing.set()
        self._tell()
        self._thread.join(CLOSE_S_MAX)
        if self._unwatched.locked():
            self._unwatched.release()
        self._watcher.join()
        return not self._thread.is_alive()

    def _tell(self) -> None:
        """The engine is to end."""
        if self._told_at_s is None:
            self._told_at_s = time.monotonic()
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:  # it has just closed
                pass

    # --- in the thread that watches -------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._unwatched.acquire(timeout=WATCH_S):
            if not has_memory():
                self.starved = True
            elif self._told_at_s is not None and time.monotonic() - self._told_at_s > self._end_s_max():
                self._break_off()
            elif self.starved:
                self._tell()

    def _end_s_max(self) -> float:
        return STARVED_END_S_MAX if self.starved and not self._closing.is_set() else END_S_MAX

    def _break_off(self) -> None:
        loop = self._ending
        self._told_at_s = time.monotonic() + END_S_MAX  # what it does then takes time too
        if loop is not None:
            try:
                loop.call_soon_threadsafe(loop.stop)
            except RuntimeError:  # it has just closed
                pass

    # --- in the thread ------------------------------------------------------------------------------

    def _main(self) -> None:
        pause_s = AGAIN_S_MIN
        while not self._closing.is_set() or self._ending is not None:
            try:
                pause_s = self._turn(pause_s)
            except BaseException:  # no memory even for this: without a pause of its own it would take a whole core
                time.sleep(AGAIN_S_MIN)

    def _turn(self, pause_s: float) -> float:
        """One engine, from its start to its end. How long to pause after the next one that fails."""
        if self._ending is not None or not has_memory():
            self._end()
            time.sleep(AGAIN_S_MIN)
            return pause_s
        began_s = time.monotonic()
        if self._run_once():  # it wants to begin anew
            return AGAIN_S_MIN
        if time.monotonic() - began_s > AGAIN_S_MAX:
            pause_s = AGAIN_S_MIN
        self._closing.wait(pause_s)
        return min(2 * pause_s, AGAIN_S_MAX)

    def _run_once(self) -> bool:
        """One loop, from its start to whatever ends it; whether that was no error."""
        try:
            self.starved, self._told_at_s = False, None
            # Not that of `uvloop`, which ends the process (SIGSEGV) when it finds no memory.
            loop = self._ending = asyncio.SelectorEventLoop()
            loop.set_exception_handler(self._unhandled)
            loop.run_until_complete(self._run(loop))
            return True
        except BaseException as error:  # whatever it was: the truth is in persistent memory
            self._note(error)
            return False
        finally:
            self._end()

    def _end(self) -> None:
        self._loop = self._stop = None
        if self._ending is not None:
            self._tell()  # whoever watches is to see if this takes too long, too
            end(self._ending)
            self._ending = None

    async def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stop = asyncio.Event()
        self._loop = loop
        if not self._closing.is_set():
            await self._serve(self._stop)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Something that the loop called has raised, and somebody may wait for it in vain."""
        if isinstance(context.get("exception"), NO_MEMORY):
            self.starved = True
        else:
            loop.default_exception_handler(context)

    def _note(self, error: BaseException) -> None:
        try:
            self.problem = f"{type(error).__name__}: {error}"
            _logger.error("the engine stopped and starts again: %s", self.problem, exc_info=error)
        except NO_MEMORY:
            self.problem = "MemoryError"


def has_memory() -> bool:
    """Enough for an engine, in one piece."""
    try:
        bytearray(ENOUGH_BYTES)
        return True
    except NO_MEMORY:
        return False
