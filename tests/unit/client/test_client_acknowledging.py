"""Acknowledgement modes, rejections with a reason, and how a loop was left."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest

from clarion import client
from clarion.client import acknowledging
from clarion.errors import BadArgument, JournalFull, RequestError, SessionClosed
from clarion.wire import frames
from clarion.wire.frames import Type
from tests.unit.client.scripted_broker import Broker, broker, run


async def filled(session: client.Session, name: str, count: int) -> None:
    await session.send_many(name, [b"%d" % number for number in range(count)])


def frames_of(there: Broker, kind: int) -> list[memoryview]:
    return [frame.payload for _, frame in there.log if frame.type == kind]


async def take(consumer: client.Consumer, count: int) -> list[client.ReceivedMessage]:
    messages = [await consumer.receive(5) for _ in range(count)]
    return [message for message in messages if message is not None]


# --- auto -----------------------------------------------------------------------------------------------


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
