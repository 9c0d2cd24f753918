"""After `recover` and `rollback` what comes again comes first, in its order, whatever is on its way (B-04, B-14)."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import clarion
from clarion import sync
from clarion.errors import TransactionRolledBack
from tests.integration.helpers import WAIT_S, bodies, numbered, run, take, until
from tests.integration.topologies import Single, Topology, started

MESSAGES = 1_500
HOW: dict[str, dict[str, Any]] = {
    "queue": {"ack": "client", "prefetch_messages": 40},
    "queue one by one": {"ack": "client", "prefetch_messages": 1},
    "queue bound": {"ack": "client", "unconfirmed_max": 20},
    "durable": {"ack": "client", "durable": "d", "prefetch_messages": 64},
    "plain": {"ack": "client", "prefetch_messages": 64},
    "pattern": {"ack": "client", "prefetch_messages": 64},
    "group": {"ack": "client", "prefetch_messages": 64},
    "transacted": {"prefetch_messages": 64},
}


class Reader:
    """An application that confirms some, gives back the rest, and knows what must come next."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.done = 0
        self.given_back: Counter[int] = Counter()

    def check(self, messages: list[clarion.ReceivedMessage]) -> None:
        numbers = [int(body.decode()) for body in bodies(messages)]
        assert numbers == list(range(self.done, self.done + len(numbers)))
        for number, message in zip(numbers, messages, strict=True):
            assert (message.delivery_count, message.redelivered) == (
                self.given_back[number] + 1,
                self.given_back[number] > 0,
            )

    def give_back(self, count: int) -> None:
        self.given_back.update(range(self.done, self.done + count))

    def wants(self) -> int:
        return min(self.random.choice([1, 2, 5, 20]), MESSAGES - self.done)


async def publish(connection: clarion.Connection, destination: str, group: str | None) -> None:
    async with connection.session() as session:
        for number in range(MESSAGES):
            session.send_nowait(destination, b"%d" % number, group=group)
            if number % 50 == 0:
                await session.flush()


@pytest.mark.parametrize("how", HOW)
def test_b04_what_comes_again_comes_first_while_messages_arrive(server: Topology, name: str, how: str) -> None:
    async def main() -> None:
        kind = "queue" if how.startswith(("queue", "group", "transacted")) else "topic"
        destination, reader, transacted = f"{kind}:{name}", Reader(5), how == "transacted"
        async with clarion.connect(server.url) as connection, connection.session(transacted=transacted) as session:
            asked = f"glob:{name}*" if how == "pattern" else destination
            async with session.receive(asked, **HOW[how]) as consumer:
                sending = asyncio.create_task(publish(connection, destination, "g" if how == "group" else None))
                while reader.done < MESSAGES:
                    first = await take(consumer, reader.wants())
                    reader.check(first)
                    await session.commit() if transacted else await first[-1].confirm()
                    reader.done += len(first)
                    more = await take(consumer, reader.wants())
                    reader.check(more)
                    reader.give_back(len(more))
                    await session.rollback() if transacted else await session.recover()
                await sending

    run(main())


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_b14_what_a_transaction_consumed_comes_again_after_its_time_limit(tmp_path: Path, end: str) -> None:
    """The broker gave it up without knowing what it had consumed; whoever ends it then says so."""

    async def main() -> None:
        async with clarion.connect(broker.url) as connection, connection.session(transacted=True) as session:
            async with connection.session() as other:
                await other.send_many("in", numbered(6))
            consumer = session.receive("in")
            await take(consumer, 2)
            await session.send("out", b"x")

            async def given_up() -> bool:
                try:
                    await session.send("out", b"y")
                except TransactionRolledBack:
                    return True
                return False

            await until(given_up, "its time is over")
            if end == "commit":
                with pytest.raises(TransactionRolledBack):
                    await session.commit()
            else:
                await session.rollback()
            again = await take(consumer, 6)
            assert bodies(again) == numbered(6)
            assert [message.delivery_count for message in again] == [2, 2, 1, 1, 1, 1]

    with started(Single(tmp_path, {"CLARION_MESSAGE_MANAGER_TRANSACTION_MS": "100"})) as broker:
        run(main())
        broker.check_alive()


def test_b04_batches_come_again_first(server: Topology, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            for at in range(4):
                await session.send_many(name, numbered(12)[at * 3 : at * 3 + 3])
            async with session.receive_batches(name, ack="client", prefetch_messages=6) as consumer:
                seen: list[bytes] = []
                while len(seen) < 12:
                    batch = await consumer.receive(WAIT_S)
                    assert batch is not None
                    first = bodies(list(batch))
                    await session.recover()
                    again: list[bytes] = []
                    while len(again) < len(first):
                        batch = await consumer.receive(WAIT_S)
                        assert batch is not None
                        again += bodies(list(batch))
                    assert again[: len(first)] == first
                    await batch.confirm()
                    seen += again
                assert seen == numbered(12)

    run(main())


def test_b04_whoever_is_next_gets_what_a_recovering_consumer_never_saw(server: Topology, name: str) -> None:
    async def main() -> None:
        async with (
            clarion.connect(server.url) as connection,
            connection.session() as session,
            connection.session() as second,
        ):
            await session.send_many(name, numbered(100))
            async with session.receive(name, ack="client", prefetch_messages=10) as consumer:
                await take(consumer, 1)
                async with second.receive(name, prefetch_messages=10) as other:
                    got = [(await take(other, 1))[0]]
                    await session.recover()
                    while len(got) < 100:
                        for one in (consumer, other):
                            message = await one.receive(0.05)
                            if message is not None:
                                got.append(message)
                                await message.confirm()
            assert sorted(bodies(got)) == sorted(numbered(100))
            assert [message.body for message in got if message.redelivered] == [b"m0"]

    run(main())


def test_b04_threads_of_the_twin_recover_without_losing_a_message(server: Topology, name: str) -> None:
    with sync.connect(server.url) as connection, connection.session() as session:
        session.send_many(name, numbered(400))
        seen: Counter[bytes] = Counter()
        lock = threading.Lock()

        def work() -> None:
            while (message := consumer.receive(timeout=1)) is not None:
                message.confirm()
                with lock:
                    seen[message.body] += 1

        with session.receive(name, prefetch_messages=30) as consumer:
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                session.recover()
            for thread in threads:
                thread.join()
        assert set(seen) == set(numbered(400))
