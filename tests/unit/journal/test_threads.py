"""The journal beside a real event loop, on real files (A-03, A-05, A-08)."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import uvloop

from clarion import limits
from clarion.errors import ClarionError, JournalFailed
from clarion.journal import FileStore, Journal, JournalOptions, Record, ThreadCommitter
from clarion.journal.options import Durability, Probe
from clarion.journal.record import Buffer

from .journal_harness import ENTRY

SMALL = limits.SEGMENT_BYTES_MIN

OPEN: list[Journal] = []


@pytest.fixture(autouse=True)
def close_journals() -> Iterator[None]:
    """A test that fails leaves no thread behind: they would keep the interpreter from ending."""
    yield
    while OPEN:
        journal = OPEN.pop()
        journal.on_durable = lambda _: None
        journal.on_failed = lambda _: None
        journal.on_room = lambda: None
        journal.close()


class Client:
    """Awaits durability, as a message manager does."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.failure: asyncio.Future[ClarionError] = asyncio.get_running_loop().create_future()
        self.failures = 0
        self.grown = asyncio.Event()
        journal.on_room = self.grown.set
        journal.on_durable = self._on_durable
        journal.on_failed = self._on_failed

    def _on_durable(self, position: int) -> None:
        while self.waiting and self.waiting[0][0] <= position:
            self.waiting.pop(0)[1].set_result(None)

    def _on_failed(self, error: ClarionError) -> None:
        self.failures += 1
        self.failure.set_result(error)

    async def room(self, wanted_bytes: int) -> None:
        """Wait until the journal has grown so far: the allocator may be slower than a test."""
        while self.journal.room() < wanted_bytes:
            self.grown.clear()
            await self.grown.wait()

    def append(self, head: bytes, body: Buffer) -> asyncio.Future[None]:
        place = self.journal.append(ENTRY, head, body)
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((place.position + place.span, future))
        return future


def open_client(
    path: Path, durability: Durability, probe: Probe | None = None, store: FileStore | None = None
) -> tuple[Client, list[Record]]:
    if store is None:
        store = FileStore.open(path, durability=durability, segment_bytes=SMALL)
    committer = ThreadCommitter(asyncio.get_running_loop())
    options = JournalOptions(durability=durability, bytes_max=64 * SMALL)
    journal, recovery = Journal.open(store, options, committer, probe)
    records = list(recovery.records)
    assert recovery.lost == []
    OPEN.append(journal)
    journal.start()
    return Client(journal), records


@pytest.mark.parametrize("durability", ["power", "process"])
def test_a05_what_was_awaited_is_found_again(
    tmp_path: Path, durability: Durability, begun: Callable[[str], list[str]]
) -> None:
    bodies = [bytes([number % 256]) * (number * 97 % 30_000) for number in range(200)]

    async def write() -> None:
        client, records = open_client(tmp_path, durability)
        assert records == []
        for first in range(0, 200, 10):
            await client.room(SMALL)
            waiting = [client.append(b"%d" % n, memoryview(bodies[n])) for n in range(first, first + 10)]
            await asyncio.gather(*waiting)
        assert client.journal.durable == client.journal.tail
        client.append(b"last", b"closing makes it durable")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        client.journal.checkpoint(iter([]), lambda: done.set_result(None))
        await done
        client.journal.close()
        assert begun("journal-") == []

    async def check() -> None:
        store = FileStore.open(tmp_path, durability=durability)
        client, records = open_client(tmp_path, durability, store=store)
        assert records == []  # the checkpoint came after all of them
        found = client.journal.read(SMALL, client.journal.tail - SMALL)
        expected = [*bodies, b"closing makes it durable"]
        assert [record.index for record in found] == list(range(1, 202))
        assert [bytes(record.body or b"") for record in found] == expected
        client.journal.close()

    asyncio.run(write())
    asyncio.run(check())


def test_a05_a_killed_process_loses_nothing_under_process_durability(tmp_path: Path) -> None:
    """No close, no sync: only what was copied into the maps is there, as after SIGKILL."""

    async def write() -> FileStore:
        client, _ = open_client(tmp_path / "a", "process")
        await asyncio.gather(*(client.append(b"%d" % n, bytes(50)) for n in range(300)))
        assert client.journal.status().syncs == 0
        image = tmp_path / "b"
        image.mkdir()
        for file in (tmp_path / "a").glob("*[!g]"):  # not what is pending, and may be renamed now
            (image / file.name).write_bytes(file.read_bytes())
        client.journal.close()
        return FileStore.open(image, durability="process")

    async def check(store: FileStore) -> None:
        client, records = open_client(tmp_path, "process", store=store)
        assert [record.head for record in records] == [b"%d" % n for n in range(300)]
        client.journal.close()

    store = asyncio.run(write())
    asyncio.run(check(store))


class BrokenStore(FileStore):
    """Fails one sync with EIO, and every later one succeeds, as Linux does."""

    broken = False

    def sync(self, file: int) -> None:
        if self.broken:
            self.broken = False
            raise OSError(errno.EIO, "input/output error")
        super().sync(file)


def test_a05_an_error_of_a_sync_stops_the_journal_once(tmp_path: Path) -> None:
    async def run() -> None:
        store = BrokenStore.open(tmp_path, segment_bytes=SMALL)
        assert isinstance(store, BrokenStore)
        client, _ = open_client(tmp_path, "power", store=store)
        await client.append(b"good", b"")
        store.broken = True
        doubtful = client.append(b"doubtful", b"")
        assert isinstance(await client.failure, JournalFailed)
        assert not doubtful.done()
        with pytest.raises(JournalFailed):
            client.append(b"later", b"")
        client.journal.close()
        assert client.failures == 1 and not doubtful.done()

    asyncio.run(run())


class FullStore(FileStore):
    """Takes no bytes for a while, although their space was secured."""

    refusals = 0

    def write(self, file: int, offset: int, buffers: Sequence[Buffer]) -> int:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.ENOSPC, "no space left on device")
        return super().write(file, offset, buffers)


def test_a03_a_file_system_that_is_full_after_all_is_waited_for(tmp_path: Path) -> None:
    async def run() -> None:
        store = FullStore.open(tmp_path, segment_bytes=SMALL)
        assert isinstance(store, FullStore)
        client, _ = open_client(tmp_path, "power", store=store)
        store.refusals = 2
        await client.append(b"patient", b"")
        assert client.failures == 0
        client.journal.close()

    asyncio.run(run())


def test_a05_everything_appended_during_a_commit_is_one_group(tmp_path: Path) -> None:
    """The writer is held in its first commit; all that is appended meanwhile is the second."""

    async def run() -> None:
        entered, gate = threading.Event(), threading.Event()
        seen: list[str] = []

        def probe(name: str) -> None:
            seen.append(name)
            if name == "journal.before_sync" and threading.current_thread().name == "journal-writer":
                entered.set()
                gate.wait(10)

        client, _ = open_client(tmp_path, "power", probe)
        commits = client.journal.status().commits
        first = client.append(b"first", b"")
        await asyncio.get_running_loop().run_in_executor(None, entered.wait)
        rest = [client.append(b"%d" % n, bytes(100)) for n in range(50)]
        gate.set()
        await asyncio.gather(first, *rest)
        assert client.journal.status().commits == commits + 2
        names = ["journal.before_write", "journal.after_write", "journal.before_sync", "journal.after_sync"]
        assert seen == names * 3
        client.journal.close()

    asyncio.run(run())


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("where", ["in the loop", "in another thread", "after the loop"])
def test_a05_closing_gives_threads_and_descriptors_back(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop], where: str, begun: Callable[[str], list[str]]
) -> None:
    new_loop().close()  # the first one opens what stays for the process
    before = descriptors()
    journals: list[Journal] = []

    async def run() -> None:
        client, _ = open_client(tmp_path, "power")
        journals.append(client.journal)
        for number in range(3):
            await client.append(b"%d" % number, b"")
        if where == "in the loop":
            client.journal.close()
        elif where == "in another thread":  # as a message manager does, whose loop goes on meanwhile
            await asyncio.to_thread(client.journal.close)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
    if where == "after the loop":
        journals[0].close()
    assert begun("journal-") == []
    assert descriptors() == before


def test_a05_what_comes_back_keeps_its_order_and_never_runs_inside_a_call() -> None:
    async def run() -> None:
        committer = ThreadCommitter(asyncio.get_running_loop())
        seen: list[str] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        loop_thread = threading.get_ident()

        def note(what: str) -> Callable[[], None]:
            def work() -> None:
                seen.append(f"{what} {'in the loop' if threading.get_ident() == loop_thread else 'outside'}")

            return work

        def posting() -> None:
            committer.post(note("posted"))
            note("work 2")()

        committer.submit(note("work 1"), note("done 1"))
        committer.submit(posting, note("done 2"))
        committer.submit(lambda: None, lambda: done.set_result(None))
        assert not any(entry.endswith("in the loop") for entry in seen)
        await done
        assert [entry for entry in seen if entry.startswith("work")] == ["work 1 outside", "work 2 outside"]
        assert [entry for entry in seen if entry.endswith("in the loop")] == [
            f"{what} in the loop" for what in ("done 1", "posted", "done 2")
        ]
        committer.close()

    asyncio.run(run())


def test_a05_the_writer_notes_what_is_durable_when_it_is_idle() -> None:
    async def run() -> None:
        committer = ThreadCommitter(asyncio.get_running_loop())
        idle = threading.Event()
        idles = 0

        def on_idle() -> None:
            nonlocal idles
            idles += 1
            idle.set()

        committer.on_idle(on_idle)
        for _ in range(2):
            idle.clear()
            committer.submit(lambda: None, lambda: None)
            assert await asyncio.to_thread(idle.wait, 10)
        committer.close()
        assert idles == 2  # once for each time that it had work

    asyncio.run(run())


def test_a03_a_new_journal_is_open_at_once_and_grows_behind(tmp_path: Path) -> None:
    async def run() -> None:
        client, _ = open_client(tmp_path, "power")
        assert client.journal.room() > SMALL // 2
        while client.journal.status().segments < limits.SEGMENTS_MIN:
            client.grown.clear()
            await client.grown.wait()
        await client.append(b"x", b"")
        client.journal.close()

    asyncio.run(run())
