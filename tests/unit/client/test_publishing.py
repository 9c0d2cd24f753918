"""Sending: ids, batches, the window, refusals, failures, and how they are told."""

from __future__ import annotations

import asyncio

import pytest

from clarion import client, limits
from clarion.client import sender
from clarion.errors import (
    BadArgument,
    BadName,
    Blocked,
    ClarionError,
    MessageTooLarge,
    SessionClosed,
    WrongKind,
)
from clarion.ids import parse_id, producer_of, sequence_of
from clarion.message import decode_headers
from tests.unit.client.scripted_broker import broker, run


def test_b11_ids_are_those_of_the_producer_in_order_of_sending() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            ids = [await session.send("orders", b"a")]
            tickets = [session.send_nowait(name, b"b") for name in ("orders", "other", "orders")]
            ids += [await ticket for ticket in tickets]
            assert all(ticket.done for ticket in tickets)
            assert len({producer_of(parse_id(one)) for one in ids}) == 1
            assert sorted(sequence_of(parse_id(one)) for one in ids) == [1, 2, 3, 4]
            first = next(one for one in there.published if one.bodies == [b"b", b"b"])
            assert parse_id(ids[1]) == first.identity
            assert parse_id(ids[3]) == first.identity + 1

    run(main())


def test_b01_two_sessions_have_producers_of_their_own() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection:
            async with connection.session() as one, connection.session() as two:
                ids = await asyncio.gather(one.send("q", b"1"), two.send("q", b"2"))
            assert producer_of(parse_id(ids[0])) != producer_of(parse_id(ids[1]))

    run(main())


def test_b01_headers_and_text_travel() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            session.send_nowait("orders", b"plain")
            await session.send(
                "orders", "tëxt", properties={"n": 1}, reply_to="back", correlation_id="c", type="t", content_type="m"
            )
            batch = there.stored["orders"][0][1]
            headers = decode_headers(batch.record(1)[0])
            assert bytes(batch.record(1)[1]).decode() == "tëxt"
            assert (headers.properties, headers.reply_to, headers.correlation_id) == ({"n": 1}, "back", "c")
            assert (headers.type, headers.content_type) == ("t", "m")
            assert bytes(batch.record(0)[0]) == b""

    run(main())


def test_b01_a_body_cannot_change_after_sending() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            body = bytearray(b"before")
            ticket = session.send_nowait("q", body)
            view = session.send_nowait("q", memoryview(body)[1:3])
            body[:] = b"after!"
            await ticket
            await view
            assert there.bodies("q") == [b"before", b"ef"]
            with pytest.raises(BadArgument):
                session.send_nowait("q", 7)  # type: ignore[arg-type]
            with pytest.raises(BadArgument):
                session.send_nowait("q", b"", properties={"bad": object()})  # type: ignore[dict-item]
            with pytest.raises(BadName):
                session.send_nowait("not a name", b"")
            await session.send("q", b"the session goes on")

    run(main())


def test_b01_a_lone_message_goes_at_once_and_batches_form_behind_it() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            there.answering = False
            session.send_nowait("q", b"1")
            await there.until(lambda: there.published)
            for number in range(2, 50):
                session.send_nowait("q", b"%d" % number)
                await asyncio.sleep(0)
            lone = session.send_nowait("other", b"x")  # another destination does not wait
            await there.until(lambda: len(there.published) == 2)
            assert [one.count for one in there.published] == [1, 1]
            there.answering = True
            there.answer(there.published[1])
            await lone
            there.answer(there.published[0])
            await session.flush()
            assert [one.count for one in there.published] == [1, 1, 48]
            assert there.bodies("q") == [b"%d" % number for number in range(1, 50)]

    run(main())


def test_b01_a_burst_of_one_turn_is_one_batch() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await asyncio.gather(*(session.send("q", b"x") for _ in range(100)))
            assert [one.count for one in there.published] == [100]

    run(main())


def test_b01_batches_close_by_size_and_by_count() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            for _ in range(3 * limits.BATCH_MESSAGES_TARGET):
                session.send_nowait("small", b"")
            for _ in range(40):
                session.send_nowait("large", bytes(10_000))
            await session.flush()
            small = [one.count for one in there.published if one.destination == "small"]
            large = [one for one in there.published if one.destination == "large"]
            assert small == [limits.BATCH_MESSAGES_TARGET] * 3
            assert len(large) > 1
            assert all(one.size < 2 * limits.BATCH_BYTES_TARGET for one in large)

    run(main())


def test_b01_a_message_as_large_as_a_batch_may_be_fits_and_one_byte_more_does_not() -> None:
    async def main() -> None:
        async with broker() as there:
            there.batch_bytes_max = 100_000
            async with client.connect(there.url) as connection, connection.session() as session:
                with pytest.raises(MessageTooLarge) as refused:
                    await session.send("q", bytes(100_000))
                most = refused.value.facts["limit"]
                assert isinstance(most, int)
                with pytest.raises(MessageTooLarge):
                    await session.send("q", bytes(most + 1))
                before = session.send_nowait("q", b"before")
                session.send_nowait("q", bytes(most))
                session.send_nowait("q", bytes(most - 8), content_type="")  # 4 of headers, 4 for their size
                await session.flush()
                await before
                assert [len(body) for body in there.bodies("q")] == [6, most, most - 8]
                assert max(one.size for one in there.published) <= 100_000

    run(main())


def test_b13_no_more_than_the_window_is_unanswered_per_destination() -> None:
    async def main() -> None:
        async with broker() as there:
            there.window = 300_000
            there.answering = False
            async with client.connect(there.url) as connection, connection.session() as session:
                for _ in range(100):
                    session.send_nowait("q", bytes(20_000))
                    session.send_nowait("other", bytes(20_000))
                flushing = asyncio.create_task(session.flush())
                answered = 0
                while sum(one.count for one in there.published[:answered]) < 200:
                    await there.until(lambda seen=answered: len(there.published) > seen)  # type: ignore[misc]
                    for name in ("q", "other"):
                        open_ones = [one for one in there.published[answered:] if one.destination == name]
                        assert sum(one.size for one in open_ones) <= there.window
                    there.answer(there.published[answered])
                    answered += 1
                await flushing
                assert len(there.bodies("q")) == len(there.bodies("other")) == 100

    run(main())


def test_b13_one_batch_larger_than_the_window_goes_alone() -> None:
    async def main() -> None:
        async with broker() as there:
            there.window = 1_000
            there.answering = False
            async with client.connect(there.url) as connection, connection.session() as session:
                for size in (5_000, 300_000, 200_000):
                    session.send_nowait("q", bytes(size))
                for number in range(3):
                    await there.until(lambda wanted=number: len(there.published) > wanted)  # type: ignore[misc]
                    await asyncio.sleep(0)
                    assert len(there.published) == number + 1
                    there.answer(there.published[-1])
                await session.flush()

    run(main())


def test_b13_a_refused_destination_resumes_in_order_and_stops_no_other() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            there.refusing.add("full")
            for number in range(40):
                session.send_nowait("full", b"%03d" % number + bytes(20_000))
            await there.until(lambda: there.refused)
            await session.send("free", b"goes on")
            sent = len(there.published)
            session.send_nowait("full", b"later")
            await session.send("free", b"still")
            assert len(there.published) == sent + 1  # nothing more for the refused one
            there.refusing.clear()
            refused = next(one for one in there.published if one.destination == "full")
            there.resume(refused)
            await session.flush()
            bodies = there.bodies("full")
            assert [body[:3] for body in bodies] == [b"%03d" % number for number in range(40)] + [b"lat"]
            again = [one for one in there.published[sent:] if one.destination == "full"]
            assert again[0].first == refused.first
            assert not any(one.resend for one in again)

    run(main())


def test_b13_a_refused_destination_tries_again_without_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "REFUSED_S_MAX", 0.01)

    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            there.refusing.add("full")
            ticket = session.send_nowait("full", b"x")
            await there.until(lambda: len(there.published) >= 3)
            there.refusing.clear()
            await ticket

    run(main())


def test_b01_the_floor_is_the_oldest_unanswered_batch_of_any_destination() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            there.refusing.add("full")
            session.send_nowait("full", b"x")
            await there.until(lambda: there.refused)
            for _ in range(3):
                await session.send("free", b"y")
            assert [one.floor for one in there.published] == [1, 1, 1, 1]
            there.refusing.clear()
            there.resume(there.published[0])
            await session.flush()
            await session.send("free", b"z")
            assert there.published[-1].floor == there.published[-1].first == 5

    run(main())


def test_b01_failures_reach_tickets_and_flush_tells_the_rest_once() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            there.failing["topic:t"] = WrongKind(destination="t", kind="queue", wanted="topic")
            with pytest.raises(WrongKind) as failed:
                await session.send("topic:t", b"awaited")
            assert failed.value.facts["kind"] == "queue"
            await session.flush()  # it was told already
            session.send_nowait("topic:t", b"not awaited")
            session.send_nowait("fine", b"x")
            with pytest.raises(WrongKind):
                await session.flush()
            await session.flush()
            assert there.bodies("fine") == [b"x"]
            tickets = [session.send_nowait("topic:t", b"half") for _ in range(2)]
            with pytest.raises(WrongKind):
                await tickets[0]
            with pytest.raises(WrongKind):  # the second one's
                await session.flush()
            session.send_nowait("topic:t", b"told when leaving")
            with pytest.raises(WrongKind):
                await session.close()

    run(main())


def test_b13_send_nowait_raises_blocked_beyond_the_buffer_and_writable_waits() -> None:
    async def main() -> None:
        async with (
            broker() as there,
            client.connect(there.url, buffer_bytes=500_000) as connection,
            connection.session() as session,
        ):
            there.answering = False
            await session.writable()
            with pytest.raises(Blocked):
                for _ in range(100):
                    session.send_nowait("q", bytes(20_000))
            assert 500_000 <= session.buffered_bytes < 800_000
            waiting = asyncio.create_task(session.writable())
            sending = asyncio.create_task(session.send("q", b"waits for room"))
            await there.until(lambda: len(there.published) >= 4)
            assert not waiting.done()
            there.answering = True
            for one in list(there.published):
                there.answer(one)
            await waiting
            await sending

    run(main())


def test_b01_leaving_a_session_waits_for_what_was_sent() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection:
            async with connection.session() as session:
                for number in range(10):
                    session.send_nowait("q", b"%d" % number)
            assert len(there.bodies("q")) == 10
            with pytest.raises(SessionClosed):
                session.send_nowait("q", b"")
            with pytest.raises(SessionClosed):
                await session.flush()
            there.answering = False
            with pytest.raises(ZeroDivisionError):
                async with connection.session() as session:
                    ticket = session.send_nowait("q", b"")
                    raise ZeroDivisionError
            with pytest.raises(SessionClosed):
                await ticket

    run(main())


def test_b01_a_session_that_was_not_opened_says_so() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection:
            session = connection.session()
            with pytest.raises(ClarionError):
                session.send_nowait("q", b"")
            await session
            await session.send("q", b"")
            await session.close()
            await session.close()

    run(main())


def test_b01_a_client_never_runs_too_far_ahead_of_its_oldest_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCER_WINDOW_MESSAGES", 10)

    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            there.refusing.add("full")
            session.send_nowait("full", b"")
            await there.until(lambda: there.refused)
            tickets = []
            for _ in range(20):
                tickets.append(session.send_nowait("free", b""))
                await asyncio.sleep(0.001)
            assert not tickets[-1].done
            assert max(one.first + one.count for one in there.published) <= 1 + 10
            there.refusing.clear()
            there.resume(there.published[0])
            await session.flush()
            assert len(there.bodies("free")) == 20

    run(main())
