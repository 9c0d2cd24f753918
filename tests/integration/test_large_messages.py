"""A message with a very large body is like any other, in the blocking twin and on the command line too (B-12)."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import clarion
from clarion import limits
from clarion.errors import BadArgument, NoSuchStream
from tests.integration.helpers import WAIT_S, describe, is_idle, run, take, until
from tests.integration.large_bodies import BODY, body_of, held_bytes, is_free
from tests.integration.large_process import MIB
from tests.integration.topologies import Topology

# --- an ordinary message but for its body -------------------------------------------------------------


def test_b12_a_message_with_a_large_body_is_like_any_other(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send(name, b"small", properties={"colour": "green"})
            options: dict[str, Any] = {"properties": {"colour": "red"}, "type": "film", "correlation_id": "c7"}
            identity = await session.send_stream(name, io.BytesIO(BODY), **options)
            assert await held_bytes(connection, name) > len(BODY)
            async with session.receive(name, selector="colour = 'red'") as consumer:
                (message,) = await take(consumer, 1)
                assert (message.id, message.size, message.is_large) == (identity, len(BODY), True)
                assert (message.properties, message.type, message.correlation_id) == ({"colour": "red"}, "film", "c7")
                assert len(message.body_view) == 0
                with pytest.raises(BadArgument, match="stream"):
                    _ = message.body
                assert await body_of(message) == BODY
                assert await message.stream(offset=len(BODY) - 10).read() == BODY[-10:]
                assert await message.stream(offset=len(BODY)).read() == b""
                reader = message.stream(offset=1_000_000)
                parts = [await reader.read(300_000), await reader.read(1), await reader.read()]
                assert b"".join(parts) == BODY[1_000_000:] and len(parts[0]) == 300_000 and len(parts[1]) == 1
                with pytest.raises(BadArgument, match="offset"):
                    message.stream(offset=len(BODY) + 1)
                browsed = [seen async for seen in session.browse(name, selector="colour = 'red'")]
                assert await session.open_body(browsed[0], 5).read(100) == BODY[5:105]
                await message.confirm()
                with pytest.raises(NoSuchStream):
                    await body_of(message)
            async with session.receive(name) as consumer:
                (message,) = await take(consumer, 1)
                assert not message.is_large and message.size == 5
                assert await body_of(message) == b"small"
                assert await message.stream(offset=2).read() == b"all"
                await message.confirm()
            await is_free(connection, name)

    run(scenario())


@pytest.mark.parametrize("size", [0, 1, limits.FRAGMENT_BYTES_MAX])
def test_b12_a_body_that_fits_a_fragment_is_sent_like_any_other(server: Topology, name: str, size: int) -> None:
    body = BODY[:size]

    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send_stream(name, io.BytesIO(body))
            if size:
                await session.send_stream(name, io.BytesIO(body), key=f"{name}-{size}")
            async with session.receive(name) as consumer:
                (message,) = await take(consumer, 1)
                assert message.body == await body_of(message) == body and not message.is_large
                await message.confirm()
                if size:
                    (message,) = await take(consumer, 1)
                    assert message.is_large and await body_of(message) == body
                    await message.confirm()

    run(scenario())


def test_b12_a_topic_keeps_the_body_until_the_last_subscription_has_confirmed(server: Topology, name: str) -> None:
    async def scenario() -> None:
        topic = f"topic:{name}"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            for durable in ("a", "b"):
                async with session.receive(topic, durable=durable):
                    pass
            await session.send_stream(topic, [BODY])
            await session.send(topic, b"behind it")
            for durable in ("a", "b"):
                assert await held_bytes(connection, name) > len(BODY)
                async with session.receive(topic, durable=durable) as consumer:
                    large, small = await take(consumer, 2)
                    assert await body_of(large) == BODY
                    await large.confirm()
                    await small.confirm()
            await is_free(connection, name)
            await session.send_stream(topic, [BODY])
            await connection.command("purge", {"destination": topic})
            await is_free(connection, name)
            await session.send_stream(topic, [BODY])
            await connection.command("drop", {"destination": topic})
            await session.send(topic, b"made anew")
            await is_free(connection, name)

    run(scenario())


def test_b12_a_dead_message_keeps_its_body_and_takes_it_back(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await connection.command("set_policy", {"pattern": name, "policy": {"deliveries_max": 1}})
            await session.send_stream(name, [BODY], properties={"kept": 1})
            async with session.receive(name) as consumer:
                (message,) = await take(consumer, 1)
                await message.reject("no use")
                assert await is_idle(consumer)
            await is_free(connection, name)
            async with session.receive("_DMQ", selector="kept = 1") as consumer:
                (dead,) = await take(consumer, 1)
                assert dead.dead is not None and dead.dead["reason"]
                assert dead.size == len(BODY) and await body_of(dead) == BODY
                await dead.reject()
            assert (await connection.command("resend", {"destination": name})) == {"resent": 1}
            async with session.receive(name) as consumer:
                (message,) = await take(consumer, 1)
                assert await body_of(message) == BODY and message.dead is None
                await message.confirm()
            await is_free(connection, name, "_DMQ")
            await connection.command("set_policy", {"pattern": name, "policy": {"expired": "dead"}})
            await session.send_stream(name, [BODY], properties={"kept": 2}, ttl=0.2)
            async with session.receive("_DMQ", selector="kept = 2") as consumer:
                (dead,) = await take(consumer, 1)
                assert await body_of(dead) == BODY
                await dead.confirm()
            await is_free(connection, name, "_DMQ")
            await connection.command("set_policy", {"pattern": name, "policy": {"expired": "drop"}})
            await session.send_stream(name, [BODY], ttl=0.2)
            await is_free(connection, name)
            await connection.command("remove_policy", {"pattern": name})

    run(scenario())


def test_b12_a_body_waits_with_its_message_for_time_and_transaction(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            async with connection.session(transacted=True) as transacted:
                await transacted.send_stream(name, [BODY])
                async with session.receive(name) as consumer:
                    assert await is_idle(consumer)
                    await transacted.rollback()
                    await is_free(connection, name)
                    await transacted.send_stream(name, [BODY])
                    await transacted.commit()
                    (message,) = await take(consumer, 1)
                    assert await body_of(message) == BODY
                    await message.confirm()
            await is_free(connection, name)
            await session.send_stream(name, [BODY], delay=0.4)
            assert (await describe(connection, name))["delayed"] == 1
            async with session.receive(name) as consumer:
                (message,) = await take(consumer, 1)
                assert await body_of(message) == BODY
                await message.confirm()
            await is_free(connection, name)

    run(scenario())


@pytest.mark.parametrize("shared_server", ["single"], indirect=True)
def test_b12_a_body_is_retained_with_its_message_and_counts(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await connection.command("create", {"destination": f"queue:{name}"})
            await connection.command("set_policy", {"pattern": name, "policy": {"retain_ms": 600_000}})

            async def retains() -> bool:
                return bool((await describe(connection, name))["retained_from"])

            await until(retains, "it retains")
            await session.send_stream(name, [BODY])
            async with session.receive(name) as consumer:
                (message,) = await take(consumer, 1)
                await message.confirm()
            kept = [seen async for seen in session.browse(name, start=1)]
            assert await session.open_body(kept[0]).read() == BODY
            await connection.command("set_policy", {"pattern": name, "policy": {"retain_bytes": MIB}})
            await is_free(connection, name)  # without its body it would not be too much
            await connection.command("remove_policy", {"pattern": name})

    run(scenario())


# --- twin and command line ----------------------------------------------------------------------------


def test_b12_the_blocking_twin_streams(server: Topology, name: str, tmp_path: Path) -> None:
    with clarion.sync.connect(server.url) as connection, connection.session() as session:
        source = tmp_path / "source"
        source.write_bytes(BODY)
        with source.open("rb") as file:
            identity = session.send_stream(name, file, properties={"a": 1})
        assert session.send_stream(name, (BODY[at : at + 100_000] for at in range(0, len(BODY), 100_000)))
        with session.receive(name) as consumer:
            message = consumer.receive(timeout=WAIT_S)
            assert message is not None and message.id == identity and message.size == len(BODY)
            reader = message.stream()
            assert reader.read(10) + b"".join(reader) == BODY and reader.offset == reader.size == len(BODY)
            assert message.save(tmp_path / "saved").read_bytes() == BODY
            message.confirm()
            second = consumer.receive(timeout=WAIT_S)
            assert second is not None and second.stream(offset=7).read() == BODY[7:]
            browsed = next(session.browse(name))
            assert session.open_body(browsed).read(10) == BODY[:10]
            second.confirm()


@pytest.mark.parametrize("shared_server", ["single"], indirect=True)
def test_b12_the_command_line_sends_and_receives_large_files(server: Topology, name: str, tmp_path: Path) -> None:
    source = tmp_path / "film"
    source.write_bytes(BODY)

    def clarion_command(*arguments: str) -> bytes:
        command = [sys.executable, "-m", "clarion", *arguments, "--url", server.url]
        return subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S * 2).stdout

    sent = clarion_command("send", name, "--file", str(source), "--key", "film", "-p", "a=1").split()
    assert clarion_command("send", name, "--file", str(source), "--key", "film").split() == sent
    listed = json.loads(clarion_command("browse", name, "--json"))
    assert listed["size"] == len(BODY) and "body" not in listed
    refused = subprocess.run(
        [sys.executable, "-m", "clarion", "receive", name, "--count", "1", "--json", "--url", server.url],
        capture_output=True, text=True, timeout=WAIT_S * 2,
    )  # fmt: skip
    assert refused.returncode != 0 and "--out" in refused.stderr and not refused.stdout
    path = clarion_command("receive", name, "--count", "1", "--out", str(tmp_path / "out")).strip()
    assert Path(path.decode()).read_bytes() == BODY
    clarion_command("send", name, "--file", str(source))
    assert clarion_command("receive", name, "--count", "1") == BODY + b"\n"
