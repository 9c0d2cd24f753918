"""JMS 2.0, sections 4.2 and 8.3: topics and their subscriptions."""

from __future__ import annotations

from typing import Any

import pytest

import clarion
from clarion.errors import BadArgument, RequestError, SubscriptionInUse
from tests.conformance import World, scenario
from tests.integration.helpers import bodies, describe, drain, numbered, share, take


async def depths(world: World) -> dict[str | None, int]:
    """What waits in each subscription of the topic."""
    described = await describe(world.connection, world.topic.removeprefix("topic:"))
    return {one["name"]: one["depth"] for one in described["subscriptions"]}


async def subscribe(world: World, **options: Any) -> None:
    """Make a durable subscription and go."""
    async with world.session.receive(world.topic, **options):
        pass


@scenario
async def test_b04_jms_4_2_2_every_subscription_gets_every_message(world: World) -> None:
    async with (
        world.session.receive(world.topic) as plain,
        world.session.receive(world.topic, durable="d") as durable,
        world.session.receive(world.topic, subscription="s", shared=True) as shared,
    ):
        await world.session.send_many(world.topic, numbered(5))
        for consumer in (plain, durable, shared):
            assert bodies(await take(consumer, 5)) == numbered(5)


@scenario
async def test_b04_jms_4_2_2_a_subscription_gets_what_is_sent_after_it_was_made(world: World) -> None:
    await world.session.send(world.topic, b"before")
    async with world.session.receive(world.topic) as plain, world.session.receive(world.topic, durable="d") as durable:
        await world.session.send(world.topic, b"after")
        assert bodies(await take(plain, 1)) == bodies(await take(durable, 1)) == [b"after"]


@scenario
async def test_b04_jms_4_2_2_copies_are_acknowledged_apart(world: World) -> None:
    topic = world.topic
    async with world.session.receive(topic, durable="a") as a, world.session.receive(topic, durable="b") as b:
        await world.session.send(topic, b"x")
        (mine,), (other,) = await take(a, 1), await take(b, 1)
        await mine.confirm()
        await other.reject()
        (again,) = await take(b, 1)
        assert again.redelivered
    assert await depths(world) == {"a": 0, "b": 1}


@scenario
async def test_b04_jms_4_2_2_a_selector_keeps_messages_out_of_a_subscription(world: World) -> None:
    await subscribe(world, durable="d", selector="n = 1")
    async with world.session.receive(world.topic, selector="n = 2") as plain:
        for number in (1, 2, 3):
            await world.session.send(world.topic, b"%d" % number, properties={"n": number})
        (message,) = await take(plain, 1)
        assert message.body == b"2"
        await message.confirm()
    assert bodies(await drain(world.session, world.topic, durable="d", selector="n = 1")) == [b"1"]
    assert await depths(world) == {"d": 0}


@scenario
async def test_b04_jms_4_2_4_names_of_subscriptions(world: World) -> None:
    letters = "aZ09_.-ü"
    for name in (letters, (letters * 16)[:128]):
        await subscribe(world, durable=name)
        await world.connection.command("unsubscribe", {"destination": world.topic, "subscription": name})
        async with world.session.receive(world.topic, subscription=name, shared=True):
            assert name in await depths(world)


@scenario
async def test_b04_jms_4_2_5_a_topic_is_created_on_first_use_or_by_an_administrator(world: World) -> None:
    await world.session.send(world.topic, b"x")
    assert (await describe(world.connection, world.topic.removeprefix("topic:")))["kind"] == "topic"
    await world.connection.command("create", {"destination": f"topic:{world.name}-made"})
    assert (await describe(world.connection, f"{world.name}-made"))["kind"] == "topic"


@scenario
async def test_b04_jms_4_2_6_a_topic_can_stand_for_a_part_of_a_hierarchy(world: World) -> None:
    async with world.session.receive(f"glob:{world.name}.eu.*") as consumer:
        for place in ("eu.de", "us.ny", "eu.fr"):
            await world.session.send(f"topic:{world.name}.{place}", place.encode())
        assert sorted(bodies(await take(consumer, 2))) == [b"eu.de", b"eu.fr"]


@scenario
async def test_b04_jms_4_2_8_a_plain_subscriber_recovers_what_it_did_not_acknowledge(world: World) -> None:
    async with world.session.receive(world.topic, ack="client") as consumer:
        await world.session.send_many(world.topic, numbered(3))
        await take(consumer, 3)
        await world.session.recover()
        again = await take(consumer, 3)
    assert bodies(again) == numbered(3)
    assert all(message.redelivered and message.delivery_count == 2 for message in again)


@scenario
async def test_b04_jms_4_2_9_durable_subscriptions_come_and_go_while_the_topic_is_used(world: World) -> None:
    for number in range(3):
        await subscribe(world, durable=f"d{number}")
        await world.session.send(world.topic, b"x")
    assert await depths(world) == {"d0": 3, "d1": 2, "d2": 1}
    await world.connection.command("unsubscribe", {"destination": world.topic, "subscription": "d0"})
    assert await depths(world) == {"d1": 2, "d2": 1}


@scenario
async def test_b04_jms_4_2_11_a_durable_subscriber_misses_nothing(world: World) -> None:
    got: list[bytes] = []
    await subscribe(world, durable="d")
    for round_number in range(3):
        await world.session.send_many(world.topic, numbered(4, f"{round_number}-"))
        async with world.session.receive(world.topic, durable="d") as consumer:
            messages = await take(consumer, 4)
            await world.session.confirm(messages)
            got += bodies(messages)
    assert got == [body for number in range(3) for body in numbered(4, f"{number}-")]


# --- 8.3.1: unshared, not durable ---------------------------------------------------------------------------


@scenario
async def test_b04_jms_8_3_1_each_consumer_is_a_subscription_of_its_own(world: World) -> None:
    async with world.session.receive(world.topic) as one, world.session.receive(world.topic) as two:
        await world.session.send_many(world.topic, numbered(3))
        assert bodies(await take(one, 3)) == bodies(await take(two, 3)) == numbered(3)


@scenario
async def test_b04_jms_8_3_1_it_ends_with_its_consumer(world: World) -> None:
    async with world.session.receive(world.topic):
        await world.session.send(world.topic, b"never read")
        assert len(await depths(world)) == 1
    assert await depths(world) == {}


@scenario
async def test_b04_jms_8_3_1_no_local_keeps_out_what_the_own_connection_sends(world: World) -> None:
    async with (
        world.connect() as other,
        other.session() as stranger,
        world.connection.session() as sibling,
        world.session.receive(world.topic, no_local=True) as consumer,
        world.session.receive(world.topic) as local,
    ):
        await world.session.send(world.topic, b"own")
        await sibling.send(world.topic, b"own, too")
        await stranger.send(world.topic, b"foreign")
        assert bodies(await take(consumer, 1)) == [b"foreign"]
        assert bodies(await take(local, 3)) == [b"own", b"own, too", b"foreign"]


# --- 8.3.2: shared, not durable -----------------------------------------------------------------------------


@scenario
async def test_b04_jms_8_3_2_each_message_goes_to_one_of_its_consumers(world: World) -> None:
    async with (
        world.connect() as other,
        other.session() as second,
        world.session.receive(world.topic, prefetch_messages=3, subscription="s", shared=True) as one,
        second.receive(world.topic, prefetch_messages=3, subscription="s", shared=True) as two,
    ):
        await world.session.send_many(world.topic, numbered(12))
        got = await share([one, two], 12)
    assert sorted(got[0] + got[1]) == sorted(numbered(12))
    assert all(got)


@scenario
async def test_b04_jms_8_3_2_it_ends_with_its_last_consumer(world: World) -> None:
    one = await world.session.receive(world.topic, subscription="s", shared=True).__aenter__()
    two = await world.session.receive(world.topic, subscription="s", shared=True).__aenter__()
    await one.close()
    await world.session.send(world.topic, b"x")
    assert await depths(world) == {"s": 1}
    await two.close()
    assert await depths(world) == {}


@scenario
async def test_b04_jms_8_3_2_another_selector_is_refused_while_it_has_consumers(world: World) -> None:
    async with world.session.receive(world.topic, subscription="s", shared=True, selector="n = 1"):
        with pytest.raises(BadArgument):
            async with world.session.receive(world.topic, subscription="s", shared=True, selector="n = 2"):
                pass
        async with world.session.receive(world.topic, subscription="s", shared=True, selector=" n=1 "):
            pass


@scenario
async def test_b04_jms_8_3_2_a_durable_one_of_the_same_name_is_another_subscription(world: World) -> None:
    async with (
        world.session.receive(world.topic, subscription="s", shared=True) as shared,
        world.session.receive(world.topic, durable="s") as durable,
    ):
        await world.session.send(world.topic, b"x")
        assert bodies(await take(shared, 1)) == bodies(await take(durable, 1)) == [b"x"]
        async with world.session.receive(world.topic, subscription="s", shared=True):
            pass
    await world.connection.command("unsubscribe", {"destination": world.topic, "subscription": "s"})


# --- 8.3.3: unshared, durable -------------------------------------------------------------------------------


@scenario
async def test_b04_jms_8_3_3_it_collects_while_nobody_consumes(world: World) -> None:
    await subscribe(world, durable="d")
    async with world.connect() as other, other.session() as session:
        await session.send_many(world.topic, numbered(5))
        async with session.receive(world.topic, durable="d") as consumer:
            await session.confirm((await take(consumer, 5))[:2])
    assert sorted(bodies(await drain(world.session, world.topic, durable="d"))) == numbered(5)[2:]


@scenario
async def test_b04_jms_8_3_3_it_has_one_consumer_at_a_time(world: World) -> None:
    async with world.connect() as other, other.session() as second:
        async with world.session.receive(world.topic, durable="d"):
            for session in (world.session, second):
                with pytest.raises(SubscriptionInUse):
                    async with session.receive(world.topic, durable="d"):
                        pass
        async with second.receive(world.topic, durable="d"):
            pass


@scenario
async def test_b04_jms_8_3_3_another_selector_makes_a_new_one(world: World) -> None:
    await subscribe(world, durable="d")
    await world.session.send(world.topic, b"old", properties={"n": 1})
    async with world.session.receive(world.topic, durable="d", selector="n = 1") as consumer:
        await world.session.send(world.topic, b"new", properties={"n": 1})
        assert bodies(await take(consumer, 1)) == [b"new"]


@scenario
async def test_b04_jms_8_3_3_another_no_local_makes_a_new_one(world: World) -> None:
    await subscribe(world, durable="d", no_local=True)
    async with world.connect() as other, other.session() as stranger:
        await stranger.send(world.topic, b"old")
        async with world.session.receive(world.topic, durable="d") as consumer:
            await stranger.send(world.topic, b"new")
            assert bodies(await take(consumer, 1)) == [b"new"]


@scenario
async def test_b04_jms_8_3_3_no_local_keeps_out_what_the_own_connection_sends(world: World) -> None:
    async with (
        world.connect() as other,
        other.session() as stranger,
        world.session.receive(world.topic, durable="d", no_local=True) as consumer,
    ):
        await world.session.send(world.topic, b"own")
        await stranger.send(world.topic, b"foreign")
        assert bodies(await take(consumer, 1)) == [b"foreign"]


@scenario
async def test_b04_jms_8_3_3_it_is_deleted_by_unsubscribing_and_not_while_it_is_used(world: World) -> None:
    arguments = {"destination": world.topic, "subscription": "d"}
    async with world.session.receive(world.topic, durable="d"):
        with pytest.raises(SubscriptionInUse):
            await world.connection.command("unsubscribe", arguments)
    await world.session.send(world.topic, b"x")
    await world.connection.command("unsubscribe", arguments)
    assert await depths(world) == {}
    async with world.session.receive(world.topic, durable="d") as consumer:
        await world.session.send(world.topic, b"new")
        assert bodies(await take(consumer, 1)) == [b"new"]
        await consumer.close(delete=True)
    assert await depths(world) == {}


@scenario
async def test_b04_jms_8_3_3_it_cannot_be_shared_under_its_name(world: World) -> None:
    await subscribe(world, durable="d")
    with pytest.raises(RequestError):
        await subscribe(world, durable="d", shared=True)


# --- 8.3.4: shared, durable ---------------------------------------------------------------------------------


@scenario
async def test_b04_jms_8_3_4_it_collects_and_is_shared(world: World) -> None:
    await subscribe(world, durable="d", shared=True)
    await world.session.send_many(world.topic, numbered(12))
    async with (
        world.connect() as other,
        other.session() as second,
        world.session.receive(world.topic, prefetch_messages=3, durable="d", shared=True) as one,
        second.receive(world.topic, prefetch_messages=3, durable="d", shared=True) as two,
    ):
        got = await share([one, two], 12)
    assert sorted(got[0] + got[1]) == sorted(numbered(12))
    assert all(got)


@scenario
async def test_b04_jms_8_3_4_another_selector_is_refused_while_it_has_consumers(world: World) -> None:
    async with world.session.receive(world.topic, durable="d", shared=True):
        with pytest.raises(BadArgument):
            await subscribe(world, durable="d", shared=True, selector="n = 1")


@scenario
async def test_b04_jms_8_3_4_another_selector_makes_a_new_one_when_nobody_uses_it(world: World) -> None:
    await subscribe(world, durable="d", shared=True)
    await world.session.send(world.topic, b"old", properties={"n": 1})
    await subscribe(world, durable="d", shared=True, selector="n = 1")
    assert await depths(world) == {"d": 0}


@scenario
async def test_b04_jms_8_3_4_it_cannot_be_unshared_under_its_name(world: World) -> None:
    await subscribe(world, durable="d", shared=True)
    with pytest.raises(RequestError):
        await subscribe(world, durable="d")


@scenario
async def test_b04_jms_8_3_4_it_is_deleted_by_unsubscribing_and_not_while_it_is_used(world: World) -> None:
    arguments = {"destination": world.topic, "subscription": "d"}
    one = await world.session.receive(world.topic, durable="d", shared=True).__aenter__()
    two: clarion.Consumer = await world.session.receive(world.topic, durable="d", shared=True).__aenter__()
    await one.close()
    with pytest.raises(SubscriptionInUse):
        await world.connection.command("unsubscribe", arguments)
    await two.close()
    await world.connection.command("unsubscribe", arguments)
    assert await depths(world) == {}
