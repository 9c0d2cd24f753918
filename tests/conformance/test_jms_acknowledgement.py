"""JMS 2.0, sections 6.2.10, 6.2.11 and 8.7: who acknowledges, what comes again."""

from __future__ import annotations

from contextlib import suppress

import pytest

from clarion.errors import ClarionError
from tests.conformance import World, scenario
from tests.integration.helpers import bodies, drain, numbered, take


@scenario
async def test_b04_jms_3_6_acknowledging_is_ignored_where_it_is_automatic(world: World) -> None:
    await world.session.send_many(world.queue, numbered(2))
    async with world.session.receive(world.queue, ack="auto") as consumer:
        (message,) = await take(consumer, 1)
        await message.confirm()
        await message.confirm()
        assert bodies(await take(consumer, 1)) == [b"m1"]
    await world.session.flush()
    assert await world.waiting() == []


@scenario
async def test_b04_jms_6_2_10_auto_acknowledges_each_message(world: World) -> None:
    await world.session.send_many(world.queue, numbered(4))
    async with world.session.receive(world.queue, ack="auto") as consumer:
        for number in range(3):
            await take(consumer, 1)
            assert await world.waiting() == numbered(4)[number:]  # what the application has in its hands is not done
    await world.session.flush()
    assert await world.waiting() == [b"m3"]


@scenario
async def test_b04_jms_6_2_10_dups_ok_acknowledges_lazily(world: World) -> None:
    await world.session.send_many(world.queue, numbered(50))
    async with world.session.receive(world.queue, ack="dups_ok") as consumer:
        await take(consumer, 50)
        assert (await world.waiting())[-1] == b"m49"  # the last one is still in its hands
    await world.session.flush()
    assert await world.waiting() == []


@scenario
async def test_b04_jms_6_2_10_client_acknowledges_all_that_the_session_has_consumed(world: World) -> None:
    other = f"{world.queue}-other"
    for queue in (world.queue, other):
        await world.session.send_many(queue, numbered(4))
    async with (
        world.session.receive(world.queue, ack="client") as one,
        world.session.receive(other, ack="client") as two,
        world.connection.session() as second,
    ):
        first = await take(one, 3)
        await take(two, 2)
        await first[0].confirm()
        assert await world.waiting() == [b"m3"]
        assert await world.waiting(other) == [b"m2", b"m3"]
        await take(one, 1)
        assert await world.waiting() == [b"m3"]
        async with second.receive(f"{world.queue}-third", ack="client") as foreign:
            await second.send(f"{world.queue}-third", b"x")
            await (await take(foreign, 1))[0].confirm()
        assert await world.waiting() == [b"m3"]  # another session's acknowledgement is not ours


@scenario
async def test_b04_jms_6_2_10_individual_acknowledges_one_message(world: World) -> None:
    await world.session.send_many(world.queue, numbered(4))
    async with world.session.receive(world.queue, ack="individual") as consumer:
        messages = await take(consumer, 4)
        await messages[2].confirm()
        assert await world.waiting() == [b"m0", b"m1", b"m3"]
        await messages[0].confirm()
        assert await world.waiting() == [b"m1", b"m3"]


@scenario
async def test_b04_jms_6_2_10_recover_begins_again_with_the_first_unacknowledged(world: World) -> None:
    await world.session.send_many(world.queue, numbered(8))
    async with world.session.receive(world.queue, ack="client") as consumer:
        first = await take(consumer, 2)
        await first[1].confirm()
        await take(consumer, 3)
        await world.session.recover()
        again = await take(consumer, 6)
    assert bodies(again) == numbered(8)[2:]
    assert [message.redelivered for message in again] == [True] * 3 + [False] * 3
    assert [message.delivery_count for message in again] == [2] * 3 + [1] * 3


@scenario
async def test_b04_jms_6_2_10_recover_brings_all_again_flagged_and_counted(world: World) -> None:
    await world.session.send_many(world.queue, numbered(5))
    async with world.session.receive(world.queue, ack="client") as consumer:
        await (await take(consumer, 2))[1].confirm()
        await take(consumer, 3)
        await world.session.recover()
        again = await take(consumer, 3)
    assert bodies(again) == numbered(5)[2:]
    assert [(message.redelivered, message.delivery_count) for message in again] == [(True, 2)] * 3


@scenario
async def test_b04_jms_6_2_10_recover_leaves_alone_what_was_acknowledged(world: World) -> None:
    await world.session.send_many(world.queue, numbered(3))
    async with world.session.receive(world.queue) as consumer:
        messages = await take(consumer, 3)
        await messages[1].confirm()
        await world.session.recover()
        assert sorted(bodies(await take(consumer, 2))) == [b"m0", b"m2"]


@scenario
async def test_b04_jms_6_2_10_overrun_of_a_client_is_bounded(world: World) -> None:
    await world.session.send_many(world.queue, numbered(10))
    async with world.session.receive(world.queue, unconfirmed_max=3) as consumer, world.connection.session() as second:
        messages = await take(consumer, 3)
        async with second.receive(world.queue) as other:
            rest = await take(other, 7)
        assert bodies(messages + rest) == numbered(10)


@scenario
async def test_b04_jms_6_2_11_what_was_acknowledged_never_comes_again(world: World) -> None:
    await world.session.send_many(world.queue, numbered(4))
    async with world.connect() as other, other.session() as session, session.receive(world.queue) as consumer:
        messages = await take(consumer, 4)
        await session.confirm(messages[:3])
        for message in messages[:3]:
            with suppress(ClarionError):
                await message.reject()  # too late
    assert bodies(await drain(world.session, world.queue)) == [b"m3"]


@scenario
async def test_b04_jms_6_2_11_auto_redelivers_at_most_the_last_message(world: World) -> None:
    await world.session.send_many(world.queue, numbered(5))
    async with world.connect() as other:
        session = await other.session()
        consumer = session.receive(world.queue, ack="auto")
        await take(consumer, 3)  # and the connection ends as in a crash
    async with world.session.receive(world.queue) as last:
        messages = await take(last, 3)
    assert sorted(bodies(messages)) == [b"m2", b"m3", b"m4"]
    (again,) = [message for message in messages if message.body == b"m2"]
    assert again.redelivered and again.delivery_count == 2


@scenario
async def test_b04_jms_6_2_a_queue_redelivers_what_an_ended_session_did_not_acknowledge(world: World) -> None:
    await world.session.send_many(world.queue, numbered(3))
    async with world.connection.session() as session:
        await take(session.receive(world.queue), 2)
    async with world.session.receive(world.queue) as consumer:
        messages = await take(consumer, 3)
    assert [(m.body, m.redelivered) for m in messages] == [(b"m0", True), (b"m1", True), (b"m2", False)]


@scenario
async def test_b04_jms_6_2_a_durable_subscription_redelivers_likewise(world: World) -> None:
    async with world.connection.session() as session, session.receive(world.topic, durable="d") as consumer:
        await session.send_many(world.topic, numbered(3))
        await (await take(consumer, 2))[0].confirm()
    messages = await drain(world.session, world.topic, durable="d")
    assert [(m.body, m.redelivered) for m in messages] == [(b"m1", True), (b"m2", False)]


@pytest.mark.parametrize("ack", ["auto", "dups_ok"])
def test_b04_jms_8_7_an_exception_brings_the_message_again(broker: object, name: str, ack: str) -> None:
    @scenario
    async def exception(world: World) -> None:
        await world.session.send_many(world.queue, numbered(3))
        with suppress(ZeroDivisionError):
            async for message in world.session.receive(world.queue, ack="auto" if ack == "auto" else "dups_ok"):
                if message.body == b"m1":
                    raise ZeroDivisionError
        await world.session.flush()
        rest = await drain(world.session, world.queue)
        assert [(m.body, m.redelivered, m.delivery_count) for m in rest] == [(b"m1", True, 2), (b"m2", False, 1)]

    exception(broker, name)  # type: ignore[arg-type]


@scenario
async def test_b04_jms_8_7_an_exception_neither_acknowledges_nor_recovers_with_client(world: World) -> None:
    await world.session.send_many(world.queue, numbered(3))
    async with world.session.receive(world.queue, ack="client") as consumer:
        with suppress(ZeroDivisionError):
            async for _ in consumer:
                raise ZeroDivisionError
        assert bodies(await take(consumer, 1)) == [b"m1"]
        await world.session.recover()
        assert sorted(bodies(await take(consumer, 3))) == numbered(3)
