"""Queues with messages in them, and so many messages taken from one."""

from __future__ import annotations

from clarion import client


async def filled(connection: client.Connection, name: str, count: int) -> None:
    async with connection.session() as session:
        for number in range(count):
            session.send_nowait(name, b"%d" % number)


async def take(consumer: client.Consumer, count: int) -> list[client.ReceivedMessage]:
    messages = [await consumer.receive(5) for _ in range(count)]
    return [message for message in messages if message is not None]
