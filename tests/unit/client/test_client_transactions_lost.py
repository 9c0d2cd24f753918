"""What a lost connection does to a transaction: it is rolled back and told once, or its commit is asked again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clarion import client
from clarion.errors import ConnectionLost, TransactionRolledBack
from clarion.wire.frames import Type
from tests.unit.client.scripted_broker import run
from tests.unit.client.scripted_semantics import FullBroker, full_broker
from tests.unit.client.traffic import filled_by_another, take


def frames_of(there: FullBroker, kind: int) -> int:
    return sum(frame.type == kind for _, frame in there.log)


def test_b14_a_lost_connection_is_told_once_and_what_came_since_is_given_back() -> None:
    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled_by_another(connection, "in", 3)
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
            await filled_by_another(connection, "in", 1)
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
            await filled_by_another(connection, "in", 1)
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
            await filled_by_another(connection, "in", 2)
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


@pytest.mark.parametrize("after", range(60))
def test_b14_wherever_the_connection_breaks_each_message_is_handled_once(after: int) -> None:
    """Copy messages from one queue to another, a few in each transaction; cut after so many frames."""

    async def main() -> None:
        async with full_broker() as there, client.connect(there.url) as connection:
            await filled_by_another(connection, "in", 12)
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
