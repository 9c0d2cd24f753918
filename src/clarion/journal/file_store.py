"""Segments as files of a directory.

Guarantees
    1. One process at a time: a lock file is held as long as the store is open (`DirectoryInUse`).
    2. A segment's space is secured (`posix_fallocate`) and written once with zeros and synced before
       it is used: the first sync of a file that grows costs milliseconds, and a hole costs the promise.
    3. All files stay open: with no descriptor left the journal still writes.

Rules
    1. Segment size is chosen once and remembered in `format`; if that file is damaged, the size of
       the segments says it again.
    2. `mapped` stores (durability "process") copy into shared memory maps and never sync.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from clarion import limits
from clarion.errors import DirectoryInUse, NoPermission, NoSpace
from clarion.journal.directory import (
    copy_on_write_warnings,
    read_format,
    segment_bytes_for,
    write_format,
)
from clarion.journal.options import Durability
from clarion.journal.pushing import push
from clarion.journal.record import Buffer

SEGMENT_SUFFIX = ".segment"
PENDING_SUFFIX = ".pending"
FILES_AT_ONCE = 2
"""Prepared before a new journal opens: one to write to, and the next. The rest has its space, and
is prepared in the background, for writing zeros is what takes the time (0.36 s for 64 MiB)."""
ZEROS = bytes(64 * limits.KIB)
"""Written at a time: the kernel keeps pages together that were written together, and holds on to its core meanwhile; a
later small write into a mebibyte of them costs 12 us more, too."""
PREPARE_BYTES = 4 * limits.MIB
IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)


class FileStore:
    """A directory of segments. Made by `open`."""

    def __init__(self, path: Path, lock: int, segment_bytes: int, *, mapped: bool) -> None:
        self.path = path
        self.warnings: list[str] = copy_on_write_warnings(path)
        self._segment_bytes = segment_bytes
        self._lock = lock
        self._mapped = mapped
        self._descriptors: dict[int, int] = {}
        self._maps: dict[int, mmap.mmap] = {}
        self._pending: list[int] = []
        self._missing: list[int] = []
        """Numbers without a file: files are never removed, so somebody else did."""
        self._next = 0

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        durability: Durability = "power",
        segment_bytes: int | None = None,
        bytes_max: int = limits.JOURNAL_BYTES_MAX_DEFAULT,
    ) -> FileStore:
        """Open the journal in this directory, or make one there."""
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = _lock(path)
        except OSError as error:
            raise _permission(error, path) from error
        try:
            return cls._open(path, lock, durability, segment_bytes, bytes_max)
        except BaseException as error:
            os.close(lock)
            if isinstance(error, OSError):
                raise _permission(error, path) from error
            raise

    @classmethod
    def _open(
        cls, path: Path, lock: int, durability: Durability, segment_bytes: int | None, bytes_max: int
    ) -> FileStore:
        remembered = read_format(path, SEGMENT_SUFFIX)
        chosen = remembered
        if chosen is None:
            chosen = segment_bytes_for(path, segment_bytes, bytes_max)
            write_format(path, chosen)
        store = cls(path, lock, chosen, mapped=durability == "process")
        try:
            store._adopt()
            store._secure_minimum()
            _sync_directory(path)
        except BaseException:
            store._close_files()
            raise
        return store

    def _adopt(self) -> None:
        for file in sorted(self.path.iterdir()):
            if file.suffix not in (SEGMENT_SUFFIX, PENDING_SUFFIX) or not file.stem.isdigit():
                continue
            number = int(file.stem)
            self._next = max(self._next, number + 1)
            if file.suffix == PENDING_SUFFIX:
                self._pending.append(number)
            else:
                self._open_file(number, self._name(number))
        self._missing = sorted(set(range(self._next)) - self._descriptors.keys() - set(self._pending))
        self.warnings += [f"{self._name(number).name} is missing; what it held is lost" for number in self._missing]

    def _secure_minimum(self) -> None:
        """A journal has its smallest size from the start, or does not start."""
        while len(self._descriptors) + len(self._pending) < limits.SEGMENTS_MIN:
            try:
                self._pending.append(self._secure())
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or self._descriptors:
                    raise
                free = os.statvfs(self.path)
                raise NoSpace(
                    path=str(self.path),
                    free=free.f_bavail * free.f_frsize,
                    needed=limits.SEGMENTS_MIN * self._segment_bytes,
                ) from error
        while len(self._descriptors) < FILES_AT_ONCE:
            self.create()

    # --- Store --------------------------------------------------------------------------------------

    @property
    def segment_bytes(self) -> int:
        return self._segment_bytes

    @property
    def pending(self) -> int:
        return len(self._pending)

    def files(self) -> list[int]:
        return sorted(self._descriptors)

    def create(self, pace: Callable[[float], bool] | None = None) -> int:
        number = self._pending[0] if self._pending else self._secure()
        pending = self.path / f"{number:08}{PENDING_SUFFIX}"
        descriptor = os.open(pending, os.O_RDWR)
        try:
            os.posix_fallocate(descriptor, 0, self._segment_bytes)
            self._prepare(descriptor, pace)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        pending.rename(self._name(number))
        _sync_directory(self.path)
        self._open_file(number, self._name(number))
        if self._pending and self._pending[0] == number:
            del self._pending[0]
        return number

    def _prepare(self, descriptor: int, pace: Callable[[float], bool] | None) -> None:
        """Zeros, written little by little: the whole at once would hold up the commits of others."""
        pushed, is_small = 0, False
        began_s = time.perf_counter()
        for offset in range(0, self._segment_bytes, len(ZEROS)):
            view = memoryview(ZEROS)[: self._segment_bytes - offset]
            while view:
                count = os.pwrite(descriptor, view, offset)
                offset += count
                view = view[count:]
            if is_small or offset - pushed >= PREPARE_BYTES:
                push(descriptor, pushed, offset - pushed)
                pushed = offset
            if pace is not None:
                is_small = pace(time.perf_counter() - began_s)
                began_s = time.perf_counter()

    def read(self, file: int, offset: int, length: int, *, alone: bool = False) -> bytes:
        if alone:  # what is announced as one piece is all that the kernel reads; else it may be megabytes ahead
            os.posix_fadvise(self._descriptors[file], offset, length, os.POSIX_FADV_WILLNEED)
        data = os.pread(self._descriptors[file], length, offset)
        while len(data) < length:
            more = os.pread(self._descriptors[file], length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, file: int, offset: int, buffers: Sequence[Buffer]) -> int:
        if not self._mapped:
            if len(buffers) > IOV_MAX:
                buffers = buffers[:IOV_MAX]
            return os.pwritev(self._descriptors[file], buffers, offset)
        target = self._maps[file]
        start = offset
        for buffer in buffers:
            end = offset + len(buffer)
            target[offset:end] = bytes(buffer) if isinstance(buffer, memoryview) and not buffer.contiguous else buffer
            offset = end
        return offset - start

    def sync(self, file: int) -> None:
        if not self._mapped:
            os.fdatasync(self._descriptors[file])

    def close(self) -> None:
        self._close_files()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- files ----------------------------------------------------------------------------------------

    def _name(self, number: int) -> Path:
        return self.path / f"{number:08}{SEGMENT_SUFFIX}"

    def _secure(self) -> int:
        """A file with its space, not yet written."""
        number = self._missing[0] if self._missing else self._next
        path = self.path / f"{number:08}{PENDING_SUFFIX}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._segment_bytes)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        if self._missing:
            del self._missing[0]
        else:
            self._next = number + 1
        return number

    def _open_file(self, number: int, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size < self._segment_bytes:
                self.warnings.append(f"{path.name} was shorter than a segment; what was missing reads as damage")
                os.posix_fallocate(descriptor, 0, self._segment_bytes)
            if self._mapped:
                self._maps[number] = mmap.mmap(descriptor, self._segment_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptors[number] = descriptor

    def _close_files(self) -> None:
        for mapped in self._maps.values():
            mapped.close()
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._maps.clear()
        self._descriptors.clear()


def _lock(path: Path) -> int:
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise DirectoryInUse(path=str(path)) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _permission(error: OSError, path: Path) -> BaseException:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NoPermission(path=str(path))
    return error


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
