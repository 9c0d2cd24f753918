"""A lone commit that whoever appends makes itself: when it may, and when it leaves it to the writer (A-05, B-21)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import uvloop

from clarion.errors import JournalFailed
from clarion.journal import FileStore, Journal, JournalOptions, ThreadCommitter, writer
from clarion.journal.journal import LONE_BYTES_MAX
from clarion.journal.layout import HINT_OFFSETS
from clarion.journal.record import Buffer
from clarion.testing.faulty_disk import FaultyDisk

from .journal_harness import ENTRY, Owner, open_owner

LARGE_SEGMENT = 1 << 17


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Owner:
    """Over a disk in memory that counts as quick."""
    monkeypatch.setattr(writer, "QUICK_US_MAX", float("inf"))
    return open_owner(FaultyDisk(LARGE_SEGMENT), waits_here=True)


def lone(owner: Owner, body: bytes = b"lone") -> None:
    """As a host does with one message: append, and flush afterwards."""
    owner.journal.gathers = True
    owner.append(body)
    owner.journal.flush()


def test_a05_a_lone_commit_is_durable_when_flush_returns(owner: Owner) -> None:
    lone(owner)
    assert owner.durable_count == 1 and owner.journal.commits_here == 1


def test_a05_a_large_group_is_the_writers(owner: Owner) -> None:
    lone(owner, bytes(LONE_BYTES_MAX))
    assert owner.durable_count == 0
    owner.committer.run()
    assert owner.durable_count == 1 and owner.journal.commits_here == 0


def test_b21_during_a_commit_of_the_writer_nobody_waits(owner: Owner) -> None:
    lone(owner, bytes(LONE_BYTES_MAX))
    lone(owner)
    assert owner.durable_count == 0 and owner.journal.commits_here == 0
    owner.committer.run()
    assert owner.durable_count == 2


def test_b21_nobody_waits_where_the_host_says_no(owner: Owner) -> None:
    owner.journal.may_wait = lambda: False
    lone(owner)
    assert owner.durable_count == 0
    owner.committer.run()
    assert owner.durable_count == 1 and owner.journal.commits_here == 0


def test_b21_what_effects_append_is_the_writers(owner: Owner) -> None:
    """Else a chain of effects could keep the appending thread for as long as it likes."""
    seen = owner.journal.on_durable

    def effect(position: int) -> None:
        seen(position)
        if len(owner.appended) == 1:
            lone(owner)
            assert owner.durable_count == 1

    owner.journal.on_durable = effect
    lone(owner)
    assert owner.journal.commits_here == 1
    owner.committer.run()
    assert owner.durable_count == 2 and owner.journal.commits_here == 1


def test_a03_a_full_disk_is_waited_for_by_the_writer(owner: Owner) -> None:
    disk = owner.journal._store
    assert isinstance(disk, FaultyDisk)
    disk.fail_write(disk.writes + 1, "enospc")
    lone(owner)
    assert owner.durable_count == 0 and not owner.failures and not owner.journal.status().write_blocked
    owner.committer.run()
    assert owner.durable_count == 1


def test_a05_an_error_of_a_sync_in_place_is_final(owner: Owner) -> None:
    disk = owner.journal._store
    assert isinstance(disk, FaultyDisk)
    disk.fail_sync(disk.syncs + 1, "eio")
    lone(owner)
    assert owner.durable_count == 0 and [type(failure) for failure in owner.failures] == [JournalFailed]
    with pytest.raises(JournalFailed):
        owner.append(b"later")


class Clock:
    """What commits take, as the writer sees it."""

    def __init__(self) -> None:
        self.now_ns = self.commit_us = 0
        self._began = False

    def perf_counter_ns(self) -> int:
        """Called at the begin and at the end of a commit."""
        self._began = not self._began
        if not self._began:
            self.now_ns += self.commit_us * 1_000
        return self.now_ns


def test_b21_only_a_disk_that_was_quick_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(writer, "time", clock)
    owner = open_owner(FaultyDisk(LARGE_SEGMENT), waits_here=True)

    def commits(count: int, commit_us: int) -> int:
        clock.commit_us = commit_us
        before = owner.journal.commits_here
        for _ in range(count):
            lone(owner)
            owner.committer.run()
        return owner.journal.commits_here - before

    assert commits(10, 100) == 0  # nobody knows it yet
    assert commits(40, 100) > 10
    assert commits(10, 100) == 10
    assert commits(1, 100_000) == 1  # nobody could know
    assert commits(40, 100) == 0
    assert commits(40, 100) > 0
    assert commits(200, 2_000) < 10  # a slow disk


class Watched(FileStore):
    """Knows who synced."""

    threads: list[str]
    hinted: threading.Event

    def sync(self, file: int) -> None:
        self.threads.append(threading.current_thread().name)
        super().sync(file)

    def write(self, file: int, offset: int, buffers: Sequence[Buffer]) -> int:
        if offset in HINT_OFFSETS:
            assert threading.current_thread().name == "journal-writer"
            self.hinted.set()
        return super().write(file, offset, buffers)


def _open(path: Path) -> tuple[Journal, Watched]:
    store = Watched.open(path)
    assert isinstance(store, Watched)
    store.threads, store.hinted = [], threading.Event()
    journal, recovery = Journal.open(store, JournalOptions(), ThreadCommitter(asyncio.get_running_loop()))
    assert list(recovery.records) == []
    journal.start()
    journal.may_wait = lambda: True
    return journal, store


async def _durable(journal: Journal) -> None:
    """Append one, and wait until it is durable."""
    done = asyncio.Event()
    journal.on_durable = lambda _: done.set()
    journal.append(ENTRY, b"", b"lone")
    await done.wait()


def test_b21_whoever_knocks_is_let_in_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real loop: it syncs by itself while nothing is ready for it, and leaves it to the writer if something is."""
    monkeypatch.setattr(writer, "QUICK_US_MAX", float("inf"))

    async def run() -> None:
        journal, store = _open(tmp_path)
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        try:
            for _ in range(100):  # the first ones may meet a new segment at the door
                store.threads.clear()
                await _durable(journal)
                if store.threads == ["MainThread"]:
                    break
            assert store.threads == ["MainThread"] and journal.commits_here
            before = journal.commits_here
            store.threads.clear()
            heard = asyncio.Event()
            loop.add_reader(here, heard.set)
            await asyncio.sleep(0)
            there.send(b"knock")
            journal.gathers = True
            done = asyncio.Event()
            journal.on_durable = lambda _: done.set()
            journal.append(ENTRY, b"", b"lone")
            journal.flush()
            assert not done.is_set()
            await heard.wait()
            await done.wait()
            assert store.threads == ["journal-writer"] and journal.commits_here == before
            loop.remove_reader(here)
        finally:
            journal.close()
            here.close()
            there.close()

    uvloop.run(run())


def test_a05_the_writer_notes_what_was_committed_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after its own commits: once nothing has happened for a moment."""
    monkeypatch.setattr(writer, "QUICK_US_MAX", float("inf"))

    async def run() -> None:
        journal, store = _open(tmp_path)
        try:
            for _ in range(2):  # the second one finds the writer asleep
                store.hinted.clear()
                before = journal.commits_here
                while journal.commits_here == before:
                    await _durable(journal)
                assert await asyncio.get_running_loop().run_in_executor(None, store.hinted.wait, 30)
        finally:
            journal.close()

    uvloop.run(run())
