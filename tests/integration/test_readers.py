"""Readers of a real server: where they begin, what they read by its sequence, and what they confirm (D-01)."""

from __future__ import annotations

import pytest

import clarion
from clarion.errors import BadArgument, SubscriptionInUse
from tests.integration.helpers import describe, numbered, run, send_all
from tests.integration.reading import described, only, read, sessions_at
from tests.integration.topologies import Topology


@pytest.mark.parametrize("kind", ["topic", "queue"])
def test_d01_what_is_confirmed_is_not_read_again_and_the_rest_is(server: Topology, name: str, kind: str) -> None:
    async def main() -> None:
        async with sessions_at(server) as (session,):
            destination, bodies = f"{kind}:{name}", numbered(2_000)
            reader = session.reader(destination, subscription="spark" if kind == "topic" else None)
            (opened,) = await reader.open()
            assert (opened.destination, opened.floor, opened.end) == (destination, 1, 1)
            await send_all(session, destination, bodies)
            told = await only(reader)
            assert (told.identity, told.floor, told.end) == (opened.identity, 1, 2_001)
            expected = dict(enumerate(bodies, 1))
            for _ in range(2):  # nothing is consumed
                assert await read(session, told) == expected

            await reader.confirm({destination: [(1_001, 1_500), (1, 501), (1_400, 1_600)]})
            told = await only(reader)
            assert told.floor == 501
            left = {one: body for one, body in expected.items() if 501 <= one < 1_001 or one >= 1_600}
            assert await read(session, told) == left
            for _ in range(2):  # twice is as good as once, and nobody confirms what is not there yet
                await reader.confirm({destination: [(1, 1 << 60)], "topic:of-nobody": [(1, 5)]})
            assert (await only(reader)).floor == 2_001
            await send_all(session, destination, [b"later"])
            assert await read(session, await only(reader)) == {2_001: b"later"}
            await reader.close()
            seen = await described(session, name)
            assert seen["depth"] == 1 and seen["subscriptions"][0]["reader"] is False

    run(main())


def test_d01_confirming_frees_the_space(server: Topology, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            reader = session.reader(f"topic:{name}", subscription="spark")
            await reader.open()
            await session.send_many(f"topic:{name}", [bytes(10_000)] * 300)
            held = (await describe(connection, name))["bytes"]
            assert held > 3_000_000
            await reader.confirm({f"topic:{name}": [(1, 151)]})
            assert 0 < (await describe(connection, name))["bytes"] < held * 2 // 3
            await reader.confirm({f"topic:{name}": [(151, 301)]})
            assert (await describe(connection, name))["bytes"] == 0

    run(main())


@pytest.mark.parametrize("subscription", ["spark", None])
def test_d01_topics_of_a_pattern_join_from_their_first_message(
    server: Topology, name: str, subscription: str | None
) -> None:
    async def main() -> None:
        pattern = f"glob:{name}.*"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await connection.command("set_policy", {"pattern": pattern, "policy": {"retain_ms": 600_000}})
            await send_all(session, f"topic:{name}.old", numbered(3))
            await session.send(f"queue:{name}.queue", b"not a topic")
            reader = session.reader(pattern, subscription=subscription and f"{subscription}-{name}")
            opened = {one.destination: (one.floor, one.end) for one in await reader.open()}
            assert opened == {f"topic:{name}.old": (4 if subscription else 1, 4)}
            await send_all(session, f"topic:{name}.new", numbered(5))
            told = {one.destination: one for one in await reader.look()}
            assert set(told) == {f"topic:{name}.old", f"topic:{name}.new"}
            assert await read(session, told[f"topic:{name}.new"]) == dict(enumerate(numbered(5), 1))
            await reader.close()
            await send_all(session, f"topic:{name}.unseen", numbered(2))
            told = {one.destination: one for one in await reader.open()}
            assert await read(session, told[f"topic:{name}.unseen"]) == dict(enumerate(numbered(2), 1))
            await reader.confirm({one: [(1, 100)] for one in told})
            floors = {one.destination: one.floor for one in await reader.look()}
            assert floors == ({one: told[one].end for one in told} if subscription else dict.fromkeys(told, 1))
            if subscription:
                unsubscribe = {"destination": pattern, "subscription": f"{subscription}-{name}"}
                with pytest.raises(SubscriptionInUse):
                    await connection.command("unsubscribe", unsubscribe)
                await reader.close()
                await connection.command("unsubscribe", unsubscribe)

    run(main())


def test_d01_a_reader_of_many_topics_is_told_of_all_of_them(server: Topology, name: str) -> None:
    async def main() -> None:
        async with sessions_at(server) as (session,):
            count = 600
            for number in range(count):
                session.send_nowait(f"topic:{name}.{number:04}", b"x")
            await session.flush()
            async with session.reader(f"glob:{name}.*", subscription=name) as reader:
                await session.send(f"topic:{name}.0007", b"y")
                told = {one.destination: one for one in await reader.look()}
                assert len(told) == count and told[f"topic:{name}.0007"].end == 3
                await reader.confirm({one: [(1, 9), (11, 12), (13, 14)] for one in told})  # more than one request takes
                assert all(one.floor == one.end for one in await reader.look())

    run(main())


def test_d01_a_subscription_begins_where_it_is_told_to(server: Topology, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await connection.command("set_policy", {"pattern": name, "policy": {"retain_ms": 600_000}})
            await send_all(session, f"topic:{name}", numbered(10))
            for start, wanted in ((1, 1), (4, 4), (50, 11), (None, 11)):
                async with session.reader(f"topic:{name}", subscription=f"from-{start}", start=start) as reader:
                    told = await only(reader)
                    assert (told.floor, told.end) == (wanted, 11)
            for destination in (f"topic:{name}", f"glob:{name}*"):
                named = f"{name}-{destination[:4]}"
                async with session.reader(destination, subscription=named, start_time=0) as reader:
                    assert (await only(reader)).floor == 1
            with pytest.raises(BadArgument, match="start_time"):
                session.reader(f"glob:{name}*", subscription="x", start=1)
            plain = await only(session.reader(f"topic:{name}"))
            assert (plain.floor, plain.end, plain.subscription) == (1, 11, None)
            assert len(await read(session, plain)) == 10

    run(main())


def test_d01_the_selector_is_of_the_subscription_and_whole_ranges_are_confirmed(server: Topology, name: str) -> None:
    async def main() -> None:
        topic = f"topic:{name}"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            reader = session.reader(topic, subscription="spark", selector="size > 2")
            await reader.open()
            for number in range(8):
                session.send_nowait(topic, b"%d" % number, properties={"size": number % 4})
            await session.flush()
            told = await only(reader)
            assert await read(session, told) == {4: b"3", 8: b"7"}
            assert await read(session, told, selector="size = 0") == {1: b"0", 5: b"4"}
            await reader.close()
            for other in (None, "size > 3"):
                with pytest.raises(BadArgument, match="selector"):
                    await session.reader(topic, subscription="spark", selector=other).open()
            (told,) = await reader.open()  # and nothing is lost by that
            assert (told.floor, told.end) == (1, 9)
            await reader.confirm({topic: [(1, 9)]})
            described = await describe(connection, name)
            assert (described["depth"], described["bytes"]) == (0, 0)

    run(main())
