"""What a system of a pair remembers of it, in one small file that exists beforehand.

Guarantees: `save` returns when it is durable, also on a full disk. Two copies are written in turn, each with a
checksum: a torn write leaves the one before it. A file of which nothing can be read counts as new, which makes a
system ask its partner rather than believe anything.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from crc32c import crc32c

from clarion.events.memory.files import sync_directory

from .messages import Memory

_MAGIC = b"CLNEPAR1"
# magic, number of the write, own epoch, epoch of acting, owes; then a CRC32C
_COPY = struct.Struct("<8sQQQB7x")
_CHECKSUM = struct.Struct("<I")
_COPY_BYTES = 4096


class MemoryFile:
    """One per event system."""

    def __init__(self, path: Path) -> None:
        self._number = 0
        self.memory = Memory()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            data = os.pread(self._file, 2 * _COPY_BYTES, 0)
            for at in (0, _COPY_BYTES):
                self._take(data[at : at + _COPY_BYTES])
            if len(data) < 2 * _COPY_BYTES:
                os.pwrite(self._file, bytes(2 * _COPY_BYTES - len(data)), len(data))
                os.fsync(self._file)
                sync_directory(path.parent)
        except BaseException:
            os.close(self._file)
            raise

    def _take(self, copy: bytes) -> None:
        if len(copy) < _COPY.size + _CHECKSUM.size or copy[:8] != _MAGIC:
            return
        _, number, epoch, act, owes = _COPY.unpack_from(copy)
        if _CHECKSUM.unpack_from(copy, _COPY.size)[0] == crc32c(copy[: _COPY.size]) and number > self._number:
            self._number, self.memory = number, Memory(epoch, act, bool(owes))

    def save(self, memory: Memory) -> None:
        """Make it durable. Raises OSError."""
        number = self._number + 1
        body = _COPY.pack(_MAGIC, number, memory.epoch, memory.act, memory.owes)
        os.pwrite(self._file, body + _CHECKSUM.pack(crc32c(body)), number % 2 * _COPY_BYTES)
        os.fsync(self._file)
        self._number, self.memory = number, memory

    def close(self) -> None:
        os.close(self._file)
