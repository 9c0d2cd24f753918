"""Flow: credit, quotas, and that one slow or full thing delays no other (B-13, B-21)."""

from __future__ import annotations

import asyncio

import clarion
from clarion.wire.frames import SETTLED, Type
from tests.hostile.raw import RawClient
from tests.integration.helpers import bodies, describe, is_idle, numbered, run, send_all, take, until
from tests.integration.topologies import Topology


def test_b13_a_consumer_that_does_not_take_gets_no_more_than_its_prefetch(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await send_all(session, f"queue:{name}", numbered(100))
            async with session.receive(f"queue:{name}", prefetch_messages=7) as idle:

                async def prefetched() -> bool:
                    return bool((await describe(connection, name))["subscriptions"][0]["in_flight"] == 7)

                await until(prefetched, "the prefetch is full")
                async with connection.session() as other, other.receive(f"queue:{name}") as busy:
                    rest = await take(busy, 93)
                    assert bodies(rest) == numbered(100)[7:]
                    assert await is_idle(busy)
                    await other.confirm(rest)
                mine = await take(idle, 7)
                assert bodies(mine) == numbered(7)
                await session.confirm(mine)

    run(scenario())


def test_b13_credit_in_bytes_bounds_a_consumer_too(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await send_all(session, f"queue:{name}", [bytes(1_000)] * 100)
            async with session.receive(f"queue:{name}", prefetch_bytes=10_000) as consumer:
                await take(consumer, 1)

                async def bounded() -> bool:
                    return bool((await describe(connection, name))["subscriptions"][0]["in_flight"] == 10)

                await until(bounded, "ten messages are in flight")
                await session.confirm(await take(consumer, 99))

    run(scenario())


def test_b13_unconfirmed_max_bounds_what_is_not_confirmed(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await send_all(session, f"queue:{name}", numbered(20))
            async with session.receive(f"queue:{name}", unconfirmed_max=5) as consumer:
                held = await take(consumer, 5)
                assert await is_idle(consumer)
                await session.confirm(held[:2])
                held = held[2:] + await take(consumer, 2)
                assert await is_idle(consumer)
                await session.confirm(held)
                assert bodies(await take(consumer, 5)) == numbered(20)[7:12]

    run(scenario())


def test_b13_a_destination_at_its_quota_refuses_while_others_go_on_and_resumes_after_draining(
    server: Topology, name: str
) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await connection.command("create", {"destination": f"queue:{name}", "quota_bytes": 200_000})
            full = [session.send_nowait(f"queue:{name}", number.to_bytes(4) + bytes(9_996)) for number in range(60)]

            async def refused() -> bool:
                return bool((await connection.command("status"))["producers_waiting"])

            await until(refused, "the queue is full")
            await asyncio.wait_for(send_all_of(session, f"queue:{name}-other", 50), 10)  # the same session goes on
            stored = (await describe(connection, name))["depth"]
            assert 0 < stored < 60 and (await describe(connection, name))["bytes"] <= 200_000
            assert not all(ticket.done for ticket in full)
            async with connection.session() as other, other.receive(f"queue:{name}") as consumer:
                received: list[bytes] = []
                while len(received) < 60:
                    (message,) = await take(consumer, 1)
                    received.append(message.body)
                    await message.confirm()
            assert received == [number.to_bytes(4) + bytes(9_996) for number in range(60)]
            for ticket in full:
                await ticket
            assert (await connection.command("status"))["producers_waiting"] == 0

    run(scenario())


async def send_all_of(session: clarion.Session, destination: str, count: int) -> None:
    for body in numbered(count):
        await session.send(destination, body)


def test_b21_one_slow_consumer_delays_no_fast_one(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with (
            clarion.connect(server.url) as connection,
            connection.session() as session,
            connection.session() as slow_session,
            slow_session.receive(f"topic:{name}", durable="slow", prefetch_messages=10) as slow,
            session.receive(f"topic:{name}", durable="fast") as fast,
            session.receive(f"topic:{name}") as plain,
        ):
            await send_all(session, f"topic:{name}", numbered(3_000))
            for consumer in (fast, plain):
                messages = await take(consumer, 3_000)
                assert bodies(messages) == numbered(3_000)
                await session.confirm(messages)
            (first,) = await take(slow, 1)  # all of the above happened while it took nothing
            assert first.body == b"m0" and not first.redelivered
            depths = {found["name"]: found["depth"] for found in (await describe(connection, name))["subscriptions"]}
            assert depths["slow"] == 3_000 and depths["fast"] == 0

    run(scenario())


def test_b21_a_large_backlog_on_one_destination_leaves_another_responsive(server: Topology, name: str) -> None:
    async def scenario() -> None:
        backlog = 20_000
        async with clarion.connect(server.url) as connection, connection.session() as loader:
            await send_all(loader, f"queue:{name}", [number.to_bytes(4) + bytes(996) for number in range(backlog)])
            async with (
                connection.session() as session,
                connection.session() as reader,
                reader.receive_batches(f"queue:{name}") as consumer,
            ):
                received: list[bytes] = []

                async def drain_backlog() -> None:
                    while len(received) < backlog:
                        batch = await consumer.receive(timeout=20)
                        assert batch is not None
                        received.extend(body[:4] for body in batch.bodies())
                        await batch.confirm()

                draining = asyncio.create_task(drain_backlog())
                done_before = 0
                async with session.receive(f"queue:{name}-quick") as quick:
                    for body in numbered(50):
                        await session.send(f"queue:{name}-quick", body)
                        (message,) = await take(quick, 1)
                        assert message.body == body
                        await message.confirm()
                        done_before += not draining.done()
                await draining
                assert received == [number.to_bytes(4) for number in range(backlog)]
                assert done_before >= 1  # they did not have to wait for the end of the backlog

    run(scenario())


def test_a06_the_same_batch_twice_is_stored_once(server: Topology, name: str) -> None:
    with RawClient(server.port) as raw:
        raw.hello()
        producer = raw.open()
        for flags in (0, 0, 1):
            raw.publish(producer, 1, f"queue:{name}", b"a", b"b", flags=flags)
            assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (1, 2, 0)
        raw.publish(producer, 3, f"queue:{name}", b"c")
        assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (3, 1, 0)
        assert raw.request("browse", destination=name)["next"] is None
    with RawClient(server.port) as raw:  # the same producer, on another connection
        raw.hello()
        assert raw.open(producer=producer.to_bytes(16, "big")) == producer
        raw.publish(producer, 3, f"queue:{name}", b"c", flags=1)
        assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (3, 1, 0)

    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            assert [message.body async for message in session.browse(name)] == [b"a", b"b", b"c"]

    run(scenario())
