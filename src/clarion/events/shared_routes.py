"""The routes of an event system, written by the process that delivers, read by all that record.

    routes         the recipients of the newest epoch (`Routes.dump`), replaced atomically
    routes.mark    a number of 8 bytes, mapped by every process: it changes when `routes` does

Guarantee: `current` costs a look at mapped memory; a file is read only when the number has changed. If it cannot be
read now (no descriptor, no memory), the routes that were known stay, and the next call tries again: an event may then
be decided by the epoch before, which is recorded with it.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from clarion.errors import ClarionError
from clarion.events.routing import Routes
from clarion.threads import NO_MEMORY

FILE = "routes"
MARK = "routes.mark"
MARK_BYTES = 8
READ_BYTES = 1 << 16


class SharedRoutes:
    """See the module. One object a process and directory."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE
        self._name = str(self._file)
        descriptor = os.open(directory / MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < MARK_BYTES:
                os.posix_fallocate(descriptor, 0, MARK_BYTES)
            self._map = mmap.mmap(descriptor, MARK_BYTES)
        finally:
            os.close(descriptor)
        self._mark = memoryview(self._map).cast("Q")
        self._known = -1
        self._routes = Routes()

    def current(self) -> Routes:
        """The newest routes that can be had."""
        mark = self._mark[0]
        if mark != self._known:
            self._reload(mark)
        return self._routes

    def _reload(self, mark: int) -> None:
        try:
            self._routes = Routes.load(self._content())
            self._known = mark
        except FileNotFoundError:
            self._known = mark
        except (OSError, *NO_MEMORY, TypeError, ClarionError):
            return  # TypeError: what some builds of Python make of a call for which there was no memory

    def _content(self) -> bytes:
        """Of the file, by the fewest objects there can be: this happens where there may be no memory."""
        descriptor = os.open(self._name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.read(descriptor, READ_BYTES)
            while more := os.read(descriptor, READ_BYTES):
                content += more
            return content
        finally:
            os.close(descriptor)

    def publish(self, routes: Routes) -> None:
        """Only by the process that holds the engine lock. Raises OSError when there is no room for a small file."""
        if self._routes == routes and self._file.exists() and self._known == self._mark[0]:
            return
        fresh = self._file.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(routes.dump())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file)
        self._routes = routes
        self._mark[0] = self._known = (self._mark[0] + 1) & ((1 << 63) - 1)

    def close(self) -> None:
        """Let the mapping go."""
        self._mark.release()
        self._map.close()
