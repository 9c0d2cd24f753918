"""Receiving whole batches: their bodies and messages, one confirmation for all, and Arrow tables."""

from __future__ import annotations

import sys

import pytest

from clarion import client
from clarion.errors import MissingExtra
from clarion.message import PropertyValue
from tests.unit.client.scripted_broker import broker, run
from tests.unit.client.traffic import filled


def test_b01_batches_have_bodies_messages_and_one_confirmation() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 1_000)
            total = 0
            async for batch in session.receive_batches("q"):
                assert batch.first_sequence == total
                assert batch.bodies() == [b"%d" % number for number in range(total, total + len(batch))]
                assert [message.body for message in batch] == batch.bodies()
                total += len(batch)
                await batch.confirm()
                if total == 1_000:
                    break
            assert there.confirmed["q"] == set(range(1_000))
            await filled(session, "other", 3)
            other = session.receive_batches("other")
            rejected = await other.receive()
            assert rejected is not None
            next(iter(rejected)).confirm_nowait()
            await rejected.reject()
            again = await other.receive()
            assert again is not None
            assert again.redelivered
            assert repr(again) == f"<ReceivedBatch of {len(again)} from {again.first_sequence} of other>"
            again.confirm_nowait()
            await session.flush()

    run(main())


@pytest.mark.parametrize("headers", [False, True])
def test_b01_a_batch_becomes_an_arrow_table(headers: bool) -> None:
    pytest.importorskip("pyarrow")

    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            bodies = [b"", b"a", b"bc", b"", b"def"]
            for number, body in enumerate(bodies):
                properties: dict[str, PropertyValue] | None = {"n": number} if headers and number % 2 == 0 else None
                session.send_nowait("q", body, properties=properties)
            await session.flush()
            consumer = session.receive_batches("q", prefetch_messages=4)
            for expected in ([0, 1, 2, 3], [4]):  # the second is a slice with offsets of its origin
                batch = await consumer.receive()
                assert batch is not None
                table = batch.to_arrow()
                assert table.column("sequence").to_pylist() == expected
                assert table.column("body").to_pylist() == [bodies[number] for number in expected] == batch.bodies()
                times = [message.timestamp_ms for message in batch]
                assert table.column("timestamp_ms").to_pylist() == times
                table.validate(full=True)

    run(main())


def test_b01_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 1)
            batch = await session.receive_batches("q").receive()
            assert batch is not None
            with pytest.raises(MissingExtra, match="arrow"):
                batch.to_arrow()

    run(main())
