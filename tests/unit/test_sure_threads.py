"""Threads begin or fail, and go on, although there is no memory (A-03)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from clarion import threads
from clarion.errors import JournalFailed
from clarion.events.recipients import OwnThread
from clarion.journal.threads import ThreadCommitter
from clarion.journal.writer import Writer
from clarion.threads import SureThread


class Scarce:
    """Finds no memory so many times."""

    def __init__(self, times: int, work: Callable[..., Any] = lambda *_: None) -> None:
        self.left = times
        self._work = work

    def __call__(self, *arguments: Any) -> Any:
        if self.left:
            self.left -= 1
            raise MemoryError
        return self._work(*arguments)


def test_a03_a_thread_that_finds_no_memory_to_begin_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "BEGIN_S_MAX", 0.05)
    monkeypatch.setattr(SureThread, "_bootstrap", lambda self: None)  # as if it had ended without a word
    thread = SureThread(lambda: None, "sure")
    with pytest.raises(MemoryError):
        thread.start()
    assert thread not in threading.enumerate() and not thread.is_alive()


def test_a03_a_thread_that_was_given_up_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "BEGIN_S_MAX", 0.05)
    ran: list[int] = []
    thread = SureThread(lambda: ran.append(1), "sure")
    with monkeypatch.context() as slow:
        slow.setattr(SureThread, "_bootstrap", lambda self: None)
        with pytest.raises(MemoryError):
            thread.start()
    thread.run()
    assert ran == []


def test_a03_a_thread_goes_on_after_want_of_memory() -> None:
    done = threading.Event()
    thread = SureThread(Scarce(2, done.set), "sure")
    thread.start()
    assert done.wait(10)
    thread.join()
    assert not thread.is_alive()


def test_a03_want_of_memory_is_not_taken_for_the_end_of_a_thread() -> None:
    go = threading.Event()

    def work() -> None:
        go.wait(10)

    thread = SureThread(work, "sure")
    thread.start()
    thread._is_stopped = True  # type: ignore[attr-defined]  # as `threading` has it when it finds none in `join`
    assert thread.is_alive()
    thread.join(0.01)
    assert thread.is_alive()
    go.set()
    thread.join()
    assert not thread.is_alive()


def test_a03_a_committer_does_each_piece_of_work_once_and_tells_of_it() -> None:
    async def run() -> None:
        committer = ThreadCommitter(asyncio.get_running_loop())
        loop = asyncio.get_running_loop()
        written, allocated = loop.create_future(), loop.create_future()
        worked: list[str] = []
        committer.submit(Scarce(1, lambda: worked.append("written")), lambda: written.set_result(None))
        committer.allocate(Scarce(1, lambda: worked.append("allocated")), lambda: allocated.set_result(None))
        await written
        await allocated
        committer.close()
        assert sorted(worked) == ["allocated", "written"]

    asyncio.run(run())


def test_a03_a_committer_that_could_not_start_leaves_nothing_and_starts_later(
    monkeypatch: pytest.MonkeyPatch, begun: Callable[[str], list[str]]
) -> None:
    async def run() -> None:
        committer = ThreadCommitter(asyncio.get_running_loop())
        with monkeypatch.context() as scarce:
            scarce.setattr(committer._allocator, "start", Scarce(1))
            with pytest.raises(MemoryError):
                committer.submit(lambda: None, lambda: None)
        assert not begun("journal-")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        committer.submit(lambda: None, lambda: done.set_result(None))
        await done
        committer.close()

    asyncio.run(run())


def test_a03_a_journal_whose_writer_found_no_memory_says_that_it_failed() -> None:
    writer = Writer.__new__(Writer)
    writer.failure = None
    writer._starved = JournalFailed(operation="write", detail="no memory")
    writer._run = Scarce(1)  # type: ignore[method-assign]
    writer.run()
    assert isinstance(writer.failure, JournalFailed)


def test_a03_who_waits_for_a_recipients_thread_hears_although_there_was_no_memory_to_tell() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        thread = OwnThread("t")
        thread.start()
        tell = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = Scarce(2, tell)  # type: ignore[method-assign,assignment]
        assert await asyncio.wait_for(thread.run(lambda: 7), 10) == 7
        loop.call_soon_threadsafe = tell  # type: ignore[method-assign]
        await thread.close()

    asyncio.run(run())
