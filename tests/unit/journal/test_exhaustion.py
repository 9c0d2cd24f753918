"""Nothing left: no disk space, no file descriptor, no permission (A-03); and the faulty disk's own laws."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from clarion import limits
from clarion.errors import JournalFull, NoPermission
from clarion.journal import FileStore, MemoryStore
from clarion.testing.faulty_disk import FaultyDisk

from .journal_harness import fill, open_owner

SMALL = limits.SEGMENT_BYTES_MIN


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a03_recording_goes_on_without_a_free_descriptor(tmp_path: Path) -> None:
    owner = open_owner(FileStore.open(tmp_path, segment_bytes=SMALL), bytes_max=12 * SMALL)
    segments = owner.journal.status().segments
    with no_descriptors_left():
        for number in range(16):
            owner.append(bytes(100_000), b"%d" % number)
            owner.committer.run()
        assert owner.durable_count == 16 and owner.failures == []
        assert owner.journal.tail > 4 * SMALL  # into the fourth segment
        assert owner.journal.status().growth_blocked
    # And when there are some again, it grows again.
    fill(owner, body=bytes(100_000))
    owner.committer.run()
    assert owner.journal.status().segments > segments
    owner.journal.close()


def test_a03_recording_goes_on_without_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = open_owner(FileStore.open(tmp_path, segment_bytes=SMALL))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", full)
    count = fill(owner, body=bytes(50_000))
    assert count * 50_000 > SMALL and owner.failures == []
    assert not list(tmp_path.glob("*.pending"))
    assert owner.journal.status().growth_blocked
    with pytest.raises(JournalFull):
        owner.append(bytes(50_000))
    owner.append(b"confirmation", reserve=True)
    owner.committer.run()
    monkeypatch.undo()
    with pytest.raises(JournalFull):
        owner.append(bytes(50_000))  # refused once more, which makes the allocator try again
    owner.committer.run()
    owner.append(bytes(50_000))
    owner.journal.close()


def test_a05_no_permission_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("os.open", forbidden)
    with pytest.raises(NoPermission):
        FileStore.open(tmp_path)


def test_a05_a_failed_sync_has_lost_its_pages_even_if_the_next_one_succeeds() -> None:
    disk = FaultyDisk(8192)
    file = disk.create()
    disk.write(file, 0, [b"a" * 512])
    disk.fail_sync(1, "eio")
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync(file)
    disk.sync(file)
    assert disk.read(file, 0, 1) == b"a"
    disk.crash(Random(0), kept=1.0)
    assert disk.read(file, 0, 1) == b"\0"


def test_a05_a_crash_takes_sectors_one_by_one() -> None:
    disk = FaultyDisk(65_536)
    file = disk.create()
    disk.write(file, 0, [b"a" * 32_768])
    disk.sync(file)
    disk.write(file, 0, [b"b" * 32_768])
    disk.crash(Random(1), kept=0.5, tear=False)
    sectors = [disk.read(file, at, 512) for at in range(0, 32_768, 512)]
    assert set(sectors) == {b"a" * 512, b"b" * 512}
    again = [disk.read(file, at, 512) for at in range(0, 32_768, 512)]
    disk.crash(Random(2))
    assert again == sectors


def test_a05_the_status_tells_what_an_operator_asks() -> None:
    owner = open_owner(MemoryStore(65_536))
    owner.append(bytes(1_000))
    owner.committer.run()
    owner.journal.retain(owner.locations[0].position, owner.locations[0].span)
    status = owner.journal.status()
    assert status.bytes_live == owner.locations[0].span
    assert status.durable == status.tail and status.commits == 2 and status.syncs >= 2
    assert status.segments == 8 and not status.growth_blocked
    assert status.bytes_total == 8 * 65_536 and status.free_segments == 7
    assert status.commit_us_p50 <= status.commit_us_p99
