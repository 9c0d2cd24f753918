"""What goes between a session and the scripted broker in a test: messages sent, messages taken, frames that arrived."""

from __future__ import annotations

from clarion import client
from tests.unit.client.scripted_broker import Broker


async def filled(session: client.Session, name: str, count: int) -> None:
    """Messages 0, 1, 2 … are in the destination."""
    await session.send_many(name, [b"%d" % number for number in range(count)])


async def filled_by_another(connection: client.Connection, name: str, count: int) -> None:
    """Likewise, by a session that is over."""
    async with connection.session() as session:
        await filled(session, name, count)


def frames_of(there: Broker, kind: int) -> list[memoryview]:
    return [frame.payload for _, frame in there.log if frame.type == kind]


async def take(consumer: client.Consumer, count: int) -> list[client.ReceivedMessage]:
    messages = [await consumer.receive(5) for _ in range(count)]
    return [message for message in messages if message is not None]
