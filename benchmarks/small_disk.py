"""A small file system that is mounted for a while, and filled to the last byte.

For benchmarks and tests of what happens on a full disk: its syncs, and its errors, are real ones. Needs root.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from benchmarks.environment import Unavailable

FOREIGN = "foreign"
"""The file that takes what is left."""
FULL_BYTES = 4096
"""Less than this cannot be used for anything."""
FILL_S_MAX = 60.0


@contextlib.contextmanager
def mounted(folder: Path, disk_bytes: int, kind: Literal["ext4", "tmpfs"] = "ext4") -> Iterator[Path]:
    """`folder`/disk, an empty file system until the end. Raises `Unavailable` without the right to mount."""
    if os.geteuid() != 0:
        raise Unavailable("a small file system can only be mounted by root")
    point, image = folder / "disk", folder / "disk.image"
    point.mkdir()
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={disk_bytes}", "clarion-small-disk", str(point)]
    else:
        with image.open("wb") as file:
            file.truncate(disk_bytes)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
        command = ["mount", "-o", "loop", str(image), str(point)]
    subprocess.run(command, check=True)
    try:
        yield point
    finally:
        if subprocess.run(["umount", str(point)], check=False).returncode:  # somebody who was killed is not gone yet
            subprocess.run(["umount", "--lazy", str(point)], check=True)


def fill(disk: Path) -> Path:
    """A foreign file that leaves not one byte, nor what somebody gives back who just tried in vain to grow."""
    path = disk / FOREIGN
    until_s = time.monotonic() + FILL_S_MAX
    with path.open("ab", buffering=0) as file:
        while True:
            _take(file.fileno())
            found = os.statvfs(disk)
            left = found.f_bavail * found.f_frsize
            if left < FULL_BYTES:
                return path
            if time.monotonic() > until_s:
                raise TimeoutError(f"{left} bytes of {disk} are free again and again")
            os.fsync(file.fileno())  # what was given back can be taken when that is on the disk


def _take(descriptor: int) -> None:
    for size in (1 << 20, 4096, 512, 1):
        try:
            while os.write(descriptor, bytes(size)):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
