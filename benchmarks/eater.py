"""A thread that takes all the memory there is. Only the standard library: it also runs in the interpreters of peers."""

from __future__ import annotations

import os
import threading
from typing import Any

NOTHING_LEFT = (MemoryError, SystemError)
"""Made here, like what follows: to make it where it is needed would need memory."""
_LARGE_SIZES = (1 << 26, 1 << 22, 1 << 18, 1 << 14, 1 << 12, 2000, 1000)
_SMALL_SIZES = tuple(range(0, 480, 16))
_MANY = range(100_000)


class Eater:
    """Takes every block that anybody frees, and gives none back until it is told.

    Without `small` ones the caller's own frames and numbers are safe; with them only what is below `emit` is.
    """

    def __init__(self, *, small: bool = True) -> None:
        self.begin = self.stop = self.full = False
        self.rounds = 0
        self._small_sizes = _SMALL_SIZES if small else ()
        self._large: list[object] = [None] * 200_000
        self._count = 0
        self._chain: Any = None
        self._thread = threading.Thread(target=self._eat, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self.stop = True
        self._thread.join()
        self._large.clear()

    def _eat(self) -> None:
        while not (self.begin or self.stop):
            os.sched_yield()
        while not self.stop:
            try:
                self._eat_more()
            except NOTHING_LEFT:
                self.full = True  # whatever there was none for
        chain, self._chain = self._chain, None
        while chain is not None:  # not by recursion
            chain = chain[0]

    def _eat_more(self) -> None:
        for size in _LARGE_SIZES:
            try:
                while not self.stop and self._count < len(self._large):
                    self._large[self._count] = bytearray(size)
                    self._count += 1
            except NOTHING_LEFT:
                pass
        # Small objects of all sizes, in a chain that needs no list to hold them.
        for size in self._small_sizes:
            try:
                for _ in _MANY:
                    if self.stop:
                        return
                    self._chain = (self._chain, bytes(size))
            except NOTHING_LEFT:
                pass
        self.full = True
        self.rounds += 1
