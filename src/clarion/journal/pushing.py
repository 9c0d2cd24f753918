"""Written pages to the disk, without the rest of a sync.

A sync of a file that is being prepared makes the file system commit its own journal and the disk empty its cache, and
every commit of others waits for both: several times as long as alone, for each 64 KiB of zeros. While a segment is only
prepared, it is enough that the kernel does not gather its pages; the one sync at its end makes them durable.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4


def _find() -> Any:
    try:
        call = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


_sync_file_range = _find()


def push(descriptor: int, offset: int, size: int) -> None:
    """Have these bytes written, and wait for it; where the system cannot do that alone, sync. Raises `OSError`."""
    call = _sync_file_range
    if call is None or call(descriptor, offset, size, _WAIT_BEFORE | _WRITE | _WAIT_AFTER):
        os.fdatasync(descriptor)
