"""Readers of a real server are the only ones who use what they read, from opening to closing (D-01)."""

from __future__ import annotations

import pytest

import clarion
from clarion import limits
from clarion.errors import BadArgument, NoSuchDestination, NoSuchSubscription, SubscriptionInUse
from tests.integration.helpers import WAIT_S, drain, numbered, run, send_all, take, until
from tests.integration.reading import described, only, read, sessions_at
from tests.integration.topologies import Topology


def test_d01_a_reader_is_the_only_user_of_a_topics_subscription(server: Topology, name: str) -> None:
    async def main() -> None:
        topic = f"topic:{name}"
        async with sessions_at(server, 2) as (mine, others):
            reader = mine.reader(topic, subscription="one")
            await reader.open()
            assert (await described(mine, name))["subscriptions"][0]["reader"] is True
            for session in (mine, others):
                with pytest.raises(SubscriptionInUse):
                    await session.reader(topic, subscription="one").open()
                with pytest.raises(SubscriptionInUse):
                    async with session.receive(topic, durable="one"):
                        pass
            with pytest.raises(SubscriptionInUse):
                await others.reader(f"glob:{name}*", subscription="one").open()
            with pytest.raises(SubscriptionInUse):
                await others.command("unsubscribe", {"destination": topic, "subscription": "one"})
            with pytest.raises(BadArgument, match="reader"):
                await others.command("drop", {"destination": topic})
            async with others.reader(topic, subscription="two") as two:  # another one is another matter
                assert two.opened
                await send_all(others, topic, [b"a"])
                assert await read(others, await only(two)) == {1: b"a"}
            await reader.close()
            assert not reader.opened
            async with others.receive(topic, durable="one") as consumer:
                (message,) = await take(consumer, 1)
                with pytest.raises(SubscriptionInUse):
                    await reader.open()
            # It left, and still has a message of it.
            with pytest.raises(SubscriptionInUse):
                await reader.open()
            await message.confirm()
            (told,) = await reader.open()
            assert (told.floor, told.end) == (2, 2)

    run(main())


def test_d01_a_reader_is_the_only_user_of_a_queue(server: Topology, name: str) -> None:
    async def main() -> None:
        queue = f"queue:{name}"
        async with sessions_at(server, 2) as (mine, others):
            async with others.receive(queue) as consumer:
                await send_all(mine, queue, numbered(3))
                (message, *_) = await take(consumer, 2)
                with pytest.raises(SubscriptionInUse):
                    await mine.reader(queue).open()
                await message.confirm()
            await others.recover()
            reader = mine.reader(name)  # it is known to be a queue
            (told,) = await reader.open()
            assert await read(mine, told) == {2: b"m1", 3: b"m2"}
            with pytest.raises(SubscriptionInUse):
                async with others.receive(queue):
                    pass
            with pytest.raises(BadArgument, match="selector"):
                await others.reader(queue, selector="a = 1").open()
            with pytest.raises(BadArgument, match="subscription"):
                await others.reader(queue, subscription="x").open()
            await reader.confirm({queue: [(2, 3)]})
            await reader.close()
            (message,) = await drain(others, queue)
            assert message.body == b"m2"

    run(main())


def test_d01_what_a_prepared_transaction_has_consumed_is_nobody_elses(server: Topology, name: str) -> None:
    async def main() -> None:
        queue = f"queue:{name}"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await send_all(session, queue, numbered(3))
            async with connection.session(transacted=True) as consuming:
                async with consuming.receive(queue) as consumer:
                    await take(consumer, 1)
                handle = await consuming.prepare()
            reader = session.reader(queue)
            with pytest.raises(SubscriptionInUse):
                await reader.open()
            unopened = await only(reader)
            assert unopened.subscription is None and unopened.end == 4
            slices = [one async for one in session.read(queue, 1, 4, subscription="")]
            assert sum(batch.count for _, batch in slices) == 2
            await reader.confirm({queue: [(1, 4)]})
            await session.resolve(handle, commit=False)
            (told,) = await reader.open()
            assert await read(session, told) == {1: b"m0"}

    run(main())


def test_d01_a_pattern_has_one_user_also_while_it_matches_nothing(server: Topology, name: str) -> None:
    async def main() -> None:
        pattern = f"glob:{name}.*"
        async with sessions_at(server, 2) as (mine, others):
            async with others.receive(pattern, durable=name):
                with pytest.raises(SubscriptionInUse):
                    await mine.reader(pattern, subscription=name).open()
            reader = mine.reader(pattern, subscription=name)
            assert await reader.open() == []
            with pytest.raises(SubscriptionInUse):
                await others.reader(pattern, subscription=name).open()
            with pytest.raises(SubscriptionInUse):
                async with others.receive(pattern, durable=name):
                    pass
            with pytest.raises(SubscriptionInUse):
                await others.command("unsubscribe", {"destination": pattern, "subscription": name})
            await send_all(others, f"topic:{name}.first", numbered(3))
            assert await read(mine, await only(reader)) == dict(enumerate(numbered(3), 1))
            await reader.close()
            assert len(await drain(others, pattern, durable=name)) == 3

    run(main())


def test_d01_a_reader_that_is_closed_or_unknown_says_so(server: Topology, name: str) -> None:
    async def main() -> None:
        async with sessions_at(server) as (session,):
            reader = session.reader(f"topic:{name}", subscription="spark")
            await reader.open()
            assert await reader.open() == await reader.look()  # again is as good as once
            await reader.close()
            await reader.close()
            for verb in ("reader_look", "reader_close"):
                with pytest.raises(BadArgument, match="reader"):
                    await session.command(verb, {"reader": 999})
            with pytest.raises(NoSuchSubscription):
                [one async for one in session.read(name, 1, 5, subscription="nobody's")]
            with pytest.raises(NoSuchDestination):
                [one async for one in session.read(f"{name}-absent", 1, 5)]
            many = {f"topic:{name}": (None, [(1, 2)] * (limits.RANGES_PER_FRAME_MAX + 1))}
            with pytest.raises(BadArgument, match="at most"):
                await session.command("reader_confirm", {"subscription": "spark", "ranges": many})

    run(main())


def test_d01_a_reader_ends_with_its_session_or_connection(server: Topology, name: str) -> None:
    async def main() -> None:
        async with sessions_at(server) as (session,):
            lost = clarion.connect(server.url, reconnect=False)
            await lost
            theirs = await lost.session()
            await theirs.reader(f"topic:{name}", subscription="spark").open()
            mine = session.reader(f"topic:{name}", subscription="spark")
            with pytest.raises(SubscriptionInUse):
                await mine.open()
            await lost.close()

            async def opened() -> bool:
                try:
                    await mine.open()
                except SubscriptionInUse:
                    return False
                return True

            await until(opened, f"the right ends with the connection within {WAIT_S} s")

    run(main())
