"""A journal's directory: its format file, the size of its segments, and what its file system does.

Guarantees
    A directory written by a newer version is refused (`NewerFormat`); a damaged format file is not a
    reason to lose the journal: the segments say their size themselves.
"""

from __future__ import annotations

import os
from pathlib import Path

from crc32c import crc32c

from clarion import limits
from clarion.errors import BadArgument, MetadataDamaged, NewerFormat, NoSpace
from clarion.journal.layout import FORMAT_VERSION

FORMAT_NAME = "format"
SEGMENT_BYTES_DEFAULT = 16 * limits.MIB
"""On any disk that is large enough. 64 MiB were no faster to write to, and four times slower to
prepare, which a first start waits for."""
SEGMENTS_OF_FREE_SPACE = 32
COPY_ON_WRITE = frozenset({"btrfs", "zfs", "bcachefs"})


def read_format(path: Path, segment_suffix: str) -> int | None:
    """The size of this journal's segments; None if there is no journal here."""
    try:
        lines = (path / FORMAT_NAME).read_bytes().decode("ascii", "replace").splitlines()
    except FileNotFoundError:
        lines = []
    if len(lines) == 4 and lines[3] == _checksum_line(lines[:3]):
        version = int(lines[1].split()[1])
        if version > FORMAT_VERSION:
            raise NewerFormat(path=str(path), version=version, supported=FORMAT_VERSION)
        return int(lines[2].split()[1])
    sizes = {file.stat().st_size for file in path.glob(f"*{segment_suffix}")}
    if not sizes:
        return None
    size = max(sizes)
    if size & (size - 1) or not 4096 < size <= limits.SEGMENT_BYTES_MAX:
        raise MetadataDamaged(detail=f"{path / FORMAT_NAME} is damaged, and segments have {size} bytes")
    return size


def write_format(path: Path, segment_bytes: int) -> None:
    lines = ["clarion-journal", f"version {FORMAT_VERSION}", f"segment_bytes {segment_bytes}"]
    temporary = path / f"{FORMAT_NAME}.new"
    with temporary.open("w", encoding="ascii") as file:
        file.write("\n".join([*lines, _checksum_line(lines)]) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path / FORMAT_NAME)


def _checksum_line(lines: list[str]) -> str:
    return f"crc32c {crc32c(chr(10).join(lines).encode('ascii', 'replace')):08x}"


def segment_bytes_for(path: Path, wanted: int | None, bytes_max: int) -> int:
    """The size of segments of a new journal: a power of two, about 1/32 of the space."""
    system = os.statvfs(path)
    free = system.f_bavail * system.f_frsize
    if wanted is not None:
        if wanted & (wanted - 1) or not limits.SEGMENT_BYTES_MIN <= wanted <= limits.SEGMENT_BYTES_MAX:
            raise BadArgument(
                argument="segment_bytes",
                detail=f"a power of two from {limits.SEGMENT_BYTES_MIN} to {limits.SEGMENT_BYTES_MAX} is needed",
            )
        size = wanted
    else:
        share = max(min(free, bytes_max) // SEGMENTS_OF_FREE_SPACE, 1)
        size = min(1 << (share.bit_length() - 1), SEGMENT_BYTES_DEFAULT)
        size = max(size, limits.SEGMENT_BYTES_MIN)
    if free < limits.SEGMENTS_MIN * size:
        raise NoSpace(path=str(path), free=free, needed=limits.SEGMENTS_MIN * size)
    return size


def copy_on_write_warnings(path: Path, mounts: Path = Path("/proc/mounts")) -> list[str]:
    """What to say about a file system that writes in other places than those that were allocated."""
    kind = _file_system(path, mounts)
    if kind not in COPY_ON_WRITE:
        return []
    return [
        f"{path} is on {kind}, a copy-on-write file system: space allocated in advance does not secure"
        " later writes there, so a full disk may stop more than producers"
    ]


def _file_system(path: Path, mounts: Path) -> str:
    """The type of the file system that a path is on, by the longest mount point above it."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    resolved = path.resolve()
    best, kind = -1, ""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(fields[1].encode().decode("unicode_escape"))
        if resolved.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind
