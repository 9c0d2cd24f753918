"""A checkpoint in progress: what of it goes into the next group.

Guarantees
    A checkpoint is complete when its end record is durable; until then the two before it stand.

Rules
    1. Fuzzy: parts are made one by one while the log goes on; each says for itself as of which index
       it is, and a replay starts at the begin record.
    2. Paced: at most `GROUP_PART_BYTES_MAX` of parts in one group, so that a commit that waits beside
       a large checkpoint waits for little.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from crc32c import crc32c

from clarion import limits
from clarion.errors import InternalFault

GROUP_PART_BYTES_MAX = 2 * limits.CHECKPOINT_PART_BYTES_MAX

BEGIN_HEAD = struct.Struct("<Q")
"""The last index of the log when the checkpoint began."""
PART_HEAD = struct.Struct("<QI")
"""Where the checkpoint began, and the number of the part, from 0."""
END_HEAD = struct.Struct("<QIIQ")
"""Where it began, how many parts, the CRC32C over all of them, how many bytes."""


@dataclass(slots=True)
class CheckpointRun:
    begin: int
    index: int
    """The last index of the log when it began."""
    parts: Iterator[bytes]
    done: Callable[[], None] | None
    count: int = 0
    checksum: int = 0
    size_bytes: int = 0
    end: int = 0
    """The end of the end record; 0 while there are parts to come."""
    waiting: bytes | None = None
    """A part that was made and found no room."""

    def next_part(self) -> bytes | None:
        part = self.waiting
        if part is None:
            part = next(self.parts, None)
            if part is not None and len(part) > limits.CHECKPOINT_PART_BYTES_MAX:
                raise InternalFault(detail=f"a checkpoint part of {len(part)} bytes is larger than the limit")
        self.waiting = part
        return part

    def part_head(self) -> bytes:
        return PART_HEAD.pack(self.begin, self.count)

    def part_written(self, part: bytes) -> None:
        self.waiting = None
        self.count += 1
        self.checksum = crc32c(part, self.checksum)
        self.size_bytes += len(part)

    def end_head(self) -> bytes:
        return END_HEAD.pack(self.begin, self.count, self.checksum, self.size_bytes)
