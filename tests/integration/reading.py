"""Sessions that read as readers do, and what they find by its sequence."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import clarion
from clarion.client.reading import Readable, Reader
from tests.integration.topologies import Topology


@asynccontextmanager
async def sessions_at(server: Topology, count: int = 1) -> AsyncIterator[list[clarion.Session]]:
    """Sessions of connections of their own."""
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(clarion.connect(server.url)) for _ in range(count)]
        yield [await stack.enter_async_context(connection.session()) for connection in connections]


async def read(session: clarion.Session, told: Readable, **options: str) -> dict[int, bytes]:
    """Bodies by sequence of everything that one was told of."""
    found: dict[int, bytes] = {}
    named = {"subscription": told.subscription, **options}
    async for first, batch in session.read(
        told.destination, told.floor, told.end, identity=told.identity, selector=named.get("selector"),
        subscription=named["subscription"],
    ):  # fmt: skip
        for index in range(batch.count):
            found[first + index] = bytes(batch.record(index)[1])
    assert list(found) == sorted(found)
    return found


async def described(session: clarion.Session, name: str) -> dict[str, Any]:
    (found,) = [one for one in await session.command("destinations") if one["name"] == name]
    assert isinstance(found, dict)
    return found


async def only(reader: Reader) -> Readable:
    (told,) = await reader.look()
    return told
