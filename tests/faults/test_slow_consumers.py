"""Consumers that stop, producers that are too fast: nobody else suffers, memory is bounded, nothing is lost (B-13)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import clarion
from benchmarks.semantics import Stopped, measure_selector, measure_slow, memory_bytes
from clarion.errors import Blocked
from clarion.testing.server import ServerProcess
from tests.integration.helpers import WAIT_S, bodies, describe, drain, numbered, run, take, until

MIB = 1 << 20
SMALL = {"CLARION_MESSAGE_MANAGER_READ_CACHE_BYTES": "8MiB", "CLARION_JOURNAL_SEGMENT_BYTES": "8MiB"}
GROWTH_MIB_MAX = 48.0
"""A cache of 8 MiB, 4 MiB that wait for a connection, segments and what the allocator keeps."""
BODY = bytes(990)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("slow") / "data", environment=SMALL) as process:
        yield process
        assert process.process is not None and process.process.poll() is None, process.log()[-2000:]
    for word in ("fault", "loop_error", "Traceback", "messages_lost"):
        assert word not in process.log(), process.log()[-2000:]


# --- consumers that stop ------------------------------------------------------------------------------------


def test_b13_a_consumer_that_stops_is_named_and_its_share_goes_to_others_when_it_leaves(
    server: ServerProcess, name: str
) -> None:
    async def main() -> None:
        queue = f"queue:{name}"
        async with (
            clarion.connect(server.url) as connection,
            connection.session() as session,
            AsyncExitStack() as stack,
        ):
            stopped = await stack.enter_async_context(Stopped(server, queue, credit_messages=300))
            await session.send_many(queue, numbered(1_000))

            async def named() -> bool:
                slow = (await connection.command("status"))["slow_consumers"]
                mine = [one for one in slow if one["destination"] == queue]
                return [(one["in_flight"], one["waiting"]) for one in mine] == [(300, 700)]

            await until(named, "it is named")
            assert len(await drain(session, queue)) == 700
            await stopped.look(connection)
            assert stopped.share == 300
            async with session.receive(queue) as other:
                await stack.aclose()
                rest = await take(other, 300)
                assert sorted(bodies(rest)) == sorted(numbered(300))
                assert all(message.redelivered for message in rest)
                await session.confirm(rest)
            assert (await describe(connection, name))["depth"] == 0

    run(main())


def show(figures: dict[str, Any]) -> None:
    print(f"\nbeside one that stopped, nine have {figures['ratio']} of the throughput of nine alone: {figures}")


def test_b13_nine_consumers_go_on_beside_one_that_has_no_credit_left(server: ServerProcess) -> None:
    seen = run(measure_slow(server, 6_000, 2, credit=200))
    show(seen.figures())
    assert seen.shares == [200, 200]
    assert seen.grown_mib < GROWTH_MIB_MAX


def test_b13_memory_is_bounded_when_a_connection_is_not_read(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", environment=SMALL) as server:
        seen = run(measure_slow(server, 2_500, 1, body_bytes=40_000, credit=1_000_000))
    show(seen.figures())
    assert 0 < seen.shares[0] < 1_000  # what fits its buffers: the rest, some 90 MB, went to the nine
    assert seen.grown_mib < GROWTH_MIB_MAX


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_b13_nine_consumers_go_on_for_long(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", environment=SMALL) as server:
        seen = asyncio.run(measure_slow(server, 100_000, 7, credit=5_000))
        show(seen.figures())
        assert seen.shares == [5_000] * 7
        assert seen.grown_mib < 2 * GROWTH_MIB_MAX
        assert asyncio.run(measure_selector(server.url, 100_000)) > 0


def test_b04_a_selector_takes_what_it_selects_and_nothing_else(server: ServerProcess) -> None:
    assert run(measure_selector(server.url, 3_000)) > 0


# --- producers that are too fast ----------------------------------------------------------------------------


class Race:
    """A producer that sends twice as fast as its consumer takes."""

    def __init__(self, server: ServerProcess, queue: str, seconds: float) -> None:
        self.server, self.queue, self.seconds = server, queue, seconds
        self.sent = self.received = self.waits = 0
        self.memory: list[int] = []
        self._done = asyncio.Event()

    async def produce(self, session: clarion.Session) -> None:
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < self.seconds:
            allowed = 2 * self.received + 200
            while self.sent < allowed and time.monotonic() - began < self.seconds:
                if session.try_send(self.queue, b"%09d" % self.sent + BODY) is not None:
                    self.sent += 1
                    continue
                assert session.is_blocked(self.queue)
                self.waits += 1
                await session.writable()
            if elapsed > self.seconds / 3:
                self.memory.append(memory_bytes(self.server.pid))
            await asyncio.sleep(0.01)
        await session.flush()
        self._done.set()

    async def consume(self, session: clarion.Session) -> None:
        async with session.receive(self.queue, prefetch_messages=100) as consumer:
            while not self._done.is_set() or self.received < self.sent:
                for _ in range(min(20, max(1, self.sent - self.received))):
                    message = await consumer.receive(timeout=WAIT_S)
                    assert message is not None, f"{self.received} of {self.sent} came"
                    assert message.body[:9] == b"%09d" % self.received, "lost, doubled or out of order"
                    self.received += 1
                    message.confirm_nowait()
                if not self._done.is_set():
                    await asyncio.sleep(0.01)  # this is what makes it slow
            await session.flush()


async def race(server: ServerProcess, name: str, seconds: float) -> Race:
    queue = f"queue:{name}"
    async with (
        clarion.connect(server.url, buffer_bytes=128 << 10) as connection,
        clarion.connect(server.url) as other,
        connection.session() as producing,
        other.session() as consuming,
    ):
        await other.command("create", {"destination": queue, "quota_bytes": 200_000})
        running = Race(server, queue, seconds)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(running.produce(producing))
            tasks.create_task(running.consume(consuming))
        assert (await describe(other, name))["depth"] == 0
    return running


def check_race(seen: Race) -> None:
    spread = (max(seen.memory) - min(seen.memory)) / MIB
    print(f"\n{seen.sent} messages, told to wait {seen.waits} times, memory within {spread:.1f} MiB")
    assert seen.received == seen.sent
    assert seen.waits > 0
    assert spread < 16


def test_b13_a_producer_twice_as_fast_as_its_consumer_is_told_to_wait(server: ServerProcess, name: str) -> None:
    check_race(asyncio.run(race(server, name, 20.0)))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_b13_a_producer_twice_as_fast_as_its_consumer_for_long(server: ServerProcess, name: str) -> None:
    check_race(asyncio.run(race(server, name, 600.0)))


def test_b13_when_full_fail_tells_the_producer_and_loses_nothing(server: ServerProcess, name: str) -> None:
    async def main() -> None:
        queue = f"queue:{name}"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            policy = {"quota_bytes": 100_000, "when_full": "fail"}
            await connection.command("set_policy", {"pattern": name, "policy": policy})
            stored: list[bytes] = []
            refused = 0
            for body in numbered(300):
                try:
                    await session.send(queue, body + BODY)
                    stored.append(body)
                except Blocked as error:
                    assert error.facts["destination"] == queue
                    refused += 1
            assert stored == numbered(len(stored)) and len(stored) > 50 and refused > 100
            assert [body.rstrip(b"\0") for body in bodies(await drain(session, queue))] == stored
            await session.send(queue, b"there is room again")
            assert bodies(await drain(session, queue)) == [b"there is room again"]

    run(main())


def test_b13_a_batch_larger_than_the_quota_waits_until_it_is_alone_and_no_longer(
    server: ServerProcess, name: str
) -> None:
    async def main() -> None:
        queue = f"queue:{name}"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await connection.command("create", {"destination": queue, "quota_bytes": 20_000})
            sent = [body + BODY for body in numbered(400)]
            session.send_many_nowait(queue, sent)
            async with connection.session() as other, other.receive(queue) as consumer:
                got: list[bytes] = []
                while len(got) < len(sent):
                    (message,) = await take(consumer, 1)
                    got.append(message.body)
                    message.confirm_nowait()
            assert got == sent
            await session.flush()

    run(main())


def test_b13_a_topic_that_pauses_for_its_slowest_consumer_resumes(server: ServerProcess, name: str) -> None:
    async def main() -> None:
        topic, total = f"topic:{name}", 4_000
        async with (
            clarion.connect(server.url) as connection,
            clarion.connect(server.url) as other,
            connection.session() as session,
            other.session() as consuming,
        ):
            await connection.command("set_policy", {"pattern": name, "policy": {"pause_for_slowest": True}})
            async with (
                consuming.receive(topic, durable="slow", prefetch_messages=10) as slow,
                consuming.receive(topic, durable="fast") as fast,
            ):
                first, rest = numbered(total)[:1_200], numbered(total)[1_200:]
                await session.send_many(topic, first)

                async def stuck() -> bool:
                    known = await connection.command("consumers", {"destination": topic})
                    return any(one["subscription"] == "slow" and one["room"] <= 0 for one in known)

                await until(stuck, "the slow one has what it can take")
                tickets = [session.send_nowait(topic, body) for body in rest]

                async def waits() -> bool:
                    return bool((await connection.command("status"))["producers_waiting"])

                await until(waits, "the topic pauses")
                stored = (await describe(connection, name))["next_sequence"] - 1
                assert stored == len(first)
                assert session.is_blocked(topic)
                await connection.command("status")
                assert (await describe(connection, name))["next_sequence"] - 1 == stored
                for consumer in (slow, fast):
                    await consuming.confirm(await take(consumer, stored))
                got = await take(slow, total - stored)
                assert bodies(got) == numbered(total)[stored:]
                assert bodies(await take(fast, total - stored)) == numbered(total)[stored:]
                for ticket in tickets:
                    await asyncio.wait_for(ticket, WAIT_S)

    run(main())


def test_b13_a_transaction_larger_than_the_prefetch_does_not_hang(server: ServerProcess, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            sent = [body + BODY for body in numbered(500)]
            await session.send_many(f"{name}-in", sent)
            async with connection.session(transacted=True) as transacted:
                consumer = transacted.receive(f"{name}-in", prefetch_messages=7, prefetch_bytes=5_000)
                for message in await take(consumer, 500):
                    transacted.send_nowait(f"{name}-out", message.body)
                await transacted.commit()
            assert bodies(await drain(session, f"{name}-out")) == sent
            assert not await drain(session, f"{name}-in")

    run(main())
