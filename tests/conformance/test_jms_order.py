"""JMS 2.0, sections 6.2.9 and 3.5.9: the order of messages, and groups."""

from __future__ import annotations

import time

import clarion
from tests.conformance import World, scenario
from tests.integration.helpers import bodies, numbered, take


@scenario
async def test_b04_jms_6_2_9_1_messages_of_a_session_arrive_in_the_order_of_sending(world: World) -> None:
    async with world.session.receive(world.topic) as plain, world.session.receive(world.topic, durable="d") as durable:
        for body in numbered(500):
            world.session.send_nowait(world.queue, body)
            world.session.send_nowait(world.topic, body)
        await world.session.flush()
        async with world.session.receive(world.queue) as consumer:
            for one in (consumer, plain, durable):
                assert bodies(await take(one, 500)) == numbered(500)


@scenario
async def test_b04_jms_6_2_9_1_every_sessions_messages_keep_their_order(world: World) -> None:
    async with world.connect() as other, other.session() as second:
        for one, two in zip(numbered(100, "a"), numbered(100, "b"), strict=True):
            world.session.send_nowait(world.queue, one)
            second.send_nowait(world.queue, two)
        await world.session.flush()
        await second.flush()
    got = await world.waiting()
    assert [body for body in got if body.startswith(b"a")] == numbered(100, "a")
    assert [body for body in got if body.startswith(b"b")] == numbered(100, "b")


@scenario
async def test_b04_jms_6_2_9_2_priority_overtakes_and_keeps_the_order_within(world: World) -> None:
    for number in range(20):
        world.session.send_nowait(world.queue, b"%d" % number, priority=9 if number % 2 else 4)
    await world.session.flush()
    async with world.session.receive(world.queue) as consumer:
        got = bodies(await take(consumer, 20))
    assert got == [b"%d" % number for number in (*range(1, 20, 2), *range(0, 20, 2))]


@scenario
async def test_b04_jms_6_2_9_2_a_later_delivery_time_comes_later(world: World) -> None:
    soon = time.time() + 0.3
    for body, at in ((b"third", soon + 0.05), (b"second", soon)):
        await world.session.send(world.queue, body, deliver_at=at)
    await world.session.send(world.queue, b"first")
    async with world.session.receive(world.queue) as consumer:
        assert bodies(await take(consumer, 3)) == [b"first", b"second", b"third"]


@scenario
async def test_b04_jms_6_2_9_2_messages_of_a_transaction_keep_their_order(world: World) -> None:
    async with world.connection.session(transacted=True) as transacted:
        for first in range(0, 30, 10):
            for body in numbered(30)[first : first + 10]:
                transacted.send_nowait(world.queue, body)
            await transacted.commit()
    assert await world.waiting() == numbered(30)


@scenario
async def test_b04_jms_3_5_9_a_group_goes_to_one_consumer_in_order(world: World) -> None:
    async with (
        world.connection.session() as second,
        world.session.receive(world.queue) as one,
        second.receive(world.queue) as two,
    ):
        for number in range(60):
            world.session.send_nowait(world.queue, b"%d" % number, group=f"g{number % 6}")
        await world.session.flush()
        got: list[list[clarion.ReceivedMessage]] = [[], []]
        while len(got[0]) + len(got[1]) < 60:
            for mine, consumer in zip(got, (one, two), strict=True):
                while (message := await consumer.receive(timeout=0.02)) is not None:
                    mine.append(message)
                    await message.confirm()
    groups = [{message.group for message in mine} for mine in got]
    assert groups[0] and groups[1] and not groups[0] & groups[1]
    for mine in got:
        for group in {message.group for message in mine}:
            numbers = [int(message.body) for message in mine if message.group == group]
            assert numbers == sorted(numbers) and len(numbers) == 10


@scenario
async def test_b04_jms_3_5_9_a_group_goes_on_with_another_consumer_when_its_own_is_gone(world: World) -> None:
    async with world.connection.session() as second:
        for number in range(6):
            world.session.send_nowait(world.queue, b"%d" % number, group="g")
        await world.session.flush()
        async with world.session.receive(world.queue, prefetch_messages=3) as one:
            await world.session.confirm(await take(one, 2))
        async with second.receive(world.queue) as two:
            assert bodies(await take(two, 4)) == [b"2", b"3", b"4", b"5"]
