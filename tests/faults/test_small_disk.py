"""A server on a file system of 32 MiB: it fills, it says so, it drains, and it goes on (A-05, A-08).

Producers wait and nobody crashes; confirmations and checkpoints go on with nothing free at all; a subscription that
nobody consumes stops its own destination and no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clarion
from benchmarks.small_disk import FOREIGN, mounted
from benchmarks.small_disk import fill as fill_disk
from clarion.testing.invariants import Ledger
from clarion.testing.server import ServerProcess

pytestmark = pytest.mark.root

DISK_BYTES = 32 << 20
BODY_BYTES = 30_000
BUFFER_BYTES = 1 << 20
"""Of a session: so little that a broker that refuses is felt at once."""
WAIT_S = 60.0
QUEUES = ("queue:orders", "queue:letters")


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small file system, mounted while the test runs."""
    with mounted(tmp_path, DISK_BYTES, request.param) as point:
        yield point


@pytest.fixture
def server(disk: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """Its log is elsewhere: what it says is wanted most when the disk is full."""
    process = ServerProcess(disk / "data")
    process.log_path = tmp_path / "server.log"
    with process:
        yield process
        assert process.process is not None
        assert process.process.poll() is None, process.log()[-2000:]
        assert process.stop() == 0
        for word in ("fault", "loop_error", "Traceback", "messages_lost"):
            assert word not in process.log(), process.log()[-2000:]


async def fill(session: clarion.Session, destination: str, ledger: Ledger) -> list[bytes]:
    """Send until the client says that it must wait, and the broker has no room; what was sent."""
    bodies = [ledger.new_body(destination, BODY_BYTES)]
    while True:
        try:
            session.send_nowait(destination, bodies[-1])
        except clarion.Blocked:
            if await full(session, destination):
                ledger.sent.pop(bodies.pop())
                return bodies
        else:
            bodies.append(ledger.new_body(destination, BODY_BYTES))


async def insist(session: clarion.Session, destination: str) -> None:
    """Never stop to send: the quota is a share of a journal that may still grow."""
    while True:
        await session.writable()
        session.send_nowait(destination, bytes(BODY_BYTES))


async def full(session: clarion.Session, destination: str) -> bool:
    """Whether there is no room for more, and it is not only that we are faster than the network and the allocator."""
    room = asyncio.ensure_future(session.writable())
    while not room.done():
        status = await status_of(session)
        described = await session.command("destinations")
        mine = next((found for found in described if destination.endswith(f":{found['name']}")), None)
        at_quota = mine is not None and mine["bytes"] >= 0.85 * mine["bytes_quota"]
        if status["producers_waiting"] and (at_quota or status["space"]["growth_blocked"]):
            room.cancel()
            await asyncio.gather(room, return_exceptions=True)
            return True
    return False


async def empty(session: clarion.Session, destination: str, ledger: Ledger, bodies: list[bytes]) -> None:
    """Receive and confirm until all of these are there."""
    async with session.receive_batches(destination) as consumer:
        while not ledger.received.keys() >= set(bodies):
            batch = await consumer.receive(timeout=WAIT_S)
            assert batch is not None, f"{destination}: {len(set(bodies) - ledger.received.keys())} did not come"
            for body in batch.bodies():
                ledger.on_received(body, batch.redelivered)
            await batch.confirm()
            for body in batch.bodies():
                ledger.on_confirmed(body)


async def grow(connection: clarion.Connection) -> None:
    """Make the journal as large as it gets: full once, and empty again."""
    ledger = Ledger()
    async with connection.session() as producer, connection.session() as consumer:
        bodies = await fill(producer, "queue:ballast", ledger)
        await empty(consumer, "queue:ballast", ledger, bodies)


async def status_of(session: clarion.Session) -> dict[str, Any]:
    status: dict[str, Any] = await session.command("status")
    return status


def test_a05_fifty_cycles_of_full_and_empty(server: ServerProcess) -> None:
    async def cycles() -> None:
        ledgers = {name: Ledger() for name in QUEUES}
        async with clarion.connect(server.url, buffer_bytes=BUFFER_BYTES) as connection:
            producers = {name: await connection.session() for name in QUEUES}
            consumer = await connection.session()
            for cycle in range(50):
                name = QUEUES[cycle % 2]
                bodies = await fill(producers[name], name, ledgers[name])
                assert bodies, f"cycle {cycle}: it did not resume"
                emptying = asyncio.ensure_future(empty(consumer, name, ledgers[name], bodies))
                # It resumes by itself, as soon as there is room.
                async with asyncio.timeout(WAIT_S):
                    await producers[name].flush()
                for body in bodies:
                    ledgers[name].on_stored(body)
                await emptying
            status = await status_of(consumer)
            assert status["depth"] == 0
            assert status["lost_messages"] == 0
            for session in (*producers.values(), consumer):
                await session.close()
        for ledger in ledgers.values():
            ledger.check()

    asyncio.run(cycles())


def test_a08_confirmations_go_on_with_nothing_free(server: ServerProcess, disk: Path) -> None:
    """Both queues full, and the file system too; then a kill, and a start on the full disk."""

    async def until_full() -> dict[str, tuple[Ledger, list[bytes]]]:
        found = {}
        async with clarion.connect(server.url, buffer_bytes=BUFFER_BYTES) as connection:
            for name in QUEUES:
                ledger = Ledger()
                session = await connection.session()
                bodies = await fill(session, name, ledger)
                found[name] = (ledger, bodies)
            fill_disk(disk)
            consumer = await connection.session()
            ledger, bodies = found[QUEUES[0]]
            async with consumer.receive(QUEUES[0], prefetch_messages=50) as receiver:
                for _ in range(50):
                    message = await receiver.receive(timeout=WAIT_S)
                    assert message is not None
                    ledger.on_received(message.body, message.redelivered)
                    await message.confirm()
                    ledger.on_confirmed(message.body)
            await asyncio.to_thread(server.kill)
        return found

    async def after(found: dict[str, tuple[Ledger, list[bytes]]]) -> None:
        """What was on its way may be there or not: a last message shows the end."""
        async with clarion.connect(server.url) as connection, connection.session() as session:
            for name, (ledger, _bodies) in found.items():
                last = ledger.new_body("last")
                sending = asyncio.ensure_future(session.send(name, last))
                await empty(session, name, ledger, [last])
                await sending
                ledger.check()
            assert (await status_of(session))["depth"] == 0

    found = asyncio.run(until_full())
    server.start()
    asyncio.run(after(found))
    (disk / FOREIGN).unlink()


def test_a08_an_abandoned_subscription_stops_only_its_destination(server: ServerProcess) -> None:
    async def abandoned() -> None:
        ledger = Ledger()
        async with clarion.connect(server.url, buffer_bytes=BUFFER_BYTES) as connection:
            consumer = await connection.session()
            async with consumer.receive("topic:prices", durable="desk"):
                pass
            blocked = await connection.session()
            await fill(blocked, "topic:prices", Ledger())
            insisting = asyncio.ensure_future(insist(blocked, "topic:prices"))
            producer = await connection.session()
            # Three times what the disk holds, through what is left of it.
            for _ in range(32):
                bodies = [ledger.new_body("anna", BODY_BYTES) for _ in range(100)]
                emptying = asyncio.ensure_future(empty(consumer, "queue:orders", ledger, bodies))
                for body in bodies:
                    await producer.writable()
                    producer.send_nowait("queue:orders", body)
                await producer.flush()
                for body in bodies:
                    ledger.on_stored(body)
                await emptying
            status = await status_of(consumer)
            assert status["producers_waiting"] == 1
            insisting.cancel()
            await asyncio.gather(insisting, return_exceptions=True)
            await consumer.command("unsubscribe", {"destination": "topic:prices", "subscription": "desk"})
            async with asyncio.timeout(WAIT_S):
                await blocked.flush()
            for session in (blocked, producer, consumer):
                await session.close()
        ledger.check()

    asyncio.run(abandoned())


def test_a05_constant_load_on_a_full_disk(server: ServerProcess, disk: Path) -> None:
    """Producers that never pause and consumers that do: checkpoints, recycling and compaction all the time."""

    async def load() -> None:
        ledgers = {name: Ledger() for name in QUEUES}
        async with clarion.connect(server.url, buffer_bytes=BUFFER_BYTES) as connection:

            async def produce(name: str) -> None:
                async with connection.session() as session:
                    for _ in range(12):
                        bodies = [ledgers[name].new_body(name, BODY_BYTES) for _ in range(100)]
                        for body in bodies:
                            await session.writable()
                            session.send_nowait(name, body)
                        await session.flush()
                        for body in bodies:
                            ledgers[name].on_stored(body)

            async def consume(name: str) -> None:
                """Confirms all but a few at once, so that little lives in many segments."""
                async with connection.session() as session, session.receive(name) as consumer:
                    kept: list[clarion.ReceivedMessage] = []
                    for number in range(1200):
                        message = await consumer.receive(timeout=WAIT_S)
                        assert message is not None, f"{name}: nothing after {number}"
                        ledgers[name].on_received(message.body, message.redelivered)
                        if number % 40 == 0:
                            kept.append(message)
                        else:
                            message.confirm_nowait()
                    await session.confirm(kept)

            await grow(connection)
            fill_disk(disk)
            await asyncio.gather(*(work(name) for name in QUEUES for work in (produce, consume)))
        for ledger in ledgers.values():
            ledger.check()

    asyncio.run(load())
