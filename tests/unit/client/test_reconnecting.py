"""Connections that are lost: what is sent again, what is claimed, what is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clarion import client, limits
from clarion.client import ConnectionState
from clarion.errors import (
    AuthenticationFailed,
    BadArgument,
    BadUrl,
    ClarionError,
    ConnectionFailed,
    ConnectionLost,
    CreditExceeded,
    ProducerForgotten,
)
from clarion.wire import frames
from clarion.wire.frames import Type
from tests.unit.client.scripted_broker import Broker, broker, run


def test_b02_unanswered_batches_are_sent_again_in_order_with_the_same_ids() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await session.send("q", b"answered")
            there.answering = False
            for number in range(30):
                session.send_nowait("q", b"%03d" % number + bytes(10_000))
                session.send_nowait("other", b"%03d" % number)
            await there.until(lambda: len(there.published) >= 3)
            before = list(there.published)
            there.answering = True
            there.end.cut()
            session.send_nowait("q", b"while it is away")
            await session.flush()
            again = [one for one in there.published if one.connection == 1]
            for name in ("q", "other"):
                firsts = [one.first for one in again if one.destination == name]
                assert firsts == sorted(firsts)
            identities = {one.identity for one in before[1:]}
            assert identities <= {one.identity for one in again if one.resend}
            await session.send("q", b"new")
            assert not there.published[-1].resend
            assert [body[:3] for body in there.bodies("q")[1:31]] == [b"%03d" % number for number in range(30)]
            assert len(there.bodies("q")) == 33
            assert len(there.bodies("other")) == 30

    run(main())


def test_b02_an_answer_that_was_lost_does_not_double_a_message() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            there.answering = False
            ticket = session.send_nowait("q", b"once")
            await there.until(lambda: there.published)
            there.answering = True
            there.end.cut()
            identity = await ticket
            assert there.bodies("q") == [b"once"]
            assert int(identity, 16) == there.published[0].identity == there.published[1].identity
            assert await session.send("q", b"next") > identity

    run(main())


def test_b02_a_broker_that_forgot_the_producer_fails_only_what_is_unknown() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            there.answering = False
            ticket = session.send_nowait("q", b"unknown")
            await there.until(lambda: there.published)
            there.answering = True
            there.failing["q"] = ProducerForgotten(producer="x")
            there.end.cut()
            with pytest.raises(ProducerForgotten):
                await ticket
            del there.failing["q"]
            await session.send("q", b"new")

    run(main())


def test_b02_held_messages_are_claimed_and_unseen_ones_come_again() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            for number in range(10):
                session.send_nowait("q", b"%d" % number)
            await session.flush()
            consumer = session.receive("q")
            got = [message for message in [await consumer.receive() for _ in range(6)] if message is not None]
            await session.confirm(got[0], got[3])
            there.confirming = False
            waiting = asyncio.create_task(got[1].confirm())
            await there.until(lambda: 1 in there.confirmed["q"])
            there.confirmed["q"].discard(1)  # it was not durable when the server died
            there.confirming = True
            there.end.cut()
            await waiting
            again = [await consumer.receive() for _ in range(4)]
            asked = [frames.unpack(f.payload) for number, f in there.log if f.type == Type.SUBSCRIBE and number == 1]
            assert asked[0]["held"] == [[1, 3], [4, 6]]
            assert asked[0]["consumer"] == 1
            assert [(one.sequence, one.redelivered) for one in again if one is not None] == [
                (6, True),
                (7, True),
                (8, True),
                (9, True),
            ]
            await session.confirm(got[2], got[4:], [one for one in again if one is not None])
            assert there.confirmed["q"] == set(range(10))

    run(main())


def test_b02_messages_of_an_ended_consumer_can_be_confirmed_after_a_reconnection() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            for _ in range(3):
                await session.send("q", b"x")
            async for first in session.receive("q"):
                message = first
                break
            await there.until(lambda: there.unsubscribed)
            there.end.cut()
            await there.until(lambda: len(there.unsubscribed) == 2)
            await message.confirm()
            assert there.confirmed["q"] == {0}
            asked = [frames.unpack(f.payload) for number, f in there.log if f.type == Type.SUBSCRIBE and number == 1]
            assert (asked[0]["credit_messages"], asked[0]["held"]) == (0, [[0, 1]])
            assert not session._receivers

    run(main())


def test_b02_a_rejection_that_was_on_its_way_is_not_repeated() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await session.send("q", b"x")
            there.confirming = False
            consumer = session.receive("q")
            message = await consumer.receive()
            assert message is not None
            rejecting = asyncio.create_task(message.reject())
            await there.until(lambda: any(frame.type == Type.REJECT for _, frame in there.log))
            there.end.cut()
            await rejecting
            again = await consumer.receive()
            assert again is not None
            assert again.redelivered
            assert sum(frame.type == Type.REJECT for _, frame in there.log) == 1

    run(main())


def test_b02_everything_works_while_a_server_is_away() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            states: list[ConnectionState] = []
            away = asyncio.Event()

            def changed(state: ConnectionState) -> None:
                states.append(state)
                away.set()

            connection.on_state = changed
            consumer = session.receive("q")
            await session.send("q", b"0")
            first = await consumer.receive()
            assert first is not None
            await there.stop()
            await away.wait()
            sending = asyncio.create_task(session.send("q", b"1"))
            confirming = asyncio.create_task(first.confirm())
            receiving = asyncio.create_task(consumer.receive())
            opening = asyncio.create_task(connection.session().__aenter__())
            asking = asyncio.create_task(session.command("status"))
            await asyncio.sleep(0)
            await there.start()
            await asyncio.gather(sending, confirming, asking)
            message = await receiving
            assert message is not None
            assert message.body == b"1"
            assert there.confirmed["q"] == {0}
            await (await opening).close()
            assert states == [ConnectionState.RECONNECTING, ConnectionState.CONNECTED]

    run(main())


def test_b02_repeatable_requests_are_repeated_and_others_say_that_it_is_unknown() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection:
            there.requests = lambda verb, arguments: ...
            asking = asyncio.create_task(connection.command("status"))
            purging = asyncio.create_task(connection.command("purge", {"destination": "q"}))
            await there.until(lambda: sum(frame.type == Type.REQUEST for _, frame in there.log) == 2)
            there.requests = lambda verb, arguments: verb
            there.end.cut()
            assert await asking == "status"
            with pytest.raises(ConnectionLost, match="purge"):
                await purging

    run(main())


def test_b02_the_next_host_is_taken_when_one_does_not_answer() -> None:
    async def main() -> None:
        async with broker() as one, broker() as two:
            url = f"clarion://127.0.0.1:{one.port},127.0.0.1:{two.port}"
            async with client.connect(url) as connection, connection.session() as session:
                await session.send("q", b"1")
                await one.stop()
                await session.send("q", b"2")
                assert (one.bodies("q"), two.bodies("q")) == ([b"1"], [b"2"])
            async with client.connect([one.url, two.url]) as connection, connection.session() as session:
                await session.send("q", b"3")  # the first is still away
            assert two.bodies("q") == [b"2", b"3"]

    run(main())


def test_b02_without_reconnection_a_loss_reaches_everybody() -> None:
    async def main() -> None:
        async with broker() as there:
            connection = await client.connect(there.url, reconnect=False)
            session = await connection.session()
            there.answering = False
            ticket = session.send_nowait("q", b"x")
            receiving = asyncio.create_task(session.receive("empty").receive())
            flushing = asyncio.create_task(session.flush())
            await there.until(lambda: there.subscribers and there.published)
            there.end.cut()
            for waiting in (ticket, receiving, flushing):
                with pytest.raises(ConnectionLost):
                    await waiting
            assert connection.closed
            assert isinstance(connection.failure, ConnectionLost)
            for call in (session.flush(), session.send("q", b"x"), connection.command("status")):
                with pytest.raises(ConnectionLost):
                    await call
            await session.close()
            await connection.close()

    run(main())


def test_b02_reconnection_gives_up_after_its_time() -> None:
    async def main() -> None:
        async with broker() as there:
            connection = await client.connect(there.url, reconnect_timeout=0.05)
            session = await connection.session()
            await there.stop()
            with pytest.raises(ConnectionFailed):
                await session.send("q", b"x")
            assert connection.closed

    run(main())


@pytest.mark.parametrize("reconnect", [True, False])
def test_b01_a_first_connection_that_fails_says_where(reconnect: bool) -> None:
    async def main() -> None:
        there = Broker()
        await there.start()
        await there.stop()
        with pytest.raises(ConnectionFailed, match=str(there.port)):
            await client.connect(there.url, reconnect=reconnect, connect_timeout=0.1)

    run(main())


def test_b01_a_refused_user_is_not_tried_again() -> None:
    async def main() -> None:
        async with broker() as there:
            asked: list[dict[str, Any]] = []

            def refuse(authentication: dict[str, Any]) -> None:
                asked.append(authentication)
                raise AuthenticationFailed(detail="no")

            there.authenticate = refuse
            with pytest.raises(AuthenticationFailed):
                await client.connect(there.url.replace("//", "//me:se%63ret@"))
            assert asked == [{"mechanism": "password", "user": "me", "password": "secret"}]

    run(main())


def test_b02_a_server_that_complains_every_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection:
            session = await connection.session()

            def complain(*_: object) -> None:
                raise CreditExceeded(sent=1, window=1, destination="q")

            monkeypatch.setattr(there, "_publish", complain)
            with pytest.raises(ConnectionLost, match="CLN-105"):
                await session.send("q", b"x")
            assert len(there.ends) == 3

    run(main())


def test_b02_a_silent_server_is_noticed_by_missing_heartbeats() -> None:
    async def main() -> None:
        async with broker() as there:
            there.heartbeat_ms = limits.HEARTBEAT_MS_MIN
            lost = asyncio.Event()
            async with client.connect(there.url, on_state=lambda state: lost.set()) as connection:
                lost.clear()
                assert connection.server == "scripted"
                await lost.wait()  # the scripted broker sends no heartbeats
                assert connection.state is ConnectionState.RECONNECTING

    run(main())


def test_b01_heartbeats_go_on_while_a_handler_works() -> None:
    async def main() -> None:
        async with broker() as there:
            there.heartbeat_ms = limits.HEARTBEAT_MS_MIN
            async with client.connect(there.url, reconnect=False):
                heard = asyncio.Event()
                there.end.heard = heard
                await heard.wait()
                assert not there.log  # nothing of any session: it was a heartbeat

    run(main())


def test_b02_closing_ends_everything_at_once() -> None:
    async def main() -> None:
        async with broker() as there:
            connection = await client.connect(there.url)
            session = await connection.session()
            there.answering = False
            ticket = session.send_nowait("q", b"x")
            receiving = asyncio.create_task(session.receive("empty").receive())
            await there.until(lambda: there.subscribers)
            await connection.close()
            await connection.close()
            for waiting in (ticket, receiving):
                with pytest.raises(ConnectionLost):
                    await waiting
            with pytest.raises(ConnectionLost):
                await connection
            assert repr(connection).endswith("closed>")
            await there.until(lambda: there.end.gone)

    run(main())


@pytest.mark.parametrize("after", range(40))
def test_b02_nothing_is_lost_or_doubled_wherever_the_connection_breaks(after: int) -> None:
    """Cut after the server has handled so many frames; messages and confirmations all arrive once."""

    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection:
            handle = there.handle

            def counted(*arguments: Any) -> None:
                handle(*arguments)
                if len(there.log) == after:
                    arguments[0].cut()

            there.handle = counted  # type: ignore[assignment, method-assign]
            async with connection.session() as session:
                seen: list[int] = []
                consumer = session.receive("q", prefetch_messages=4)
                for number in range(12):
                    session.send_nowait("q", b"%d" % number)
                    if number % 3 == 0:
                        message = await consumer.receive()
                        assert message is not None
                        seen.append(int(message.body))
                        await message.confirm()
                while len(set(seen)) < 12:
                    message = await consumer.receive()
                    assert message is not None
                    seen.append(int(message.body))
                    message.confirm_nowait()
                await session.flush()
            assert sorted(there.bodies("q")) == sorted(b"%d" % number for number in range(12))
            assert there.confirmed["q"] == set(range(12))
            assert sorted(seen) == list(range(12))

    run(main())


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost:7750", "http://h:1", "clarion://", "clarion://h:", "clarion://h:x", "clarion://h:70000",
        "clarion://h:0", "clarion://h:1,", "clarion://:pw@h:1", "clarion://h:1/path", "clarion://[::1",
        "clarion://a b:1", "clarion://h:-1", "clarion://h?x=1",
    ],
)  # fmt: skip
def test_b01_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadUrl):
        client.connect(url)


def test_b01_addresses_are_read_and_passwords_never_shown() -> None:
    from clarion.client.address import Address, parse

    assert parse("clarion://h") == Address((("h", 7750),))
    assert parse("clarion://[::1]:1,b:2/").hosts == (("::1", 1), ("b", 2))
    assert str(parse("clarion://u:p%40x@[::1]:1")) == "clarion://u@[::1]:1"
    assert parse("clarion://u:p%40x@h").password == "p@x"
    with pytest.raises(BadUrl) as refused:
        parse("clarion://u:topsecret@h:x")
    assert "topsecret" not in str(refused.value)
    with pytest.raises(BadUrl):
        parse([])
    with pytest.raises(BadArgument):
        client.connect("clarion://h", heartbeat_ms=1)


def test_b01_sessions_of_a_connection_are_bounded() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection:
            for _ in range(limits.SESSIONS_PER_CONNECTION_MAX):
                await connection.session()
            with pytest.raises(ClarionError, match="CLN-209"):
                await connection.session()

    run(main())
