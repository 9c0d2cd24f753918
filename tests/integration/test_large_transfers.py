"""The course of a large transfer: stored as it comes, waiting, given up, finished, going on when a node dies (B-12)."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import clarion
from clarion import limits
from clarion.errors import MessageTooLarge
from clarion.testing.server import ServerProcess
from tests.integration.helpers import WAIT_S, describe, is_idle, run, take, until
from tests.integration.large_bodies import BODY, body_of, held_bytes, is_free
from tests.integration.large_process import MIB, Counted
from tests.integration.topologies import TOPOLOGIES, Split, Topology

# --- the course of a transfer -------------------------------------------------------------------------


def test_b12_the_first_fragment_is_on_disk_before_the_last_is_read(server: Topology, name: str) -> None:
    async def scenario() -> None:
        seen: list[Any] = []
        async with clarion.connect(server.url) as connection, connection.session() as session:

            async def body() -> AsyncIterator[bytes]:
                yield BODY[:MIB]

                async def stored() -> bool:
                    seen[:] = (await describe(connection, name))["streams"]
                    return bool(seen)

                await until(stored, "something is stored")  # an answer comes when everything before it is durable
                yield BODY[MIB:]

            sending = asyncio.create_task(session.send_stream(f"queue:{name}", body()))
            await sending
            assert seen[0]["bytes"] >= limits.FRAGMENT_BYTES_MAX and seen[0]["idle_ms"] < WAIT_S * 1000
            assert (await describe(connection, name))["streams"] == []

    run(scenario())


class Stalled:
    """A body that stops half way until it is told to go on."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.stalled = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield BODY[: 2 * MIB]
        self.stalled.set()
        await self.go_on.wait()
        yield BODY[2 * MIB :]


async def _stored_half(connection: clarion.Connection, name: str) -> None:
    async def stored() -> bool:
        found = (await describe(connection, name))["streams"]
        return bool(found) and found[0]["bytes"] >= MIB

    await until(stored, "half is stored")


def test_b12_what_is_not_sent_to_its_end_is_given_up(server: Topology, name: str) -> None:
    async def scenario() -> None:
        queue = f"queue:{name}"
        async with clarion.connect(server.url) as connection:
            session = await connection.session()
            sending = asyncio.create_task(session.send_stream(queue, Stalled()))
            await _stored_half(connection, name)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await is_free(connection, name)  # its sender gave it up
            sending = asyncio.create_task(session.send_stream(queue, Stalled()))
            await _stored_half(connection, name)
            await session.close()
            with pytest.raises(clarion.ClarionError):
                await sending
            await is_free(connection, name)  # its session ended
            session = await connection.session()
            sending = asyncio.create_task(session.send_stream(queue, Stalled(), key=name))
            await _stored_half(connection, name)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await session.close()
            await _stored_half(connection, name)  # with a key it stays
            counted = Counted(connection)
            async with connection.session() as other:
                first = await other.send_stream(queue, io.BytesIO(BODY), key=name)
                assert counted.sent_bytes <= len(BODY) - MIB
                assert await other.send_stream(queue, io.BytesIO(BODY), key=name) == first
                async with other.receive(queue) as consumer:
                    (message,) = await take(consumer, 1)
                    assert (message.id, await body_of(message)) == (first, BODY)
                    await message.confirm()
                    assert await other.send_stream(queue, io.BytesIO(BODY), key=name) == first, "it was sent"
                    assert await is_idle(consumer)
            await is_free(connection, name)

    run(scenario())


def test_b12_a_body_of_which_nothing_comes_any_more_is_given_up(tmp_path: Path) -> None:
    server = TOPOLOGIES["single"](tmp_path, {"CLARION_MESSAGE_MANAGER_STREAM_IDLE_MS": "500"})

    async def scenario() -> None:
        async with clarion.connect(server.url) as connection:
            async with clarion.connect(server.url) as doomed:
                session = await doomed.session()
                body = Stalled()
                sending = asyncio.create_task(session.send_stream("queue:q", body))
                await body.stalled.wait()
                await _stored_half(connection, "q")
            with pytest.raises(clarion.ClarionError):
                await sending
            await is_free(connection, "q")

    try:
        server.start()
        run(scenario())
        assert "stream_dropped" in server.log()
        server.stop()
    finally:
        server.kill()


def test_b12_a_body_that_can_never_fit_is_refused_at_once_and_its_room_given_back(server: Topology, name: str) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await connection.command("create", {"destination": f"queue:{name}", "quota_bytes": 2 * MIB})
            with pytest.raises(MessageTooLarge, match=str(2 * MIB)):
                await session.send_stream(name, io.BytesIO(BODY))
            assert await held_bytes(connection, name) == 0
            with pytest.raises(MessageTooLarge):  # its size is not known before
                await session.send_stream(name, iter([BODY]))
            await is_free(connection, name)
            await session.send_stream(name, [BODY[:MIB]])
            # As many bytes as the quota do not fit, with what the journal needs for each fragment.
            await connection.command("create", {"destination": f"queue:{name}-exact", "quota_bytes": len(BODY)})
            for body in (io.BytesIO(BODY), iter([BODY])):
                with pytest.raises(MessageTooLarge):
                    await session.send_stream(f"{name}-exact", body)
            await is_free(connection, f"{name}-exact")
            await session.send_stream(f"{name}-exact", io.BytesIO(BODY[: len(BODY) - 8_192]))

    run(scenario())


def test_b12_bodies_that_fit_one_at_a_time_wait_for_each_other(server: Topology, name: str) -> None:
    """Two halves of each in a full destination would wait for ever."""
    half = BODY[: 3 * MIB // 2]

    async def scenario() -> None:
        async with clarion.connect(server.url) as connection:
            await connection.command("create", {"destination": f"queue:{name}", "quota_bytes": 2 * MIB})

            async def send(number: int) -> None:
                async with connection.session() as session:
                    await session.send_stream(name, io.BytesIO(half), properties={"number": number})

            sending = [asyncio.create_task(send(number)) for number in range(3)]
            async with connection.session() as session, session.receive(name) as consumer:
                seen = set()
                for message_number in range(3):
                    (message,) = await take(consumer, 1)
                    assert (await describe(connection, name))["depth"] == 1, message_number
                    assert await body_of(message) == half
                    seen.add(message.properties["number"])
                    await message.confirm()
                assert seen == {0, 1, 2}
            await asyncio.gather(*sending)
            await is_free(connection, name)

    run(scenario())


def test_b12_a_file_is_saved_and_an_interrupted_one_finished(server: Topology, name: str, tmp_path: Path) -> None:
    target, part = tmp_path / "film", tmp_path / "film.part"

    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            counted = Counted(connection)
            await session.send_stream(name, [BODY])
            async with session.receive(name) as consumer:
                (message,) = await take(consumer, 1)
                assert await message.save(target) == target
                assert target.read_bytes() == BODY and counted.asked_bytes == len(BODY)
                for begun, asked in ((BODY[:2_000_000], len(BODY) - 2_000_000), (BODY, 0)):
                    part.write_bytes(begun)
                    before = counted.asked_bytes
                    await message.save(target)
                    assert target.read_bytes() == BODY and not part.exists()
                    assert counted.asked_bytes - before == asked, "what was there is not read again"
                for wrong in (b"x" * 2_000_000, b"x" * len(BODY), b"x" * 2 * len(BODY)):
                    part.write_bytes(wrong)
                    await message.save(target)
                    assert target.read_bytes() == BODY and not part.exists()
                await message.confirm()
            await session.send(name, b"small")
            async with session.receive(name) as consumer:
                (message,) = await take(consumer, 1)
                part.write_bytes(b"sma")
                await message.save(target)
                assert target.read_bytes() == b"small"
                await message.confirm()

    run(scenario())


# --- nodes come and go --------------------------------------------------------------------------------


def test_b12_a_transfer_outlives_a_client_manager(split_server: Split) -> None:
    run(_outlives(split_server, split_server.front))


def test_b12_a_transfer_outlives_a_message_manager(split_server: Split) -> None:
    run(_outlives(split_server, split_server.back))


async def _outlives(split_server: Split, node: ServerProcess) -> None:
    async with clarion.connect(split_server.url) as connection, connection.session() as session:
        counted = Counted(connection)
        body = Stalled()
        sending = asyncio.create_task(session.send_stream("queue:q", body))
        await body.stalled.wait()
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
        body.go_on.set()
        await sending
        window = limits.FRAGMENTS_UNANSWERED_MAX * limits.FRAGMENT_BYTES_MAX
        assert len(BODY) <= counted.sent_bytes <= len(BODY) + window
        async with session.receive("queue:q") as consumer:
            (message,) = await take(consumer, 1)
            reader = message.stream()
            begin = await reader.read(MIB)
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)
            assert begin + await reader.read() == BODY
            assert counted.asked_bytes <= len(BODY) + window
            await message.confirm()
        await is_free(connection, "q")
