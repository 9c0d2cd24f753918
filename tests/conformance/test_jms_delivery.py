"""JMS 2.0, chapters 7 and 9: priority, time to live, delay, asynchronous sends, what survives."""

from __future__ import annotations

import asyncio
import time

import pytest

from clarion.errors import BadArgument, BadName, ClarionError
from tests.conformance import World, scenario
from tests.integration.helpers import bodies, describe, numbered, take, until


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@scenario
async def test_b04_jms_3_4_10_expedited_messages_come_before_normal_ones(world: World) -> None:
    for priority in (4, 9, 0, 5, 9, 4):
        await world.session.send(world.queue, b"%d" % priority, priority=priority)
    async with world.session.receive(world.queue) as consumer:
        assert bodies(await take(consumer, 6)) == [b"9", b"9", b"5", b"4", b"4", b"0"]


@scenario
async def test_b04_jms_3_4_10_priority_counts_within_a_durable_subscription(world: World) -> None:
    async with world.session.receive(world.topic, durable="d"):
        pass
    for priority in (1, 8, 4):
        await world.session.send(world.topic, b"%d" % priority, priority=priority)
    async with world.session.receive(world.topic, durable="d") as consumer:
        assert bodies(await take(consumer, 3)) == [b"8", b"4", b"1"]


@scenario
async def test_b04_jms_3_4_9_what_has_expired_is_not_delivered(world: World) -> None:
    short = world.session.send_nowait(world.queue, b"short", ttl=0.03, until="every")
    await world.session.send(world.queue, b"long", ttl=3600)
    await world.session.send(world.queue, b"for ever")
    assert await short and short.how == "expired"
    async with world.session.receive(world.queue) as consumer:
        assert bodies(await take(consumer, 2)) == [b"long", b"for ever"]


@scenario
async def test_b04_jms_7_1_every_message_may_have_another_destination(world: World) -> None:
    for number in range(3):
        world.session.send_nowait(f"{world.queue}-{number}", b"%d" % number)
    await world.session.flush()
    for number in range(3):
        assert await world.waiting(f"{world.queue}-{number}") == [b"%d" % number]


@scenario
async def test_b04_jms_7_2_a_send_returns_when_the_message_is_there(world: World) -> None:
    for number in range(3):
        await world.session.send(world.queue, b"%d" % number)
        assert len(await world.waiting()) == number + 1


@scenario
async def test_b04_jms_7_3_1_completion_is_told_when_the_message_is_there(world: World) -> None:
    ticket = world.session.send_nowait(world.queue, b"x")
    before = ticket.done
    identity = await ticket
    assert (before, ticket.done) == (False, True)
    assert await world.waiting(selector=f"JMSMessageID = 'ID:{identity}'") == [b"x"]


@scenario
async def test_b04_jms_7_3_2_errors_are_raised_by_the_call_or_told_by_the_ticket(world: World) -> None:
    for wrong in ({"priority": 11}, {"ttl": -1}):
        with pytest.raises(BadArgument):
            world.session.send_nowait(world.queue, b"x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(BadName):
        world.session.send_nowait("no such:kind", b"x")
    rule = {"pattern": world.name, "policy": {"message_bytes_max": 10}}
    await world.connection.command("set_policy", rule)
    await world.session.send_nowait(world.queue, b"x")
    large = world.session.send_nowait(world.queue, bytes(100))
    with pytest.raises(ClarionError):
        await large
    await world.connection.command("remove_policy", {"pattern": world.name})
    assert await world.waiting() == [b"x"]


@scenario
async def test_b04_jms_7_3_3_both_kinds_of_sends_keep_one_order(world: World) -> None:
    for number in range(20):
        if number % 3:
            world.session.send_nowait(world.queue, b"m%d" % number)
        else:
            await world.session.send(world.queue, b"m%d" % number)
    await world.session.flush()
    assert await world.waiting() == numbered(20)


@scenario
async def test_b04_jms_7_3_4_closing_waits_for_incomplete_sends(world: World) -> None:
    async with world.connection.session() as session:
        tickets = [session.send_nowait(world.queue, body) for body in numbered(50)]
    assert all(ticket.done for ticket in tickets)
    assert await world.waiting() == numbered(50)


@scenario
async def test_b04_jms_7_3_4_commit_waits_for_incomplete_sends(world: World) -> None:
    async with world.connection.session(transacted=True) as transacted:
        tickets = [transacted.send_nowait(world.queue, body) for body in numbered(50)]
        await transacted.commit()
        assert all(ticket.done for ticket in tickets)
    assert await world.waiting() == numbered(50)


@scenario
async def test_b04_jms_7_3_8_completions_come_in_the_order_of_the_sends(world: World) -> None:
    done: list[int] = []

    async def wait(number: int, ticket: object) -> None:
        await ticket  # type: ignore[misc]
        done.append(number)

    sends = [world.session.send_nowait(world.queue, b"x", priority=number % 10) for number in range(30)]
    await asyncio.gather(*(wait(number, ticket) for number, ticket in enumerate(sends)))
    assert done == list(range(30))


@scenario
async def test_b04_jms_7_4_options_belong_to_one_message(world: World) -> None:
    world.session.send_nowait(world.queue, b"a", priority=9, ttl=60)
    world.session.send_nowait(world.queue, b"b")
    await world.session.flush()
    messages = [message async for message in world.session.browse(world.queue)]
    assert [(m.body, m.priority, m.expires_at_ms > 0) for m in messages] == [(b"a", 9, True), (b"b", 4, False)]


@scenario
async def test_b04_jms_7_8_expired_messages_leave_a_queue_that_nobody_reads(world: World) -> None:
    await world.session.send_many(world.queue, numbered(3), ttl=0.02)
    await world.session.send(world.queue, b"stays")

    async def is_alone() -> bool:
        return await world.waiting() == [b"stays"]

    await until(is_alone, "the others are gone")


@scenario
async def test_b04_jms_7_8_every_subscription_loses_an_expired_message(world: World) -> None:
    for name in ("a", "b"):
        async with world.session.receive(world.topic, durable=name):
            pass
    ticket = world.session.send_nowait(world.topic, b"short", ttl=0.02, until="every")
    assert await ticket and ticket.how == "expired"
    known = (await describe(world.connection, world.topic.removeprefix("topic:")))["subscriptions"]
    assert [(one["name"], one["depth"]) for one in known] == [("a", 0), ("b", 0)]


@scenario
async def test_b04_jms_7_9_nothing_is_delivered_before_its_time(world: World) -> None:
    await world.session.send(world.queue, b"now")
    await world.session.send(world.queue, b"later", delay=0.15)
    async with world.session.receive(world.queue) as consumer:
        assert bodies(await take(consumer, 1)) == [b"now"]
        (message,) = await take(consumer, 1)
        assert message.body == b"later"
        assert now_ms() >= message.deliver_at_ms > message.timestamp_ms


@scenario
async def test_b04_jms_7_9_the_delay_counts_from_the_send_and_not_from_the_commit(world: World) -> None:
    async with world.connection.session(transacted=True) as transacted:
        await transacted.send(world.queue, b"x", delay=0.1)
        sent_ms = now_ms()
        await asyncio.sleep(0.03)
        await transacted.commit()
    async with world.session.receive(world.queue) as consumer:
        (message,) = await take(consumer, 1)
    assert message.deliver_at_ms <= sent_ms + 110
    assert now_ms() >= message.deliver_at_ms


@scenario
async def test_b04_jms_7_9_a_delayed_message_is_for_subscriptions_that_exist_when_it_is_sent(world: World) -> None:
    async with world.session.receive(world.topic, durable="early") as early:
        await world.session.send(world.topic, b"delayed", delay=0.5)
        async with (
            world.session.receive(world.topic, durable="late") as late,
            world.session.receive(world.topic) as plain,
        ):
            assert bodies(await take(early, 1)) == [b"delayed"]
            await world.session.send(world.topic, b"after")
            assert bodies(await take(late, 1)) == bodies(await take(plain, 1)) == [b"after"]


@scenario
async def test_b04_jms_6_2_12_a_lost_connection_duplicates_no_message(world: World) -> None:
    async with world.connect() as other, other.session() as session:
        for body in numbered(300):
            session.send_nowait(world.queue, body)
            if body in (b"m100", b"m200"):
                await asyncio.sleep(0)
                link = other._link
                if link is not None and link._transport is not None:
                    link._transport.abort()
        await session.flush()
    assert await world.waiting() == numbered(300)


@scenario
async def test_b04_jms_7_7_a_failure_of_the_provider_loses_and_doubles_no_message(world: World) -> None:
    async with world.session.receive(world.topic, durable="d"):
        pass
    async with world.session.receive(world.queue) as consumer:
        await world.session.send_many(world.queue, numbered(6))
        await world.session.send_many(world.topic, numbered(3))
        await world.session.confirm((await take(consumer, 4))[:2])
        await asyncio.to_thread(world.broker.kill)
        await asyncio.to_thread(world.broker.start)
        assert await world.waiting() == numbered(6)[2:]
        assert await world.waiting(world.topic) == numbered(3)


@scenario
async def test_b04_jms_9_1_what_comes_again_after_a_failure_is_flagged_and_counted(world: World) -> None:
    await world.session.send_many(world.queue, numbered(5))
    async with world.connect() as other:
        session = await other.session()
        await take(session.receive(world.queue, prefetch_messages=2), 2)
        await asyncio.to_thread(world.broker.kill)
    await asyncio.to_thread(world.broker.start)
    async with world.session.receive(world.queue) as consumer:
        messages = await take(consumer, 5)
    assert bodies(messages) == numbered(5)
    assert all(message.redelivered and message.delivery_count >= 2 for message in messages[:2])
    assert all(message.delivery_count >= 2 for message in messages if message.redelivered)
