"""When the loop of an engine ends, every coroutine of it has let go of what it held (A-08)."""

from __future__ import annotations

import asyncio
import gc
import socket
from pathlib import Path

import pytest

from clarion.events.control import NAME, ControlServer
from clarion.events.engine import ending


def test_a08_tasks_that_begin_while_the_loop_ends_are_ended_too() -> None:
    let_go: list[str] = []

    async def holds(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            let_go.append(name)
            if name != "last":
                task = asyncio.get_running_loop().create_task(holds("second" if name == "first" else "last"))
                await asyncio.sleep(0)  # it has begun
                assert not task.done()

    loop = asyncio.SelectorEventLoop()
    first = loop.create_task(holds("first"))
    loop.run_until_complete(asyncio.sleep(0))
    ending.end(loop)
    assert first.cancelled() and loop.is_closed()
    assert let_go == ["first", "second", "last"]


def test_a08_one_that_does_not_end_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "CANCEL_S_MAX", 0.01)
    let_go: list[str] = []

    async def stays() -> None:
        try:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue
        finally:
            let_go.append("closed")

    loop = asyncio.SelectorEventLoop()
    task = loop.create_task(stays())
    loop.run_until_complete(asyncio.sleep(0))
    ending.end(loop)
    assert loop.is_closed() and let_go == ["closed"] and not task.done()


def test_a08_an_end_that_is_not_woken_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Want of memory may lose the call that was to wake the end itself."""
    monkeypatch.setattr(ending, "END_S_MAX", 0.05)
    monkeypatch.setattr(ending, "CANCEL_S_MAX", 0.05)
    real, waits, let_go = asyncio.wait, list[int](), list[str]()

    async def lost_once(tasks: set[asyncio.Task[object]], **options: float) -> object:
        waits.append(len(tasks))
        if len(waits) == 1:
            await asyncio.get_running_loop().create_future()
        return await real(tasks, **options)  # type: ignore[arg-type]

    async def holds() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            let_go.append("first")

    monkeypatch.setattr(asyncio, "wait", lost_once)
    loop = asyncio.SelectorEventLoop()
    first = loop.create_task(holds())
    loop.run_until_complete(asyncio.sleep(0))
    ending.end(loop)
    assert loop.is_closed() and first.cancelled() and let_go == ["first"]
    assert len(waits) > 1, "it began again"


def _connect_and_end(directory: Path, turns: int) -> None:
    control = ControlServer(directory, {})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:

        async def connect_and_close() -> None:
            await control.open()
            connected.connect(str(directory / NAME))
            for _ in range(turns):
                await asyncio.sleep(0)
            await control.close()

        loop = asyncio.SelectorEventLoop()
        loop.run_until_complete(connect_and_close())
        ending.end(loop)
        connected.settimeout(10)
        try:
            assert connected.recv(1) == b""
        except ConnectionResetError:
            pass  # it was not accepted


@pytest.mark.parametrize("turns", range(6))
def test_a08_a_connection_that_was_accepted_last_is_closed(tmp_path: Path, turns: int) -> None:
    """However far its acceptance has come: the other side sees the end, and no transport is left open."""
    _connect_and_end(tmp_path, turns)
    gc.collect()  # a transport that was left open says so now, which is an error
