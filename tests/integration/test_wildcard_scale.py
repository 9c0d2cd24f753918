"""Wildcard subscriptions over many topics: none misses a first message, none holds up the server (B-15)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

import clarion
from benchmarks.semantics import measure_wildcards
from clarion.errors import LimitReached, SubscriptionInUse
from clarion.testing.server import ServerProcess
from clarion.wire import frames
from clarion.wire.frames import Type
from tests.hostile.raw import RawClient
from tests.integration.helpers import WAIT_S, bodies, is_idle, run, take, until

SMALL = {"CLARION_JOURNAL_SEGMENT_BYTES": "8MiB"}
MANY = 1_500
"""Topics that are merged in several turns of the event loop."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("wildcards") / "data", environment=SMALL) as process:
        yield process
        assert process.process is not None and process.process.poll() is None, process.log()[-2000:]
    for word in ("fault", "loop_error", "Traceback", "messages_lost"):
        assert word not in process.log(), process.log()[-2000:]


def measure(tmp_path: Path, topics: int, patterns: int) -> None:
    with ServerProcess(tmp_path / "data") as server:
        seen = asyncio.run(measure_wildcards(server.url, server.pid, topics, patterns))
    print(f"\n{asdict(seen)}")
    assert 0 < seen.matched_max <= 10
    assert seen.received > 0


def test_b15_three_thousand_topics_and_two_hundred_patterns(tmp_path: Path) -> None:
    measure(tmp_path, 3_000, 200)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_b15_many_topics_and_a_thousand_patterns(tmp_path: Path) -> None:
    measure(tmp_path, 99_000, 1_000)


# --- nothing is missed --------------------------------------------------------------------------------------


async def create(url: str, prefix: str, producers: int, topics: int, each: int = 2) -> list[bytes]:
    """So many connections that make topics at the same time, also the same ones; all bodies."""

    async def one(number: int) -> list[bytes]:
        mine: list[bytes] = []
        async with clarion.connect(url) as connection, connection.session() as session:
            for topic in range(topics):
                for message in range(each):
                    mine.append(f"{topic}:{number}:{message}".encode())
                    session.send_nowait(f"topic:{prefix}.{topic}", mine[-1])
                await asyncio.sleep(0)
            await session.flush()
        return mine

    return [body for some in await asyncio.gather(*map(one, range(producers))) for body in some]


def check(messages: list[clarion.ReceivedMessage], sent: list[bytes]) -> None:
    """Everything once, to where it was sent, and in the order of each producer."""
    got = bodies(messages)
    assert sorted(got) == sorted(sent)
    for message in messages:
        assert message.destination.rpartition(".")[2].encode() == message.body.partition(b":")[0]
    places = {body: place for place, body in enumerate(got)}
    assert all(places[body[:-1] + b"0"] < places[body] for body in got if body.endswith(b":1"))


def test_b15_topics_made_by_many_at_once_are_merged_from_their_first_message(server: ServerProcess, name: str) -> None:
    async def main() -> None:
        async with (
            clarion.connect(server.url) as connection,
            connection.session() as session,
            session.receive(f"glob:{name}.*") as plain,
            session.receive(f"glob:{name}.*", durable=f"{name}-d", prefetch_messages=10) as durable,
            session.receive(rf"regex:{name}\.[0-9]+", durable=f"{name}-s", shared=True) as shared,
        ):
            sent = await create(server.url, name, 4, 80)
            for consumer in (plain, durable, shared):
                messages = await take(consumer, len(sent))
                check(messages, sent)
                await session.confirm(messages)

    run(main())


def test_b15_who_subscribes_while_topics_are_made_gets_all_that_is_sent_afterwards(
    server: ServerProcess, name: str
) -> None:
    async def main() -> None:
        async with (
            clarion.connect(server.url) as connection,
            connection.session() as session,
            clarion.connect(server.url) as other,
            other.session() as producer,
        ):
            over = asyncio.Event()
            made = 0

            async def make() -> None:
                nonlocal made
                while not over.is_set():
                    for _ in range(20):
                        producer.send_nowait(f"topic:{name}.{made}", b"%d" % made)
                        made += 1
                    await producer.flush()

            making = asyncio.ensure_future(make())
            for round_number in range(6):
                options = {"durable": f"{name}-d{round_number}"} if round_number % 2 else {}
                async with session.receive(f"glob:{name}.*", **options) as consumer:  # type: ignore[arg-type]
                    since = made
                    wanted = {b"%d" % number for number in range(since, since + 60)}
                    while wanted:
                        message = await consumer.receive(timeout=WAIT_S)
                        assert message is not None, f"{len(wanted)} first messages are missing, as {min(wanted)!r}"
                        wanted.discard(message.body)
                        message.confirm_nowait()
            over.set()
            await making

    run(main())


def test_b15_a_durable_pattern_outlives_its_consumer_and_the_server(tmp_path: Path) -> None:
    async def first(url: str) -> list[bytes]:
        async with clarion.connect(url) as connection, connection.session() as session:
            await session.send("topic:a.old", b"before it")
            async with session.receive("glob:a.*", durable="d"):
                pass
        return await create(url, "a", 2, 40)

    async def second(url: str, sent: list[bytes]) -> None:
        sent += await create(url, "a", 3, 60)
        async with clarion.connect(url) as connection, connection.session() as session:
            async with session.receive("glob:a.*", durable="d", prefetch_messages=50) as consumer:
                messages = await take(consumer, len(sent))
                assert sorted(bodies(messages)) == sorted(sent)
                await session.confirm(messages)
                assert await is_idle(consumer)
                await consumer.close(delete=True)
            assert await connection.command("patterns") == []

    with ServerProcess(tmp_path / "data", environment=SMALL) as server:
        sent = run(first(server.url))
        server.kill()
        server.start()
        run(second(server.url, sent))


def test_b15_patterns_are_merged_again_after_a_reconnection(tmp_path: Path) -> None:
    async def main(server: ServerProcess) -> None:
        async with (
            clarion.connect(server.url) as connection,
            connection.session() as session,
            clarion.connect(server.url) as other,
            other.session() as producer,
            session.receive("glob:t.*", durable="d") as durable,
            session.receive("glob:t.*") as plain,
        ):
            sent: set[bytes] = set()
            confirmed: set[bytes] = set()

            async def send(first: int, end: int) -> None:
                for number in range(first, end):
                    await producer.send(f"topic:t.{number}", b"%d" % number)
                    sent.add(b"%d" % number)

            await send(0, 50)
            held = await take(durable, 30)
            sending = asyncio.ensure_future(send(50, 120))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await sending
            await session.confirm(held)  # held over the death
            confirmed.update(bodies(held))
            while confirmed < sent:
                (message,) = await take(durable, 1)
                assert message.body not in confirmed
                await message.confirm()
                confirmed.add(message.body)
            await session.command("status")  # so the plain one is there again, too
            await producer.send("topic:t.last", b"last")
            while (message_or_none := await plain.receive(timeout=WAIT_S)) is not None:
                if message_or_none.body == b"last":
                    break
            assert message_or_none is not None

    with ServerProcess(tmp_path / "data", environment=SMALL) as server:
        run(main(server))


# --- nobody is held up, and nothing is left half done --------------------------------------------------------


async def make_many(server: ServerProcess, name: str) -> None:
    async with clarion.connect(server.url) as connection, connection.session() as session:
        for number in range(MANY):
            session.send_nowait(f"topic:{name}.{number}", b"")
        await session.flush()


async def consumers(connection: clarion.Connection, name: str, *numbers: int) -> int:
    """How many consumers some of the topics have together."""
    found = 0
    for number in numbers:
        found += len(await connection.command("consumers", {"destination": f"topic:{name}.{number}"}))
    return found


def test_b15_others_are_answered_while_a_pattern_is_merged_with_many_topics(server: ServerProcess, name: str) -> None:
    run(make_many(server, name))
    with RawClient(server.port) as raw:
        raw.hello()
        raw.open()
        credit = {"credit_messages": 10, "credit_bytes": 1_000, "unconfirmed_max": 10}
        wanted = {"request": 1, "consumer": 1, "destination": f"glob:{name}.*", **credit}
        question = {"request": 2, "verb": "patterns", "arguments": {}}
        both = [(Type.SUBSCRIBE, wanted), (Type.REQUEST, question)]
        raw.write(b"".join(part for kind, said in both for part in frames.frame(kind, 1, [frames.pack(said)], 0)))
        merged: set[str] = set()
        answers: list[int] = []
        while len(answers) < 2:
            frame = raw.frame()
            said = frames.unpack(frame.payload)
            if frame.type == Type.MERGED:
                merged.update(name for _, name in said["merged"])
            else:
                assert frame.type == Type.REPLY
                answers.append(said["request"])
        assert answers == [2, 1]  # the question was asked later, and did not wait
        assert len(merged) == MANY
        # And one that vanishes in the midst of it leaves no consumer behind.
        raw.write(b"".join(frames.frame(Type.SUBSCRIBE, 1, [frames.pack({**wanted, "consumer": 2, "request": 3})], 0)))

    async def gone() -> None:
        async with clarion.connect(server.url) as connection:

            async def none() -> bool:
                return not await consumers(connection, name, 0, MANY // 2, MANY - 1)

            await until(none, "all consumers are gone")

    run(gone())


def test_b15_a_pattern_that_cannot_have_one_topic_has_none(server: ServerProcess, name: str) -> None:
    async def main() -> None:
        await make_many(server, name)
        last = MANY - 1
        async with (
            clarion.connect(server.url) as connection,
            connection.session() as session,
            connection.session() as other,
        ):
            async with session.receive(f"glob:{name}.*", durable=f"{name}-d") as consumer:
                with pytest.raises(SubscriptionInUse):
                    await other.receive(f"glob:{name}.*", durable=f"{name}-d").receive()
                assert await consumers(connection, name, 0, last) == 2
                await session.send(f"topic:{name}.{last}", b"x")
                (message,) = await take(consumer, 1)
                assert message.body == b"x"
                await message.confirm()
            await connection.command("set_policy", {"pattern": f"{name}.{last}", "policy": {"consumers_max": 1}})
            async with session.receive(f"topic:{name}.{last}"):
                with pytest.raises(LimitReached):
                    await other.receive(f"glob:{name}.*").receive()
                assert await consumers(connection, name, 0, 300, last - 1) == 0
            async with other.receive(f"glob:{name}.*") as consumer:
                await session.send(f"topic:{name}.new", b"y")
                assert bodies(await take(consumer, 1)) == [b"y"]

    run(main())
