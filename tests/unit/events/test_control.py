"""The control socket of an event system, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clarion import limits
from clarion.errors import BadArgument, EngineAbsent, RecipientOwes
from clarion.events.control import NAME, ControlServer, ask


async def _echo(arguments: dict[str, Any]) -> object:
    return arguments


async def _refuse(_: dict[str, Any]) -> object:
    raise RecipientOwes(recipient="log", count=7)


def served(directory: Path, questions: Callable[[], None]) -> None:
    """Ask from a thread while a server answers in this loop."""

    async def main() -> None:
        server = ControlServer(directory, {"echo": _echo, "refuse": _refuse})
        await server.open()
        try:
            await asyncio.get_running_loop().run_in_executor(None, questions)
        finally:
            await server.close()

    asyncio.run(main())


def test_a07_a_question_gets_its_answer_whatever_the_length_of_the_path(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)

    def questions() -> None:
        assert ask(deep, "echo", {"a": [1, "ä"]}) == {"a": [1, "ä"]}
        assert (deep / NAME).stat().st_mode & 0o777 == 0o600
        with pytest.raises(RecipientOwes) as raised:
            ask(deep, "refuse")
        assert raised.value.facts == {"recipient": "log", "count": 7}
        with pytest.raises(BadArgument, match="echo, refuse"):
            ask(deep, "dance")

    served(deep, questions)
    with pytest.raises(EngineAbsent):
        ask(deep, "echo")


def test_a07_hostile_requests_cost_their_own_connection(tmp_path: Path) -> None:
    def questions() -> None:
        for request in (b"no json\n", b"[1]\n", b'{"verb": "echo", "arguments": 3}\n', b"\xff\n"):
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(str(tmp_path / NAME))
                one.sendall(request)
                assert b"CLN-" in one.recv(4096)
        with socket.socket(socket.AF_UNIX) as endless:
            endless.connect(str(tmp_path / NAME))
            endless.settimeout(10)
            with pytest.raises(OSError):
                for _ in range(limits.EVENT_CONTROL_BYTES_MAX // 1_000 + 10_000):
                    endless.sendall(b"x" * 1_000)
        assert ask(tmp_path, "echo", {"still": "there"}) == {"still": "there"}

    served(tmp_path, questions)


def test_a07_a_socket_that_a_dead_process_left_is_replaced(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / NAME))
    left.close()
    with pytest.raises(EngineAbsent):
        ask(tmp_path, "echo")
    served(tmp_path, lambda: ask(tmp_path, "echo") and None)


def test_a07_who_waits_when_the_server_ends_is_told(tmp_path: Path) -> None:
    waiting, asked = threading.Event(), threading.Event()

    async def hang(_: dict[str, Any]) -> object:
        waiting.set()
        await asyncio.Event().wait()
        return None

    async def main() -> None:
        server = ControlServer(tmp_path, {"hang": hang})
        await server.open()

        def question() -> None:
            with pytest.raises(EngineAbsent):
                ask(tmp_path, "hang")
            asked.set()

        asking = threading.Thread(target=question)
        asking.start()
        await asyncio.get_running_loop().run_in_executor(None, waiting.wait)
        await server.close()
        await asyncio.get_running_loop().run_in_executor(None, asking.join)

    asyncio.run(main())
    assert asked.is_set()
