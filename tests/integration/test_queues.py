"""Queues: consumers compete, confirmations remove, everything else comes back (B-04)."""

from __future__ import annotations

import asyncio

import clarion
from tests.integration.helpers import bodies, describe, drain, is_idle, numbered, run, send_all, share, take, until
from tests.integration.topologies import Topology


def test_b04_competing_consumers_share_a_queue(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with (
            clarion.connect(server.url) as connection,
            connection.session() as session,
            connection.session() as other,
            session.receive(f"queue:{name}", prefetch_messages=5) as left,
            other.receive(f"queue:{name}", prefetch_messages=5) as right,
        ):
            await send_all(session, f"queue:{name}", numbered(40))
            got = await share([left, right], 40)
            assert sorted(got[0] + got[1]) == sorted(numbered(40))
            assert min(map(len, got)) >= 5  # nobody is left out

    run(scenario())


def test_b04_a_confirmed_message_is_gone_and_an_unconfirmed_one_comes_back_when_its_session_dies(
    server: Topology, name: str
) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as survivor, survivor.session() as session:
            await send_all(session, f"queue:{name}", numbered(10))
            connection = await clarion.connect(server.url)
            victim = await connection.session()
            messages = await take(victim.receive(f"queue:{name}"), 10)
            await victim.confirm(messages[0], messages[5])
            await connection.close()
            async with session.receive(f"queue:{name}") as consumer:
                again = await take(consumer, 8)
                assert bodies(again) == [b"m1", b"m2", b"m3", b"m4", b"m6", b"m7", b"m8", b"m9"]
                assert {(message.redelivered, message.delivery_count) for message in again} == {(True, 2)}
                assert await is_idle(consumer)
                await session.confirm(again)
                assert await is_idle(consumer)
            assert (await describe(survivor, name))["depth"] == 0

    run(scenario())


def test_b04_closing_a_session_gives_back_what_it_did_not_confirm(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await send_all(session, f"queue:{name}", numbered(3))
            async with connection.session() as leaving:
                await take(leaving.receive(f"queue:{name}"), 2)
            again = await drain(session, f"queue:{name}")
            assert bodies(again) == numbered(3)
            assert [message.delivery_count for message in again] == [2, 2, 1]
            assert [message.redelivered for message in again] == [True, True, False]

    run(scenario())


def test_b04_a_rejected_message_comes_back_with_a_higher_count(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await send_all(session, f"queue:{name}", numbered(2))
            async with session.receive(f"queue:{name}") as consumer:
                first, second = await take(consumer, 2)
                for times in range(2, 5):
                    await first.reject()
                    (first,) = await take(consumer, 1)
                    assert (first.body, first.delivery_count, first.redelivered) == (b"m0", times, True)
                await session.confirm(first, second)
                assert await is_idle(consumer)

    run(scenario())


def test_b04_ranges_are_confirmed_and_rejected(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await send_all(session, f"queue:{name}", numbered(100))
            async with session.receive(f"queue:{name}") as consumer:
                first = (await take(consumer, 100))[0].sequence
                await consumer.confirm(first + 10, first + 90)
                await consumer.confirm(first + 10, first + 20)  # twice is as good as once
                assert (await describe(connection, name))["depth"] == 20
                await consumer.reject(first, first + 10)
                again = await take(consumer, 10)
                assert bodies(again) == numbered(100)[:10]
                await consumer.confirm(first, first + 100)
            assert (await describe(connection, name))["depth"] == 0

    run(scenario())


def test_b04_batches_are_received_and_confirmed_whole(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await send_all(session, f"queue:{name}", numbered(2_000))
            received: list[bytes] = []
            async for batch in session.receive_batches(f"queue:{name}"):
                assert len(batch) == batch.end_sequence - batch.first_sequence
                received += batch.bodies()
                batch.confirm_nowait()
                if len(received) == 2_000:
                    break
            await session.flush()
            assert received == numbered(2_000)
            assert (await describe(connection, name))["depth"] == 0

    run(scenario())


def test_b04_browsing_does_not_consume(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await send_all(session, f"queue:{name}", numbered(2_500))
            for _ in range(2):
                seen = [message.body async for message in session.browse(f"queue:{name}")]
                assert seen == numbered(2_500)
            some = [message async for message in session.browse(f"queue:{name}", start=100, count=7)]
            assert [message.sequence for message in some] == list(range(100, 107))
            async with session.receive(f"queue:{name}") as consumer:
                messages = await take(consumer, 2_500)
                assert not any(message.redelivered for message in messages)
                await session.confirm(messages[:2_000])
            left = [message.body async for message in session.browse(f"queue:{name}")]
            assert left == numbered(2_500)[2_000:]

    run(scenario())


def test_b04_browsing_passes_over_a_message_that_is_larger_than_the_rest_of_a_reply(
    server: Topology, name: str
) -> None:
    async def scenario() -> None:
        sizes = [1_000] * 900 + [(4 << 20) - 300, 10, (4 << 20) - 300, 10]
        async with clarion.connect(server.url, reconnect=False) as connection, connection.session() as session:
            for size in sizes:
                session.send_nowait(f"queue:{name}", bytes(size))
            await session.flush()
            assert [len(message.body_view) async for message in session.browse(f"queue:{name}")] == sizes
            assert len(await drain(session, f"queue:{name}")) == len(sizes)

    run(scenario())


def test_b04_leaving_by_break_returns_what_was_prefetched_uncounted(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await send_all(session, f"queue:{name}", numbered(50))
            async for message in session.receive(f"queue:{name}"):
                await message.confirm()
                break

            async def returned() -> bool:
                return bool((await describe(connection, name))["subscriptions"][0]["in_flight"] == 0)

            await until(returned, "the rest is returned")
            async with connection.session() as other:
                rest = await drain(other, f"queue:{name}")
            assert bodies(rest) == numbered(50)[1:]
            assert {(message.redelivered, message.delivery_count) for message in rest} == {(False, 1)}

    run(scenario())


def test_b04_order_per_producer_is_kept(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection:

            async def produce(label: str) -> None:
                async with connection.session() as session:
                    for number, body in enumerate(numbered(500, label)):
                        session.send_nowait(f"queue:{name}", body)
                        if number % 50 == 0:
                            await asyncio.sleep(0)

            async def consume() -> list[bytes]:
                async with connection.session() as session, session.receive(f"queue:{name}") as consumer:
                    messages = await take(consumer, 2_000)
                    await session.confirm(messages)
                    return bodies(messages)

            labels = ["a", "b", "c", "d"]
            consuming = asyncio.create_task(consume())
            await asyncio.gather(*map(produce, labels))
            received = await consuming
            for label in labels:
                assert [body for body in received if body.startswith(label.encode())] == numbered(500, label)

    run(scenario())
