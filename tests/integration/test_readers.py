"""Readers of a real server: sequences, the right to be the only one, confirming what is done elsewhere (D-01)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

import clarion
from clarion import limits
from clarion.client.reading import Readable, Reader
from clarion.errors import BadArgument, NoSuchDestination, NoSuchSubscription, SubscriptionInUse, WrongKind
from tests.integration.helpers import WAIT_S, describe, drain, numbered, run, send_all, take, until
from tests.integration.topologies import Topology


@asynccontextmanager
async def sessions_at(server: Topology, count: int = 1) -> AsyncIterator[list[clarion.Session]]:
    """Sessions of connections of their own."""
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(clarion.connect(server.url)) for _ in range(count)]
        yield [await stack.enter_async_context(connection.session()) for connection in connections]


async def read(session: clarion.Session, told: Readable, **options: str) -> dict[int, bytes]:
    """Bodies by sequence of everything that one was told of."""
    found: dict[int, bytes] = {}
    named = {"subscription": told.subscription, **options}
    async for first, batch in session.read(
        told.destination, told.floor, told.end, identity=told.identity, selector=named.get("selector"),
        subscription=named["subscription"],
    ):  # fmt: skip
        for index in range(batch.count):
            found[first + index] = bytes(batch.record(index)[1])
    assert list(found) == sorted(found)
    return found


async def described(session: clarion.Session, name: str) -> dict[str, Any]:
    (found,) = [one for one in await session.command("destinations") if one["name"] == name]
    assert isinstance(found, dict)
    return found


async def only(reader: Reader) -> Readable:
    (told,) = await reader.look()
    return told


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


def test_d01_nothing_that_has_expired_is_told_of_and_what_was_told_of_does_not_expire(
    server: Topology, name: str
) -> None:
    async def main() -> None:
        topic, dead = f"topic:{name}", "queue:_DMQ"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            reader = session.reader(topic, subscription="spark")
            await reader.open()

            async def buried() -> int:
                count = 0
                async for message in session.browse(dead):
                    count += message.body.startswith(name.encode())
                return count

            session.send_nowait(topic, f"{name} taken".encode(), ttl=0.3)
            session.send_nowait(topic, f"{name} stays".encode())
            await session.flush()
            told = await only(reader)
            assert told.end == 3
            session.send_nowait(topic, f"{name} dies".encode(), ttl=0.01)
            session.send_nowait(topic, f"{name} lives".encode())
            await session.flush()

            async def one_died() -> bool:
                return await buried() == 1

            await until(one_died, "what nobody was told of is dead")
            told = await only(reader)
            found = {one: body.removeprefix(name.encode()) for one, body in (await read(session, told)).items()}
            assert found == {1: b" taken", 2: b" stays", 4: b" lives"}
            await reader.confirm({topic: [(2, told.end)]})
            assert await buried() == 1
            await reader.close()  # now it is nobody's

            async def two_died() -> bool:
                return await buried() == 2

            await until(two_died, "what a reader let go expires")
            (told,) = await reader.open()
            assert told.floor == told.end == 5

    run(main())


def test_d01_what_had_expired_before_a_look_goes_to_the_dead_first(server: Topology, name: str) -> None:
    """Also in the second in which nobody has looked after it yet."""

    async def main() -> None:
        topic = f"topic:{name}"
        async with sessions_at(server) as (session,):
            reader = session.reader(topic, subscription="spark")
            await reader.open()
            for number in range(20):
                await session.send(topic, f"{name} {number}".encode(), ttl=0.001)
                session.send_nowait(topic, b"stays")
            await asyncio.sleep(0.01)  # lives end by the clock
            await session.send(topic, b"last", ttl=600)
            told = await only(reader)
            assert told.end == 42
            found = await read(session, told)
            assert sorted(found.values()) == [b"last", *[b"stays"] * 20]
            await reader.confirm({topic: [(1, told.end)]})  # not what is on its way to the dead

            async def all_dead() -> bool:
                there = [message.body async for message in session.browse("queue:_DMQ")]
                return {f"{name} {number}".encode() for number in range(20)} <= set(there)

            await until(all_dead, "every one that expired is dead")

            async def all_done() -> bool:
                return (await only(reader)).floor == 42

            await until(all_done, "and confirmed where it was")

    run(main())


def test_d01_purged_and_deleted_messages_are_absent(server: Topology, name: str) -> None:
    async def main() -> None:
        queue = f"queue:{name}"
        async with sessions_at(server) as (session,):
            await send_all(session, queue, numbered(10))
            async with session.reader(queue) as reader:
                told = await only(reader)
                await session.command("delete", {"destination": name, "ranges": [[3, 5], [7, 8]]})
                assert list(await read(session, told)) == [1, 2, 5, 6, 8, 9, 10]
                await session.command("purge", {"destination": name})
                assert await read(session, told) == {}
                told = await only(reader)
                assert (told.floor, told.end) == (11, 11)

    run(main())


def test_d01_another_destination_of_the_same_name_is_another_one(server: Topology, name: str) -> None:
    async def main() -> None:
        topic = f"topic:{name}"
        async with sessions_at(server, 2) as (session, other):
            plain = session.reader(topic)
            with pytest.raises(NoSuchDestination):
                await plain.open()
            with pytest.raises(NoSuchDestination):
                await plain.look()
            await session.command("create", {"destination": topic})
            with pytest.raises(WrongKind):
                await session.reader(f"queue:{name}").open()
            (first,) = await plain.open()
            async with session.reader(topic, subscription="spark") as reader:
                await send_all(session, topic, numbered(3))
                assert (await only(plain)).end == 4
                old = await only(reader)
            await session.command("drop", {"destination": name})
            with pytest.raises(NoSuchDestination):
                await plain.look()
            (new,) = await reader.open()
            assert first.identity == old.identity != new.identity and new.end == 1
            await send_all(session, topic, numbered(3))
            assert (await only(plain)).identity == new.identity
            with pytest.raises(BadArgument) as failed:
                await read(session, old)
            assert failed.value.facts["argument"] == "identity"
            # Late confirmations of what there was do not reach what there is.
            late = other.reader(topic, subscription="spark")
            await late.confirm({topic: [(1, 4)]}, identities={topic: old.identity})
            assert (await only(reader)).floor == 1
            await late.confirm({topic: [(1, 4)]}, identities={topic: new.identity})  # from another connection
            assert (await only(reader)).floor == 4

    run(main())


def test_d01_delayed_and_transacted_messages_come_when_they_are_visible(server: Topology, name: str) -> None:
    async def main() -> None:
        topic = f"topic:{name}"
        async with (
            clarion.connect(server.url) as connection,
            connection.session() as session,
            session.reader(topic, subscription="spark") as reader,
        ):
            await session.send(topic, b"delayed", delay=0.4)
            async with connection.session(transacted=True) as transacted:
                await transacted.send(topic, b"committed")
                await session.send(topic, b"first")
                assert (await only(reader)).end == 2
                await transacted.commit()
                assert (await only(reader)).end == 3
                await transacted.send(topic, b"rolled back")
                await transacted.rollback()

            async def came() -> bool:
                return (await only(reader)).end == 4

            await until(came, "the delayed one is visible")
            assert await read(session, await only(reader)) == {1: b"first", 2: b"committed", 3: b"delayed"}

    run(main())


def test_d08_the_dead_messages_can_be_read_and_so_can_confirmations(server: Topology, name: str) -> None:
    async def main() -> None:
        async with sessions_at(server, 2) as (session, other):
            for body in numbered(3, name):
                await session.send(f"queue:{name}", body, ttl=0.001)

            async def dead(found: dict[int, bytes]) -> list[bytes]:
                return [body for body in found.values() if body.startswith(name.encode())]

            async def buried() -> bool:
                told = await only(session.reader("queue:_DMQ"))  # looks, and claims nothing
                return len(await dead(await read(session, told))) == 3

            await until(buried, "all three are dead")
            async with session.reader("_DMQ") as reader:
                told = await only(reader)
                assert told.subscription == "" and await dead(await read(other, told)) == numbered(3, name)
                with pytest.raises(SubscriptionInUse):
                    async with other.receive("queue:_DMQ"):
                        pass
                first = next(one for one, body in (await read(other, told)).items() if body == f"{name}0".encode())
                await reader.confirm({"queue:_DMQ": [(first, first + 1)]})
                assert await dead(await read(other, told)) == numbered(3, name)[1:]
            async with session.reader("topic:_CONFIRMATIONS", subscription=name) as reader:
                assert (await only(reader)).destination == "topic:_CONFIRMATIONS"
            await session.command("unsubscribe", {"destination": "_CONFIRMATIONS", "subscription": name})
            assert (await only(session.reader("topic:_LOG"))).destination == "topic:_LOG"

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
