"""JMS 2.0, sections 6.2.7 and 6.2.8: transacted sessions."""

from __future__ import annotations

import pytest

from clarion.errors import BadArgument, ClarionError, NoSuchHandle
from tests.conformance import World, scenario
from tests.integration.helpers import bodies, describe, numbered, take


@scenario
async def test_b04_jms_6_2_7_what_is_sent_is_seen_after_commit_and_not_before(world: World) -> None:
    await world.session.send(world.queue, b"outside")
    async with world.connection.session(transacted=True) as transacted:
        for body in numbered(3):
            await transacted.send(world.queue, body)
        assert await world.waiting() == [b"outside"]
        await transacted.commit()
        assert await world.waiting() == [b"outside", *numbered(3)]


@scenario
async def test_b04_jms_6_2_7_what_is_received_is_acknowledged_by_commit(world: World) -> None:
    await world.session.send_many(world.queue, numbered(3))
    async with world.connection.session(transacted=True) as transacted:
        consumer = transacted.receive(world.queue)
        await take(consumer, 2)
        assert await world.waiting() == numbered(3)
        await transacted.commit()
        assert await world.waiting() == [b"m2"]


@scenario
async def test_b04_jms_6_2_7_rollback_destroys_what_was_sent(world: World) -> None:
    await world.session.send(world.queue, b"outside")
    async with world.connection.session(transacted=True) as transacted:
        await transacted.send(world.queue, b"never")
        await transacted.rollback()
        await transacted.commit()
    assert await world.waiting() == [b"outside"]


@scenario
async def test_b04_jms_6_2_7_rollback_recovers_what_was_received(world: World) -> None:
    await world.session.send_many(world.queue, numbered(3))
    async with world.connection.session(transacted=True) as transacted:
        consumer = transacted.receive(world.queue)
        first = await take(consumer, 3)
        assert not any(message.redelivered for message in first)
        await transacted.rollback()
        again = await take(consumer, 3)
        assert bodies(again) == numbered(3)
        assert all(message.redelivered and message.delivery_count == 2 for message in again)


@scenario
async def test_b04_jms_6_2_7_rollback_begins_again_with_the_first_that_was_received(world: World) -> None:
    await world.session.send_many(world.queue, numbered(8))
    async with world.connection.session(transacted=True) as transacted:
        consumer = transacted.receive(world.queue)
        await take(consumer, 2)
        await transacted.commit()
        await take(consumer, 3)
        await transacted.rollback()
        again = await take(consumer, 6)
        assert bodies(again) == numbered(8)[2:]
        assert [message.delivery_count for message in again] == [2] * 3 + [1] * 3


@scenario
async def test_b04_jms_6_2_7_rollback_of_a_durable_subscription(world: World) -> None:
    async with (
        world.connection.session(transacted=True) as transacted,
        transacted.receive(world.topic, durable="d") as consumer,
    ):
        await world.session.send_many(world.topic, numbered(3))
        await take(consumer, 3)
        await transacted.rollback()
        assert bodies(await take(consumer, 3)) == numbered(3)
        await transacted.commit()
    (known,) = (await describe(world.connection, world.topic.removeprefix("topic:")))["subscriptions"]
    assert known["depth"] == 0


@scenario
async def test_b04_jms_6_2_7_input_and_output_of_several_destinations_are_one_unit(world: World) -> None:
    target = f"{world.queue}-out"
    await world.session.send_many(world.queue, numbered(2))
    await world.session.send(target, b"outside")
    async with world.session.receive(world.topic) as watcher, world.connection.session(transacted=True) as transacted:
        consumer = transacted.receive(world.queue)
        for keep in (False, True):
            for message in await take(consumer, 2):
                await transacted.send(target, message.body)
                await transacted.send(world.topic, message.body)
            await (transacted.commit() if keep else transacted.rollback())
            assert await world.waiting() == ([] if keep else numbered(2))
            assert await world.waiting(target) == [b"outside", *(numbered(2) if keep else [])]
        assert bodies(await take(watcher, 2)) == numbered(2)


@scenario
async def test_b04_jms_6_2_7_the_end_of_one_transaction_begins_the_next(world: World) -> None:
    await world.session.send(world.queue, b"outside")
    async with world.connection.session(transacted=True) as transacted:
        for body, keep in ((b"a", True), (b"b", False), (b"c", True), (b"d", False)):
            await transacted.send(world.queue, body)
            await (transacted.commit() if keep else transacted.rollback())
    assert await world.waiting() == [b"outside", b"a", b"c"]


@scenario
async def test_b04_jms_6_2_7_messages_cannot_be_acknowledged_one_by_one(world: World) -> None:
    await world.session.send(world.queue, b"x")
    async with world.connection.session(transacted=True) as transacted:
        (message,) = await take(transacted.receive(world.queue), 1)
        with pytest.raises(BadArgument):
            await message.confirm()
        with pytest.raises(BadArgument):
            transacted.receive(world.queue, ack="client")
        with pytest.raises(BadArgument):
            await transacted.recover()


@scenario
async def test_b04_jms_6_2_7_commit_of_a_session_without_transactions_is_an_error(world: World) -> None:
    for wrong in (world.session.commit, world.session.rollback):
        with pytest.raises(BadArgument):
            await wrong()


@scenario
async def test_b04_jms_6_2_7_an_exception_ends_no_transaction_that_is_rolled_back_or_committed_later(
    world: World,
) -> None:
    await world.session.send_many(world.queue, numbered(2))
    async with world.connection.session(transacted=True) as transacted, transacted.receive(world.queue) as consumer:
        with pytest.raises(ZeroDivisionError):
            async for _ in consumer:
                raise ZeroDivisionError
        assert bodies(await take(consumer, 1)) == [b"m1"]
        await transacted.commit()
    assert await world.waiting() == []


@scenario
async def test_b04_jms_6_2_8_a_prepared_transaction_is_decided_by_somebody_else(world: World) -> None:
    await world.session.send(world.queue, b"outside")
    handles = []
    for body in (b"yes", b"no"):
        async with world.connection.session(transacted=True) as transacted:
            await transacted.send(world.queue, body)
            handles.append(await transacted.prepare(expires=60))
    async with world.connect() as other:
        assert {one.handle for one in await other.prepared()} >= set(handles)
        assert await other.commit(handles[0])
        await other.resolve(handles[1], commit=False)
        with pytest.raises(NoSuchHandle):
            await other.resolve(handles[1], commit=True)
    assert await world.waiting() == [b"outside", b"yes"]


@scenario
async def test_b04_jms_6_2_15_closing_a_session_rolls_back(world: World) -> None:
    await world.session.send_many(world.queue, numbered(2))
    async with world.connection.session(transacted=True) as transacted:
        await transacted.send(world.queue, b"never")
        await take(transacted.receive(world.queue), 1)
    async with world.session.receive(world.queue) as consumer:
        messages = await take(consumer, 2)
        assert [(m.body, m.redelivered) for m in messages] == [(b"m0", True), (b"m1", False)]
    assert await world.waiting() == numbered(2)


@scenario
async def test_b04_jms_6_1_8_closing_a_connection_rolls_back(world: World) -> None:
    await world.session.send_many(world.queue, numbered(2))
    async with world.connect() as other:
        transacted = await other.session(transacted=True)
        await transacted.send(world.queue, b"never")
        await take(transacted.receive(world.queue), 1)
    with pytest.raises(ClarionError):
        await transacted.commit()
    async with world.session.receive(world.queue) as consumer:
        assert sorted(bodies(await take(consumer, 2))) == numbered(2)
    assert await world.waiting() == numbered(2)
