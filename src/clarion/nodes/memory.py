"""What a server process gives back of the memory that it has used: not every buffer, at once.

Theory of operation
    The C library gives every block of more than 128 KiB back when it is freed, or a little later, and the next one is
    fetched from the kernel again, page by page and each filled with zeros: a third of what a server does while it
    streams a large body. So it is told to keep some MiB of what was freed.

Rules
    1. What is kept is bounded, for each of the few threads that have buffers: a process grows by no more than this
       beyond what it needs.
    2. Another C library than glibc is left alone.
"""

from __future__ import annotations

import ctypes

from clarion import limits

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed() -> None:
    """From now on, for all threads of this process."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, limits.MEMORY_BLOCK_BYTES)
    mallopt(_M_TRIM_THRESHOLD, limits.MEMORY_KEPT_BYTES)
