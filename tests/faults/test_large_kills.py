"""Large bodies through kills, damage and a full disk: they go on where they were, or are given up (B-12)."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import clarion
from benchmarks.small_disk import FOREIGN, fill, mounted
from clarion import limits
from clarion.errors import RecordDamaged
from clarion.testing.server import ServerFailed, ServerProcess
from tests.integration.helpers import describe, run, until
from tests.integration.large_process import MIB, Counted, blocks

WAIT_S = 60.0
WINDOW_BYTES = limits.FRAGMENTS_UNANSWERED_MAX * limits.FRAGMENT_BYTES_MAX
"""What may be on its way when a connection is lost: so much is sent, or asked for, again at most."""
SMALL_JOURNAL = {"CLARION_JOURNAL_SEGMENT_BYTES": "1MiB", "CLARION_JOURNAL_BYTES_MAX": "48MiB"}
"""So that there are checkpoints, and segments are used again."""
BODY = b"".join(blocks(6 * MIB + 54_321))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", environment=SMALL_JOURNAL) as process:
        yield process
        assert process.process is not None and process.process.poll() is None, process.log()[-2000:]
        assert process.stop() == 0
        for word in ("fault", "loop_error", "Traceback"):
            assert word not in process.log(), process.log()[-3000:]


def born_again(server: ServerProcess) -> None:
    server.kill()
    server.start()


async def interrupted(body: bytes, at: int, interrupt: Callable[[], None]) -> AsyncIterator[bytes]:
    """A body in the middle of which something happens."""
    for offset in range(0, len(body), 100_000):
        if offset <= at < offset + 100_000:
            await asyncio.to_thread(interrupt)
        yield body[offset : offset + 100_000]


async def received(session: clarion.Session, queue: str) -> bytes:
    async with session.receive(queue) as consumer:
        message = await consumer.receive(timeout=WAIT_S)
        assert message is not None
        body = await message.stream().read()
        await message.confirm()
    return body


async def is_empty(connection: clarion.Connection, name: str) -> None:
    async def empty() -> bool:
        found = await describe(connection, name)
        return not found["bytes"] and not found["streams"]

    await until(empty, f"{name} holds nothing")


# --- kills of the server ------------------------------------------------------------------------------


def broken() -> None:
    raise ZeroDivisionError


def test_b12_a_kill_in_the_middle_of_sending_and_of_receiving_does_not_begin_anew(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            counted = Counted(connection)
            middle = interrupted(BODY, len(BODY) // 2, lambda: born_again(server))
            await session.send_stream("queue:q", middle)
            again = counted.sent_bytes - len(BODY)
            print(f"\nsent again after a kill: {again} of {len(BODY)} bytes")
            assert 0 <= again <= WINDOW_BYTES
            async with session.receive("queue:q") as consumer:
                message = await consumer.receive(timeout=WAIT_S)
                assert message is not None
                reader = message.stream()
                body = await reader.read(len(BODY) // 2)
                await asyncio.to_thread(born_again, server)
                body += await reader.read()
                assert body == BODY
                again = counted.asked_bytes - len(BODY)
                print(f"asked for again after a kill: {again} bytes")
                assert 0 <= again <= WINDOW_BYTES
                await message.confirm()
            await is_empty(connection, "q")

    run(scenario())


POINTS = (
    "mm.before_fragment=kill@9",
    "mm.after_fragment=kill@9",
    "mm.before_published=kill@1",
)
MORE_POINTS = (
    "mm.before_publish=kill@1",
    "journal.before_write=kill@7",
    "journal.after_write=kill@7",
    "journal.before_sync=kill@8",
    "journal.after_sync=kill@8",
    "journal.checkpoint_begin=kill@1",
    "journal.checkpoint_end=kill@1",
    "cm.before_relay=kill@12",
    "cm.before_reply=kill@12",
)


def test_b12_a_body_survives_a_kill_at_its_test_points(server: ServerProcess) -> None:
    asyncio.run(asyncio.wait_for(killed_at(server, POINTS), 200))


@pytest.mark.soak
def test_b12_a_body_survives_a_kill_at_every_test_point(server: ServerProcess) -> None:
    asyncio.run(asyncio.wait_for(killed_at(server, MORE_POINTS), 200))


async def killed_at(server: ServerProcess, points: tuple[str, ...]) -> None:
    """One transfer for each point; the server dies there, comes back, and the transfer ends well, once."""

    async def revived() -> None:
        """Wait for the death of its own, and start it again without the point."""
        assert await asyncio.to_thread(server.wait, WAIT_S) == -signal.SIGKILL, server.log()[-1000:]
        await asyncio.to_thread(server.start)

    for number, point in enumerate(points):
        await asyncio.to_thread(server.kill)
        try:
            await asyncio.to_thread(server.start, {"CLARION_ARM": point})
        except ServerFailed:  # the point lies in the start itself
            await asyncio.to_thread(server.start)
            continue
        name = f"q{number}"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            counted = Counted(connection)
            reviving = asyncio.create_task(revived())
            await session.send_stream(f"queue:{name}", io.BytesIO(BODY), key=name)
            if not reviving.done() and point.startswith("journal.checkpoint"):
                reviving.cancel()  # there was none in this life
            else:
                await reviving
            # One window for the kill; whoever is told to wait for room, as a new journal may, sends another one again.
            assert counted.sent_bytes <= len(BODY) + 3 * WINDOW_BYTES, point
            assert (await describe(connection, name))["depth"] == 1, point
            assert await received(session, f"queue:{name}") == BODY, point
            await is_empty(connection, name)


def test_b12_bodies_and_messages_of_all_states_survive_a_kill(server: ServerProcess) -> None:
    """Complete, on its way with a key, in the wings, dead: as each was; and nothing is held in the end."""

    async def before() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send_stream("queue:whole", [BODY])
            await session.send_stream("queue:later", [BODY], delay=3)
            await connection.command("set_policy", {"pattern": "fatal", "policy": {"deliveries_max": 1}})
            await session.send_stream("queue:fatal", [BODY])
            async with session.receive("queue:fatal") as consumer:
                message = await consumer.receive(timeout=WAIT_S)
                assert message is not None
                await message.reject()
            await is_empty(connection, "fatal")
            with pytest.raises(ZeroDivisionError):
                await session.send_stream("queue:begun", interrupted(BODY, 5 * MIB, broken), key="b")

    async def after() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            assert await received(session, "queue:whole") == BODY
            assert await received(session, "queue:later") == BODY
            assert await received(session, "_DMQ") == BODY
            begun = (await describe(connection, "begun"))["streams"][0]["bytes"]
            counted = Counted(connection)
            await session.send_stream("queue:begun", [BODY], key="b")
            assert counted.sent_bytes == len(BODY) - begun < 3 * MIB
            assert await received(session, "queue:begun") == BODY
            for name in ("whole", "later", "begun"):
                await is_empty(connection, name)

            async def free() -> bool:
                space = (await connection.command("status"))["space"]
                return bool(space["bytes_live"] < 4 * MIB)

            await until(free, "the space is free again")

    run(before())
    born_again(server)
    run(after())


# --- the sender dies ------------------------------------------------------------------------------------


def test_b12_another_process_goes_on_by_the_key(server: ServerProcess) -> None:
    size = 20 * MIB

    def sender() -> subprocess.Popen[bytes]:
        arguments = ["send", server.url, "queue:q", str(size), "the key"]
        command = [sys.executable, "-m", "tests.integration.large_process", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    async def stored_bytes(connection: clarion.Connection) -> int:
        found = [known for known in await connection.command("destinations") if known["name"] == "q"]
        return found[0]["streams"][0]["bytes"] if found and found[0]["streams"] else 0

    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            first = sender()
            try:

                async def half() -> bool:
                    return await stored_bytes(connection) > size // 4

                await until(half, "a part is stored")
            finally:
                first.kill()
                await asyncio.to_thread(first.communicate)
            stored = await stored_bytes(connection)
            assert size // 4 < stored < size, "it died on the way"
            second = sender()
            try:
                printed, _ = await asyncio.to_thread(second.communicate, None, WAIT_S)
            finally:
                second.kill()
                second.wait()
            found: dict[str, Any] = json.loads(printed)
            print(f"\n{stored} bytes were stored; the second process sent {found['wire_bytes']} of {size}")
            assert size - stored - WINDOW_BYTES <= found["wire_bytes"] <= size - stored
            assert await received(session, "queue:q") == b"".join(blocks(size))
            await is_empty(connection, "q")

    run(scenario())


# --- damage -------------------------------------------------------------------------------------------


def flip(server: ServerProcess, needle: bytes) -> None:
    """Change a byte of this content wherever it lies on disk."""
    for path in sorted((server.data / "journal").glob("*.segment")):
        at = path.read_bytes().find(needle)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at + 5)
                file.write(bytes([needle[5] ^ 1]))
            return
    raise AssertionError("it is not there")


def test_b12_damage_is_told_to_the_reader_and_to_nobody_else(tmp_path: Path) -> None:
    """A fragment is damaged on disk: whoever reads it is told; the rest can be read; others do not notice."""
    damaged = BODY[2 * MIB + 500 : 2 * MIB + 600]

    async def before() -> None:
        async with clarion.connect(process.url) as connection, connection.session() as session:
            await session.send_stream("queue:q", [BODY])
            await session.send_stream("queue:q", [BODY[::-1]])

    async def after() -> None:
        async with clarion.connect(process.url) as connection, connection.session() as session:
            async with session.receive("queue:q") as consumer:
                message, other = [await consumer.receive(timeout=WAIT_S) for _ in range(2)]
                assert message is not None and other is not None
                reader = message.stream()
                with pytest.raises(RecordDamaged):
                    await reader.read()
                assert reader.offset <= 2 * MIB + 500
                assert await message.stream(offset=3 * MIB).read() == BODY[3 * MIB :]
                assert await other.stream().read() == BODY[::-1]
                await session.confirm(message, other)
            await is_empty(connection, "q")

    with ServerProcess(tmp_path / "data", environment=SMALL_JOURNAL) as process:
        run(before())
        flip(process, damaged)
        run(after())
        assert process.stop() == 0


def test_b12_a_body_damaged_in_the_log_of_the_last_life_is_lost_and_said_to_be(tmp_path: Path) -> None:
    """Before a checkpoint names its fragments they are known by the log alone."""

    async def before() -> None:
        async with clarion.connect(process.url) as connection, connection.session() as session:
            await session.send_stream("queue:q", [BODY[: 2 * MIB]])
            await session.send("queue:q", b"behind it")

    async def after() -> None:
        async with clarion.connect(process.url) as connection, connection.session() as session:
            async with session.receive("queue:q") as consumer:
                message = await consumer.receive(timeout=WAIT_S)
                assert message is not None and message.body == b"behind it"
                await message.confirm()
            await is_empty(connection, "q")
            assert (await describe(connection, "q"))["lost_messages"] == 1

    with ServerProcess(tmp_path / "data", environment={"CLARION_JOURNAL_SEGMENT_BYTES": "8MiB"}) as process:
        run(before())
        process.kill()
        flip(process, BODY[MIB + 500 : MIB + 600])
        process.start()
        run(after())
        assert "messages_lost" in process.log()
        assert process.stop() == 0


# --- a full disk ----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path, 32 << 20, "tmpfs") as point:
        yield point


@pytest.mark.root
def test_b12_a_full_disk_lets_a_body_wait_and_go_on(small_disk: Path, tmp_path: Path) -> None:
    """Others hold the room: the body waits, a kill changes nothing, and it goes on when they are gone."""
    process = ServerProcess(small_disk / "data")
    process.log_path = tmp_path / "server.log"
    filling = bytes(100_000)

    async def scenario() -> None:
        async with clarion.connect(process.url, buffer_bytes=1 << 20) as connection:
            blocker, session = await connection.session(), await connection.session()
            counted = Counted(connection)
            body = Body()
            sending = asyncio.create_task(session.send_stream("queue:large", body))
            await body.begun.wait()

            async def full() -> bool:
                for _ in range(100):
                    blocker.try_send("queue:others", filling)
                return bool((await connection.command("status"))["producers_waiting"])

            await until(full, "others have filled the disk")
            fill(small_disk)
            body.go_on.set()

            async def waits() -> bool:
                return bool((await connection.command("status"))["producers_waiting"] >= 2)

            await until(waits, "the body waits")
            assert not sending.done()
            await asyncio.to_thread(born_again, process)
            await until(waits, "it waits again")
            assert not sending.done()
            (small_disk / FOREIGN).unlink()
            async with connection.session() as taker, taker.receive_batches("queue:others") as consumer:
                while not sending.done():
                    batch = await consumer.receive(timeout=1)
                    if batch is not None:
                        await batch.confirm()
            await sending
            print(f"\nsent again by a full disk and a kill: {counted.sent_bytes - len(BODY)} of {len(BODY)} bytes")
            assert await received(session, "queue:large") == BODY
            await is_empty(connection, "large")
            await blocker.close(flush=False)

    class Body:
        def __init__(self) -> None:
            self.begun, self.go_on = asyncio.Event(), asyncio.Event()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield BODY[:MIB]
            self.begun.set()
            await self.go_on.wait()
            yield BODY[MIB:]

    with process:
        run(scenario())
        assert process.stop() == 0
        for word in ("fault", "loop_error", "Traceback", "messages_lost"):
            assert word not in process.log(), process.log()[-3000:]
