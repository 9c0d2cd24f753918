"""What a sender says of a message is what a consumer reads (B-04); lists arrive whole and in order."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

import clarion
from clarion.client.options import DELIVERY_STEP_MS
from clarion.errors import MessageTooLarge
from tests.integration.helpers import bodies, numbered, run, take
from tests.integration.topologies import Topology


def test_b04_everything_that_is_said_of_a_message_arrives(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            before_ms = time.time_ns() // 1_000_000
            await session.send(
                name, b"all", properties={"n": 1}, reply_to="topic:answers", correlation_id="c", type="t",
                content_type="text/plain", priority=9, ttl=60, delay=0.05, group="g",
            )  # fmt: skip
            after_ms = time.time_ns() // 1_000_000
            async with session.receive(name) as consumer:
                (message,) = await take(consumer, 1)
                await message.confirm()
            assert (message.properties, message.reply_to, message.correlation_id) == ({"n": 1}, "topic:answers", "c")
            assert (message.type, message.content_type, message.group) == ("t", "text/plain", "g")
            assert message.priority == 9
            assert before_ms + 60_000 <= message.expires_at_ms <= after_ms + 60_000
            assert before_ms + 50 <= message.deliver_at_ms <= after_ms + 50 + DELIVERY_STEP_MS

    run(scenario())


def test_b04_messages_with_different_terms_all_arrive_with_their_own(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            soon = datetime.now(UTC) + timedelta(milliseconds=20)
            sent = {}
            for number, body in enumerate(numbered(300)):
                sent[body] = number % 10
                if number % 3 == 0:
                    session.send_nowait(name, body, priority=number % 10, deliver_at=soon)
                elif number % 3 == 1:
                    session.send_nowait(
                        name, body, priority=number % 10, ttl=timedelta(minutes=5), group=str(number % 7)
                    )
                else:
                    session.send_nowait(name, body, priority=number % 10)
            await session.flush()
            async with session.receive(name) as consumer:
                messages = await take(consumer, len(sent))
                await session.confirm(messages)
            assert {message.body: message.priority for message in messages} == sent
            for message in messages:
                number = int(message.body[1:])
                assert (message.expires_at_ms > 0, message.group) == (
                    (True, str(number % 7)) if number % 3 == 1 else (False, None)
                )

    run(scenario())


def test_b04_a_long_list_arrives_whole_and_in_order(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            sent = numbered(30_000)
            await session.send(name, b"before")
            await session.send_many(name, sent, properties={"n": 1})
            session.send_many_nowait(name, ["a", b"b"])
            await session.flush()
            async with session.receive_batches(name) as batches:
                got: list[bytes] = []
                while len(got) < len(sent) + 3:
                    batch = await batches.receive(timeout=20)
                    assert batch is not None
                    got += batch.bodies()
                    batch.confirm_nowait()
            assert got == [b"before", *sent, b"a", b"b"]

    run(scenario())


def test_b04_a_list_with_a_body_that_is_too_large_sends_nothing(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            with pytest.raises(MessageTooLarge) as refused:
                await session.send_many(name, [b"fine", bytes(8 << 20)])
            assert refused.value.facts["index"] == 1
            await session.send(name, b"only this")
            async with session.receive(name) as consumer:
                assert bodies(await take(consumer, 1)) == [b"only this"]

    run(scenario())


def test_b04_a_sender_learns_how_its_message_was_delivered(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            wanted = [session.send_nowait(name, body, until="any") for body in numbered(3)]
            short = session.send_nowait(f"{name}.short", b"x", until="every", ttl=0.05)
            nobody = session.send_nowait(f"topic:{name}.nobody", b"x", until="every")
            async with session.receive(name) as consumer:
                messages = await take(consumer, 3)
                assert [ticket.done for ticket in wanted] == [False] * 3
                await messages[1].confirm()
                assert await wanted[1] == messages[1].id
                assert [ticket.how for ticket in wanted] == [None, "confirmed", None]
                await session.confirm(messages[0], messages[2])
                await session.send_many(f"topic:{name}.nobody", numbered(5), until="any")
                assert [await ticket for ticket in wanted] == [message.id for message in messages]
            assert await nobody and nobody.how == "unwanted"
            assert await short and short.how == "expired"

    run(scenario())


def test_b04_a_sender_learns_that_a_message_expired_while_the_server_was_dead(own_server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(own_server.url) as connection, connection.session() as session:
            short = session.send_nowait(name, b"x", until="every", ttl=0.3)
            long = session.send_nowait(name, b"y", until="every")
            await session.flush()
            own_server.kill()
            await asyncio.sleep(0.3)  # its time to live
            own_server.start()
            assert await short
            assert (short.how, long.how) == ("expired", None)
            async with session.receive(name) as consumer:
                (message,) = await take(consumer, 1)
                await message.confirm()
            assert await long
            assert long.how == "confirmed"

    run(scenario())


def test_b02_a_sender_learns_of_a_delivery_after_the_server_was_killed(own_server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(own_server.url) as connection, connection.session() as session:
            ticket = session.send_nowait(name, b"x", until="every")
            await session.flush()  # stored; nobody has it yet
            own_server.kill()
            own_server.start()
            async with session.receive(name) as consumer:
                (message,) = await take(consumer, 1)
                await message.confirm()
            assert (await ticket, ticket.how) == (message.id, "confirmed")

    run(scenario())
