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
