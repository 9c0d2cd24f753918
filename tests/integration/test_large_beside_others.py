"""A large body rests while others are about, in both directions, and only then (B-12, B-13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import clarion
from clarion.bus import LoopbackHub
from clarion.errors import ClarionError
from clarion.instruments import Registry
from clarion.nodes.message_manager import MessageManager
from clarion.nodes.single import make_client_manager
from clarion.settings import load
from tests.integration.helpers import run, take, until
from tests.integration.large_process import MIB, blocks, chatter

BODY = b"".join(blocks(3 * MIB + 12_345))


class Nodes:
    """A client manager and a message manager in this process, whose instruments can be read."""

    def __init__(self, path: Path) -> None:
        self._settings = load(data=str(path), listen="127.0.0.1:0")
        self._registry = Registry()
        hub = LoopbackHub()
        self._bus = hub.endpoint()
        self.failures: list[ClarionError] = []
        self.messages = MessageManager(self._bus, self._settings, self._registry, on_failed=self.failures.append)
        self.clients = make_client_manager(hub.endpoint(), self._settings, self._registry)

    @property
    def waited(self) -> int:
        """Fragments that made way, so far."""
        return self.messages.count("mm.fragments_waited")


@asynccontextmanager
async def started(path: Path) -> AsyncIterator[tuple[Nodes, clarion.Connection]]:
    nodes = Nodes(path)
    await nodes.messages.start()
    try:
        await nodes.clients.start()
        try:
            async with clarion.connect(f"clarion://{nodes.clients.address}") as connection:
                yield nodes, connection
        finally:
            await nodes.clients.stop()
    finally:
        await nodes.messages.stop()
    assert not nodes.failures


@asynccontextmanager
async def others(connection: clarion.Connection) -> AsyncIterator[None]:
    """Small messages to and fro; at least one is through."""
    took_ms: list[float] = []
    talking = asyncio.create_task(chatter(connection, "queue:others", took_ms))

    async def begun() -> bool:
        return bool(took_ms)

    try:
        await until(begun, "a small message is through")
        yield
    finally:
        talking.cancel()
        with suppress(asyncio.CancelledError):
            await talking


@pytest.mark.parametrize("crowded", [False, True])
def test_b13_a_large_body_makes_way_while_others_are_about_and_only_then(tmp_path: Path, crowded: bool) -> None:
    """Its own message, its subscription and its confirmation are not others."""

    async def through(nodes: Nodes, connection: clarion.Connection) -> None:
        async with connection.session() as session, session.receive("queue:films") as consumer:
            for _ in range(3):
                before = nodes.waited
                await session.send_stream("queue:films", [BODY])
                (message,) = await take(consumer, 1)
                sent = nodes.waited
                assert await message.stream().read() == BODY
                assert (sent > before, nodes.waited > sent) == (crowded, crowded)
                await message.confirm()

    async def scenario() -> None:
        async with started(tmp_path / "data") as (nodes, connection):
            if crowded:
                async with others(connection):
                    await through(nodes, connection)
            else:
                await through(nodes, connection)

    run(scenario())
