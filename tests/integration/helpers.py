"""What the tests of this folder say often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import clarion
from clarion.client.consumer import Consumer
from clarion.client.received import ReceivedMessage

WAIT_S = 20.0
SCENARIO_S = 120.0
IDLE_S = 0.25
"""How long a consumer waits before a test believes that nothing comes."""

_Result = TypeVar("_Result")


def run(scenario: Coroutine[Any, Any, _Result]) -> _Result:
    """Run one scenario; it never hangs."""

    async def bounded() -> _Result:
        async with asyncio.timeout(SCENARIO_S):
            return await scenario

    return asyncio.run(bounded())


async def take(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    """The next `count` messages, which must come."""
    messages: list[ReceivedMessage] = []
    while len(messages) < count:
        message = await consumer.receive(timeout=WAIT_S)
        assert message is not None, f"{len(messages)} of {count} messages came: {bodies(messages)[-3:]}"
        messages.append(message)
    return messages


async def drain(session: clarion.Session, destination: str, **options: Any) -> list[ReceivedMessage]:
    """Everything that comes until nothing does, confirmed."""
    messages: list[ReceivedMessage] = []
    async with session.receive(destination, **options) as consumer:
        while (message := await consumer.receive(timeout=IDLE_S)) is not None:
            messages.append(message)
            message.confirm_nowait()
        await session.flush()
    return messages


async def is_idle(consumer: Consumer) -> bool:
    """Nothing comes."""
    return await consumer.receive(timeout=IDLE_S) is None


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def numbered(count: int, label: str = "m") -> list[bytes]:
    return [f"{label}{number}".encode() for number in range(count)]


async def send_all(session: clarion.Session, destination: str, contents: list[bytes]) -> None:
    """Send, and return when all are durable."""
    for body in contents:
        session.send_nowait(destination, body)
    await session.flush()


async def describe(connection: clarion.Connection, name: str) -> dict[str, Any]:
    """What an administrator sees of a destination."""
    found = [known for known in await connection.command("destinations") if known["name"] == name]
    assert len(found) == 1, f"{name}: {found}"
    described: dict[str, Any] = found[0]
    return described


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Ask again until it holds."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {WAIT_S} s: {what}"
        await asyncio.sleep(0.02)


async def share(consumers: list[Consumer], total: int) -> list[list[bytes]]:
    """What each consumer got until all together had `total`; every message is confirmed."""
    got: list[list[bytes]] = [[] for _ in consumers]
    while sum(map(len, got)) < total:
        before = sum(map(len, got))
        for consumer, mine in zip(consumers, got, strict=True):
            while (message := await consumer.receive(timeout=IDLE_S)) is not None:
                assert not message.redelivered and message.delivery_count == 1
                mine.append(message.body)
                await message.confirm()
                if len(mine) % 3 == 0:
                    break
        assert sum(map(len, got)) > before, f"{before} of {total} came"
    return got
