"""SIGKILL of a real server under load, at moments of chance and at every test point (A-05, A-08).

Producers and consumers know nothing of it: their connections come back by themselves. In the end the ledgers
decide: everything confirmed to producers arrives, nothing comes again after its own confirmation returned, the
order of each producer holds, and flags tell the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

import clarion
from clarion.testing.invariants import Ledger
from clarion.testing.server import ServerFailed, ServerProcess

QUEUE, TOPIC, SUBSCRIPTION = "queue:orders", "topic:prices", "desk"
WAIT_S = 60.0
SMALL_JOURNAL = {"CLARION_JOURNAL_SEGMENT_BYTES": "512KiB", "CLARION_JOURNAL_BYTES_MAX": "12MiB"}
"""So that every life has checkpoints, and segments are used again."""
POINTS = (
    "mm.before_publish",
    "mm.before_published",
    "mm.before_deliver",
    "mm.before_confirm",
    "mm.before_confirmed",
    "journal.before_write",
    "journal.after_write",
    "journal.before_sync",
    "journal.after_sync",
    "journal.checkpoint_begin",
    "journal.checkpoint_end",
    "journal.recycle",
    "cm.before_relay",
    "cm.before_reply",
)


class Load:
    """Producers and consumers that go on until told to stop, and what they saw."""

    def __init__(self, url: str, seed: int) -> None:
        self.ledgers = {QUEUE: Ledger(), TOPIC: Ledger()}
        self.events = 0
        """Answers so far: what kills are timed by."""
        self._url = url
        self._rng = Random(seed)
        self._stopping = False
        self._progress = asyncio.Event()
        self._stack = AsyncExitStack()
        self._producing: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        connection = await self._stack.enter_async_context(clarion.connect(self._url))
        queue_session = await self._stack.enter_async_context(connection.session())
        topic_session = await self._stack.enter_async_context(connection.session())
        topic = topic_session.receive_batches(TOPIC, durable=SUBSCRIPTION)
        await self._stack.enter_async_context(topic)
        queue = queue_session.receive(QUEUE)
        await self._stack.enter_async_context(queue)
        start = asyncio.get_running_loop().create_task
        self._consuming = [start(self._consume_single(queue_session, queue)), start(self._consume_batches(topic))]
        for number, destination in enumerate((QUEUE, TOPIC, QUEUE, TOPIC)):
            session = await self._stack.enter_async_context(connection.session())
            produce = self._produce_many if number < 2 else self._produce_single
            self._producing.append(start(produce(session, destination, f"p{number}")))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for task in (*self._producing, *self._consuming):
            task.cancel()
        await asyncio.gather(*self._producing, *self._consuming, return_exceptions=True)
        if kind is None:
            await self._stack.aclose()

    def _count(self) -> None:
        self.events += 1
        self._progress.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for it; a producer or consumer that failed fails the test."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                for task in (*self._producing, *self._consuming):
                    if task.done() and not task.cancelled():
                        task.result()
                self._progress.clear()
                waiting = asyncio.ensure_future(self._progress.wait())
                running = [task for task in (*self._producing, *self._consuming) if not task.done()]
                await asyncio.wait([waiting, *running], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()

    async def stop(self) -> None:
        """Producers end; everything stored is received and confirmed."""
        self._stopping = True
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*self._producing)
        await self.until(lambda: all(ledger.stored <= ledger.confirmed for ledger in self.ledgers.values()))

    # --- producers --------------------------------------------------------------------------------

    async def _produce_many(self, session: clarion.Session, destination: str, name: str) -> None:
        ledger, rng = self.ledgers[destination], Random(self._rng.random())
        while not self._stopping:
            bodies = [ledger.new_body(name, rng.choice((0, 100, 2000))) for _ in range(rng.randint(1, 60))]
            for body in bodies:
                session.send_nowait(destination, body)
            await session.flush()
            for body in bodies:
                ledger.on_stored(body)
            self._count()

    async def _produce_single(self, session: clarion.Session, destination: str, name: str) -> None:
        ledger = self.ledgers[destination]
        while not self._stopping:
            body = ledger.new_body(name, 50)
            await session.send(destination, body)
            ledger.on_stored(body)
            self._count()

    # --- consumers --------------------------------------------------------------------------------

    async def _consume_single(self, session: clarion.Session, consumer: clarion.Consumer) -> None:
        ledger, rng = self.ledgers[QUEUE], Random(self._rng.random())
        pile: list[clarion.ReceivedMessage] = []
        while True:
            message = await consumer.receive(timeout=0.05 if pile else None)
            if message is not None:
                ledger.on_received(message.body, message.redelivered)
                chance = rng.random()
                if chance < 0.01:
                    await message.reject()
                    continue
                if chance < 0.05:
                    await message.confirm()
                    ledger.on_confirmed(message.body)
                    self._count()
                    continue
                pile.append(message)
            if message is None or len(pile) >= 200:
                await session.confirm(pile)
                for confirmed in pile:
                    ledger.on_confirmed(confirmed.body)
                pile.clear()
                self._count()

    async def _consume_batches(self, consumer: clarion.BatchConsumer) -> None:
        ledger, rng = self.ledgers[TOPIC], Random(self._rng.random())
        while (batch := await consumer.receive()) is not None:
            bodies = batch.bodies()
            for body in bodies:
                ledger.on_received(body, batch.redelivered)
            if rng.random() < 0.02:
                await batch.reject()
                continue
            await batch.confirm()
            for body in bodies:
                ledger.on_confirmed(body)
            self._count()


async def drain(url: str, ledgers: dict[str, Ledger]) -> None:
    """A new client finds nothing that was confirmed: a message sent now is the first that it gets of new ones."""
    async with clarion.connect(url) as connection, connection.session() as session:
        for destination, durable in ((QUEUE, None), (TOPIC, SUBSCRIPTION)):
            ledger = ledgers[destination]
            last = ledger.new_body("last")
            async with session.receive(destination, durable=durable) as consumer:
                await session.send(destination, last)
                ledger.on_stored(last)
                while last not in ledger.received:
                    message = await consumer.receive(timeout=WAIT_S)
                    assert message is not None
                    ledger.on_received(message.body, message.redelivered)
                    await message.confirm()
            ledger.check()


def server_at(tmp_path: Path) -> ServerProcess:
    return ServerProcess(tmp_path / "data", environment=SMALL_JOURNAL)


async def kill_again_and_again(server: ServerProcess, kills: int, seed: int) -> None:
    rng = Random(seed)
    async with Load(server.url, seed) as load:
        for _ in range(kills):
            target = load.events + rng.choice((0, 1, 5, 20, 50, 100))
            await load.until(lambda target=target: load.events >= target)  # type: ignore[misc]
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await load.until(lambda: all(len(ledger.confirmed) > 50 for ledger in load.ledgers.values()))
        await load.stop()
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    await drain(server.url, load.ledgers)
    assert "fault" not in server.log()
    assert "loop_error" not in server.log()
    assert "lost" not in server.log()


def test_a05_a08_twenty_kills_under_load(tmp_path: Path) -> None:
    with server_at(tmp_path) as server:
        asyncio.run(kill_again_and_again(server, 20, seed=1))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 8))
def test_a05_a08_fifty_kills_under_load(tmp_path: Path, seed: int) -> None:
    with server_at(tmp_path) as server:
        asyncio.run(kill_again_and_again(server, 50, seed))


async def kill_at(server: ServerProcess, points: list[str]) -> None:
    """Each life ends at its point; producers and consumers go on over all of them."""
    async with Load(server.url, seed=3) as load:
        for point in points:
            await asyncio.to_thread(server.kill)
            try:
                await asyncio.to_thread(server.start, {"CLARION_ARM": point})
            except ServerFailed:
                pass  # the point lies in the start itself
            ended = asyncio.ensure_future(asyncio.to_thread(server.wait, WAIT_S))
            ended.add_done_callback(lambda _: load._progress.set())
            await load.until(ended.done)
            assert ended.result() == -9, f"{point}: {server.log()[-500:]}"
        await asyncio.to_thread(server.start)
        await load.stop()
    await drain(server.url, load.ledgers)


def armings(seed: int) -> list[str]:
    """Each point once; those that are passed rarely at their first passing."""
    rng = Random(seed)
    rare = ("journal.checkpoint_begin", "journal.checkpoint_end", "journal.recycle")
    return [f"{point}=kill@{1 if point in rare else rng.randint(3, 40)}" for point in POINTS]


def test_a05_a08_kill_at_every_test_point(tmp_path: Path) -> None:
    with server_at(tmp_path) as server:
        asyncio.run(kill_at(server, armings(1)))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 10))
def test_a05_a08_kill_at_every_test_point_again(tmp_path: Path, seed: int) -> None:
    with server_at(tmp_path) as server:
        points = armings(seed)
        Random(seed).shuffle(points)
        asyncio.run(kill_at(server, points))
