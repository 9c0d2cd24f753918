"""The file of a ring: what a section needs of one, and the real one.

Guarantees
    1. Space is allocated and written with zeros and synced before the file has its name: nothing later can fail for
       want of space, and no sync has to grow it.
    2. Descriptors and maps are made when it is opened; writing, syncing and reading need no more.

Rules
    1. The lock is held by a descriptor of its own, for a map keeps the lock of its descriptor alive as long as any
       process has the map. A forked child closes the locks of its parent, which does not open them.
    2. The mark is never synced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol

from clarion import limits
from clarion.errors import NoSpace
from clarion.events.memory.layout import MARK_BYTES, RING_OFFSET

RING_SUFFIX = ".ring"
MARK_SUFFIX = ".mark"
PENDING_SUFFIX = ".pending"
_ZEROS = bytes(16 * limits.KIB)
"""Written at a time into a new file. The kernel caches a file in pieces as large as it was written, and a sync of one
sector took 12 us longer where those had a MiB (`benchmarks/events.py`)."""
_LOCK_TRIES = 20
_LOCK_PAUSE_S = 0.005


class RingFile(Protocol):
    """The bytes of a section. What is written is seen in `view` at once."""

    view: memoryview
    marks: memoryview
    """Words of 64 bits in memory that all processes share; see `layout`."""

    def write(self, offset: int, data: memoryview, before: Callable[[], None] | None = ...) -> None:
        """All of it. Raises `OSError`. From the call of `before` on it needs no memory."""
        ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class FileLock:
    """An exclusive lock of one process on a file; it is gone when the process is."""

    held: ClassVar[set[FileLock]] = set()

    def __init__(self, path: Path) -> None:
        """Raises `BlockingIOError` if somebody has it, `FileNotFoundError` if there is no such file (any more)."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._descriptor).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        except BaseException:
            os.close(self._descriptor)
            raise
        FileLock.held.add(self)

    @classmethod
    def patiently(cls, path: Path) -> FileLock:
        """Like the constructor, but a look of somebody else at the file, which takes its lock too, is no obstacle."""
        for _ in range(_LOCK_TRIES):
            with contextlib.suppress(BlockingIOError):
                return cls(path)
            time.sleep(_LOCK_PAUSE_S)
        return cls(path)

    @property
    def is_held(self) -> bool:
        return self._descriptor >= 0

    def release(self) -> None:
        """Twice is once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            FileLock.held.discard(self)
            os.close(descriptor)


def _leave_locks_to_the_parent() -> None:
    for lock in FileLock.held:
        os.close(lock._descriptor)
        lock._descriptor = -1
    FileLock.held.clear()


os.register_at_fork(after_in_child=_leave_locks_to_the_parent)


class MappedFile:
    """A file in a directory, mapped. Made by `create` or `open`."""

    def __init__(self, path: Path, descriptor: int, lock: FileLock | None) -> None:
        self.path = path
        self.lock = lock
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self.view = memoryview(self._map)
        self._mark = _map_mark(path.with_suffix(MARK_SUFFIX))
        self.marks = memoryview(self._mark).cast("Q")

    @classmethod
    def create(cls, path: Path, ring_bytes: int, first_pages: bytes, *, locked: bool = True) -> MappedFile:
        """A new file with its space. Raises `FileExistsError` or `NoSpace`."""
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        pending = path.with_suffix(PENDING_SUFFIX)
        descriptor = os.open(pending, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            lock = FileLock(pending)  # first of all: what is pending and has no owner is cleaned away
        except BaseException:
            os.close(descriptor)
            raise
        try:
            _fill(descriptor, pending, RING_OFFSET + ring_bytes, first_pages)
            path.with_suffix(MARK_SUFFIX).unlink(missing_ok=True)
            file = cls(path, descriptor, lock)
            pending.rename(path)
            sync_directory(path.parent)
        except BaseException:
            os.close(descriptor)
            pending.unlink(missing_ok=True)
            lock.release()
            raise
        if not locked:
            lock.release()
        return file

    @classmethod
    def open(cls, path: Path, *, locked: bool) -> MappedFile:
        """Raises `BlockingIOError` if somebody else has the lock, `FileNotFoundError` if it was removed."""
        lock = FileLock.patiently(path) if locked else None
        descriptor = -1
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            return cls(path, descriptor, lock)
        except BaseException:
            if descriptor >= 0:
                os.close(descriptor)
            if lock is not None:
                lock.release()
            raise

    def write(self, offset: int, data: memoryview, before: Callable[[], None] | None = None) -> None:
        size = len(data)
        seen = self.view[offset : offset + size]
        if before is not None:
            before()
        try:
            written = os.pwrite(self._descriptor, data, offset)
        except MemoryError:
            # The number of bytes is an object. It is made when the interpreter was given up to others, who took all
            # memory; that the write itself was done can be seen.
            if seen != data:
                raise
            return
        while written < size:
            written += os.pwrite(self._descriptor, data[written:], offset + written)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def move(self, path: Path) -> None:
        """Give it, and its mark, another name. Needs no descriptor."""
        self.path.with_suffix(MARK_SUFFIX).rename(path.with_suffix(MARK_SUFFIX))
        self.path.rename(path)
        self.path = path

    def remove(self) -> None:
        """From the directory; who has it open keeps it."""
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(MARK_SUFFIX).unlink(missing_ok=True)

    def close(self) -> None:
        """Twice is once. Views that somebody still has keep the memory, not the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        self.marks.release()
        self.view.release()
        for mapped in (self._map, self._mark):
            with contextlib.suppress(BufferError):
                mapped.close()
        os.close(descriptor)
        if self.lock is not None:
            self.lock.release()


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock of this ring: its owner is gone. False if the file is gone."""
    try:
        FileLock(path).release()
    except (BlockingIOError, FileNotFoundError):
        return False
    return True


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fill(descriptor: int, path: Path, size: int, first_pages: bytes) -> None:
    try:
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, size)
        offset = 0
        while offset < size:
            offset += os.pwrite(descriptor, memoryview(_ZEROS)[: size - offset], offset)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = os.statvfs(path.parent)
        raise NoSpace(path=str(path), free=free.f_bavail * free.f_frsize, needed=size) from error
    os.pwrite(descriptor, first_pages, 0)
    os.fsync(descriptor)


def _map_mark(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size < MARK_BYTES:
            # Written, not only made longer: a page that has no block yet could not be had on a full disk.
            os.pwrite(descriptor, bytes(MARK_BYTES), 0)
        return mmap.mmap(descriptor, MARK_BYTES)
    finally:
        os.close(descriptor)
