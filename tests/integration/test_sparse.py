"""Sparse batches on a real server: ids with gaps, each message once, whatever is killed in between (A-08, B-11)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

import clarion
from clarion import ids
from clarion.client.numbered import NumberedSender
from clarion.errors import BadBatch, LimitReached
from clarion.testing.server import ServerProcess
from clarion.wire import batch, frames
from clarion.wire.frames import SETTLED, Type
from tests.hostile.raw import RawClient
from tests.integration.helpers import drain, run, take, until
from tests.integration.numbered_process import body_of
from tests.integration.test_numbered import _failure, browsed, new_producer, stored, wanted
from tests.integration.topologies import SEGMENT_BYTES, Topology


async def send(sender: NumberedSender, destination: str, sequences: Sequence[int]) -> None:
    await sender.send(destination, sequences, [*map(body_of, sequences)], [b""] * len(sequences))


def encoded(destination: str, producer: int, sequences: Sequence[int], deliver_at_ms: int = 0) -> bytearray:
    """A sparse batch, also where an ordinary one would do."""
    first = sequences[0]
    deltas = [sequence - first for sequence in sequences]
    return batch.encode(
        destination.encode(),
        producer + first,
        [*map(body_of, sequences)],
        id_deltas=deltas,
        created_ms=5,
        deliver_at_ms=deliver_at_ms,
    )


def publish(raw: RawClient, producer: int, destination: str, sequences: Sequence[int]) -> None:
    raw.send(Type.PUBLISH, 1, frames.FLOOR.pack(1), encoded(destination, producer, sequences))


# --- consumers ------------------------------------------------------------------------------------------


def test_b11_every_way_to_a_message_gives_it_its_own_id(server: Topology, name: str) -> None:
    """Received one by one and as batches, browsed, selected, dead, and sent back from the dead."""

    async def scenario() -> None:
        producer, sequences = new_producer(), [3, 10, 11, 12, 40, 41, 500, 70_000]
        together = [80_000, 80_005, 80_009, 80_010, 90_000]
        identities = [ids.format_id(producer + sequence) for sequence in sequences]
        expected = wanted(producer, sequences)
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await connection.command("set_policy", {"pattern": f"glob:{name}*", "policy": {"deliveries_max": 1}})
            async with connection.numbered(producer) as sender:
                await send(sender, name, sequences)
                assert await browsed(server.url, name) == expected
                await send(sender, f"{name}-together", together)
            found = [
                (message.id, message.body)
                async for message in session.browse(name, selector=f"JMSMessageID = 'ID:{identities[4]}'")
            ]
            assert found == [expected[4]]
            async with session.receive(name, selector=f"JMSMessageID = 'ID:{identities[6]}'") as consumer:
                (message,) = await take(consumer, 1)
                assert (message.id, message.body) == expected[6]
                await message.confirm()
            async with session.receive(name) as consumer:
                messages = await take(consumer, 7)
                left = expected[:6] + expected[7:]
                assert [(message.id, message.body) for message in messages] == left
                for index in (0, 3, 5):
                    await messages[index].confirm()
                for index in (1, 2, 4, 6):
                    await messages[index].reject("no")
            async with session.receive_batches(f"{name}-together") as batches:
                received = await batches.receive(timeout=20)
                assert received is not None and [one.id for one in received] == [
                    ids.format_id(producer + sequence) for sequence in together
                ]
                await received.reject("all of them")
            dead = [*(left[index] for index in (1, 2, 4, 6)), *wanted(producer, together)]

            async def all_dead() -> list[clarion.Message]:
                everything = [message async for message in session.browse("_DMQ")]
                homes = (f"queue:{name}", f"queue:{name}-together")
                return [message for message in everything if (message.dead or {}).get("destination") in homes]

            async def are_dead() -> bool:
                return len(await all_dead()) == len(dead)

            await until(are_dead, "they are dead")
            assert sorted((message.id, message.body) for message in await all_dead()) == sorted(dead)
            back: list[tuple[str, bytes]] = []
            for home in (name, f"{name}-together"):
                await connection.command("resend", {"origin": home})
                back += [(message.id, message.body) for message in await drain(session, home)]
            assert sorted(back) == sorted(dead)

    run(scenario())


def test_b11_slices_for_several_consumers_have_their_ids(server: Topology, name: str) -> None:
    async def scenario() -> None:
        producer, sequences = new_producer(), [*range(1, 3_000, 3), *range(5_000, 5_500)]
        got: list[tuple[str, bytes]] = []
        async with clarion.connect(server.url) as connection, connection.session() as session:
            async with connection.numbered(producer) as sender:
                await send(sender, name, sequences)
            async with (
                session.receive(name, prefetch_messages=7) as one,
                session.receive(name, prefetch_messages=100) as other,
            ):
                while len(got) < len(sequences):
                    for consumer in (one, other):
                        message = await consumer.receive(timeout=0.05)
                        if message is not None:
                            got.append((message.id, message.body))
                            message.confirm_nowait()
                await session.flush()
        assert sorted(got) == wanted(producer, sequences)

    run(scenario())


# --- doubles --------------------------------------------------------------------------------------------


def test_a08_what_is_in_a_gap_comes_later_and_is_stored(server: Topology, name: str) -> None:
    async def scenario() -> None:
        producer = new_producer()
        async with clarion.connect(server.url) as connection, connection.numbered(producer) as sender:
            await send(sender, name, [1, 3, 5, 9])
            await send(sender, name, [3])
            await send(sender, name, [2, 3, 4, 9, 11])
            await sender.send(name, 1, [*map(body_of, range(1, 13))], [b""] * 12)
        found = await stored(server.url, name)
        assert found == wanted(producer, [1, 3, 5, 9, 2, 4, 11, 6, 7, 8, 10, 12])

    run(scenario())


def test_a08_sequences_too_far_above_the_floor_fail_and_the_others_are_stored(server: Topology, name: str) -> None:
    async def scenario() -> None:
        producer = new_producer()
        async with clarion.connect(server.url) as connection, connection.numbered(producer) as sender:
            with pytest.raises(LimitReached):
                await send(sender, name, [1, 5, 1 << 30, (1 << 30) + 5])
        assert await stored(server.url, name) == wanted(producer, [1, 5])

    run(scenario())


def test_a08_doubles_of_mixed_batches_are_dropped_when_servers_are_killed(own_server: Topology) -> None:
    """Ten destinations in turn, sparse and ordinary batches, kills under load; then all of it again, cut anew."""
    rng = random.Random(5)
    count, destinations = 20_000, 10

    def of(number: int, low: int, high: int) -> list[int]:
        return [sequence for sequence in range(low, high) if sequence // 3 % destinations == number]

    async def scenario() -> None:
        producer, done = new_producer(), 0

        async def send_span(sender: NumberedSender, low: int, high: int) -> None:
            """All of [low, high), to where each belongs; some in pieces, so that runs are ordinary batches too."""
            nonlocal done
            pieces: list[tuple[str, list[int]]] = []
            for number in range(destinations):
                mine = of(number, low, high)
                while mine:
                    cut = rng.choice([3, 40, len(mine)])
                    pieces.append((f"queue:q{number}", mine[:cut]))
                    mine = mine[cut:]
            await asyncio.gather(*(send(sender, *piece) for piece in pieces))
            done += 1

        async with clarion.connect(own_server.url) as connection, connection.numbered(producer) as sender:

            async def worker(begin: int) -> None:
                for low in range(1 + begin * 500, count + 1, 1_500):
                    await send_span(sender, low, min(low + 500, count + 1))

            workers = [asyncio.create_task(worker(begin)) for begin in range(3)]
            for _ in range(3):

                async def goes_on(before: int = done) -> bool:
                    return done > before + 4 or all(one.done() for one in workers)

                await until(goes_on, "messages are stored")
                await asyncio.to_thread(own_server.back.kill)
                await asyncio.to_thread(own_server.back.start)
            await asyncio.gather(*workers)
            assert sender.floor == count + 1
        async with clarion.connect(own_server.url) as connection, connection.numbered(producer) as sender:
            for low in range(1, count + 1, 3_700):
                await send_span(sender, low, min(low + 3_700, count + 1))
        for number in range(destinations):
            found = await stored(own_server.url, f"queue:q{number}")
            assert sorted(found) == wanted(producer, of(number, 1, count + 1))

    run(scenario())


def test_b02_random_sparse_resends_store_what_is_missing(tmp_path: Path) -> None:
    """Mixed batches with random gaps; the server is killed while the last of them is on its way."""
    rng = random.Random(9)
    producer, confirmed = new_producer(), set[int]()
    server = ServerProcess(tmp_path / "data", environment={"CLARION_JOURNAL_SEGMENT_BYTES": str(SEGMENT_BYTES)})
    with server:
        for _ in range(3):
            with RawClient(server.port) as raw:
                raw.hello()
                raw.open(producer=producer.to_bytes(16, "big"))
                for _ in range(40):
                    first = rng.randint(1, 900)
                    end = first + rng.randint(1, 120)
                    chosen = sorted(rng.sample(range(first, end), rng.randint(1, end - first)))
                    if rng.random() < 0.3:
                        chosen = list(range(first, end))
                    publish(raw, producer, "queue:q", chosen)
                    assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (chosen[0], len(chosen), 0)
                    confirmed |= set(chosen)
                publish(raw, producer, "queue:q", range(1, 1_000, 2))  # whether it is stored nobody knows
                server.kill()
            server.start()
            found = run(browsed(server.url, "queue:q"))
            assert len(set(found)) == len(found)
            assert set(wanted(producer, confirmed)) <= set(found) <= set(wanted(producer, range(1, 1_020)))
        with RawClient(server.port) as raw:
            raw.hello()
            raw.open(producer=producer.to_bytes(16, "big"))
            publish(raw, producer, "queue:q", range(1, 1_100))
            assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (1, 1_099, 0)
        assert sorted(run(stored(server.url, "queue:q"))) == wanted(producer, range(1, 1_100))


def test_a08_a_sparse_batch_that_is_damaged_on_disk_keeps_its_gaps_open(tmp_path: Path) -> None:
    """Its head alone says which messages are lost: those do not come again, what lies between them does."""
    producer = new_producer()
    server = ServerProcess(tmp_path / "data", environment={"CLARION_JOURNAL_SEGMENT_BYTES": str(SEGMENT_BYTES)})
    with server:
        with RawClient(server.port) as raw:
            raw.hello()
            raw.open(producer=producer.to_bytes(16, "big"))
            victim = [sequence for sequence in range(1_000_001, 1_000_400) if sequence % 7 < 2]
            for destination, sequences in (
                ("queue:q", [5, 8]),
                ("queue:q", victim),
                ("queue:q", [1_000_500]),
                *(("queue:other", [2_000_000 + number]) for number in range(20)),
            ):
                publish(raw, producer, destination, sequences)
                assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (sequences[0], len(sequences), 0)
        server.kill()
        bodies = b"".join(map(body_of, victim))
        (path,) = [
            path for path in (tmp_path / "data" / "journal").rglob("*") if path.is_file() and _holds(path, bodies)
        ]
        with path.open("r+b") as file:
            file.seek(path.read_bytes().index(bodies))
            file.write(b"damaged")
        server.start()
        gaps = sorted(set(range(1_000_001, 1_000_400)) - set(victim))
        with RawClient(server.port) as raw:
            raw.hello()
            raw.open(producer=producer.to_bytes(16, "big"))
            for sequences in (victim, gaps, list(range(1_000_001, 1_000_501)), [5, 6, 8]):
                publish(raw, producer, "queue:q", sequences)
                assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (sequences[0], len(sequences), 0)
        rest = range(1_000_400, 1_000_500)
        assert run(stored(server.url, "queue:q")) == wanted(producer, [5, 8, 1_000_500, *gaps, *rest, 6])


def _holds(path: Path, data: bytes) -> bool:
    return data in path.read_bytes()


# --- the frames -----------------------------------------------------------------------------------------


def test_b02_transactions_delays_and_watched_deliveries_refuse_sparse_batches(server: Topology, name: str) -> None:
    with RawClient(server.port) as raw:
        raw.hello()
        producer = raw.open()
        sparse = encoded(f"queue:{name}", producer, [1, 5])
        floor = frames.FLOOR.pack(1)
        delayed = encoded(f"queue:{name}", producer, [1, 5], deliver_at_ms=1 << 42)
        for what, kind, parts, flags in (
            ("in a transaction", Type.STAGE, (frames.STAGED.pack(1, 1), sparse), 0),
            ("that waits for its delivery", Type.PUBLISH, (floor, sparse), frames.UNTIL_ANY),
            ("that waits for its delivery", Type.PUBLISH, (floor, sparse), frames.UNTIL_EVERY),
            ("with a time of delivery", Type.PUBLISH, (floor, delayed), 0),
        ):
            raw.send(kind, 1, *parts, flags=flags)
            payload = raw.next(Type.PUBLISH_FAILED)
            assert SETTLED.unpack_from(payload) == (1, 2, 0)
            error = _failure(payload)
            assert isinstance(error, BadBatch) and what in str(error)
        publish(raw, producer, f"queue:{name}", [1, 5])
        assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (1, 2, 0)
    assert run(stored(server.url, name)) == wanted(producer, [1, 5])


def test_b13_the_most_gaps_that_a_batch_can_have(tmp_path: Path) -> None:
    """65,536 runs in one entry; then all that lies between, which is missing in 65,535 places; then a kill."""
    producer, most = new_producer(), 65_536
    server = ServerProcess(tmp_path / "data", environment={"CLARION_JOURNAL_SEGMENT_BYTES": str(SEGMENT_BYTES)})
    with server:
        with RawClient(server.port) as raw:
            raw.hello()
            raw.open(producer=producer.to_bytes(16, "big"))
            for sequences in (range(1, 2 * most, 2), range(1, most + 1), range(most + 1, 2 * most + 1)):
                publish(raw, producer, "queue:q", sequences)
                assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (sequences[0], most, 0)
            server.kill()
            server.start()
        with RawClient(server.port) as raw:
            raw.hello()
            raw.open(producer=producer.to_bytes(16, "big"))
            publish(raw, producer, "queue:q", range(1, 2 * most, 2))
            assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (1, most, 0)
        assert sorted(run(stored(server.url, "queue:q"))) == wanted(producer, range(1, 2 * most + 1))
