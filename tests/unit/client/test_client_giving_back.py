"""What a session gives back comes again: all that it has when it recovers, and rejections with a reason or a delay."""

from __future__ import annotations

import asyncio

import pytest

from clarion import client
from clarion.errors import BadArgument
from clarion.wire import frames
from clarion.wire.frames import Type
from tests.unit.client.scripted_broker import broker, run
from tests.unit.client.traffic import filled, frames_of, take

# --- recovery -------------------------------------------------------------------------------------------


def test_b04_recover_gives_back_everything_that_is_not_confirmed() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            for name in ("a", "b", "c"):
                await filled(session, name, 3)
            a = session.receive("a", ack="client", prefetch_messages=2)
            b, c = session.receive("b"), session.receive("c", ack="auto")
            first = (await take(a, 2))[0]
            await first.confirm()
            await take(a, 1)
            held = await take(b, 2)
            await held[0].confirm()
            await take(c, 2)
            await session.recover()
            assert there.confirmed == {"a": {0, 1}, "b": {0}, "c": {0}}
            (again,) = await take(a, 1)
            assert (again.sequence, again.delivery_count) == (2, 2)
            assert sorted(m.sequence for m in await take(b, 2)) == [1, 2]
            assert sorted(m.sequence for m in await take(c, 2)) == [1, 2]
            await session.recover()
            await session.recover()

    run(main())


def test_b04_what_is_on_its_way_while_a_session_recovers_comes_again_in_its_order() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 6)
            consumer = session.receive("q", ack="client", prefetch_messages=4)
            await take(consumer, 2)
            there.requests = lambda verb, arguments: ... if verb == "recover" else None
            recovering = asyncio.create_task(session.recover())
            await there.until(lambda: len(frames_of(there, Type.REQUEST)) == 1)
            there.dispatch("q")  # these have left before the broker heard of it
            (asked,) = frames_of(there, Type.REQUEST)
            await session.command("status")
            assert await consumer.receive(0.02) is None
            there.restart((there.end, 1), {"restart": [1]})
            there.end.send(Type.REPLY, 1, frames.pack({"request": frames.unpack(asked)["request"], "result": None}))
            there.dispatch("q")
            again = await take(consumer, 6)
            assert [message.sequence for message in again] == [0, 1, 2, 3, 4, 5]
            await again[-1].confirm()
            await recovering

    run(main())


def test_b04_any_number_of_recoveries_leaves_the_credit_as_it_was() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 20)
            consumer = session.receive("q", ack="client", prefetch_messages=8)
            for times in range(30):
                (message,) = await take(consumer, 1)
                assert (message.sequence, message.delivery_count) == (0, times + 1)
                await session.recover()
            assert [message.sequence for message in await take(consumer, 20)] == list(range(20))

    run(main())


def test_b04_a_connection_lost_while_a_session_recovers_gives_everything_back() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 6)
            consumer = session.receive("q", ack="client", prefetch_messages=4)
            await take(consumer, 2)
            there.requests = lambda verb, arguments: ... if verb == "recover" else None
            recovering = asyncio.create_task(session.recover())
            await there.until(lambda: frames_of(there, Type.REQUEST))
            there.end.cut()
            await recovering
            assert sorted(message.sequence for message in await take(consumer, 6)) == list(range(6))

    run(main())


# --- rejections -----------------------------------------------------------------------------------------


def test_b04_a_rejection_with_a_reason_or_a_delay_carries_it() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 8)
            consumer = session.receive("q")
            messages = await take(consumer, 6)
            await asyncio.gather(
                messages[0].reject("bad"),
                messages[1].reject("bad"),
                messages[2].reject("worse", delay=1.5),
                messages[3].reject(delay=0),
                messages[4].reject(),
            )
            assert there.reasons == [([[0, 2]], "bad", None), ([[2, 3]], "worse", 1500), ([[3, 4]], None, 0)]
            assert len(frames_of(there, Type.REJECT)) == 1
            again = await take(consumer, 7)
            assert sorted(m.sequence for m in again) == [0, 1, 2, 3, 4, 6, 7]
            batches = session.receive_batches("r")
            await filled(session, "r", 3)
            batch = await batches.receive()
            assert batch is not None
            await batch.reject("all of them", 0.25)
            assert there.reasons[-1] == ([[0, len(batch)]], "all of them", 250)
            for wrong in (-1, float("nan"), float("inf"), "1"):
                with pytest.raises(BadArgument, match="delay"):
                    await messages[5].reject(delay=wrong)  # type: ignore[arg-type]

    run(main())


def test_b02_a_reasoned_rejection_on_its_way_is_not_repeated() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 1)
            there.confirming = False
            consumer = session.receive("q")
            (message,) = await take(consumer, 1)
            rejecting = asyncio.create_task(message.reject("why"))
            await there.until(lambda: there.reasons)
            there.end.cut()
            await rejecting
            (again,) = await take(consumer, 1)
            assert again.redelivered
            assert len(there.reasons) == 1

    run(main())
