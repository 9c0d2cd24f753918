"""Transactions of a session: what is in one, what a commit and a rollback do, and what makes a commit fail."""

from __future__ import annotations

import asyncio

import pytest

from clarion import client
from clarion.errors import BadArgument, SessionClosed, TransactionRolledBack, WrongKind
from tests.unit.client.scripted_broker import run
from tests.unit.client.scripted_semantics import full_broker
from tests.unit.client.traffic import filled_by_another, take


def test_b14_nothing_is_seen_before_commit_and_everything_after() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled_by_another(connection, "in", 5)
            async with connection.session(transacted=True) as session:
                messages = await take(session.receive("in"), 3)
                for message in messages:
                    session.send_nowait("out", b"done " + message.body)
                await session.send("other", b"sum")
                assert session.transacted
                assert not there.bodies("out")
                assert not there.confirmed.get("in")
                assert await session.commit() is True
                assert there.bodies("out") == [b"done 0", b"done 1", b"done 2"]
                assert there.bodies("other") == [b"sum"]
                assert there.confirmed["in"] == {0, 1, 2}
                assert there.verbs("commit") == [{"transaction": 1, "consumed": [[1, [[0, 3]]]]}]

    run(main())


def test_b14_rollback_forgets_what_was_sent_and_gives_back_what_was_received() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled_by_another(connection, "in", 4)
            async with connection.session(transacted=True) as session:
                consumer = session.receive("in", prefetch_messages=2)
                await take(consumer, 2)
                await session.send("out", b"never")
                await session.rollback()
                again = await take(consumer, 4)
                assert sorted(message.sequence for message in again) == [0, 1, 2, 3]
                assert [m.delivery_count for m in again if m.redelivered] == [2, 2]
                session.send_nowait("out", b"now")
                await session.commit()
                assert there.bodies("out") == [b"now"]
                assert there.confirmed["in"] == {0, 1, 2, 3}
                assert [arguments["transaction"] for arguments in there.verbs("rollback")] == [1]
                assert [arguments["transaction"] for arguments in there.verbs("commit")] == [2]

    run(main())


def test_b14_only_what_was_seen_is_consumed_and_empty_ones_are_not_asked() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled_by_another(connection, "in", 10)
            async with connection.session(transacted=True) as session:
                await session.commit()
                await session.rollback()
                consumer, batches = session.receive("in", prefetch_messages=6), session.receive_batches("more")
                await take(consumer, 4)
                await session.commit()
                await take(consumer, 1)
                async with connection.session() as other:
                    await other.send_many("more", [b"x"] * 3)
                batch = await batches.receive(5)
                assert batch is not None
                await session.commit()
                assert [arguments["consumed"] for arguments in there.verbs("commit")] == [
                    [[1, [[0, 4]]]],
                    [[1, [[4, 5]]], [2, [[0, 3]]]],
                ]
                assert not there.verbs("rollback")
            assert there.confirmed == {"in": {0, 1, 2, 3, 4}, "more": {0, 1, 2}}

    run(main())


def test_b14_a_transaction_larger_than_the_prefetch_does_not_hang() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled_by_another(connection, "in", 500)
            async with connection.session(transacted=True) as session:
                consumer = session.receive("in", prefetch_messages=10)
                assert len(await take(consumer, 500)) == 500
                await session.commit()
            assert there.confirmed["in"] == set(range(500))

    run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_b14_leaving_a_session_rolls_back_what_is_open(fails: bool) -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled_by_another(connection, "in", 2)
            try:
                async with connection.session(transacted=True) as session:
                    await take(session.receive("in"), 1)
                    ticket = session.send_nowait("out", b"never")
                    if fails:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            with pytest.raises((TransactionRolledBack, SessionClosed)):
                await ticket
            with pytest.raises(SessionClosed):
                await session.commit()
            assert not there.bodies("out")
            async with connection.session() as session:
                again = await take(session.receive("in"), 2)
                assert sorted(message.sequence for message in again) == [0, 1]

    run(main())


def test_b14_confirming_by_hand_is_refused_in_a_transaction() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled_by_another(connection, "in", 1)
            async with connection.session(transacted=True) as session:
                with pytest.raises(BadArgument, match="commit"):
                    session.receive("in", ack="individual")
                (message,) = await take(session.receive("in"), 1)
                for refused in (message.confirm(), message.reject(), message.reject("why"), session.recover()):
                    with pytest.raises(BadArgument):
                        await refused
                with pytest.raises(BadArgument):
                    message.confirm_nowait()
                with pytest.raises(BadArgument):
                    await session.request("in", b"")
                with pytest.raises(BadArgument, match="prepared"):
                    await session.commit(key="k", version=1)
            async with connection.session() as plain:
                for call in (plain.commit(), plain.rollback(), plain.prepare()):
                    with pytest.raises(BadArgument, match="not transacted"):
                        await call

    run(main())


def test_b14_a_send_that_failed_unseen_makes_commit_roll_back() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled_by_another(connection, "in", 1)
            async with connection.session(transacted=True) as session:
                there.failing["topic:t"] = WrongKind(destination="t", kind="queue", wanted="topic")
                consumer = session.receive("in")
                await take(consumer, 1)
                session.send_nowait("out", b"good")
                session.send_nowait("topic:t", b"bad")
                with pytest.raises(WrongKind):
                    await session.commit()
                (again,) = await take(consumer, 1)
                assert again.redelivered
                session.send_nowait("topic:t", b"bad")
                await session.rollback()
                with pytest.raises(WrongKind):  # whoever waits knows it, and may commit the rest
                    await session.send("topic:t", b"bad")
                await session.send("out", b"rest")
                await take(consumer, 1)
                await session.commit()
            assert there.bodies("out") == [b"rest"]
            assert there.confirmed["in"] == {0}

    run(main())


def test_b14_a_cancelled_commit_that_was_not_asked_is_rolled_back() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled_by_another(connection, "in", 1)
            async with connection.session(transacted=True) as session:
                consumer = session.receive("in")
                await take(consumer, 1)
                there.answering = False
                session.send_nowait("out", b"x")
                committing = asyncio.create_task(session.commit())
                await there.until(lambda: there.staged)
                committing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await committing
                there.answering = True
                assert len(await take(consumer, 1)) == 1
                assert there.verbs("rollback") == [{"transaction": 1, "consumed": [[1, [[0, 1]]]], "restart": [1]}]
                session.send_nowait("out", b"y")
                there.answer(there.published[-1])
                await session.commit()
            assert there.bodies("out") == [b"y"]

    run(main())


def test_b14_a_transaction_that_the_broker_ended_is_told_by_commit_and_given_back() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled_by_another(connection, "in", 1)
            async with connection.session(transacted=True) as session:
                consumer = session.receive("in")
                await take(consumer, 1)
                await session.send("out", b"x")
                there._session_ended((there.end, session._channel))  # as a time limit would
                there.sessions[there.end, session._channel] = session._producer
                with pytest.raises(TransactionRolledBack):
                    await session.commit()
                assert len(await take(consumer, 1)) == 1
                await session.commit()
            assert there.confirmed["in"] == {0}

    run(main())


def test_b14_sends_wait_for_nothing_of_a_transaction_that_was_rolled_back() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            async with connection.session(transacted=True) as session:
                there.answering = False
                for _ in range(200):  # several windows of messages, of which one is on its way
                    session.send_nowait("out", bytes(100_000))
                await there.until(lambda: there.staged)
                await session.rollback()
                there.answering = True
                for published in list(there.published):
                    there.answer(published)
                await session.send("out", b"kept")
                await session.commit()
                assert session.buffered_bytes == 0
            assert there.bodies("out") == [b"kept"]

    run(main())


def test_b13_a_rollback_does_not_wait_for_room_and_its_destination_goes_on_later() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            async with connection.session(transacted=True) as session:
                there.refusing.add("full")
                for number in range(3):
                    session.send_nowait("full", bytes(50_000) + b"%d" % number)
                await there.until(lambda: there.refused)
                await session.rollback()
                await session.send("out", b"other destinations go on")
                await session.commit()
                there.refusing.clear()
                there.resume(there.published[0])
                session.send_nowait("full", b"kept")
                await session.commit()
            assert there.bodies("full") == [b"kept"]
            assert there.bodies("out") == [b"other destinations go on"]

    run(main())
