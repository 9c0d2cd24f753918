"""Readers of a real server are told of what is there: not of the expired, the purged or the delayed (D-01)."""

from __future__ import annotations

import asyncio

import pytest

import clarion
from clarion.errors import BadArgument, NoSuchDestination, SubscriptionInUse, WrongKind
from tests.integration.helpers import numbered, run, send_all, until
from tests.integration.reading import only, read, sessions_at
from tests.integration.topologies import Topology


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
