"""Threads that begin and go on although there is no memory.

`threading.Thread.start` waits for a word of the new thread. One that finds no memory for its first call ends without,
and who started it waits for ever; one that finds none later ends in silence, and who gave it work waits for ever. And
`join` and `is_alive` that find none take the thread for ended, though it works on.

Guarantees
    1. `start` returns when the thread runs, or raises within `BEGIN_S_MAX`, and then it never will run.
    2. The thread's function is called again when there was no memory, after a pause, until it returns.
    3. `join` returns when it has returned, and `is_alive` is true until then.

Rule: such a function goes on where it was. What it has in hand is in attributes, not in its variables.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BEGIN_S_MAX = 5.0
AGAIN_S = 0.05
NO_MEMORY = (MemoryError, SystemError)
"""A call for whose frame there is no memory raises `SystemError` in Python 3.11, where it is called directly."""


class _Begun(threading.Event):
    """Of a thread. Nobody waits for it without end."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(BEGIN_S_MAX if timeout is None else timeout)


class SureThread(threading.Thread):
    """See the module."""

    def __init__(self, target: Callable[[], None], name: str, *, daemon: bool = False) -> None:
        super().__init__(name=name, daemon=daemon)
        self._started = _Begun()
        self._entered = _Begun()
        self._ticket = [target]
        """Taken by the thread that begins, or by the one that has given it up."""
        self._working = threading.Lock()

    def start(self) -> None:
        """Raises `MemoryError`, or `RuntimeError` as `threading` does, if it does not run."""
        self._working.acquire()
        try:
            super().start()
        except BaseException:
            self._working.release()
            raise
        if self._started.is_set() and self._entered.wait():
            return
        try:
            self._ticket.pop()
        except IndexError:
            return  # it runs, but had no memory to say so
        limbo: dict[threading.Thread, threading.Thread] = getattr(threading, "_limbo", {})
        limbo.pop(self, None)
        self._working.release()
        raise MemoryError("a thread found no memory to begin")

    def run(self) -> None:
        try:
            target = self._ticket.pop()
        except IndexError:
            return
        try:
            self._entered.set()
        except NO_MEMORY:
            pass
        try:
            while True:
                try:
                    target()
                    return
                except NO_MEMORY:
                    time.sleep(AGAIN_S)
        finally:
            self._working.release()

    def join(self, timeout: float | None = None) -> None:
        if self._working.acquire(timeout=-1 if timeout is None else timeout):
            self._working.release()
            super().join(timeout)  # a moment, if any

    def is_alive(self) -> bool:
        return self._working.locked()
