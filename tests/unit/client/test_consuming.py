"""Receiving: iteration, leaving, credit, subscriptions and their end, browsing, requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clarion import client
from clarion.errors import BadArgument, NoSuchDestination, SessionClosed, UnknownVerb, WrongKind
from clarion.wire import frames
from clarion.wire.batch import encode
from clarion.wire.frames import Frame, Type
from tests.unit.client.scripted_broker import ServerEnd, broker, run
from tests.unit.client.traffic import filled, frames_of


def test_b01_messages_come_in_order_and_are_confirmed() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 10)
            seen = []
            async for message in session.receive("q"):
                seen.append((message.sequence, message.body, message.redelivered, message.delivery_count))
                await message.confirm()
                assert message.sequence in there.confirmed["q"]
                if len(seen) == 10:
                    break
            assert seen == [(number, b"%d" % number, False, 1) for number in range(10)]

    run(main())


def test_b01_break_returns_what_was_prefetched() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 10)
            async for message in session.receive("q"):
                if message.sequence == 2:
                    break
            await there.until(lambda: there.unsubscribed)
            assert there.unsubscribed[0]["unseen"] == [[3, 10]]
            async with connection.session() as other, other.receive("q") as consumer:
                rest = [await consumer.receive(5) for _ in range(7)]
                assert [one.sequence for one in rest if one is not None] == list(range(3, 10))
            await message.confirm()  # of a consumer that is no more
            assert there.confirmed["q"] == {2}

    run(main())


@pytest.mark.parametrize("how", ["exception", "cancel", "with", "close"])
def test_b01_every_way_of_leaving_returns_what_was_prefetched(how: str) -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 5)

            handling = asyncio.Event()

            async def handle() -> None:
                async for _ in session.receive("q"):
                    handling.set()
                    if how == "exception":
                        raise ZeroDivisionError
                    await asyncio.Event().wait()

            if how == "exception":
                with pytest.raises(ZeroDivisionError):
                    await handle()
            elif how == "cancel":
                task = asyncio.create_task(handle())
                await handling.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            elif how == "with":
                async with session.receive("q") as consumer:
                    async for _ in consumer:
                        break
                    assert await consumer.receive() is not None  # the block is not left yet
            else:
                consumer = session.receive("q")
                assert await consumer.receive() is not None
                await consumer.close()
                await consumer.close()
                assert await consumer.receive() is None
            await there.until(lambda: there.unsubscribed)
            first = 2 if how == "with" else 1
            assert there.unsubscribed[0]["unseen"] == [[first, 5]]

    run(main())


def test_b01_a_delivery_that_crosses_unsubscribe_is_given_back() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 1)
            consumer = session.receive("q")
            assert await consumer.receive() is not None
            leaving = asyncio.create_task(consumer.close())
            await asyncio.sleep(0)
            late = frames.deliver_parts(1, [(1, 1, False, [encode(b"q", 1, [b"late", b"later"])])])
            there.end.send(Type.DELIVER, 1, b"".join(late))
            await leaving
            await there.until(lambda: len(there.unsubscribed) == 2)
            assert [one["unseen"] for one in there.unsubscribed] == [[], [[1, 3]]]

    run(main())


def test_b01_a_late_delivery_that_can_only_be_rejected_concerns_nobody() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 1)
            consumer = session.receive("q")
            assert await consumer.receive() is not None
            unsubscribe = there._unsubscribe

            def forgotten(end: ServerEnd, frame: Frame) -> None:
                said = {"request": frames.unpack(frame.payload)["request"], "code": "CLN-210", "facts": {}}
                end.send(Type.ERROR, frame.channel, frames.pack(said))

            leaving = asyncio.create_task(consumer.close())
            await there.until(lambda: there.unsubscribed)
            there._unsubscribe = forgotten  # type: ignore[method-assign]
            late = frames.deliver_parts(1, [(1, 1, False, [encode(b"q", 1, [b"late"])])])
            there.end.send(Type.DELIVER, 1, b"".join(late))
            await leaving
            await there.until(lambda: frames_of(there, Type.REJECT))
            assert frames.unpack_ack(frames_of(there, Type.REJECT)[0]) == (1, 0, [(1, 2)])
            there._unsubscribe = unsubscribe  # type: ignore[method-assign]
            await session.flush()

    run(main())


def test_b13_credit_returns_on_receipt_in_chunks_and_adds_up() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 100)
            consumer = session.receive("q", prefetch_messages=10)
            for _ in range(100):
                message = await consumer.receive(5)
                assert message is not None  # none is confirmed: credit does not wait for it
                outstanding = there.subscribers[0].credit_messages + len(there.subscribers[0].inflight)
                assert outstanding - message.sequence <= 21
            assert all(messages >= 5 for _, messages, _ in there.credits)
            assert len(there.credits) <= 20
            returned = sum(messages for _, messages, _ in there.credits)
            bodies = there.bodies("q")
            assert sum(size for _, _, size in there.credits) == sum(map(len, bodies[:returned]))
            await consumer.close()

    run(main())


def test_b13_byte_credit_alone_keeps_large_messages_coming() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            for _ in range(20):
                session.send_nowait("q", bytes(50_000))
            await session.flush()
            async with session.receive_batches("q", prefetch_bytes=60_000) as consumer:
                seen = 0
                while seen < 20:
                    batch = await consumer.receive(5)
                    assert batch is not None
                    seen += len(batch)

    run(main())


def test_b01_idle_time_ends_an_iteration_and_a_single_receive() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 3)
            seen = [message async for message in session.receive("q", timeout=0.02)]
            assert len(seen) == 3
            consumer = session.receive("other")
            assert await consumer.receive(0.01) is None
            waiting = asyncio.create_task(consumer.receive(5))
            await session.send("other", b"x")
            message = await waiting
            assert message is not None
            assert message.body == b"x"

    run(main())


def test_b04_subscriptions_are_asked_for_as_written() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            async with (
                session.receive("topic:t"),
                session.receive("topic:t", durable="d", prefetch_messages=7, unconfirmed_max=9),
                session.receive("topic:t", subscription="s", shared=True, prefetch_bytes=8),
            ):
                asked = [frames.unpack(payload) for payload in frames_of(there, Type.SUBSCRIBE)]
            assert [(one["subscription"], one["durable"], one["shared"]) for one in asked] == [
                (None, False, False),
                ("d", True, False),
                ("s", False, True),
            ]
            assert (asked[1]["credit_messages"], asked[1]["unconfirmed_max"]) == (7, 9)
            assert asked[2]["credit_bytes"] == 8
            assert len({one["consumer"] for one in asked}) == 3
            await session.receive("topic:t", durable="d").close(delete=True)
            async with session.receive("topic:t", durable="d") as consumer:
                await consumer.close(delete=True)
            assert [one["delete"] for one in there.unsubscribed] == [False, False, False, True]
            for wrong in ({"shared": True}, {"durable": "a", "subscription": "b"}, {"prefetch_messages": 0}):
                with pytest.raises(BadArgument):
                    session.receive("topic:t", **wrong)

    run(main())


def test_b01_a_refused_or_ended_consumer_raises_the_brokers_error() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            there.failing["topic:q"] = WrongKind(destination="q", kind="queue", wanted="topic")
            with pytest.raises(WrongKind):
                async for _ in session.receive("topic:q"):
                    pass
            consumer = session.receive("gone")
            waiting = asyncio.create_task(consumer.receive())
            await there.until(lambda: there.subscribers)
            number = there.subscribers[0].number
            error = frames.pack(frames.error_facts(NoSuchDestination(destination="gone")))
            there.end.send(Type.CONSUMER_CLOSED, 1, frames.CLOSED.pack(number, 0) + error)
            with pytest.raises(NoSuchDestination):
                await waiting
            with pytest.raises(NoSuchDestination):
                await consumer.confirm(0, 1)
            await consumer.close()

    run(main())


def test_b01_the_end_of_a_session_reaches_its_consumers() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection:
            session = await connection.session()
            await filled(session, "q", 5)
            consumer = session.receive("q")
            message = await consumer.receive()
            assert message is not None
            waiting = asyncio.create_task(session.receive("empty").receive())
            await there.until(lambda: len(there.subscribers) == 2)
            await session.close()
            assert await waiting is None
            with pytest.raises(SessionClosed):
                await message.confirm()
            assert {"unseen": [[1, 5]], "delete": False}.items() <= there.unsubscribed[0].items()
            assert not there.subscribers

    run(main())


def test_b04_browsing_pages_through_messages_without_consuming() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 10)
            batch = there.stored["q"][0][1]
            asked: list[dict[str, Any]] = []

            def answer(verb: str, arguments: dict[str, Any]) -> Any:
                asked.append(arguments)
                first = arguments["from"]
                end = min(10, first + 4)
                part = bytes(batch.sliced(first, end).buffer)
                return {"slices": [[first, 1, False, part]], "next": end if end < 10 else None}

            there.requests = answer
            assert [one.body async for one in session.browse("q")] == [b"%d" % number for number in range(10)]
            assert [one.sequence async for one in session.browse("q", start=3, count=5)] == [3, 4, 5, 6, 7]
            assert [one["from"] for one in asked] == [0, 4, 8, 3, 7]
            assert [one["messages"] for one in asked[3:]] == [5, 1]

    run(main())


def test_b17_requests_return_results_and_raise_errors() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection:

            def answer(verb: str, arguments: dict[str, Any]) -> Any:
                if verb != "status":
                    raise UnknownVerb(verb=verb)
                return {"got": arguments}

            there.requests = answer
            results = await asyncio.gather(*(connection.command("status", {"n": number}) for number in range(5)))
            assert results == [{"got": {"n": number}} for number in range(5)]
            with pytest.raises(UnknownVerb, match="dance"):
                await connection.command("dance")

    run(main())
