"""Topics: every subscription gets everything, and holds it until it has confirmed it (B-04)."""

from __future__ import annotations

from typing import Any

import pytest

import clarion
from clarion.errors import BadArgument, NoSuchSubscription, SubscriptionInUse
from tests.integration.helpers import bodies, describe, drain, is_idle, numbered, run, send_all, share, take, until
from tests.integration.topologies import Topology


def test_b04_every_subscription_gets_all_and_a_plain_one_starts_now(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await send_all(session, f"topic:{name}", [b"before anybody listened"])
            async with (
                session.receive(f"topic:{name}") as plain,
                session.receive(f"topic:{name}", durable="kept") as durable,
            ):
                await send_all(session, f"topic:{name}", numbered(20))
                async with session.receive(f"topic:{name}") as late:
                    await send_all(session, f"topic:{name}", [b"last"])
                    assert bodies(await take(late, 1)) == [b"last"]
                for consumer in (plain, durable):
                    messages = await take(consumer, 21)
                    assert bodies(messages) == [*numbered(20), b"last"]
                    await session.confirm(messages)
                    assert await is_idle(consumer)

    run(scenario())


def test_b04_a_durable_subscription_collects_while_its_consumer_is_away(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            async with session.receive(f"topic:{name}", durable="away"):
                pass
            await send_all(session, f"topic:{name}", numbered(30))
            described = await describe(connection, name)
            assert [(found["name"], found["depth"]) for found in described["subscriptions"]] == [("away", 30)]
            assert bodies(await drain(session, f"topic:{name}", durable="away")) == numbered(30)
            await send_all(session, f"topic:{name}", [b"more"])
            async with session.receive(f"topic:{name}", durable="away") as consumer:
                assert bodies(await take(consumer, 1)) == [b"more"]
                await consumer.close(delete=True)
            assert (await describe(connection, name))["subscriptions"] == []
            with pytest.raises(NoSuchSubscription):
                await connection.command("unsubscribe", {"destination": name, "subscription": "away"})

    run(scenario())


def test_b04_no_local_belongs_to_a_durable_subscription_also_of_a_pattern(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with (
            clarion.connect(server.url) as connection,
            connection.session() as session,
            clarion.connect(server.url) as other,
            other.session() as stranger,
        ):
            async with session.receive(f"topic:{name}", durable="d", no_local=True):
                pass
            async with session.receive(f"glob:{name}*", durable="p", no_local=True):
                pass
            await send_all(stranger, f"topic:{name}", numbered(3))
            assert bodies(await drain(session, f"topic:{name}", durable="d", no_local=True)) == numbered(3)
            assert bodies(await drain(session, f"glob:{name}*", durable="p", no_local=True)) == numbered(3)
            with pytest.raises(BadArgument):
                await session.receive(f"glob:{name}*", durable="p").receive(1)
            await send_all(stranger, f"topic:{name}", numbered(3))
            assert await drain(session, f"topic:{name}", durable="d") == []

    run(scenario())


@pytest.mark.parametrize("source", ["topic:", "glob:"])
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "plain"])
def test_b04_a_shared_subscription_has_no_no_local(server: Topology, name: str, durable: bool, source: str) -> None:
    """What one consumer leaves out counts as confirmed, and the others would miss it."""

    async def scenario() -> None:
        named: dict[str, Any] = {"durable": "s"} if durable else {"subscription": "s"}
        async with clarion.connect(server.url) as connection, connection.session() as session:
            with pytest.raises(BadArgument):
                await session.receive(f"{source}{name}", shared=True, no_local=True, **named).receive(1)

    run(scenario())


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "plain"])
def test_b04_a_shared_subscription_is_one_recipient_with_several_consumers(
    server: Topology, name: str, durable: bool
) -> None:
    async def scenario() -> None:
        options: Any = {"durable" if durable else "subscription": "team"}
        async with (
            clarion.connect(server.url) as connection,
            connection.session() as session,
            connection.session() as other,
            session.receive(f"topic:{name}", shared=True, prefetch_messages=1, **options) as left,
            other.receive(f"topic:{name}", shared=True, prefetch_messages=1, **options) as right,
            session.receive(f"topic:{name}") as all_of_it,
        ):
            await send_all(session, f"topic:{name}", numbered(20))
            got = await share([left, right], 20)
            assert sorted(got[0] + got[1]) == sorted(numbered(20))
            assert bodies(await take(all_of_it, 20)) == numbered(20)

    run(scenario())


def test_b04_a_subscription_that_is_not_shared_has_one_consumer_and_keeps_its_nature(
    server: Topology, name: str
) -> None:
    async def scenario() -> None:
        async with (
            clarion.connect(server.url) as connection,
            connection.session() as session,
            session.receive(f"topic:{name}", durable="mine"),
        ):
            with pytest.raises(SubscriptionInUse):
                await session.receive(f"topic:{name}", durable="mine").receive()
            with pytest.raises(BadArgument):
                await session.receive(f"topic:{name}", durable="mine", shared=True).receive()
            with pytest.raises(SubscriptionInUse):
                await connection.command("unsubscribe", {"destination": name, "subscription": "mine"})

    run(scenario())


def test_a08_space_is_released_when_the_last_subscription_has_confirmed(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            consumers = [await session.receive(f"topic:{name}", durable=label).__aenter__() for label in ("a", "b")]
            await send_all(session, f"topic:{name}", [bytes(10_000)] * 50)
            assert (await describe(connection, name))["bytes"] > 500_000
            for consumer in consumers:
                assert (await describe(connection, name))["bytes"] > 500_000
                await session.confirm(await take(consumer, 50))
            await until(lambda: _is_empty(connection, name), "the space is released")
            await send_all(session, f"topic:{name}", [b"x"])
            await consumers[0].close()
            await connection.command("unsubscribe", {"destination": name, "subscription": "a"})
            await session.confirm(await take(consumers[1], 1))
            await until(lambda: _is_empty(connection, name), "the space is released")

    run(scenario())


async def _is_empty(connection: clarion.Connection, name: str) -> bool:
    return bool((await describe(connection, name))["bytes"] == 0)


def test_a08_a_topic_without_subscriptions_keeps_nothing(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await send_all(session, f"topic:{name}", numbered(100))
            await until(lambda: _is_empty(connection, name), "the space is released")
            async with session.receive(f"topic:{name}"):
                await send_all(session, f"topic:{name}", numbered(100))
                assert (await describe(connection, name))["bytes"] > 0
            await until(lambda: _is_empty(connection, name), "a plain subscription that ended holds nothing")

    run(scenario())
