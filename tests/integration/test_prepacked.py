"""Batches that are sent encoded, and versions that are remembered, at a real server (D-02)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

import clarion
from clarion import limits, sync
from clarion.client.prepacked import Packed
from clarion.errors import BadArgument, Blocked, MessageTooLarge, NoSuchHandle, TransactionRolledBack
from clarion.message import Headers, encode_headers, group_hash
from tests.integration.helpers import WAIT_S, bodies, drain, numbered, run, until
from tests.integration.topologies import Topology


def packed(contents: list[bytes], headers: list[bytes] | None = None, **more: int) -> Packed:
    records = contents if headers is None else [one + two for one, two in zip(headers, contents, strict=True)]
    offsets = np.zeros(len(contents) + 1, np.uint32)
    np.cumsum([len(one) for one in records], out=offsets[1:])
    sizes = None if headers is None else np.array([len(one) for one in headers], np.uint32)
    return Packed(count=len(contents), offsets=offsets, data=b"".join(records), header_sizes=sizes, **more)


def test_d02_a_packed_batch_keeps_its_place_among_everything_else(server: Topology, name: str) -> None:
    async def main() -> None:
        queue = f"queue:{name}"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            session.send_nowait(queue, b"before")
            ticket = session.send_packed(queue, packed(numbered(1_000)))
            after = session.send_nowait(queue, b"after")
            first = await ticket
            assert ticket.done and ticket.count == 1_000
            assert int(await after, 16) == int(first, 16) + 1_000
            received = await drain(session, queue)
            assert bodies(received) == [b"before", *numbered(1_000), b"after"]
            assert [int(one.id, 16) - int(first, 16) for one in received] == list(range(-1, 1_001))

    run(main())


def test_d02_everything_that_a_message_says_can_be_packed(server: Topology, name: str) -> None:
    async def main() -> None:
        queue, now_ms = f"queue:{name}", time.time_ns() // 1_000_000
        async with clarion.connect(server.url) as connection, connection.session() as session:
            headers = [
                encode_headers(Headers(properties={"n": 1}, group="g", expires_at_ms=now_ms + 60_000)),
                encode_headers(Headers(type="t", expires_at_ms=now_ms + 90_000)),
            ]
            whole = packed(
                [b"a", b"b"], headers, priority=7, created_ms=now_ms - 500,
                expiry_first_ms=now_ms + 60_000, expiry_last_ms=now_ms + 90_000,
            )  # fmt: skip
            groups = np.array([group_hash("g"), 0], np.uint32)
            deltas = np.array([0, 400], np.uint32)
            fields = {field: getattr(whole, field) for field in whole.__struct_fields__}
            await session.send_packed(queue, Packed(**{**fields, "group_hashes": groups, "time_deltas": deltas}))
            one, two = await drain(session, queue)
            assert (one.properties, one.group, one.priority) == ({"n": 1}, "g", 7)
            assert (two.type, two.body) == ("t", b"b")
            assert two._batch.time_ms(two._index) - one._batch.time_ms(one._index) == 400
            await session.send_packed(queue, packed([b"dies"], [encode_headers(Headers(expires_at_ms=now_ms))],
                                                    expiry_first_ms=now_ms, expiry_last_ms=now_ms))  # fmt: skip

            async def dead() -> bool:
                return any([message.body == b"dies" async for message in session.browse("queue:_DMQ")])

            await until(dead, "it expired")
            await session.send_packed(queue, packed([b"late"], deliver_at_ms=now_ms + 86_400_000))
            assert await drain(session, queue) == []

    run(main())


def test_d02_what_is_no_batch_is_refused_and_changes_nothing(server: Topology, name: str) -> None:
    async def main() -> None:
        queue = f"queue:{name}"
        async with clarion.connect(server.url) as connection, connection.session() as session:
            good = packed(numbered(3))
            for wrong in (
                {"count": 0}, {"count": 4}, {"count": limits.BATCH_MESSAGES_MAX + 1}, {"offsets": b"123"},
                {"offsets": np.array([0, 2, 1, 6], np.uint32)}, {"offsets": np.array([1, 2, 4, 6], np.uint32)},
                {"data": b"short"}, {"header_sizes": np.array([3, 0, 0], np.uint32)}, {"group_hashes": b"x"},
                {"priority": 10}, {"created_ms": -1}, {"expiry_first_ms": 1 << 63},
                {"time_deltas": np.zeros(4, np.uint32)},
            ):  # fmt: skip
                fields = {field: getattr(good, field) for field in good.__struct_fields__}
                with pytest.raises(BadArgument):
                    session.send_packed(queue, Packed(**{**fields, **wrong}))
            with pytest.raises(MessageTooLarge):
                session.send_packed(queue, packed([bytes(limits.BATCH_BYTES_MAX)]))
            await session.send_packed(queue, good)
            assert bodies(await drain(session, queue)) == numbered(3)

    run(main())


def test_d02_a_full_buffer_blocks_and_gives_way(server: Topology, name: str) -> None:
    async def main() -> None:
        queue, batch = f"queue:{name}", packed([bytes(1_000)] * 500)
        async with clarion.connect(server.url, buffer_bytes=1 << 20) as connection, connection.session() as session:
            with pytest.raises(Blocked):
                for _ in range(10):
                    session.send_packed(queue, batch)
            for _ in range(20):
                await session.writable()
                session.send_packed(queue, batch)
            await session.flush()
            found = [one async for one in session.read(queue, 1, 1 << 40)]
            assert sum(one.count for _, one in found) >= 20 * 500

    run(main())


def test_d02_packed_batches_are_staged_prepared_and_committed_once(server: Topology, name: str) -> None:
    async def main() -> None:
        queue = f"queue:{name}"
        async with clarion.connect(server.url) as connection:
            async with connection.session(transacted=True) as session:
                session.send_packed(queue, packed(numbered(2_000)))
                session.send_nowait(queue, b"one more")
                handle = await session.prepare()
                session.send_packed(queue, packed([b"never"]))
                await session.rollback()
                session.send_packed(queue, packed([b"second"]))
                await session.commit()
            assert await connection.committed_version(name) is None
            assert await connection.commit([handle], key=name, version=7)
            assert not await connection.commit([handle], key=name, version=7)
            with pytest.raises(NoSuchHandle):
                await connection.commit([handle], key=name, version=8)
            assert await connection.committed_version(name) == 7
            async with connection.session() as reading:
                assert bodies(await drain(reading, queue)) == [b"second", *numbered(2_000), b"one more"]

    run(main())


def test_d02_a_version_is_a_register_of_its_own(server: Topology, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            assert await session.commit([], key=name, version=0)
            for version, newer in ((0, False), (3, True), (2, False), (3, False), (4, True)):
                assert await session.commit([], key=name, version=version) is newer
            assert await session.committed_version(name) == 4
            both = await asyncio.gather(*(connection.commit([], key=name, version=5) for _ in range(8)))
            assert sum(both) == 1
            no_key: list[dict[str, Any]] = [{}, {"key": name}, {"key": "", "version": 1}]
            for said in no_key:
                with pytest.raises(BadArgument):
                    await session.command("commit_prepared", {"handles": [], **said})
            for key in ("", "x" * 256, 5, None):
                with pytest.raises(BadArgument):
                    await session.command("committed_version", {"key": key})

    run(main())


def test_d02_the_blocking_twin_sends_packed_batches(server: Topology, name: str) -> None:
    queue = f"queue:{name}"
    with sync.connect(server.url) as connection:
        with connection.session(transacted=True) as session:
            ticket = session.send_packed(queue, packed(numbered(10)))
            assert len(ticket.result(timeout=20)) == 32 and ticket.done and ticket.count == 10
            session.commit()
        with connection.session() as session:
            with session.receive(queue) as consumer:
                received = [consumer.receive(timeout=WAIT_S) for _ in range(10)]
                assert [one.body for one in received if one is not None] == numbered(10)
            session.send_packed(queue, packed([b"flushed"]))
            session.flush()


def test_d02_a_packed_batch_of_a_lost_transaction_is_told(server: Topology, name: str) -> None:
    async def main() -> None:
        async with clarion.connect(server.url) as connection:
            async with connection.session(transacted=True) as session:
                await session.send_packed(f"queue:{name}", packed(numbered(5)))
                assert connection._link is not None
                connection._link.close()
                with pytest.raises(TransactionRolledBack):
                    for _ in range(2):
                        await session.command("status")
                        session.send_packed(f"queue:{name}", packed(numbered(5)))
                session.send_packed(f"queue:{name}", packed([b"again"]))
                await session.commit()
            async with connection.session() as session:
                assert bodies(await drain(session, f"queue:{name}")) == [b"again"]

    run(main())
