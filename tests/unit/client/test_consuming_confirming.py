"""Confirmations and rejections of what was received: how they travel, and who is told when one fails."""

from __future__ import annotations

import asyncio

import pytest

from clarion import client
from clarion.errors import RequestError
from clarion.wire import frames
from clarion.wire.frames import Type
from tests.unit.client.scripted_broker import broker, run
from tests.unit.client.traffic import filled, frames_of


def test_b01_confirmations_of_one_turn_travel_as_ranges_in_one_frame() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 10)
            consumer = session.receive("q")
            messages = [message for message in [await consumer.receive() for _ in range(10)] if message is not None]
            await asyncio.gather(*(messages[number].confirm() for number in (0, 1, 2, 7, 5, 6)))
            messages[3].confirm_nowait()
            await session.confirm(messages[4], messages[8:])
            ranges = [frames.unpack_ack(payload)[2] for payload in frames_of(there, Type.CONFIRM)]
            assert ranges == [[(0, 3), (5, 8)], [(3, 5), (8, 10)]]
            await consumer.confirm(0, 10)  # once more: passed over by the broker
            assert there.confirmed["q"] == set(range(10))

    run(main())


def test_b01_more_ranges_than_a_frame_holds_are_several_frames() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 5_000)
            consumer = session.receive("q")
            for _ in range(5_000):
                message = await consumer.receive()
                assert message is not None
                if message.sequence % 2:
                    message.confirm_nowait()
            await session.flush()
            assert there.confirmed["q"] == set(range(1, 5_000, 2))
            assert len(frames_of(there, Type.CONFIRM)) >= 3

    run(main())


def test_b01_rejected_messages_come_again_with_a_higher_count() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 2)
            consumer = session.receive("q")
            first = await consumer.receive()
            assert first is not None
            await first.reject("not now")
            second = await consumer.receive()
            again = await consumer.receive()
            assert second is not None
            assert again is not None
            assert (again.sequence, again.redelivered, again.delivery_count) == (0, True, 2)
            await session.confirm([second, again])

    run(main())


def test_b01_a_failed_confirmation_is_told_to_whoever_awaits_or_by_flush() -> None:
    async def main() -> None:
        async with broker() as there, client.connect(there.url) as connection, connection.session() as session:
            await filled(session, "q", 2)
            there.confirming = False
            consumer = session.receive("q")
            first, second = await consumer.receive(), await consumer.receive()
            assert first is not None
            assert second is not None
            waiting = asyncio.create_task(first.confirm())
            await there.until(lambda: len(frames_of(there, Type.CONFIRM)) == 1)
            second.confirm_nowait()
            await there.until(lambda: len(frames_of(there, Type.CONFIRM)) == 2)
            for payload in frames_of(there, Type.CONFIRM):
                said = {"request": frames.unpack_ack(payload)[1], "code": "CLN-200", "facts": {"detail": "no"}}
                there.end.send(Type.ERROR, 1, frames.pack(said))
            with pytest.raises(RequestError):
                await waiting
            with pytest.raises(RequestError):
                await session.flush()
            await session.flush()

    run(main())
