"""Reading ranges of sequences from a real server: in order, whole, bounded, by several at once (D-01, D-03)."""

from __future__ import annotations

import asyncio
import random

import pytest

import clarion
from clarion import limits, sync
from clarion.client import reading
from clarion.errors import BadArgument, BadName, BadSelector
from clarion.wire.batch import Batch
from tests.integration.helpers import numbered, run, send_all
from tests.integration.topologies import Topology


async def read(session: clarion.Session, destination: str, first: int, end: int, **options: str) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    async for at, batch in session.read(destination, first, end, selector=options.get("selector")):
        found.update((at + index, bytes(batch.record(index)[1])) for index in range(batch.count))
    assert list(found) == sorted(found)
    return found


def test_d01_a_range_is_whole_whatever_the_sizes_are(server: Topology, name: str) -> None:
    """Many small ones, then large ones, one larger than an answer, then a gap: steps adapt, nothing is missed."""

    async def main() -> None:
        chance = random.Random(7)
        sizes = [*[20] * 30_000, *[chance.randrange(50_000) for _ in range(300)], 3 << 20, 3 << 20, *[0] * 5_000]
        queue = f"queue:{name}"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            bodies = [number.to_bytes(4, "big") + bytes(size) for number, size in enumerate(sizes)]
            await session.send_many(queue, bodies)
            expected = dict(enumerate(bodies, 1))
            assert await read(session, queue, 1, 1 << 62) == expected
            assert await read(session, queue, 29_990, 30_010) == {one: expected[one] for one in range(29_990, 30_010)}
            for first, end in ((0, 0), (5, 5), (9, 3), (len(bodies) + 1, 1 << 60)):
                assert await read(session, queue, first, end) == {}
            await connection.command("delete", {"destination": name, "ranges": [[2, 20_000], [30_050, 30_051]]})
            left = {one: body for one, body in expected.items() if not 2 <= one < 20_000 and one != 30_050}
            assert await read(session, queue, 1, 1 << 62) == left

    run(main())


def test_d01_messages_sent_one_by_one_are_read_too(server: Topology, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            bodies = numbered(1_500)
            for body in bodies:
                session.send_nowait(f"queue:{name}", body)
                session.send_nowait(f"queue:{name}-other", body)
                session.send_nowait(f"queue:{name}", body, priority=9)
                await asyncio.sleep(0)
            await session.flush()
            found = await read(session, f"queue:{name}", 1, 10_000)
            assert list(found.values()) == [body for body in bodies for _ in (1, 2)]

    run(main())


def test_d01_a_selector_selects_in_the_broker(server: Topology, name: str) -> None:
    async def main() -> None:
        queue = f"queue:{name}"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            for number in range(20_000):
                session.send_nowait(queue, b"%d" % number, properties={"n": number})
            await session.flush()
            rare = await read(session, queue, 1, 1 << 40, selector="n = 77 OR n = 19999")
            assert rare == {78: b"77", 20_000: b"19999"}
            assert await read(session, queue, 79, 20_000, selector="n = 77 OR n = 19999") == {}
            assert len(await read(session, queue, 1, 1 << 40, selector="n < 10000")) == 10_000
            with pytest.raises(BadSelector):
                await read(session, queue, 1, 5, selector="n = ")

    run(main())


def test_d01_many_read_at_once_over_one_connection(server: Topology, name: str) -> None:
    """Far more than may wait for one connection is asked for: readers wait for each other, and none is thrown out."""

    async def main() -> None:
        queue, bodies = f"queue:{name}", [bytes(20_000)] * 1_000
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send_many(queue, bodies)

            async def one(number: int) -> int:
                async with connection.session() as mine:
                    count = 0
                    async for first, batch in mine.read(queue, 1, 1 << 40):
                        assert first == count + 1
                        count += batch.count
                        if number % 3 == 0:
                            await asyncio.sleep(0)
                return count

            states: list[object] = []
            connection.on_state = states.append
            assert await asyncio.gather(*map(one, range(12))) == [1_000] * 12
            assert states == []

    run(main())


def test_d01_a_reader_that_stops_half_way_leaves_nothing_behind(server: Topology, name: str) -> None:
    async def main() -> None:
        queue = f"queue:{name}"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send_many(queue, [bytes(1_000)] * 20_000)
            reading_half = session.read(queue, 1, 1 << 40)
            first, batch = await anext(reading_half)
            assert first == 1 and batch.count
            await anext(reading_half)
            assert len(session._calls) <= reading.READS_AHEAD
            await reading_half.aclose()
            assert not session._calls
            assert (await session.command("status"))["node"]

    run(main())


def test_d01_wrong_ranges_are_refused_before_anything_is_asked(server: Topology, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await send_all(session, f"queue:{name}", [b"x"])
            for first, end in ((-1, 5), (0, 1 << 63), ("1", 5)):
                with pytest.raises(BadArgument):
                    [one async for one in session.read(name, first, end)]  # type: ignore[arg-type]
            with pytest.raises(BadName):
                [one async for one in session.read("a b", 1, 5)]

    run(main())


def test_d01_the_blocking_twin_reads_confirms_and_stops(server: Topology, name: str) -> None:
    topic = f"topic:{name}"
    with sync.connect(server.url) as connection, connection.session() as session:
        assert limits.MIB < connection.batch_bytes_max <= limits.BATCH_BYTES_MAX
        with session.reader(topic, subscription="spark") as reader:
            session.send_many(topic, numbered(5_000))
            (told,) = reader.look()

            def bodies() -> list[bytes]:
                found: list[tuple[int, Batch]] = list(
                    session.read(told.destination, told.floor, told.end, subscription="spark", identity=told.identity)
                )
                return [bytes(batch.record(index)[1]) for _, batch in found for index in range(batch.count)]

            assert bodies() == numbered(5_000)
            for _ in session.read(topic, 1, 5_001):
                break
            reader.confirm({topic: [(1, 4_001)]}, identities={topic: told.identity})
            assert bodies() == numbered(5_000)[4_000:]
        assert not reader.opened
        assert session.committed_version(name) is None
        assert session.commit([], key=name, version=4) and not connection.commit([], key=name, version=4)
        assert session.committed_version(name) == connection.committed_version(name) == 4
