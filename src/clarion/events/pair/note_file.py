"""The last note of the partner (who its recipients are), in one file whose room exists beforehand.

Guarantees: `save` returns when the note is durable, also on a full disk. Two copies are written in turn, each with a
checksum: a torn write leaves the one before it. A file of which nothing can be read holds no note: the partner tells it
again with every connection, and counts nothing as held here before that is recorded.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from crc32c import crc32c

from clarion import limits
from clarion.events.memory.files import sync_directory

_MAGIC = b"CLNENOT1"
# magic, number of the write, bytes of the note; then a CRC32C of this and the note, and the note
_HEAD = struct.Struct("<8sQI")
_CHECKSUM = struct.Struct("<I")
_NOTE_AT = _HEAD.size + _CHECKSUM.size
_COPY_BYTES = limits.EVENT_LINK_NOTE_BYTES_MAX + 4096
_KEPT_BYTES_MAX = _COPY_BYTES - _NOTE_AT
"""A note, and what the receiver knows beside it."""


class NoteFile:
    """One per event system with a partner. One thread at a time."""

    def __init__(self, path: Path) -> None:
        self._number = 0
        self.note: bytes | None = None
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(self._file).st_size < 2 * _COPY_BYTES:
                os.posix_fallocate(self._file, 0, 2 * _COPY_BYTES)
                os.fsync(self._file)
                sync_directory(path.parent)
            for at in (0, _COPY_BYTES):
                self._take(os.pread(self._file, _COPY_BYTES, at))
        except BaseException:
            os.close(self._file)
            raise

    def _take(self, copy: bytes) -> None:
        magic, number, size = _HEAD.unpack_from(copy)
        if magic != _MAGIC or number <= self._number or size > _KEPT_BYTES_MAX:
            return
        note = copy[_NOTE_AT : _NOTE_AT + size]
        if _CHECKSUM.unpack_from(copy, _HEAD.size)[0] == crc32c(note, crc32c(copy[: _HEAD.size])):
            self._number, self.note = number, note

    def save(self, note: bytes) -> None:
        """Make it durable; nothing is written if it is so already. Raises OSError."""
        if note == self.note:
            return
        number = self._number + 1
        head = _HEAD.pack(_MAGIC, number, len(note))
        whole = b"".join((head, _CHECKSUM.pack(crc32c(note, crc32c(head))), note))
        os.pwrite(self._file, whole, number % 2 * _COPY_BYTES)
        os.fsync(self._file)
        self._number, self.note = number, note

    def close(self) -> None:
        os.close(self._file)
