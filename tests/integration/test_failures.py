"""Processes stop, die and come back under load: nothing is lost, nothing doubled, flags tell the truth (B-02, B-05)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import clarion
from clarion.errors import ConnectionLost
from clarion.testing.invariants import Ledger
from clarion.testing.server import ServerProcess
from tests.integration.helpers import WAIT_S, bodies, describe, drain, is_idle, numbered, run, send_all, take, until
from tests.integration.topologies import TOPOLOGIES, Split, Topology

ROUNDS = 3
BURST = 20


def test_a05_a_clean_restart_keeps_everything(own_server: Topology) -> None:
    async def before() -> None:
        async with clarion.connect(own_server.url) as connection, connection.session() as session:
            await connection.command("create", {"destination": "queue:bounded", "quota_bytes": 123_456})
            for label in ("a", "b"):
                async with session.receive("topic:t", durable=label, shared=label == "b"):
                    pass
            await send_all(session, "topic:t", numbered(100))
            await send_all(session, "queue:q", numbered(1_000))
            async with session.receive("topic:t", durable="a") as consumer:
                messages = await take(consumer, 100)
                await session.confirm([message for message in messages if message.sequence % 3])
            async with session.receive("queue:q") as consumer:
                messages = await take(consumer, 10)
                await messages[0].reject()
                await session.confirm(messages[1:])

    async def after() -> None:
        async with clarion.connect(own_server.url) as connection, connection.session() as session:
            assert (await describe(connection, "bounded"))["bytes_quota"] == 123_456
            left = await drain(session, "topic:t", durable="a")
            assert [message.sequence for message in left] == list(range(3, 101, 3))
            assert all(message.redelivered for message in left)
            assert bodies(await drain(session, "topic:t", durable="b", shared=True)) == numbered(100)
            rest = await drain(session, "queue:q")
            assert sorted(bodies(rest)) == sorted([b"m0", *numbered(1_000)[10:]])
            assert rest[0].body == b"m0" and rest[0].redelivered and rest[0].delivery_count >= 2

            async def is_free() -> bool:
                found = await connection.command("destinations")
                return not any(known["bytes"] or known["depth"] for known in found)

            await until(is_free, "everything is released")

    run(before())
    for _ in range(2):
        own_server.stop()
        own_server.start()
    run(after())
    own_server.stop()


class Load:
    """One producer and one consumer of one queue, which go on whatever happens, and a ledger of it."""

    def __init__(self, connection: clarion.Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._stopped = asyncio.Event()
        self._sent: int | None = None
        self.ledger = Ledger()

    def stop(self) -> None:
        self._stopped.set()

    async def run(self) -> None:
        """Until `stop`, and until everything is confirmed."""
        await asyncio.gather(self._produce(), self._consume())

    async def _produce(self) -> None:
        ledger, sent = self.ledger, 0
        async with self._connection.session() as session:
            while not self._stopped.is_set():
                burst = [ledger.new_body(self._name, padding=sent % 300) for _ in range(BURST)]
                tickets = [session.send_nowait(f"queue:{self._name}", body) for body in burst]
                for body, ticket in zip(burst, tickets, strict=True):
                    await ticket
                    ledger.on_stored(body)
                sent += BURST
                await asyncio.sleep(0.002)
        self._sent = sent

    async def _consume(self) -> None:
        ledger = self.ledger
        async with (
            self._connection.session() as session,
            session.receive(f"queue:{self._name}", prefetch_messages=100) as consumer,
        ):
            held = []
            while self._sent is None or len(ledger.confirmed) < self._sent:
                message = await consumer.receive(timeout=0.2)
                if message is not None:
                    ledger.on_received(message.body, message.redelivered)
                    held.append(message)
                if held and (message is None or len(held) == 7):
                    await session.confirm(held)
                    for confirmed in held:
                        ledger.on_confirmed(confirmed.body)
                    held = []


async def disturbed(urls: list[str], disturb: Callable[[], None]) -> None:
    """Run loads while `disturb` is called some times; every promise must hold."""
    async with clarion.connect(urls) as connection:
        loads = [Load(connection, f"load{number}") for number in range(3)]
        running = [asyncio.create_task(load.run()) for load in loads]
        for _ in range(ROUNDS):
            progress = [len(load.ledger.confirmed) for load in loads]

            async def goes_on(before: list[int] = progress) -> bool:
                return all(len(load.ledger.confirmed) > n + 50 for load, n in zip(loads, before, strict=True))

            await until(goes_on, "every load goes on")
            await asyncio.to_thread(disturb)
        for load in loads:
            load.stop()
        await asyncio.wait_for(asyncio.gather(*running), 3 * WAIT_S)
        for load in loads:
            load.ledger.check()
        for found in await connection.command("destinations"):
            assert found["depth"] == 0 and found["lost_messages"] == 0, found


def reborn(process: ServerProcess) -> Callable[[], None]:
    """Kill it and start it again."""

    def again() -> None:
        process.kill()
        process.start()

    return again


@pytest.mark.parametrize(("topology", "victim"), [("single", "back"), ("split", "front"), ("split", "back")])
def test_b02_a_process_killed_under_load_loses_and_doubles_nothing(tmp_path: Path, topology: str, victim: str) -> None:
    server = TOPOLOGIES[topology](tmp_path)
    try:
        server.start()
        run(disturbed([server.url], reborn(server.front if victim == "front" else server.back)))
    finally:
        server.kill()


def test_b02_clients_go_over_to_another_client_manager(split_server: Split) -> None:
    other = split_server.add_front()
    other.start()
    fronts = [split_server.front, other]

    def swap() -> None:
        """The one that is there dies, after the other is there."""
        fronts[0].kill()
        fronts.reverse()
        fronts[1].start()

    # A client may be at the other before the message manager knows that the first is dead: order holds all the same.
    run(disturbed([process.url for process in fronts], swap))


def test_b05_messages_of_a_client_manager_that_died_come_back_to_others(split_server: Split) -> None:
    other = split_server.add_front()
    other.start()

    async def scenario() -> None:
        async with clarion.connect(other.url) as connection, connection.session() as session:
            await send_all(session, "queue:q", numbered(20))
            async with clarion.connect(split_server.front.url, reconnect=False) as doomed:
                victim = await doomed.session()
                held = await take(victim.receive("queue:q"), 20)
                await victim.confirm(held[:5])
                async with session.receive("queue:q") as consumer:
                    assert await is_idle(consumer)
                    split_server.front.kill()
                    again = await take(consumer, 15)
                    assert bodies(again) == numbered(20)[5:]
                    assert all(message.redelivered and message.delivery_count == 2 for message in again)
                    await session.confirm(again)
                with pytest.raises(ConnectionLost):
                    await held[9].confirm()

    run(scenario())


def test_b05_a_message_manager_that_comes_late_is_served_what_was_asked_before(split_server: Split) -> None:
    async def scenario() -> None:
        async with clarion.connect(split_server.url) as connection, connection.session() as session:
            await session.send("queue:q", b"first")
            split_server.back.kill()
            tickets = [session.send_nowait("queue:q", body) for body in numbered(10)]
            consumer = session.receive("queue:q")
            receiving = asyncio.create_task(take(consumer, 11))
            await asyncio.sleep(0.3)
            assert not any(ticket.done for ticket in tickets)
            await asyncio.to_thread(split_server.back.start)
            assert bodies(await receiving) == [b"first", *numbered(10)]
            for ticket in tickets:
                await ticket

    run(scenario())
