"""Messages confirmed when the application comes back for the next one, and how a loop was left (B-04)."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest

from clarion import client
from clarion.errors import RequestError, SessionClosed
from clarion.wire import frames
from clarion.wire.frames import Type
from tests.unit.client.scripted_broker import broker, run
from tests.unit.client.traffic import filled, frames_of, take


def test_b04_auto_confirms_when_the_application_comes_back() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 5)
            async for message in session.receive("q", ack="auto", timeout=0.05):
                assert there.confirmed.get("q", set()) == set(range(message.sequence))  # durable, all but this one
            assert there.confirmed["q"] == set(range(5))
            await there.until(lambda: there.unsubscribed)
            await session.command("status")
            assert not session._receivers

    run(main())


async def leave(how: str, consumer: client.Consumer) -> int:
    """Take three in a loop, and leave it in one of many ways."""
    async for message in consumer:
        sequence = message.sequence
        if sequence < 2:
            continue
        match how:
            case "break":
                break
            case "break in with":
                with suppress(KeyError):
                    break
            case "break in try":
                try:
                    raise KeyError
                except KeyError:
                    break
            case "return":
                return sequence
            case "return in finally":
                try:
                    return sequence
                finally:
                    await asyncio.sleep(0)
            case "raise":
                raise ZeroDivisionError
            case "raise below":
                int("no number")
            case "raise in await":
                await asyncio.wait_for(asyncio.Event().wait(), 0)
            case "raise again":
                try:
                    int("no number")
                except ValueError:
                    raise ZeroDivisionError from None
            case _:
                raise AssertionError(how)
    return 0


CLEAN = ["break", "break in with", "break in try", "return", "return in finally"]

UNCLEAN = ["raise", "raise below", "raise in await", "raise again"]


@pytest.mark.parametrize("ack", ["auto", "dups_ok"])
@pytest.mark.parametrize("how", CLEAN + UNCLEAN)
def test_b04_the_last_message_is_confirmed_unless_the_loop_was_left_by_an_exception(how: str, ack: Any) -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 5)
            with suppress(ZeroDivisionError, ValueError, TimeoutError):
                await leave(how, session.receive("q", ack=ack))
            await session.flush()
            assert there.confirmed["q"] == ({0, 1, 2} if how in CLEAN else {0, 1})
            rest = await take(session.receive("q"), 2 if how in CLEAN else 3)
            assert sorted(message.sequence for message in rest) == ([3, 4] if how in CLEAN else [2, 3, 4])
            assert [m.delivery_count for m in rest if m.sequence == 2] == ([] if how in CLEAN else [2])

    run(main())


def test_b04_a_caught_exception_outside_the_loop_counts_as_one_too() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 1)
            try:
                async for _ in session.receive("q", ack="auto"):
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            (again,) = await take(session.receive("q", ack="auto"), 1)
            assert again.redelivered

    run(main())


def test_b04_a_cancelled_handler_has_not_done_its_message() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 1)
            handling = asyncio.Event()

            async def handle() -> None:
                async for _ in session.receive("q", ack="auto"):
                    handling.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(handle())
            await handling.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not there.confirmed
            (again,) = await take(session.receive("q"), 1)
            assert again.redelivered

    run(main())


def test_b04_an_iterator_that_is_merely_dropped_confirms_nothing() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 2)

            async def one() -> None:
                iterator = session.receive("q", ack="auto").__aiter__()
                assert (await iterator.__anext__()).sequence == 0

            await one()
            gc.collect()
            assert sorted(m.sequence for m in await take(session.receive("q"), 2)) == [0, 1]
            assert not there.confirmed
            session.receive("q", ack="auto").__aiter__()  # never used: nothing to leave

    run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_b04_auto_within_a_block_ends_with_the_block(fails: bool) -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 6)
            with suppress(ZeroDivisionError):
                async with session.receive("q", ack="auto") as consumer:
                    async for message in consumer:
                        if message.sequence == 1:
                            break
                    (third,) = await take(consumer, 1)
                    await session.flush()
                    assert there.confirmed["q"] == {0, 1}
                    assert third.sequence == 2
                    if fails:
                        raise ZeroDivisionError
            await session.flush()
            assert there.confirmed["q"] == ({0, 1} if fails else {0, 1, 2})

    run(main())


def test_b04_auto_waits_for_the_confirmation_and_tells_its_failure() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 3)
            there.confirming = False
            consumer = session.receive("q", ack="auto")
            await take(consumer, 1)
            waiting = asyncio.create_task(consumer.receive())
            await there.until(lambda: frames_of(there, Type.CONFIRM))
            assert not waiting.done()
            request = frames.unpack_ack(frames_of(there, Type.CONFIRM)[0])[1]
            said = {"request": request, "code": "CLN-200", "facts": {"detail": "no"}}
            there.end.send(Type.ERROR, 1, frames.pack(said))
            with pytest.raises(RequestError):
                await waiting
            there.confirming = True
            assert [m.sequence for m in await take(consumer, 1)] == [1]
            await session.close()
            with pytest.raises(SessionClosed):
                await consumer.receive()

    run(main())


def test_b04_what_was_confirmed_or_rejected_by_hand_is_left_alone() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 4)
            seen = []
            async for message in session.receive("q", ack="auto"):
                seen.append(message.sequence)
                if len(seen) == 1:
                    await message.confirm()
                elif len(seen) == 2:
                    await message.reject()
                elif len(seen) == 5:
                    break
            await session.flush()
            assert sorted(seen) == [0, 1, 1, 2, 3]
            assert there.confirmed["q"] == {0, 1, 2, 3}
            ranges = [frames.unpack_ack(payload)[2] for payload in frames_of(there, Type.CONFIRM)]
            assert ranges == [[(0, 1)], [(2, 3)], [(3, 4)], [(1, 2)]]

    run(main())


def test_b04_auto_batches_are_confirmed_as_a_whole() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 9)
            with suppress(ZeroDivisionError):
                async for batch in session.receive_batches("q", ack="auto", prefetch_messages=3):
                    assert there.confirmed.get("q", set()) == set(range(batch.first_sequence))
                    if batch.first_sequence >= 6:
                        raise ZeroDivisionError
            await session.flush()
            assert there.confirmed["q"] == set(range(6))

    run(main())


def test_b02_auto_survives_a_lost_connection() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 6)
            seen = []
            async for message in session.receive("q", ack="auto", prefetch_messages=2):
                seen.append(message.sequence)
                if message.sequence % 2:
                    there.end.cut()
                if len(seen) == 6:
                    break
            await session.flush()
            assert seen == list(range(6))
            assert there.confirmed["q"] == set(range(6))

    run(main())
