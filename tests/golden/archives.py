"""Directories of then, as they are kept."""

from __future__ import annotations

import io
import lzma
import tarfile
from pathlib import Path

ARCHIVE_BYTES_MAX = 300 << 10


def unpack(archive: Path, target: Path) -> None:
    """A copy of the directory, made of ordinary files."""
    assert archive.stat().st_size < ARCHIVE_BYTES_MAX
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(archive.read_bytes()))) as tar:
        for member in tar:
            path = target / member.name
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            content = tar.extractfile(member)
            assert content is not None, member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
