"""The bus within one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from clarion.bus import LoopbackBus, LoopbackHub
from clarion.testing.bus_conformance import BusConformance


class TestLoopbackConformance(BusConformance):
    __test__ = True

    async def make(self, count: int) -> list[LoopbackBus]:
        hub = LoopbackHub()
        return [hub.endpoint() for _ in range(count)]


def test_b05_a_burst_costs_one_wake_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        hub = LoopbackHub()
        a, b = hub.endpoint(), hub.endpoint()
        done = asyncio.Event()
        got: list[bytes] = []

        def callback(data: bytes) -> None:
            got.append(data)
            if len(got) == 100:
                done.set()

        b.subscribe("x", callback)
        loop = asyncio.get_running_loop()
        wakes: list[object] = []
        call_soon = loop.call_soon

        def counted(function: Callable[..., object], *arguments: object, **named: object) -> object:
            wakes.append(function)
            return call_soon(function, *arguments, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "call_soon", counted)
        for number in range(100):
            a.publish("x", b"%d" % number)
        assert len(wakes) == 1
        assert got == []
        await done.wait()

    asyncio.run(main())


def test_b21_a_conversation_gives_way_to_the_loop_in_every_turn() -> None:
    async def main() -> None:
        hub = LoopbackHub()
        a = hub.endpoint()
        turns: list[int] = []

        def again(data: bytes) -> None:
            turns.append(len(turns))
            a.publish("x", data)

        a.subscribe("x", again)
        a.publish("x", b"for ever")
        for _ in range(10):
            await asyncio.sleep(0)
        assert 5 <= len(turns) <= 11

    asyncio.run(main())


def test_b05_a_lone_message_is_handed_out_when_its_sender_is_done() -> None:
    async def main() -> None:
        hub = LoopbackHub()
        a, b = hub.endpoint(), hub.endpoint()
        got: list[bytes] = []
        b.subscribe("x", got.append)

        def send(*messages: bytes) -> list[bytes]:
            got.clear()
            a.hold()
            for data in messages:
                a.publish("x", data)
            assert got == []  # never within a call
            a.release()
            return list(got)

        assert send(b"1") == []  # what came before is not known
        await asyncio.sleep(0)
        assert got == [b"1"]
        assert send(b"2") == [b"2"]  # after a lone one
        assert send(b"3", b"4") == []  # a burst waits for the turn, in which others may join it
        await asyncio.sleep(0)
        assert got == [b"3", b"4"]
        assert send(b"5") == []  # after a burst
        await asyncio.sleep(0)
        assert send(b"6") == [b"6"]

    asyncio.run(main())


def test_b05_nothing_is_handed_out_while_something_is() -> None:
    async def main() -> None:
        hub = LoopbackHub()
        a, b = hub.endpoint(), hub.endpoint()
        story: list[str] = []

        def answer(data: bytes) -> None:
            b.hold()
            b.publish("a", data)
            b.release()
            story.append("asked")

        a.subscribe("a", lambda data: story.append("answered"))
        b.subscribe("b", answer)
        for _ in range(3):
            a.hold()
            a.publish("b", b"?")
            a.release()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert story == ["asked", "answered"] * 3

    asyncio.run(main())
