"""Names, kinds, headers and sizes: what a destination takes, and what is refused with which error (B-04)."""

from __future__ import annotations

import asyncio

import pytest

import clarion
from clarion import limits
from clarion.errors import BadArgument, BadName, MessageTooLarge, NoSuchDestination, UnknownVerb, WrongKind
from clarion.message import PropertyValue
from tests.integration.helpers import bodies, describe, drain, numbered, run, send_all, take
from tests.integration.topologies import Topology


def test_b04_a_name_is_a_queue_or_a_topic_for_everybody(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send(f"queue:{name}", b"x")
            with pytest.raises(WrongKind):
                await session.send(f"topic:{name}", b"x")
            with pytest.raises(WrongKind):
                await session.receive(f"topic:{name}").receive()
            await session.send(name, b"y")  # a bare name is whatever it is
            assert bodies(await drain(session, name)) == [b"x", b"y"]

    run(scenario())


@pytest.mark.parametrize(
    "bad", ["", "queue:", "a b", "exchange:a", "queue:a/b", "queue:a*", "queue:" + "x" * 256, "\n"]
)
def test_b04_bad_names_are_refused(server: Topology, bad: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            with pytest.raises(BadName):
                session.send_nowait(bad, b"x")
            with pytest.raises(BadName):
                session.receive(bad)
            with pytest.raises(BadName):
                await connection.command("create", {"destination": bad})

    run(scenario())


def test_b04_names_of_the_system_cannot_be_used(server: Topology) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            with pytest.raises(BadName):
                await session.send("queue:_system", b"x")
            with pytest.raises(BadName):
                await session.receive("queue:_system").receive()

    run(scenario())


def test_b04_any_printable_name_of_255_bytes_is_a_name(server: Topology, name: str) -> None:
    async def scenario() -> None:
        long = name[:40] + "-é" + "日本"
        long += "x" * (limits.NAME_BYTES_MAX - len(long.encode()))
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send(f"queue:{long}", b"x")
            assert bodies(await drain(session, f"queue:{long}")) == [b"x"]

    run(scenario())


def test_b04_properties_and_headers_of_every_type_arrive(server: Topology, name: str) -> None:
    properties: dict[str, PropertyValue] = {
        "true": True,
        "false": False,
        "none": None,
        "text": "é日本\U0001f514",
        "empty": "",
        "bytes": b"\0\xff",
        "largest": (1 << 63) - 1,
        "smallest": -(1 << 63),
        "float": 1.5e300,
        "infinity": float("inf"),
    }

    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            identity = await session.send(
                f"queue:{name}",
                "text é",
                properties=properties,
                reply_to="queue:answers",
                correlation_id="c-1",
                type="order",
                content_type="text/plain",
            )
            await session.send(f"queue:{name}", b"")
            for refused in ({"a": [1]}, {"": 1}, {"a": 1 << 63}, {"a": float("nan")}):
                with pytest.raises(BadArgument):
                    session.send_nowait(f"queue:{name}", b"x", properties=refused)  # type: ignore[arg-type]
            message, empty = await drain(session, f"queue:{name}")
            assert message.properties == properties
            assert [type(value) for value in message.properties.values()] == [type(v) for v in properties.values()]
            assert (message.reply_to, message.correlation_id) == ("queue:answers", "c-1")
            assert (message.type, message.content_type, message.body) == ("order", "text/plain", "text é".encode())
            assert (message.id, message.destination, message.priority) == (identity, f"queue:{name}", 4)
            assert (empty.body, empty.properties, empty.reply_to) == (b"", {}, None)

    run(scenario())


def test_b04_the_largest_message_passes_and_a_larger_one_is_refused(server: Topology, name: str) -> None:
    async def scenario() -> None:
        overhead = 80 + len(f"queue:{name}".encode()) + 3 + 8
        largest = bytes(limits.BATCH_BYTES_MAX - overhead)
        async with clarion.connect(server.url) as connection, connection.session() as session:
            small = session.send_nowait(f"queue:{name}", b"before")
            await session.send(f"queue:{name}", largest)
            with pytest.raises(MessageTooLarge):
                await session.send(f"queue:{name}", bytes(limits.BATCH_BYTES_MAX))
            with pytest.raises(MessageTooLarge):
                session.send_nowait(f"queue:{name}", bytes(10 * limits.MIB))
            await session.send(f"queue:{name}", b"after")
            await small
            async with session.receive(f"queue:{name}") as consumer:
                messages = await take(consumer, 3)
                assert [len(message.body_view) for message in messages] == [6, len(largest), 5]
                await session.confirm(messages)

    run(scenario())


def test_b04_a_hundred_destinations_at_once(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection:

            async def one(number: int) -> None:
                kind = "topic" if number % 2 else "queue"
                durable = "kept" if number % 2 else None
                async with connection.session() as session:
                    destination = f"{kind}:{name}-{number}"
                    async with session.receive(destination, durable=durable) as consumer:
                        await send_all(session, destination, numbered(50, f"{number}-"))
                        messages = await take(consumer, 50)
                        assert bodies(messages) == numbered(50, f"{number}-")
                        await session.confirm(messages)

            await asyncio.gather(*map(one, range(100)))
            found = [known for known in await connection.command("destinations") if known["name"].startswith(name)]
            assert len(found) == 100 and not any(known["depth"] for known in found)

    run(scenario())


def test_b17_destinations_are_created_and_dropped_by_administrators(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            created = await connection.command("create", {"destination": f"topic:{name}", "quota_bytes": 100_000})
            assert (created["kind"], created["bytes_quota"]) == ("topic", 100_000)
            with pytest.raises(BadArgument):
                await connection.command("create", {"destination": f"topic:{name}"})
            async with session.receive(name, durable="a"):
                with pytest.raises(BadArgument):
                    await connection.command("drop", {"destination": name})
            await send_all(session, name, numbered(10))
            assert await connection.command("delete", {"destination": name, "ranges": [[1, 4]]}) == {"removed": 3}
            assert await connection.command("purge", {"destination": name}) == {"removed": 7}
            assert (await describe(connection, name))["depth"] == 0
            await connection.command("drop", {"destination": name})
            with pytest.raises(NoSuchDestination):
                await connection.command("purge", {"destination": name})
            with pytest.raises(UnknownVerb):
                await connection.command("explode", {})

    run(scenario())


STATUS_SHAPE: dict[str, type | tuple[type, ...]] = {
    "node": str,
    "uptime_s": float,
    "destinations": int,
    "sessions": int,
    "depth": int,
    "published": int,
    "confirmed": int,
    "published_per_s": float,
    "confirmed_per_s": float,
    "commit_us_p50": (int, float),
    "commit_us_p99": (int, float),
    "commits": int,
    "space": dict,
    "producers_waiting": int,
    "lost_messages": int,
    "oldest": (dict, type(None)),
    "warnings": list,
}


def test_c02_status_has_its_shape_and_counts(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            before = await connection.command("status")
            assert before.keys() >= STATUS_SHAPE.keys()
            for key, kind in STATUS_SHAPE.items():
                assert isinstance(before[key], kind), key
            assert before["space"].keys() >= {"bytes_total", "bytes_live", "bytes_room", "segments", "growth_blocked"}
            await send_all(session, f"queue:{name}", numbered(10))
            after = await connection.command("status")
            assert after["published"] == before["published"] + 10
            assert after["depth"] >= 10 and after["oldest"] is not None
            assert after["oldest"].keys() >= {"destination", "sequence", "age_s", "held_by"}
            assert len(await drain(session, f"queue:{name}")) == 10
            assert (await connection.command("status"))["confirmed"] >= before["confirmed"] + 10

    run(scenario())
