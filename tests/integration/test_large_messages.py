"""Very large messages: in fragments, between other traffic, through every process, with little memory (B-12)."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import clarion
from clarion import limits
from clarion.errors import BadArgument, MessageTooLarge, NoSuchStream
from clarion.testing.server import ServerProcess
from tests.integration.helpers import WAIT_S, describe, is_idle, run, take, until
from tests.integration.large_process import MIB, Counted, Expected, Growth, blocks
from tests.integration.topologies import TOPOLOGIES, Single, Split, Topology, started

GROWN_MIB_MAX = 50
IDLE_MESSAGES = 1_000
"""Before and after: how long small messages take when there is no large one."""
IDLE_MESSAGES_LONG = 5_000
"""The same for bodies of gigabytes: a p99 of half a second says little of one of minutes."""
DISK_EXTRA_BYTES = 1 << 30
"""Beside a body: the journal's spare and reserved segments, and what other tests write meanwhile."""
BODY = b"".join(blocks(3 * MIB + 12_345))
"""Thirteen fragments, the last one shorter."""


async def body_of(message: clarion.ReceivedMessage) -> bytes:
    return await message.stream().read()


async def held_bytes(connection: clarion.Connection, name: str) -> int:
    held: int = (await describe(connection, name))["bytes"]
    return held


async def is_free(connection: clarion.Connection, *names: str) -> None:
    """Nothing of the journal is held for these destinations."""

    async def free() -> bool:
        found = {known["name"]: known for known in await connection.command("destinations", {"system": True})}
        return not any(found[name]["bytes"] or found[name]["streams"] for name in names)

    await until(free, f"{names} hold nothing")


# --- size and memory --------------------------------------------------------------------------------


def worker(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.integration.large_process", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def result_of(process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    try:
        printed, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(printed)
    return found


class Others:
    """A process that has nothing to do with the body: how long its messages take."""

    def __init__(self, url: str, name: str) -> None:
        command = [sys.executable, "-m", "tests.integration.large_process", "others", url, f"queue:{name}-others"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def took(self, messages: int = 0) -> list[float]:
        """Milliseconds since the last call, sorted; of so many messages at least."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"%d\n" % messages)
        self._process.stdin.flush()
        found: list[float] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.communicate(timeout=WAIT_S)
        assert self._process.returncode == 0


def told_of(took_ms: list[float], idle_ms: list[float]) -> str:
    p50, p99 = took_ms[len(took_ms) // 2], took_ms[len(took_ms) * 99 // 100]
    idle = idle_ms[len(idle_ms) * 99 // 100]
    return f"{len(took_ms)} messages of others, p50 {p50:.2f} ms, p99 {p99:.2f} ms, {p99 / idle:.1f} x idle"


def through(server: Topology, name: str, size: int, seconds: float, idle: int = IDLE_MESSAGES) -> None:
    """A body from a process to another; nobody grows, and small messages pass it by."""
    others = Others(server.url, name)
    others.took(100)  # begun
    idle_ms = others.took(idle)
    grown = {f"server {process.data.name}": Growth(process.pid) for process in server.processes}
    sent = result_of(worker("send", server.url, f"queue:{name}", str(size)), seconds)
    sending_ms = others.took(1)
    received = result_of(worker("receive", server.url, f"queue:{name}"), seconds)
    receiving_ms = others.took(1)
    idle_ms = sorted(idle_ms + others.took(idle))
    others.close()
    assert sent["bytes"] == received["bytes"] == size
    assert received["is_equal"], "every byte is the one that was sent"
    assert sent["wire_bytes"] == received["wire_bytes"] == size, "every byte went over the wire once"
    peaks = {who: growth.mib for who, growth in grown.items()}
    peaks |= {"sender": sent["grown_mib"], "receiver": received["grown_mib"]}
    print(f"\n{size // MIB} MiB through {type(server).__name__}: grown by MiB {peaks}")
    print(f"  idle: {told_of(idle_ms, idle_ms)}")
    for what, seen, took_ms in (("sending", sent, sending_ms), ("receiving", received, receiving_ms)):
        rate = size / MIB / seen["seconds"]
        print(f"  {what}: {seen['seconds']} s, {rate:.0f} MiB/s; on the same connection {seen['small_messages']} small "
              f"messages, p99 {seen['small_p99_ms']} ms; {told_of(took_ms, idle_ms)}")  # fmt: skip
    assert max(peaks.values()) < GROWN_MIB_MAX, peaks
    assert sent["small_messages"] > 5 and received["small_messages"] > 5, "small messages pass between fragments"


@pytest.mark.parametrize("piece", [1_000, 240 * 1024, 3 * MIB])
def test_b12_a_wrong_byte_would_be_seen(piece: int) -> None:
    def compared(body: bytes) -> Expected:
        expected = Expected()
        for at in range(0, len(body), piece):
            expected.take(body[at : at + piece])
        return expected

    seen = compared(BODY)
    assert (seen.size, seen.is_equal) == (len(BODY), True)
    for at in (0, 7, 8, MIB - 1, MIB + 7, len(BODY) - 1):
        assert not compared(BODY[:at] + bytes([BODY[at] ^ 1]) + BODY[at + 1 :]).is_equal


def test_b12_a_large_body_passes_every_process_in_little_memory(server: Topology, name: str) -> None:
    if isinstance(server, Split):
        # The bus has pools of shared memory, 16 MiB for each direction, which fill with the first traffic, and stay.
        for verb, *size in (("send", str(40 * MIB)), ("receive",)):
            result_of(worker(verb, server.url, f"queue:{name}", *size), WAIT_S * 3)
    through(server, name, 64 * MIB, WAIT_S * 3)
    run(_freed(server, name))


async def _freed(server: Topology, name: str) -> None:
    async with clarion.connect(server.url) as connection:
        await is_free(connection, name)


@pytest.mark.timeout(900)
def test_b12_two_gibibytes(tmp_path: Path) -> None:
    _through_own_server(tmp_path, 2 << 30, 400)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_b12_twenty_gibibytes(tmp_path: Path) -> None:
    """About as much as the memory of a large machine."""
    _through_own_server(tmp_path, 20 << 30, 1700)


def _through_own_server(tmp_path: Path, size: int, seconds: float) -> None:
    needed, free = size + DISK_EXTRA_BYTES, shutil.disk_usage(tmp_path).free
    if free < needed:
        pytest.skip(f"{needed / 1e9:.1f} GB of disk are needed in {tmp_path}, {free / 1e9:.1f} are free")
    try:
        with started(Single(tmp_path, {"CLARION_JOURNAL_SEGMENT_BYTES": "64MiB"})) as server:
            through(server, "large", size, seconds, IDLE_MESSAGES_LONG)
            server.check_alive()
            server.stop()
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)  # pytest would keep it, and that of the last runs


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
