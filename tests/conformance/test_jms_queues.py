"""JMS 2.0, section 4.1: queues and browsing."""

from __future__ import annotations

import pytest

from clarion.errors import WrongKind
from tests.conformance import World, scenario
from tests.integration.helpers import bodies, describe, numbered, share, take


@scenario
async def test_b04_jms_4_1_2_each_message_goes_to_one_consumer(world: World) -> None:
    async with (
        world.connection.session() as second,
        world.session.receive(world.queue, prefetch_messages=3) as one,
        second.receive(world.queue, prefetch_messages=3) as two,
    ):
        await world.session.send_many(world.queue, numbered(12))
        got = await share([one, two], 12)
    assert sorted(got[0] + got[1]) == sorted(numbered(12))
    assert all(got)


@scenario
async def test_b04_jms_4_1_2_what_a_selector_does_not_want_stays_for_others(world: World) -> None:
    for number in range(6):
        await world.session.send(world.queue, b"%d" % number, properties={"n": number})
    async with world.session.receive(world.queue, selector="n > 3") as some, world.connection.session() as second:
        picked = await take(some, 2)
        assert bodies(picked) == [b"4", b"5"]
        async with second.receive(world.queue) as rest:
            assert bodies(await take(rest, 4)) == [b"0", b"1", b"2", b"3"]


@scenario
async def test_b04_jms_4_1_2_a_consumer_with_a_selector_gets_its_messages_in_order(world: World) -> None:
    for number in range(20):
        world.session.send_nowait(world.queue, b"%d" % number, properties={"odd": number % 2 == 1})
    await world.session.flush()
    async with world.session.receive(world.queue, selector="odd") as consumer:
        assert bodies(await take(consumer, 10)) == [b"%d" % number for number in range(1, 20, 2)]


@scenario
async def test_b04_jms_4_1_3_a_queue_is_created_on_first_use_or_by_an_administrator(world: World) -> None:
    await world.session.send(world.queue, b"x")
    assert (await describe(world.connection, world.name))["kind"] == "queue"
    made = f"{world.name}-made"
    await world.connection.command("create", {"destination": f"queue:{made}"})
    assert (await describe(world.connection, made))["depth"] == 0
    await world.connection.command("drop", {"destination": made})


@scenario
async def test_b04_jms_4_1_4_a_name_is_a_queue_or_a_topic_for_everybody(world: World) -> None:
    await world.session.send(world.queue, b"x")
    with pytest.raises(WrongKind):
        await world.session.send(f"topic:{world.name}", b"x")
    with pytest.raises(WrongKind):
        async with world.session.receive(f"topic:{world.name}"):
            pass
    await world.session.send(world.name, b"y")  # without a kind it is what it is
    assert await world.waiting() == [b"x", b"y"]


@scenario
async def test_b04_jms_4_1_6_browsing_removes_nothing(world: World) -> None:
    await world.session.send_many(world.queue, numbered(5))
    assert await world.waiting() == await world.waiting() == numbered(5)
    async with world.session.receive(world.queue) as consumer:
        messages = await take(consumer, 5)
    assert bodies(messages) == numbered(5)
    assert not any(message.redelivered for message in messages)


@scenario
async def test_b04_jms_4_1_6_browsing_with_a_selector(world: World) -> None:
    for number in range(5):
        await world.session.send(world.queue, b"%d" % number, properties={"n": number})
    assert await world.waiting(selector="n BETWEEN 1 AND 3") == [b"1", b"2", b"3"]


@scenario
async def test_b04_jms_4_1_6_browsed_messages_have_their_headers(world: World) -> None:
    await world.session.send(world.queue, b"x", properties={"n": 1}, correlation_id="c", type="t", priority=8)
    (message,) = [message async for message in world.session.browse(world.queue)]
    assert (message.properties, message.correlation_id, message.type, message.priority) == ({"n": 1}, "c", "t", 8)


@scenario
async def test_b04_jms_4_1_6_what_is_not_due_cannot_be_browsed(world: World) -> None:
    await world.session.send(world.queue, b"now")
    await world.session.send(world.queue, b"later", delay=3600)
    assert await world.waiting() == [b"now"]
    await world.connection.command("drop", {"destination": world.queue})


@scenario
async def test_b04_jms_4_1_8_a_queue_holds_messages_while_nobody_consumes(world: World) -> None:
    async with world.connect() as other, other.session() as session:
        await session.send_many(world.queue, numbered(10))
    async with world.session.receive(world.queue) as consumer:
        assert bodies(await take(consumer, 10)) == numbered(10)
