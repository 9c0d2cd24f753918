"""Every thread of a daemon has address space of its own, which no other takes when there is no more.

The C library of GNU systems keeps what threads have freed in arenas: by default there are so many that each thread has
one. `MALLOC_ARENA_MAX=1`, which some set to save memory, makes all threads share one. Then a thread that waits for
input finds, when the address space is used up, that others took what it had; a multiplexer so records very slowly.
"""

from __future__ import annotations

import ctypes
import os

_M_ARENA_MAX = -8
_ARENAS_PER_CORE = 8
"""As the C library has it where nobody says otherwise."""


def claim() -> bool:
    """Let threads have arenas of their own, whatever the environment says; whether the C library knows of that.

    For a process that is ours alone, before its first thread: the C library counts once.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, _ARENAS_PER_CORE * (os.cpu_count() or 1)))
