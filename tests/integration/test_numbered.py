"""Senders with ids of their own, and resends with other boundaries: each message is stored once (A-08, B-02)."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

import clarion
from clarion import ids
from clarion.client.link import Link
from clarion.client.numbered import NumberedSender
from clarion.errors import BadBatch, ClarionError, ProducerTaken, ProtocolError, SessionClosed, from_code
from clarion.message import Headers, encode_headers
from clarion.testing.server import ServerProcess
from clarion.wire import batch, frames
from clarion.wire.frames import SETTLED, Type
from tests.hostile.raw import RawClient
from tests.integration.helpers import drain, run, until
from tests.integration.numbered_process import body_of
from tests.integration.topologies import SEGMENT_BYTES, Topology

_generator = ids.IdGenerator.begin(900, 9_000, int(time.time() * 1000))


def new_producer() -> int:
    return _generator.next_producer()


async def send(sender: NumberedSender, destination: str, first: int, end: int) -> None:
    await sender.send(destination, first, [*map(body_of, range(first, end))], [b""] * (end - first))


async def stored(url: str, destination: str) -> list[tuple[str, bytes]]:
    """Id and body of everything in a queue, which is empty then."""
    async with clarion.connect(url) as connection, connection.session() as session:
        return [(message.id, message.body) for message in await drain(session, destination)]


async def browsed(url: str, destination: str) -> list[tuple[str, bytes]]:
    """Id and body of everything in a queue, which stays there."""
    async with clarion.connect(url) as connection, connection.session() as session:
        return [(message.id, message.body) async for message in session.browse(destination)]


def wanted(producer: int, sequences: Iterable[int]) -> list[tuple[str, bytes]]:
    return [(ids.format_id(producer + sequence), body_of(sequence)) for sequence in sequences]


def random_cuts(rng: random.Random, first: int, end: int, size_max: int) -> list[tuple[int, int]]:
    cuts = []
    while first < end:
        high = min(end, first + rng.randint(1, size_max))
        cuts.append((first, high))
        first = high
    return cuts


def test_a08_messages_come_with_the_ids_headers_and_times_of_their_sender(server: Topology, name: str) -> None:
    async def scenario() -> None:
        producer = new_producer()
        headers = [encode_headers(Headers(type=f"t{n}", properties={"n": n})) for n in range(5_000)]
        times_ms = [1_700_000_000_000 + 7 * n for n in range(5_000)]
        async with (
            clarion.connect(server.url) as connection,
            connection.session() as session,
            connection.numbered(producer) as sender,
        ):
            await asyncio.gather(
                sender.send(name, 100, [*map(body_of, range(5_000))], headers, times_ms),
                sender.send(name, 9_000, [b"last"], [b""]),
            )
            messages = await drain(session, name)
        assert [message.id for message in messages] == [
            ids.format_id(producer + sequence) for sequence in (*range(100, 5_100), 9_000)
        ]
        for number, message in enumerate(messages[:-1]):
            assert (message.body, message.type, message.properties) == (body_of(number), f"t{number}", {"n": number})
            assert message.timestamp_ms == times_ms[number]

    run(scenario())


def test_a08_a_clean_end_does_not_let_doubles_in(server: Topology, name: str) -> None:
    async def scenario() -> None:
        producer = new_producer()
        async with clarion.connect(server.url) as connection:
            for first, end in ((1, 101), (1, 101), (51, 151), (20, 30)):
                async with connection.numbered(producer) as sender:
                    await send(sender, name, first, end)
                with pytest.raises(SessionClosed):
                    await send(sender, name, 1, 2)
        assert await stored(server.url, name) == wanted(producer, range(1, 151))

    run(scenario())


def test_a08_what_an_earlier_life_left_out_is_stored_later(server: Topology, name: str) -> None:
    """The broker has [60, 80) and nothing else; then comes all of [50, 100)."""

    async def scenario() -> None:
        producer = new_producer()
        async with clarion.connect(server.url) as connection:
            async with connection.numbered(producer) as sender:
                await send(sender, name, 60, 80)
            async with connection.numbered(producer) as sender:
                await send(sender, name, 50, 100)
        assert await stored(server.url, name) == wanted(producer, [*range(60, 80), *range(50, 60), *range(80, 100)])

    run(scenario())


def test_a08_doubles_are_dropped_when_the_sender_is_killed(server: Topology, name: str) -> None:
    producer, count = new_producer(), 20_000
    arguments = [server.url, str(producer), f"queue:{name}", str(count), "97"]
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.numbered_process", *arguments], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(20):
            assert process.stdout.readline()
        process.kill()
        process.wait(20)
        process.stdout.close()
        arguments[-1] = str(int(arguments[-1]) + 31)  # other boundaries in its next life

    async def scenario() -> None:
        async with clarion.connect(server.url) as connection, connection.numbered(producer) as sender:
            await send(sender, f"queue:{name}", 1, count + 1)
            assert sender.floor == count + 1
        assert sorted(await stored(server.url, name)) == wanted(producer, range(1, count + 1))

    run(scenario())


def test_a08_doubles_are_dropped_when_servers_are_killed(own_server: Topology) -> None:
    """Under load, over several destinations; then everything again with other boundaries."""
    rng = random.Random(3)

    async def scenario() -> None:
        producer, count = new_producer(), 30_000
        async with clarion.connect(own_server.url) as connection, connection.numbered(producer) as sender:
            done = 0

            async def worker(number: int) -> None:
                nonlocal done
                for first, end in random_cuts(rng, number * count // 4 + 1, (number + 1) * count // 4 + 1, 60):
                    await send(sender, f"queue:q{number % 3}", first, end)
                    done += 1

            workers = [asyncio.create_task(worker(number)) for number in range(4)]
            for _ in range(3):

                async def goes_on(before: int = done) -> bool:
                    return done > before + 60 or all(one.done() for one in workers)

                await until(goes_on, "messages are stored")
                await asyncio.to_thread(own_server.back.kill)
                await asyncio.to_thread(own_server.back.start)
            await asyncio.gather(*workers)
            assert sender.floor == count + 1
        async with clarion.connect(own_server.url) as connection, connection.numbered(producer) as sender:
            for number in range(4):
                for first, end in random_cuts(rng, number * count // 4 + 1, (number + 1) * count // 4 + 1, 3_000):
                    await send(sender, f"queue:q{number % 3}", first, end)
        found = [one for number in range(3) for one in await stored(own_server.url, f"queue:q{number}")]
        assert sorted(found) == wanted(producer, range(1, count + 1))

    run(scenario())


def test_a08_a_full_destination_holds_its_sender_up_and_no_other(server: Topology, name: str) -> None:
    """What is cut anew meets a refusal in the middle, and is stored once all the same."""

    async def scenario() -> None:
        producer, count, padding = new_producer(), 600, bytes(4_000)
        full, free = f"queue:{name}", f"queue:{name}-free"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await connection.command("create", {"destination": full, "quota_bytes": 400_000})

            async def sending(sender: NumberedSender, first: int, end: int) -> None:
                await sender.send(full, first, [padding] * (end - first), [b""] * (end - first))

            async with connection.numbered(producer) as sender:
                await asyncio.gather(*(sending(sender, first, first + 5) for first in range(11, 91, 20)))
            sender = await connection.numbered(producer)
            task = asyncio.create_task(sending(sender, 1, count + 1))

            async def is_refused() -> bool:
                return bool((await connection.command("status"))["producers_waiting"])

            await until(is_refused, "the queue is full")
            await send(sender, free, count + 1, count + 11)
            received: list[str] = []
            async with session.receive(full) as consumer:
                while len(received) < count:
                    message = await consumer.receive(timeout=20)
                    assert message is not None, len(received)
                    received.append(message.id)
                    message.confirm_nowait()
                await task
                assert await consumer.receive(timeout=0.2) is None
            await sender.close()
        assert sorted(received) == [ids.format_id(producer + sequence) for sequence in range(1, count + 1)]

    run(scenario())


def _link(connection: clarion.Connection) -> Link:
    assert connection._link is not None
    return connection._link


def test_a08_of_two_senders_with_one_producer_the_later_one_has_it(server: Topology, name: str) -> None:
    async def scenario() -> None:
        producer = new_producer()
        async with clarion.connect(server.url) as one, clarion.connect(server.url) as other:
            earlier, later = one.numbered(producer), other.numbered(producer)
            await send(earlier, name, 1, 11)
            await send(later, name, 5, 16)
            with pytest.raises(ProducerTaken, match=ids.format_id(producer)):
                await send(earlier, name, 16, 21)
            with pytest.raises(ProducerTaken):
                await send(earlier, name, 21, 22)
            assert earlier.closed
            await send(later, name, 31, 41)
            await later.close()
            again = await one.numbered(producer)  # a new one, not a return: it is its turn
            await send(again, name, 41, 51)
            await again.close()
        assert await stored(server.url, name) == wanted(producer, [*range(1, 16), *range(31, 51)])

    run(scenario())


def test_a08_who_returns_after_a_lost_connection_does_not_take_the_producer_back(server: Topology, name: str) -> None:
    async def scenario() -> None:
        producer = new_producer()
        async with clarion.connect(server.url) as one, clarion.connect(server.url) as other:
            earlier = await one.numbered(producer)
            await send(earlier, name, 1, 11)
            later = await other.numbered(producer)
            link = _link(one)
            assert link._transport is not None
            link._transport.abort()
            with pytest.raises(ProducerTaken):
                await send(earlier, name, 11, 21)
            await send(later, name, 21, 31)
            link = _link(other)
            assert link._transport is not None
            link._transport.abort()
            await send(later, name, 31, 41)  # its own return is none of another
        assert await stored(server.url, name) == wanted(producer, [*range(1, 11), *range(21, 41)])

    run(scenario())


# --- the frames ---------------------------------------------------------------------------------------


def _publish(raw: RawClient, producer: int, destination: str, first: int, end: int, floor: int = 1) -> None:
    encoded = batch.encode(destination.encode(), producer + first, [*map(body_of, range(first, end))])
    raw.send(Type.PUBLISH, 1, frames.FLOOR.pack(floor), encoded)


def _failure(payload: memoryview) -> ClarionError:
    said = frames.unpack(payload[SETTLED.size :])
    return from_code(said["code"], said["facts"])


def test_b02_a_resend_with_other_boundaries_stores_what_is_missing(tmp_path: Path) -> None:
    """Random batches over a window of sequences; the server is killed while the last of them is on its way."""
    rng = random.Random(7)
    producer, confirmed = new_producer(), set[int]()
    server = ServerProcess(tmp_path / "data", environment={"CLARION_JOURNAL_SEGMENT_BYTES": str(SEGMENT_BYTES)})
    with server:
        for _ in range(4):
            with RawClient(server.port) as raw:
                raw.hello()
                raw.open(producer=producer.to_bytes(16, "big"))
                for _ in range(50):
                    first = rng.randint(1, 900)
                    end = first + rng.randint(1, 120)
                    _publish(raw, producer, "queue:q", first, end)
                    assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (first, end - first, 0)
                    confirmed |= set(range(first, end))
                _publish(raw, producer, "queue:q", 1, 1_000)  # whether it is stored nobody knows
                server.kill()
            server.start()
            found = run(browsed(server.url, "queue:q"))
            assert len(set(found)) == len(found)
            assert set(wanted(producer, confirmed)) <= set(found) <= set(wanted(producer, range(1, 1_020)))
        with RawClient(server.port) as raw:
            raw.hello()
            raw.open(producer=producer.to_bytes(16, "big"))
            _publish(raw, producer, "queue:q", 1, 1_100)
            assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (1, 1_099, 0)
        assert sorted(run(stored(server.url, "queue:q"))) == wanted(producer, range(1, 1_100))


def test_b02_a_transaction_cut_anew_is_still_an_error(server: Topology, name: str) -> None:
    with RawClient(server.port) as raw:
        raw.hello()
        producer = raw.open()
        _publish(raw, producer, f"queue:{name}", 1, 11)
        assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (1, 10, 0)
        encoded = batch.encode(f"queue:{name}".encode(), producer + 5, [b"x"] * 10)
        raw.send(Type.STAGE, 1, frames.STAGED.pack(1, 1), encoded)
        assert isinstance(_failure(raw.next(Type.PUBLISH_FAILED)), BadBatch)
        raw.send(Type.PUBLISH, 1, frames.FLOOR.pack(1), encoded, flags=frames.UNTIL_ANY)
        assert isinstance(_failure(raw.next(Type.PUBLISH_FAILED)), BadBatch)
        _publish(raw, producer, f"queue:{name}", 5, 15)
        assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (5, 10, 0)
    assert run(stored(server.url, name)) == wanted(producer, range(1, 15))


@pytest.mark.parametrize(
    "said",
    [
        {"producer": None, "sender": bytes(8)},
        {"producer": (5 << 48).to_bytes(16, "big"), "sender": bytes(7)},
        {"producer": (5 << 48).to_bytes(16, "big"), "sender": "12345678"},
        {"producer": (5 << 48).to_bytes(16, "big"), "sender": bytes(8), "resumed": 5},
    ],
)
def test_b02_a_sender_that_is_none_costs_its_connection(server: Topology, said: dict[str, object]) -> None:
    with RawClient(server.port) as raw:
        raw.hello()
        raw.say(Type.OPEN, 1, **said)
        assert isinstance(raw.goodbye(), ProtocolError)
