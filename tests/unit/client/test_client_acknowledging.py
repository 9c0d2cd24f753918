"""Confirmations that go after a while and by the thousand, and those for all that a session has received (B-04)."""

from __future__ import annotations

import asyncio

import pytest

from clarion import client
from clarion.client import acknowledging
from clarion.errors import JournalFull, SessionClosed
from clarion.wire import frames
from clarion.wire.frames import Type
from tests.unit.client.scripted_broker import broker, run
from tests.unit.client.traffic import filled, frames_of, take

# --- dups_ok --------------------------------------------------------------------------------------------


def test_b04_lazy_confirmations_go_by_the_thousand_and_nothing_waits() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 2_500)
            there.confirming = False
            seen = 0
            async for _ in session.receive("q", ack="dups_ok"):
                seen += 1
                if seen == 2_500:
                    break
            there.confirming = True
            await there.until(lambda: len(there.confirmed.get("q", ())) == 2_500)
            sizes = [
                sum(end - first for first, end in frames.unpack_ack(payload)[2])
                for payload in frames_of(there, Type.CONFIRM)
            ]
            assert sum(sizes) == 2_500
            assert len(sizes) <= 3

    run(main())


def test_b04_lazy_confirmations_go_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acknowledging, "LAZY_S", 0.01)

    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 3)
            consumer = session.receive("q", ack="dups_ok")
            await take(consumer, 3)
            await there.until(lambda: there.confirmed.get("q") == {0, 1})  # it may still work on the third
            await consumer.close()
            await session.flush()
            assert there.confirmed["q"] == {0, 1, 2}

    run(main())


def test_b04_lazy_batches_and_flush() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 6)
            consumer = session.receive_batches("q", ack="dups_ok", prefetch_messages=3)
            assert await consumer.receive() is not None
            assert await consumer.receive() is not None
            await session.flush()
            assert there.confirmed["q"] == {0, 1, 2}
        assert there.confirmed["q"] == {0, 1, 2, 3, 4, 5}  # the session was left without an exception

    run(main())


# --- client ---------------------------------------------------------------------------------------------


def test_b04_client_confirms_all_that_the_session_has_received_in_that_mode() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            for name in ("a", "b", "c"):
                await filled(session, name, 4)
            a, b = session.receive("a", ack="client"), session.receive("b", ack="client")
            c = session.receive("c")
            first, *_ = await take(a, 2)
            await take(b, 3)
            await take(c, 1)
            await first.confirm()
            assert there.confirmed == {"a": {0, 1}, "b": {0, 1, 2}}
            (more,) = await take(a, 1)
            more.confirm_nowait()
            await session.flush()
            assert there.confirmed["a"] == {0, 1, 2}
            batches = session.receive_batches("d", ack="client")
            await filled(session, "d", 5)
            batch = await batches.receive()
            assert batch is not None
            await session.confirm(batch)
            assert there.confirmed["d"] == set(range(len(batch)))
            await first.reject()  # a rejection is for one message, in every mode
            assert there.returned["a"] == [] or 0 in there.confirmed["a"]
        with pytest.raises(SessionClosed):
            await more.confirm()

    run(main())


def test_b04_a_confirmation_that_found_no_room_can_be_repeated() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 2)
            async with session.receive("q") as consumer:
                message, _ = await take(consumer, 2)
                there.confirming = False
                first = asyncio.create_task(message.confirm())
                await there.until(lambda: frames_of(there, Type.CONFIRM))
                _, request, _ = frames.unpack_ack(frames_of(there, Type.CONFIRM)[0])
                full = frames.error_facts(JournalFull(wanted=1, room=0))
                there.end.send(Type.ERROR, 1, frames.pack({"request": request, **full}))
                with pytest.raises(JournalFull):
                    await first
                there.confirming = True
            await message.confirm()
            assert len(frames_of(there, Type.CONFIRM)) == 2

    run(main())


def test_b02_client_claims_and_confirms_over_a_lost_connection() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 5)
            consumer = session.receive("q", ack="client", prefetch_messages=3)
            messages = await take(consumer, 2)
            there.end.cut()
            more = await take(consumer, 2)
            await messages[0].confirm()
            assert there.confirmed["q"] == {0, 1, *(m.sequence for m in more)}

    run(main())
