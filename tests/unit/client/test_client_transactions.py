"""Transactions of a session: what is in one, what a lost connection does to it, prepared ones."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from clarion import client
from clarion.client.transaction import PreparedHandle
from clarion.errors import (
    BadArgument,
    ConnectionLost,
    NoSuchHandle,
    SessionClosed,
    TransactionRolledBack,
    WrongKind,
)
from clarion.wire.frames import Type
from tests.unit.client.scripted_broker import run
from tests.unit.client.scripted_semantics import FullBroker, full_broker


async def filled(connection: client.Connection, name: str, count: int) -> None:
    async with connection.session() as session:
        for number in range(count):
            session.send_nowait(name, b"%d" % number)


async def take(consumer: client.Consumer, count: int) -> list[client.ReceivedMessage]:
    messages = [await consumer.receive(5) for _ in range(count)]
    return [message for message in messages if message is not None]


def frames_of(there: FullBroker, kind: int) -> int:
    return sum(frame.type == kind for _, frame in there.log)


def test_b14_nothing_is_seen_before_commit_and_everything_after() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled(connection, "in", 5)
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
            await filled(connection, "in", 4)
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
            await filled(connection, "in", 10)
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
            await filled(connection, "in", 500)
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
            await filled(connection, "in", 2)
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
            await filled(connection, "in", 1)
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


def test_b14_a_lost_connection_is_told_once_and_what_came_since_is_given_back() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled(connection, "in", 3)
            async with connection.session(transacted=True) as session:
                consumer = session.receive("in", prefetch_messages=1)
                await take(consumer, 1)
                there.answering = False
                ticket = session.send_nowait("out", b"lost")
                await there.until(lambda: there.staged)
                there.answering = True
                there.end.cut()
                since = await take(consumer, 2)  # after the loss, before anybody was told
                assert 0 in [message.sequence for message in since]
                with pytest.raises(TransactionRolledBack):
                    await session.commit()
                with pytest.raises(TransactionRolledBack):
                    await ticket
                again = await take(consumer, 3)
                assert sorted(message.sequence for message in again) == [0, 1, 2]
                await session.send("out", b"kept")
                await session.commit()
            assert there.bodies("out") == [b"kept"]
            assert there.confirmed["in"] == {0, 1, 2}

    run(main())


@pytest.mark.parametrize("how", ["send", "send_nowait", "send_many", "prepare"])
def test_b14_the_next_send_or_prepare_tells_as_well(how: str) -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled(connection, "in", 1)
            async with connection.session(transacted=True) as session:
                consumer = session.receive("in")
                await take(consumer, 1)
                session.send_nowait("out", b"lost")
                there.end.cut()
                assert len(await take(consumer, 1)) == 1
                with pytest.raises(TransactionRolledBack):
                    match how:
                        case "send":
                            await session.send("out", b"refused")
                        case "send_nowait":
                            session.send_nowait("out", b"refused")
                        case "send_many":
                            await session.send_many("out", [b"refused"])
                        case _:
                            await session.prepare()
                await session.send("out", b"kept")
                assert len(await take(consumer, 1)) == 1
                await session.commit()
            assert there.bodies("out") == [b"kept"]
            assert there.confirmed["in"] == {0}

    run(main())


def test_b14_whoever_waits_for_a_send_is_told_and_nobody_else() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            async with connection.session(transacted=True) as session:
                there.answering = False
                sending = asyncio.create_task(session.send("out", b"lost"))
                await there.until(lambda: there.staged)
                there.answering = True
                there.end.cut()
                with pytest.raises(TransactionRolledBack):
                    await sending
                await session.send("out", b"kept")
                await session.commit()
            assert there.bodies("out") == [b"kept"]

    run(main())


def test_b14_a_lost_connection_with_nothing_in_the_transaction_is_not_told() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled(connection, "in", 1)
            async with connection.session(transacted=True) as session:
                consumer = session.receive("in")
                await take(consumer, 1)
                await session.commit()
                lost = asyncio.Event()
                connection.on_state = lambda _state: lost.set()
                session.send_nowait("out", b"not on its way yet")
                session._host.loop.call_soon(there.end.cut)
                session._detach()  # before the loop's turn that would have sent it
                session._attached = False
                await lost.wait()
                session.send_nowait("out", b"sent while it was away")
                await session.commit()
            assert there.bodies("out") == [b"not on its way yet", b"sent while it was away"]

    run(main())


def test_b14_rollback_after_a_lost_connection_says_nothing() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            async with connection.session(transacted=True) as session:
                await session.send("out", b"lost")
                there.end.cut()
                await there.until(lambda: len(there.ends) == 2 and there.sessions)
                await session.rollback()
                await session.send("out", b"kept")
                await session.commit()
            assert there.bodies("out") == [b"kept"]

    run(main())


@pytest.mark.parametrize("done", [False, True])
def test_b14_a_commit_in_flight_is_asked_again_before_consumers_are_back(done: bool) -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled(connection, "in", 2)
            async with connection.session(transacted=True) as session:
                consumer = session.receive("in", prefetch_messages=1)
                await take(consumer, 1)
                session.send_nowait("out", b"x")
                there.deciding = False
                committing = asyncio.create_task(session.commit())
                await there.until(lambda: there.verbs("commit"))
                if done:  # it was, and the answer is lost
                    there.deciding = True
                    there._do_commit((there.end, session._channel), there.verbs("commit")[0])
                there.deciding = True
                there.end.cut()
                if done:
                    await committing
                else:
                    with pytest.raises(TransactionRolledBack):
                        await committing
                first, again = there.verbs("commit")
                assert first == again
                kinds = [frame.type for number, frame in there.log if number == 1]
                assert kinds.index(Type.REQUEST) < kinds.index(Type.SUBSCRIBE)
                rest = await take(consumer, 1 if done else 2)
                assert sorted(message.sequence for message in rest) == ([1] if done else [0, 1])
                await session.commit()
                assert there.bodies("out") == ([b"x"] if done else [])
                assert there.confirmed["in"] == {0, 1}

    run(main())


def test_b14_a_connection_lost_while_messages_settle_rolls_back() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            async with connection.session(transacted=True) as session:
                there.answering = False
                session.send_nowait("out", b"lost")
                committing = asyncio.create_task(session.commit())
                await there.until(lambda: there.staged)
                session.send_nowait("other", b"of the next")  # is lost as well, and told by the next commit
                await there.until(lambda: len(there.published) == 2)
                there.answering = True
                there.end.cut()
                with pytest.raises(TransactionRolledBack):
                    await committing
                assert not there.verbs("commit")
                with pytest.raises(TransactionRolledBack):
                    await session.commit()
                await session.commit()
            assert not there.bodies("out")

    run(main())


def test_b14_a_send_that_failed_unseen_makes_commit_roll_back() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled(connection, "in", 1)
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
            await filled(connection, "in", 1)
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
            await filled(connection, "in", 1)
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


# --- prepared -------------------------------------------------------------------------------------------


def test_b14_prepared_transactions_are_committed_together_by_anybody() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled(connection, "in", 2)
            handles: list[str] = []
            for number in range(2):
                async with connection.session(transacted=True) as session:
                    await take(session.receive("in"), 1)
                    session.send_nowait("out", b"%d" % number)
                    handle = await session.prepare(expires=60)
                    assert isinstance(handle, PreparedHandle)
                    assert pickle.loads(pickle.dumps(handle)) == handle
                    assert type(pickle.loads(pickle.dumps(handle))) is PreparedHandle
                    handles.append(handle)
            assert [arguments["expires_ms"] for arguments in there.verbs("prepare")] == [60_000, 60_000]
            assert not there.bodies("out")
            listed = await connection.prepared()
            assert [(one.handle, one.destinations, one.messages) for one in listed] == [
                (handle, ["out"], 1) for handle in handles
            ]
            async with connection.session() as session:
                assert await session.commit(handles, key="k", version=7) is True
                assert sorted(there.bodies("out")) == [b"0", b"1"]
                assert await session.commit(handles, key="k", version=7) is False
                with pytest.raises(NoSuchHandle):
                    await session.commit(handles[0])
                assert there.confirmed["in"] == {0, 1}
            assert await connection.commit(handles, key="k", version=6) is False

    run(main())


def test_b14_a_prepared_transaction_can_be_resolved_by_hand() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled(connection, "in", 1)
            async with connection.session(transacted=True) as session:
                consumer = session.receive("in")
                for committed in (False, True):
                    await take(consumer, 1)
                    session.send_nowait("out", b"%d" % committed)
                    handle = await session.prepare()
                    await session.resolve(handle, commit=committed)
                    with pytest.raises(NoSuchHandle):
                        await connection.resolve(handle, commit=True)
                assert await session.prepared() == []
            assert there.bodies("out") == [b"1"]
            assert there.confirmed["in"] == {0}

    run(main())


def test_b14_prepare_and_conditional_commit_are_safe_over_a_lost_connection() -> None:
    async def main() -> None:
        async with (
            full_broker() as there,
            client.connect(there.url) as connection,
            connection.session(transacted=True) as session,
        ):

            def asked(verb: str, times: int) -> Callable[[], bool]:
                return lambda: len(there.verbs(verb)) == times

            for number in range(2):
                session.send_nowait("out", b"%d" % number)
                there.deciding = False
                preparing = asyncio.create_task(session.prepare())
                await there.until(asked("prepare", 2 * number + 1))
                there.deciding = True
                there._do_prepare((there.end, session._channel), there.verbs("prepare")[-1])
                there.end.cut()
                handle = await preparing
                there.deciding = False
                committing = asyncio.create_task(session.commit([handle], key="k", version=number))
                await there.until(asked("commit_prepared", 2 * number + 1))
                there.deciding = True
                there.end.cut()
                assert await committing is True  # it was we
            assert there.bodies("out") == [b"0", b"1"]
            session.send_nowait("out", b"2")
            handle = await session.prepare()
            assert await session.commit([handle], key="k", version=1) is False
            assert await session.commit([handle], key="k", version=2) is True

    run(main())


@pytest.mark.parametrize("after", range(60))
def test_b14_wherever_the_connection_breaks_each_message_is_handled_once(after: int) -> None:
    """Copy messages from one queue to another, a few in each transaction; cut after so many frames."""

    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled(connection, "in", 12)
            handle, count = there.handle, len(there.log)

            def counted(*arguments: Any) -> None:
                handle(*arguments)
                if len(there.log) == count + after:
                    arguments[0].cut()

            there.handle = counted  # type: ignore[assignment, method-assign]
            async with connection.session(transacted=True) as session:
                consumer = session.receive("in", prefetch_messages=5)
                while there.confirmed.get("in", set()) != set(range(12)):
                    try:
                        for _ in range(3):
                            message = await consumer.receive(0.05)
                            if message is None:
                                break
                            session.send_nowait("out", message.body)
                            await asyncio.sleep(0)
                        await session.commit()
                    except TransactionRolledBack:
                        continue
            assert sorted(there.bodies("out"), key=int) == [b"%d" % number for number in range(12)]

    run(main())


def test_b14_the_end_of_the_connection_reaches_a_commit() -> None:
    async def main() -> None:
        async with full_broker() as there:
            connection = await client.connect(there.url, reconnect=False)
            session = await connection.session(transacted=True)
            session.send_nowait("out", b"x")
            there.deciding = False
            committing = asyncio.create_task(session.commit())
            await there.until(lambda: there.verbs("commit"))
            there.end.cut()
            with pytest.raises(ConnectionLost):
                await committing
            assert frames_of(there, Type.STAGE) == 1

    run(main())
