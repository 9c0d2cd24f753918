"""The bus between processes, here between endpoints of one process over real loopback TCP."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from clarion.bus.zenoh import ZenohBus
from clarion.errors import AddressInUse, MissingExtra
from clarion.testing.bus_conformance import BusConformance, Inbox, eventually

pytest.importorskip("zenoh")


def free_endpoint() -> str:
    """Zenoh cannot say which port it got for 0. So: one that is free, and that the kernel gives to nobody."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.randrange(15_000, 32_000)))
            except OSError:
                continue
            return f"tcp/127.0.0.1:{probe.getsockname()[1]}"


class TestZenohConformance(BusConformance):
    __test__ = True

    async def make(self, count: int) -> list[ZenohBus]:
        endpoints = [free_endpoint() for _ in range(count)]
        return [await ZenohBus.open([endpoints[i]], endpoints[:i]) for i in range(count)]

    async def unmake(self, endpoints: list[Any]) -> None:
        await super().unmake(endpoints)
        for endpoint in endpoints:
            await endpoint.closed()


def test_b05_a_burst_costs_one_wake_and_a_full_inbox_holds_up_the_sender() -> None:
    async def main() -> None:
        bus = await ZenohBus.open([], [])
        loop = asyncio.get_running_loop()
        wakes: list[object] = []
        wake = loop.call_soon_threadsafe

        def counted(function: Callable[..., object], *arguments: Any) -> asyncio.Handle:
            wakes.append(function)
            return wake(function, *arguments)

        inbox = Inbox()
        bus.subscribe("x", inbox)
        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        for _ in range(64):
            bus.publish("x", bytes(1 << 20))
        # The loop does not run meanwhile, so the writer thread comes to stand before a full inbox.
        threads_idle = 0
        last = -1
        while threads_idle < 50:
            threads_idle = threads_idle + 1 if bus.waiting_bytes == last else 0
            last = bus.waiting_bytes
            time.sleep(0.002)  # noqa: ASYNC251 the loop is to stand still
        assert len(wakes) == 1
        assert last > (64 << 20) - (22 << 20)
        assert [len(data) for data in await inbox.count(64)] == [1 << 20] * 64
        await eventually(lambda: bus.waiting_bytes == 0)
        del loop.call_soon_threadsafe
        bus.close()
        await bus.closed()

    asyncio.run(main())


def test_b05_a_killed_process_is_seen_to_be_gone() -> None:
    endpoint = free_endpoint()
    member = (
        "import asyncio, sys\n"
        "from clarion.bus.zenoh import ZenohBus\n"
        "async def main():\n"
        "    bus = await ZenohBus.open([], [sys.argv[1]])\n"
        "    bus.join('cm/07')\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )

    async def main() -> None:
        bus = await ZenohBus.open([endpoint], [])
        members = Inbox()
        bus.watch(members)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", member, endpoint)
        await members.count(1)
        process.kill()
        assert await members.count(2) == [("cm/07", True), ("cm/07", False)]
        await process.wait()
        bus.close()
        await bus.closed()

    asyncio.run(main())


def test_b05_peers_may_start_in_any_order() -> None:
    endpoint = free_endpoint()

    async def main() -> None:
        early = await ZenohBus.open([], [endpoint])
        members = Inbox()
        early.watch(members)
        late = await ZenohBus.open([endpoint], [])
        late.join("mm/0")
        assert await members.count(1) == [("mm/0", True)]
        for bus in (early, late):
            bus.close()
            await bus.closed()

    asyncio.run(main())


def test_b05_errors_of_starting_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        endpoint = free_endpoint()
        first = await ZenohBus.open([endpoint], [])
        with pytest.raises(AddressInUse):
            await ZenohBus.open([endpoint], [])
        first.close()
        await first.closed()
        monkeypatch.setitem(sys.modules, "zenoh", None)
        with pytest.raises(MissingExtra):
            await ZenohBus.open([endpoint], [])

    asyncio.run(main())
