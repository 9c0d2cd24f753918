"""SIGKILL of a server with readers: what was confirmed stays confirmed, what was not is read again (D-01, D-02)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import clarion
from clarion.client.prepacked import Packed
from clarion.errors import SubscriptionInUse
from clarion.testing.server import ServerProcess
from tests.integration.helpers import numbered, run, take, until

LIVES = 2
EACH = 500


@contextmanager
def server_at(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", environment={"CLARION_JOURNAL_SEGMENT_BYTES": "2MiB"}) as server:
        yield server
    for word in ("fault", "loop_error", "Traceback", "messages_lost"):
        assert word not in server.log(), server.log()[-2000:]


async def bodies(session: clarion.Session, destination: str, subscription: str) -> list[bytes]:
    found: list[bytes] = []
    async for _, batch in session.read(destination, 1, 1 << 60, subscription=subscription):
        found += [bytes(batch.record(index)[1]) for index in range(batch.count)]
    return found


@pytest.mark.parametrize("destination", ["topic:read", "queue:read", "glob:read*"])
def test_d01_a_confirmation_that_was_answered_survives_kills(tmp_path: Path, destination: str) -> None:
    """The reader outlives the server: it is open again on the next connection, before anybody else."""

    async def main(server: ServerProcess) -> None:
        name = "topic:read" if destination.startswith("glob") else destination
        subscription = None if name.startswith("queue") else "spark"
        sent, confirmed = 0, 0
        async with clarion.connect(server.url) as connection, connection.session() as session:
            reader = session.reader(destination, subscription=subscription)
            await reader.open()
            for life in range(LIVES):
                label = f"{life}."
                await session.send_many(name, numbered(EACH, label))
                sent += EACH
                (told,) = await reader.look()
                assert (told.floor, told.end) == (confirmed + 1, sent + 1)
                confirmed += EACH // 2
                await reader.confirm({name: [(told.floor, confirmed + 1)]})
                late = asyncio.create_task(session.send(name, b"late %d" % life))
                server.kill()
                server.start()
                await late  # sent again if it was not stored
                sent += 1
                assert reader.opened
                (told,) = await reader.look()
                assert (told.floor, told.end) == (confirmed + 1, sent + 1)
                left = await bodies(session, name, subscription or "")
                assert len(left) == sent - confirmed == len(set(left))
                async with clarion.connect(server.url) as other, other.session() as theirs:
                    with pytest.raises(SubscriptionInUse):
                        await theirs.reader(destination, subscription=subscription).open()
            await reader.confirm({name: [(1, sent + 1)]})
            server.kill()
            server.start()
            assert await bodies(session, name, subscription or "") == []

    with server_at(tmp_path) as server:
        run(main(server))


def test_d01_a_reader_whose_place_was_taken_meanwhile_says_so(tmp_path: Path) -> None:
    async def main(server: ServerProcess) -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            reader = session.reader("topic:t", subscription="s")
            await reader.open()
            assert connection._link is not None
            link = connection._link
            async with clarion.connect(server.url) as other, other.session() as theirs:
                taking = theirs.reader("topic:t", subscription="s")

                async def taken() -> bool:
                    if connection._link is link:
                        link.close()
                        reader._session._readers.clear()  # as if it came back late: others are first
                    try:
                        await taking.open()
                    except SubscriptionInUse:
                        return False
                    return True

                await until(taken, "the right was lost with the connection")
                session._readers[reader._number] = reader
                reader._attach()

                async def told() -> bool:
                    try:
                        await reader.look()
                    except SubscriptionInUse:
                        return not reader.opened
                    return False

                await until(told, "the reader says that it is not the only one")
            (readable,) = await reader.open()
            assert readable.end == 1

    with server_at(tmp_path) as server:
        run(main(server))


def test_d01_a_consumer_goes_on_where_a_reader_left_holes(tmp_path: Path) -> None:
    """And what it was given before a kill comes again flagged, what it was not is not."""

    async def main(server: ServerProcess) -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send_many("queue:q", numbered(10))
            async with session.reader("queue:q") as reader:
                await reader.confirm({"queue:q": [(3, 5), (8, 9)]})
            left = [b"m0", b"m1", b"m4", b"m5", b"m6", b"m8", b"m9"]
            async with (
                clarion.connect(server.url, reconnect=False) as other,
                other.session() as theirs,
                theirs.receive("queue:q") as consumer,
            ):
                messages = await take(consumer, 7)
                assert [one.body for one in messages] == left
                assert not any(one.redelivered for one in messages)
                server.kill()
            server.start()
            async with session.receive("queue:q") as consumer:
                messages = await take(consumer, 7)
                assert [one.body for one in messages] == left
                assert all(one.redelivered for one in messages)
                await session.confirm(*messages)
            (told,) = await session.reader("queue:q").look()
            assert told.floor == told.end == 11

    with server_at(tmp_path) as server:
        run(main(server))


def test_d02_versions_and_packed_batches_survive_kills_once(tmp_path: Path) -> None:
    async def main(server: ServerProcess) -> None:
        offsets = np.arange(0, 8 * (EACH + 1), 8, dtype=np.uint32)
        async with clarion.connect(server.url) as connection, connection.session() as session:
            for life in range(LIVES):
                data = b"".join(b"%08d" % (life * 2 * EACH + number) for number in range(2 * EACH))
                halves = [Packed(count=EACH, offsets=offsets, data=data[at : at + 8 * EACH]) for at in (0, 8 * EACH)]
                await session.send_packed("queue:q", halves[0])
                unanswered = session.send_packed("queue:q", halves[1])
                await asyncio.sleep(0)  # it is written, and perhaps stored
                assert await session.commit([], key="life", version=life)
                server.kill()
                server.start()
                await unanswered
                assert await session.committed_version("life") == life
                assert not await session.commit([], key="life", version=life)
            found: list[bytes] = []
            async for _, batch in session.read("queue:q", 1, 1 << 60):
                found += [bytes(batch.record(index)[1]) for index in range(batch.count)]
            assert found == [b"%08d" % number for number in range(LIVES * 2 * EACH)]

    with server_at(tmp_path) as server:
        run(main(server))
