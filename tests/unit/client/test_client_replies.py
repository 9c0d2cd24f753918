"""Requests and replies, temporary destinations, and what a consumer may ask for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from clarion import client
from clarion.errors import BadArgument, BadName, BadSelector, ConnectionLost, NoReply, SessionClosed, WrongKind
from clarion.wire import frames
from clarion.wire.batch import encode
from clarion.wire.frames import Type
from tests.unit.client.scripted_broker import run
from tests.unit.client.scripted_semantics import FullBroker, full_broker


def subscribes(there: FullBroker, connection: int = 0) -> list[dict[str, Any]]:
    return [frames.unpack(f.payload) for number, f in there.log if f.type == Type.SUBSCRIBE and number == connection]


async def serve(session: client.Session, name: str) -> None:
    """Answer every request with its body doubled, the last one first."""
    waiting: list[client.ReceivedMessage] = []
    async for message in session.receive(name, ack="auto"):
        waiting.append(message)
        if len(waiting) == 3:
            for one in reversed(waiting):
                await session.reply(one, one.body * 2, properties={"n": len(one.body)})
            waiting.clear()


def test_b04_replies_find_their_requests_over_one_queue() -> None:
    async def main() -> None:
        async with (
            full_broker() as there,
            client.connect(there.url) as connection,
            connection.session() as server,
            connection.session() as session,
        ):
            serving = asyncio.create_task(serve(server, "service"))
            bodies = [b"a", b"bb", b"ccc", b"d", b"ee", b"fff"]
            replies = await asyncio.gather(*(session.request("service", body) for body in bodies))
            assert [reply.body for reply in replies] == [body * 2 for body in bodies]
            assert replies[2].properties == {"n": 3}
            assert len(there.verbs("temporary")) == 1
            name = there.verbs("temporary")[0]["name"]
            assert name == f"_temp.{session._producer:032x}.1"
            assert there.confirmed[f"queue:{name}"] == set(range(6))
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    run(main())


def test_b04_no_reply_in_time_is_told_and_a_late_one_is_dropped() -> None:
    async def main() -> None:
        async with (
            full_broker() as there,
            client.connect(there.url) as connection,
            connection.session() as server,
            connection.session() as session,
        ):
            consumer = server.receive("service")
            with pytest.raises(NoReply) as told:
                await session.request("service", b"x", timeout=0.02)
            assert told.value.facts == {"destination": "service", "limit_ms": 20}
            late = await consumer.receive()
            assert late is not None
            assert late.reply_to is not None
            await server.reply(late, b"too late")
            queue = late.reply_to
            await there.until(lambda: there.confirmed.get(queue) == {0})
            asking = asyncio.create_task(session.request("service", b"y", correlation_id="mine", priority=7))
            request = await consumer.receive()
            assert request is not None
            assert (request.correlation_id, request.priority, request.reply_to) == ("mine", 7, queue)
            with pytest.raises(BadArgument, match="mine"):
                await session.request("service", b"z", correlation_id="mine")
            await server.send(queue, b"nobody's")
            await server.send(queue, b"a stranger's", correlation_id="other")
            await server.send(queue, b"yours", correlation_id="mine")
            assert (await asking).body == b"yours"
            assert await server.reply(request, b"twice")  # nobody waits any more

    run(main())


def test_b04_what_cannot_be_a_request_or_a_reply_is_refused() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            async with connection.session() as session:
                with pytest.raises(BadArgument, match="reply_to"):
                    await session.request("service", b"", reply_to="elsewhere")
                there.failing["topic:t"] = WrongKind(destination="t", kind="queue", wanted="topic")
                with pytest.raises(WrongKind):
                    await session.request("topic:t", b"")
                await session.send("q", b"no question")
                message = await session.receive("q").receive()
                assert message is not None
                with pytest.raises(BadArgument, match="no reply"):
                    await session.reply(message, b"")
                await session.send("r", b"without an id", reply_to="queue:answers")
                message = await session.receive("r").receive()
                assert message is not None
                await session.reply(message, b"it has one after all")
                answer = await session.receive("queue:answers").receive()
                assert answer is not None
                assert answer.correlation_id == message.id
            with pytest.raises(SessionClosed):
                await session.request("service", b"")

    run(main())


def test_b02_the_reply_queue_is_made_again_before_anything_else() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            extra = await session.temporary_topic()
            asking = asyncio.create_task(session.request("service", b"x"))
            await there.until(lambda: there.bodies("service"))
            there.end.cut()
            await there.until(lambda: len(there.verbs("temporary")) == 4)
            kinds = [f.type for n, f in there.log if n == 1 and f.channel == session._channel]
            assert kinds[:4] == [Type.OPEN, Type.REQUEST, Type.REQUEST, Type.SUBSCRIBE]
            assert there.verbs("temporary")[2:] == there.verbs("temporary")[:2]
            assert extra == f"topic:_temp.{session._producer:032x}.1"
            server = await connection.session()
            request = await server.receive("service").receive()
            assert request is not None
            await server.reply(request, b"after all")
            assert (await asking).body == b"after all"

    run(main())


def test_b02_nothing_of_a_vanished_queue_is_claimed_or_confirmed() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            queue = await session.temporary_queue()
            await session.send_many(queue, [b"1", b"2"])
            consumer = session.receive(queue)
            first = await consumer.receive()
            assert first is not None
            there.confirming = False
            confirming = asyncio.create_task(first.confirm())
            await there.until(lambda: there.confirmed.get(queue))
            there.confirming = True
            there.end.cut()
            await confirming
            await there.until(lambda: subscribes(there, 1))
            assert subscribes(there, 1)[0]["held"] == []
            await session.send(queue, b"new")
            new = await consumer.receive()
            assert new is not None
            assert (new.sequence, new.body) == (0, b"new")
            assert there.confirmed.get(queue, set()) == set()
            await new.confirm()

    run(main())


def test_b04_requests_end_with_their_session() -> None:
    async def main() -> None:
        async with full_broker() as there:
            connection = await client.connect(there.url, reconnect=False)
            session, other = await connection.session(), await connection.session()
            asking = asyncio.create_task(session.request("service", b"x"))
            also = asyncio.create_task(other.request("service", b"x"))
            await there.until(lambda: len(there.bodies("service")) == 2)
            await session.close()
            with pytest.raises(SessionClosed):
                await asking
            there.end.cut()
            with pytest.raises(ConnectionLost):
                await also
            await connection.close()

    run(main())


def test_b04_headers_that_cannot_be_read_are_nobodys_reply() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            asking = asyncio.create_task(session.request("service", b"x"))
            await there.until(lambda: there.bodies("service"))
            batch = encode(b"q", 1, [b"?"], [b"\xc1"])
            there.end.send(Type.DELIVER, 1, b"".join(frames.deliver_parts(1, [(0, 1, False, [batch])])))
            await session.command("status")
            assert not asking.done()
            asking.cancel()

    run(main())


# --- options of consumers -------------------------------------------------------------------------------


def test_b04_options_are_asked_for_as_written_and_others_not_at_all() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            moment = datetime(2025, 1, 2, tzinfo=timezone(timedelta(hours=1)))
            async with (
                session.receive("topic:t"),
                session.receive("topic:t", selector="a = 1", no_local=True, start=7, visibility=1.5),
                session.receive_batches("topic:t", start_time=moment),
                session.receive_batches("topic:t", start_time=1_700_000_000.25),
            ):
                asked = subscribes(there)
            optional = ("selector", "no_local", "start", "start_ms", "visibility_ms")
            said = [{name: one[name] for name in optional if name in one} for one in asked]
            assert said == [
                {},
                {"selector": "a = 1", "no_local": True, "start": 7, "visibility_ms": 1500},
                {"start_ms": int(moment.timestamp() * 1000)},
                {"start_ms": 1_700_000_000_250},
            ]

    run(main())


@pytest.mark.parametrize(
    "wrong",
    [
        {"ack": "sometimes"}, {"start": -1}, {"start": 1, "start_time": 1}, {"start_time": datetime(2025, 1, 1)},
        {"start_time": float("nan")}, {"visibility": 0}, {"visibility": -1}, {"visibility": True},
        {"start_time": 1e300}, {"unconfirmed_max": 0}, {"shared": True},
    ],
)  # fmt: skip
def test_b04_options_that_make_no_sense_are_refused_before_anything_is_asked(wrong: dict[str, Any]) -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            with pytest.raises(BadArgument):
                session.receive("topic:t", **wrong)
            with pytest.raises(TypeError):
                session.receive("topic:t", wrong=1)  # type: ignore[call-arg]
            with pytest.raises(BadName):
                session.receive("glib:*")
            assert not subscribes(there)

    run(main())


def test_b04_a_selector_that_the_broker_refuses_is_told() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            there.failing["q"] = BadSelector(selector="=", column=1, detail="what?")
            with pytest.raises(BadSelector, match="column 1"):
                await session.receive("q", selector="=").receive()

    run(main())


def test_b02_after_a_reconnection_a_start_is_where_the_application_was() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await session.send_many("topic:t", [b"x"] * 6)
            moment = datetime(2025, 1, 1, tzinfo=UTC)
            consumers = [session.receive("topic:t", start=0, prefetch_messages=6), session.receive("topic:t")]
            consumers += [session.receive("topic:u", start_time=moment), session.receive("glob:v", start_time=1)]
            for _ in range(3):
                assert await consumers[0].receive() is not None
            for consumer in consumers[1:]:
                assert await consumer.receive(0) is None
            there.end.cut()
            await there.until(lambda: len(subscribes(there, 1)) == 4)
            said = [(one.get("start"), one.get("start_ms")) for one in subscribes(there, 1)]
            assert said == [(3, None), (None, None), (None, int(moment.timestamp() * 1000)), (None, 1000)]

    run(main())


def test_b04_browsing_asks_for_what_a_selector_selects() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection, connection.session() as session:
            there.requests = lambda verb, arguments: {"slices": [], "next": None}
            assert [one async for one in session.browse("q", selector="a = 1", start=3)] == []
            assert [one async for one in session.browse("q")] == []
            first, second = there.verbs("browse")
            assert (first["selector"], first["from"]) == ("a = 1", 3)
            assert "selector" not in second

    run(main())
