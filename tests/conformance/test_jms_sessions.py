"""JMS 2.0, sections 6.1, 6.2.15, 8.5 and 8.8: connections, sessions and consumers come and go."""

from __future__ import annotations

import asyncio

import pytest

from clarion.client.connection import ConnectionState
from clarion.errors import ClarionError
from tests.conformance import World, scenario
from tests.integration.helpers import bodies, drain, numbered, take, until


@scenario
async def test_b04_jms_6_1_4_nothing_is_delivered_before_the_application_asks(world: World) -> None:
    await world.session.send_many(world.queue, numbered(3))
    idle = world.session.receive(world.queue)
    async with world.connection.session() as second, second.receive(world.queue) as consumer:
        messages = await take(consumer, 3)
    assert bodies(messages) == numbered(3)
    await idle.close()


@scenario
async def test_b04_jms_6_1_7_a_problem_of_the_connection_is_told_and_repaired(world: World) -> None:
    states: list[ConnectionState] = []
    async with world.connect(on_state=states.append) as other, other.session() as session:
        link = other._link
        assert link is not None and link._transport is not None
        link._transport.abort()
        await session.send(world.queue, b"x")
    assert states == ["connected", "reconnecting", "connected", "closed"]


@scenario
async def test_b04_jms_6_1_8_closing_a_connection_ends_its_sessions_and_pending_receives(world: World) -> None:
    other = await world.connect()
    session = await other.session()
    consumer = session.receive(world.queue)
    pending = asyncio.create_task(consumer.receive())
    await asyncio.sleep(0)
    await other.close()
    try:
        assert await pending is None
    except ClarionError:
        pass  # it was waiting for the broker's answer
    await other.close()  # closing what is closed is no error
    for wrong in (session.send(world.queue, b"x"), session.flush(), other.command("status"), consumer.receive()):
        with pytest.raises(ClarionError):
            await wrong
    await session.close()


@scenario
async def test_b04_jms_6_1_8_closing_a_connection_acknowledges_nothing(world: World) -> None:
    await world.session.send(world.queue, b"x")
    async with world.connect() as other:
        session = await other.session()
        (message,) = await take(session.receive(world.queue, ack="client"), 1)
    with pytest.raises(ClarionError):
        await message.confirm()
    assert (message.body, message.destination) == (b"x", world.queue)  # what was received stays readable
    async with world.session.receive(world.queue) as consumer:
        (again,) = await take(consumer, 1)
    assert again.id == message.id and again.redelivered


@scenario
async def test_b04_jms_6_2_1_a_session_has_many_producers_and_consumers(world: World) -> None:
    queues = [f"{world.queue}-{number}" for number in range(5)]
    consumers = [await world.session.receive(queue).__aenter__() for queue in queues]
    for queue in queues:
        world.session.send_nowait(queue, queue)
    for queue, consumer in zip(queues, consumers, strict=True):
        assert bodies(await take(consumer, 1)) == [queue.encode()]


@scenario
async def test_b04_jms_6_2_14_sessions_deliver_side_by_side(world: World) -> None:
    await world.session.send_many(world.queue, numbered(2))
    async with (
        world.connection.session() as one,
        world.connection.session() as two,
        one.receive(world.queue, unconfirmed_max=1, prefetch_messages=1) as first,
        two.receive(world.queue, unconfirmed_max=1, prefetch_messages=1) as second,
    ):
        held = [*await take(first, 1), *await take(second, 1)]  # while one is busy, the other gets its own
        assert sorted(bodies(held)) == numbered(2)


@scenario
async def test_b04_jms_6_2_15_closing_a_session_ends_its_use_and_acknowledges_nothing(world: World) -> None:
    await world.session.send(world.queue, b"x")
    session = await world.connection.session()
    consumer = session.receive(world.queue, ack="client")
    (message,) = await take(consumer, 1)
    pending = asyncio.create_task(consumer.receive())
    await asyncio.sleep(0)
    await session.close()
    assert await pending is None
    await session.close()
    for wrong in (session.send(world.queue, b"x"), session.recover(), message.confirm()):
        with pytest.raises(ClarionError):
            await wrong
    assert message.body == b"x"
    assert [(m.id, m.redelivered) for m in await drain(world.session, world.queue)] == [(message.id, True)]


@scenario
async def test_b04_jms_8_5_receive_waits_for_a_message(world: World) -> None:
    async with world.session.receive(world.queue) as consumer:
        pending = asyncio.create_task(consumer.receive())
        await world.session.send(world.queue, b"x")
        message = await pending
        assert message is not None and message.body == b"x"


@scenario
async def test_b04_jms_8_5_receive_with_a_timeout_gives_none(world: World) -> None:
    async with world.session.receive(world.queue) as consumer:
        assert await consumer.receive(timeout=0.01) is None


@scenario
async def test_b04_jms_8_5_receive_without_waiting(world: World) -> None:
    await world.session.send_many(world.queue, numbered(2))
    async with world.session.receive(world.queue) as consumer:
        await take(consumer, 1)
        message = await consumer.receive(timeout=0)
        assert message is not None and message.body == b"m1"
        assert await consumer.receive(timeout=0) is None


@scenario
async def test_b04_jms_8_7_messages_come_as_they_arrive_one_at_a_time(world: World) -> None:
    got: list[bytes] = []

    async def listen() -> None:
        async for message in world.session.receive(world.queue, ack="auto"):
            got.append(message.body)
            if message.body == b"m4":
                return

    listening = asyncio.create_task(listen())
    async with world.connection.session() as second:
        for body in numbered(5):
            await second.send(world.queue, body)
    await listening
    assert got == numbered(5)


@scenario
async def test_b04_jms_8_8_closing_a_consumer_ends_a_waiting_receive_with_none(world: World) -> None:
    consumer = await world.session.receive(world.queue).__aenter__()
    pending = asyncio.create_task(consumer.receive())
    await asyncio.sleep(0)
    await consumer.close()
    assert await pending is None
    await consumer.close()


@scenario
async def test_b04_jms_8_8_after_closing_a_consumer_its_messages_are_acknowledged_as_usual(world: World) -> None:
    await world.session.send_many(world.queue, numbered(3))
    async with world.session.receive(world.queue, ack="client") as consumer:
        messages = await take(consumer, 2)
    await messages[0].confirm()
    assert await world.waiting() == [b"m2"]
    async with world.connection.session(transacted=True) as transacted:
        async with transacted.receive(world.queue) as consumer:
            await take(consumer, 1)
        await transacted.commit()
    assert await world.waiting() == []
    async with world.session.receive(world.topic) as plain:
        await world.session.send(world.topic, b"x")
        (message,) = await take(plain, 1)
    await message.confirm()
    async with world.connection.session(transacted=True) as transacted:
        for end in (transacted.rollback, transacted.commit):
            async with transacted.receive(world.topic) as plain:
                await world.session.send(world.topic, b"x")
                await take(plain, 1)
            await transacted.send(world.queue, b"y")
            await end()
    assert await world.waiting() == [b"y"]


@scenario
async def test_b04_jms_8_8_what_was_not_seen_goes_to_others_at_once(world: World) -> None:
    await world.session.send_many(world.queue, numbered(5))
    async with world.session.receive(world.queue) as consumer:
        await take(consumer, 1)
    async with world.connection.session() as second, second.receive(world.queue) as other:
        messages = await take(other, 4)
    assert [(m.body, m.redelivered) for m in messages] == [(body, False) for body in numbered(5)[1:]]


@scenario
async def test_b04_jms_8_3_1_a_closed_consumer_that_holds_a_message_collects_no_more(world: World) -> None:
    async with world.session.receive(world.topic) as plain:
        await world.session.send(world.topic, b"held")
        (message,) = await take(plain, 1)
    await world.session.send_many(world.topic, numbered(5))

    async def is_empty() -> bool:
        return await world.waiting(world.topic) in ([], [b"held"])

    await until(is_empty, "nobody waits for the others")
    await message.confirm()


def test_b04_jms_2_14_connections_are_for_concurrent_use(broker: object, name: str) -> None:
    @scenario
    async def concurrent(world: World) -> None:
        async def use(number: int) -> None:
            queue = f"{world.queue}-{number}"
            async with world.connection.session() as session:
                await session.send_many(queue, numbered(20))
                async with session.receive(queue) as consumer:
                    assert bodies(await take(consumer, 20)) == numbered(20)

        await asyncio.gather(*(use(number) for number in range(8)))

    concurrent(broker, name)  # type: ignore[arg-type]
