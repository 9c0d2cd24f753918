"""A disk in memory that fails, tears, forgets and lies the way real ones do, when it is told to.

Guarantees
    1. Without faults it is a `Store` like any other (it passes the same conformance suite).
    2. What was synced survives `crash`; of what was not, any subset of 512-byte sectors does.
    3. A sync that failed has lost its pages as Linux loses them: they read back as written, later syncs
       succeed, and a crash takes them.

Rules
    1. Deterministic: chance comes from the `random.Random` that is passed in.
    2. Faults are programmed by number of the operation, from 1; each happens once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from clarion.journal.record import Buffer

SECTOR_BYTES = 512

WriteFault = Literal["enospc", "eio", "short", "torn", "crash"]
SyncFault = Literal["eio", "crash"]


class Crashed(BaseException):
    """The machine stopped here. Not an Exception: nothing of the program under test handles it."""


@dataclass(slots=True)
class _File:
    content: bytearray
    synced: bytearray
    dirty: set[int] = field(default_factory=set)
    """Sectors written since the last sync."""
    doomed: set[int] = field(default_factory=set)
    """Sectors whose sync failed: they show what was written, and a crash reverts them."""


class FaultyDisk:
    """A store with faults. `writes` and `syncs` count the operations so far."""

    def __init__(self, segment_bytes: int, files_max: int = 1 << 20) -> None:
        self.segment_bytes = segment_bytes
        self.files_max = files_max
        self.pending = 0
        self.warnings: list[str] = []
        self.writes = 0
        self.syncs = 0
        self._write_faults: dict[int, WriteFault] = {}
        self._sync_faults: dict[int, SyncFault] = {}
        self._files: list[_File] = []

    # --- programming faults -----------------------------------------------------------------------

    def fail_write(self, number: int, fault: WriteFault) -> None:
        """`short` takes a part and says so; `torn` takes a part and the machine stops; `crash` stops
        before anything is taken."""
        self._write_faults[number] = fault

    def fail_sync(self, number: int, fault: SyncFault) -> None:
        self._sync_faults[number] = fault

    def flip(self, file: int, offset: int, bit: int = 0) -> None:
        """Damage one bit, on the medium and as read."""
        self._files[file].content[offset] ^= 1 << bit
        self._files[file].synced[offset] ^= 1 << bit

    def crash(self, rng: Random, *, kept: float | None = None, tear: bool = True) -> None:
        """Loss of power: each unsynced sector survives or not, with the probability `kept` (None: by
        chance too, so that lucky and unlucky crashes come); some may be torn."""
        if kept is None:
            kept = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for file in self._files:
            for sector in sorted(file.dirty - file.doomed):
                start, end = sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES
                if rng.random() < kept:
                    if tear and rng.random() < 0.02:
                        end = rng.randrange(start, end)
                    file.synced[start:end] = file.content[start:end]
            file.content = bytearray(file.synced)
            file.dirty.clear()
            file.doomed.clear()
        self._restart()

    def kill(self) -> None:
        """SIGKILL: the page cache survives, and nothing in it is more durable than before."""
        self._restart()

    def _restart(self) -> None:
        self._write_faults.clear()
        self._sync_faults.clear()
        self.writes = self.syncs = 0

    # --- Store ------------------------------------------------------------------------------------

    def files(self) -> list[int]:
        return list(range(len(self._files)))

    def create(self, pace: Callable[[float], bool] | None = None) -> int:
        if len(self._files) >= self.files_max:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._files.append(_File(bytearray(self.segment_bytes), bytearray(self.segment_bytes)))
        return len(self._files) - 1

    def read(self, file: int, offset: int, length: int, *, alone: bool = False) -> bytes:
        return bytes(self._files[file].content[offset : offset + length])

    def write(self, file: int, offset: int, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        if offset + len(data) > self.segment_bytes:
            raise OSError(errno.EINVAL, "a write beyond the end of a segment")
        self.writes += 1
        match self._write_faults.pop(self.writes, None):
            case "enospc":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "eio":
                self._put(file, offset, data[: len(data) // 2])
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            case "short":
                data = data[: max(1, len(data) // 2)]
            case "torn":
                self._put(file, offset, data[: len(data) // 2])
                raise Crashed("in the middle of a write")
            case "crash":
                raise Crashed("before a write")
            case None:
                pass
        self._put(file, offset, data)
        return len(data)

    def sync(self, file: int) -> None:
        self.syncs += 1
        fault = self._sync_faults.pop(self.syncs, None)
        target = self._files[file]
        if fault == "crash":
            raise Crashed("before a sync")
        if fault == "eio":
            target.doomed |= target.dirty
            target.dirty.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        for sector in target.dirty:
            start, end = sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES
            target.synced[start:end] = target.content[start:end]
        target.dirty.clear()

    def close(self) -> None:
        pass

    def _put(self, file: int, offset: int, data: bytes) -> None:
        if not data:
            return
        target = self._files[file]
        target.content[offset : offset + len(data)] = data
        sectors = range(offset // SECTOR_BYTES, (offset + len(data) - 1) // SECTOR_BYTES + 1)
        target.dirty.update(sectors)
        # Written again is to be written out again: the new bytes have a chance.
        target.doomed.difference_update(sectors)
