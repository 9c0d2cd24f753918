"""Every store keeps the same promises; a directory keeps some more (A-03, A-05)."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from pathlib import Path

import pytest

from clarion import limits
from clarion.errors import DirectoryInUse, NewerFormat, NoSpace
from clarion.journal import FileStore, MemoryStore, Store, file_store
from clarion.journal import directory as directories
from clarion.journal.pushing import push
from clarion.testing.faulty_disk import FaultyDisk
from clarion.testing.store_conformance import StoreConformance

SMALL = limits.SEGMENT_BYTES_MIN
PAGE = mmap.PAGESIZE


class TestMemoryStore(StoreConformance):
    def make(self, directory: Path) -> Store:
        return MemoryStore(65_536)


class TestFaultyDiskWithoutFaults(StoreConformance):
    def make(self, directory: Path) -> Store:
        return FaultyDisk(65_536)


class TestFileStore(StoreConformance):
    def make(self, directory: Path) -> Store:
        return FileStore.open(directory / "journal", segment_bytes=SMALL)


class TestMappedFileStore(StoreConformance):
    def make(self, directory: Path) -> Store:
        return FileStore.open(directory / "journal", durability="process", segment_bytes=SMALL)


def test_a03_space_is_secured_when_a_store_opens(tmp_path: Path) -> None:
    store = FileStore.open(tmp_path, segment_bytes=SMALL)
    assert len(store.files()) + store.pending == limits.SEGMENTS_MIN
    blocks = sum(file.stat().st_blocks * 512 for file in tmp_path.iterdir())
    assert blocks >= limits.SEGMENTS_MIN * SMALL
    while store.pending:
        store.create()
    assert len(store.files()) == limits.SEGMENTS_MIN
    store.close()


def test_b13_a_segment_is_prepared_in_small_steps_while_somebody_wants_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore.open(tmp_path, segment_bytes=SMALL)
    pushed: list[tuple[int, int]] = []

    def counting(descriptor: int, offset: int, size: int) -> None:
        pushed.append((offset, size))
        push(descriptor, offset, size)

    monkeypatch.setattr(file_store, "push", counting)
    store.create()
    assert not pushed, "it is smaller than the step of one who is in no hurry to be gentle"
    steps = SMALL // len(file_store.ZEROS)
    took: list[float] = []

    def pace(took_s: float) -> bool:
        took.append(took_s)
        return len(took) <= 3

    number = store.create(pace)
    assert len(took) == steps and min(took) > 0
    step = len(file_store.ZEROS)
    assert pushed == [(0, 2 * step), (2 * step, step), (3 * step, step)], "as long as it is asked for, each piece once"
    assert store.read(number, 0, SMALL) == bytes(SMALL)
    store.close()


def _cached_pages(path: Path) -> list[bool]:
    """Which pages of a file the system has in memory."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        found = (ctypes.c_ubyte * (len(mapped) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(len(mapped)), found)
        del start
    return [bool(page & 1) for page in found]


def test_b12_what_is_read_alone_is_all_that_is_read(tmp_path: Path) -> None:
    """Small commits wait for what the kernel reads ahead, which can be megabytes."""
    store = FileStore.open(tmp_path, segment_bytes=SMALL)
    number = store.files()[0]
    path = next(file for file in sorted(tmp_path.iterdir()) if file.suffix == file_store.SEGMENT_SUFFIX)
    body = random.Random(1).randbytes(SMALL)
    store.write(number, 0, [body])
    store.sync(number)
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if any(_cached_pages(path)):
        pytest.skip("this file system keeps its files in memory")
    for first in (0, 3 * PAGE):
        assert store.read(number, first, 3 * PAGE, alone=True) == body[first : first + 3 * PAGE]
        assert _cached_pages(path) == [at < first + 3 * PAGE for at in range(0, SMALL, PAGE)]
    store.close()


def test_a05_a_store_opens_again_with_its_content_and_size(tmp_path: Path) -> None:
    store = FileStore.open(tmp_path, segment_bytes=2 * SMALL)
    file = store.files()[0]
    store.write(file, 100, [b"kept"])
    store.close()
    again = FileStore.open(tmp_path, segment_bytes=SMALL, durability="process")
    assert again.segment_bytes == 2 * SMALL
    assert again.read(file, 100, 4) == b"kept"
    again.close()


def test_a05_only_one_process_uses_a_directory(tmp_path: Path) -> None:
    store = FileStore.open(tmp_path, segment_bytes=SMALL)
    with pytest.raises(DirectoryInUse):
        FileStore.open(tmp_path)
    store.close()
    FileStore.open(tmp_path).close()


def test_a05_a_newer_format_is_refused_and_a_damaged_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FileStore.open(tmp_path, segment_bytes=SMALL).close()
    (tmp_path / "format").write_bytes(b"\xffgarbage")
    store = FileStore.open(tmp_path)
    assert store.segment_bytes == SMALL
    store.close()
    monkeypatch.setattr(directories, "FORMAT_VERSION", 2)
    directories.write_format(tmp_path, SMALL)
    monkeypatch.undo()
    with pytest.raises(NewerFormat):
        FileStore.open(tmp_path)


def test_a03_too_small_a_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tiny:
        f_bavail = 100
        f_frsize = 4096

    monkeypatch.setattr("os.statvfs", lambda _path: Tiny())
    with pytest.raises(NoSpace):
        FileStore.open(tmp_path)


@pytest.mark.parametrize(
    ("free_bytes", "expected"),
    [(4 * limits.MIB, 512 * limits.KIB), (100 * limits.MIB, 2 * limits.MIB), (10 * limits.GIB, 16 * limits.MIB)],
)
def test_a03_segments_are_sized_by_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, expected: int
) -> None:
    class System:
        f_bavail = free_bytes // 4096
        f_frsize = 4096

    monkeypatch.setattr("os.statvfs", lambda _path: System())
    assert directories.segment_bytes_for(tmp_path, None, limits.JOURNAL_BYTES_MAX_DEFAULT) == expected


def test_a03_copy_on_write_is_said(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / ext4 rw 0 0\n/dev/b {tmp_path} btrfs rw 0 0\n")
    assert "btrfs" in directories.copy_on_write_warnings(tmp_path / "x", mounts)[0]
    mounts.write_text("/dev/a / ext4 rw 0 0\n")
    assert directories.copy_on_write_warnings(tmp_path / "x", mounts) == []
