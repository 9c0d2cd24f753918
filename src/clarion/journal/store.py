"""Where segments live: the small interface between the journal and a disk, and one in memory.

Guarantees of every store (checked by `clarion.testing.store_conformance`)
    1. A file that `create` returned has `segment_bytes` bytes of zeros whose space is secured: a
       later write into it needs no new space.
    2. What `write` took is seen by every later `read`, also from another thread; it survives the
       machine only after a `sync` that began later has returned.

Rules
    1. A store knows nothing of records. It never retries: what the operating system says is raised.
    2. `write` may take less than it was given, and says how much: its caller continues.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from clarion.journal.record import Buffer


class Store(Protocol):
    """Files of one size, known by number."""

    warnings: list[str]

    @property
    def segment_bytes(self) -> int: ...

    @property
    def pending(self) -> int:
        """Files whose space is secured already, and that `create` has only to prepare."""
        ...

    def files(self) -> list[int]: ...

    def create(self, pace: Callable[[float], bool] | None = None) -> int:
        """One more file. OSError with ENOSPC when there is no room.

        `pace` is called between the steps of this work with the seconds that one took: it may rest, and says whether
        the next one is to be small, so that commits of others do not wait for it.
        """
        ...

    def read(self, file: int, offset: int, length: int, *, alone: bool = False) -> bytes:
        """These bytes. `alone`: what lies behind them need not be read ahead."""
        ...

    def write(self, file: int, offset: int, buffers: Sequence[Buffer]) -> int: ...

    def sync(self, file: int) -> None: ...

    def close(self) -> None: ...


class MemoryStore:
    """A store in memory, for tests and simulation. `files_max` is the size of its disk."""

    def __init__(self, segment_bytes: int, files_max: int = 1 << 20) -> None:
        self.segment_bytes = segment_bytes
        self.files_max = files_max
        self.pending = 0
        self.warnings: list[str] = []
        self.content: list[bytearray] = []

    def files(self) -> list[int]:
        return list(range(len(self.content)))

    def create(self, pace: Callable[[float], bool] | None = None) -> int:
        if len(self.content) >= self.files_max:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.content.append(bytearray(self.segment_bytes))
        return len(self.content) - 1

    def read(self, file: int, offset: int, length: int, *, alone: bool = False) -> bytes:
        return bytes(self.content[file][offset : offset + length])

    def write(self, file: int, offset: int, buffers: Sequence[Buffer]) -> int:
        content = self.content[file]
        start = offset
        for buffer in buffers:
            end = offset + len(buffer)
            if end > self.segment_bytes:
                raise OSError(errno.EINVAL, "a write beyond the end of a segment")
            content[offset:end] = buffer
            offset = end
        return offset - start

    def sync(self, file: int) -> None:
        self.content[file]

    def close(self) -> None:
        pass
