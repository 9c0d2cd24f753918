"""What every bus must do, as tests: derive from `BusConformance` and say how endpoints are made.

class TestMyBus(BusConformance):
    async def make(self, count): return [MyBus(...) for _ in range(count)]
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from clarion import limits
from clarion.bus.interface import Bus

WAIT_S = 10.0
"""A test fails when something that must happen has not after this."""


class Inbox:
    """A callback that keeps what it got and lets a test wait for it."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self._more = asyncio.Event()

    def __call__(self, *arguments: Any) -> None:
        self.got.append(arguments[0] if len(arguments) == 1 else arguments)
        self._more.set()

    async def until(self, enough: Callable[[list[Any]], bool]) -> list[Any]:
        """What it has got, once that is enough."""
        async with asyncio.timeout(WAIT_S):
            while not enough(self.got):
                self._more.clear()
                await self._more.wait()
        return self.got

    async def count(self, count: int) -> list[Any]:
        return await self.until(lambda got: len(got) >= count)


class BusConformance(ABC):
    """The suite. Endpoints 0 and 1 are different members; all are on the running loop."""

    __test__ = False

    @abstractmethod
    async def make(self, count: int) -> list[Any]:
        """`count` endpoints that can reach each other, or soon will."""

    async def unmake(self, endpoints: list[Any]) -> None:
        """Close what `make` made."""
        for endpoint in endpoints:
            endpoint.close()

    def run(self, count: int, scenario: Callable[..., Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            endpoints = await self.make(count)
            try:
                await scenario(*endpoints)
            finally:
                await self.unmake(endpoints)

        asyncio.run(main())

    def test_b05_everybody_who_subscribed_gets_it_once_and_nobody_else(self) -> None:
        async def scenario(a: Bus, b: Bus, c: Bus) -> None:
            first, second, other = Inbox(), Inbox(), Inbox()
            a.subscribe("group/0", first)
            b.subscribe("group/0", second)
            b.subscribe("group/1", other)
            await reach(c, a)
            await reach(c, b)
            c.publish("group/0", b"one")
            c.publish("group/1", b"end")
            await other.count(1)
            await first.count(1)
            assert (first.got, second.got, other.got) == ([b"one"], [b"one"], [b"end"])

        self.run(3, scenario)

    def test_b05_ordered_per_sender_over_all_channels(self) -> None:
        async def scenario(a: Bus, b: Bus) -> None:
            inbox = Inbox()
            for channel in range(3):
                b.subscribe(f"group/{channel}", inbox)
            await reach(a, b)
            sent = [b"%d" % number for number in range(3_000)]
            for number, data in enumerate(sent):
                a.publish(f"group/{number % 3}", data)
            assert await inbox.count(len(sent)) == sent

        self.run(2, scenario)

    def test_b05_callbacks_come_on_the_loop_and_never_within_a_call(self) -> None:
        async def scenario(a: Bus, b: Bus) -> None:
            inside = False
            seen: list[tuple[int, bool]] = []
            inbox = Inbox()

            def callback(data: bytes) -> None:
                nonlocal inside
                seen.append((threading.get_ident(), inside))
                inbox(data)
                if len(data) < 5:
                    inside = True
                    a.publish("echo", data + b".")
                    inside = False

            a.subscribe("echo", callback)
            await reach(b, a)
            inside = True
            a.publish("echo", b"1")
            b.publish("echo", b"22222")
            inside = False
            await inbox.count(6)
            assert set(seen) == {(threading.get_ident(), False)}

        self.run(2, scenario)

    def test_b05_a_callback_that_raises_harms_nobody(self) -> None:
        async def scenario(a: Bus, b: Bus) -> None:
            def bad(_data: bytes) -> None:
                raise ValueError("a bad callback")

            inbox = Inbox()
            b.subscribe("group/0", bad)
            b.subscribe("group/0", inbox)
            await reach(a, b)
            for data in (b"1", b"2"):
                a.publish("group/0", data)
            assert await inbox.count(2) == [b"1", b"2"]

        self.run(2, scenario)

    def test_b05_a_closed_subscription_gets_nothing_more(self) -> None:
        async def scenario(a: Bus, b: Bus) -> None:
            closed, inbox = Inbox(), Inbox()
            subscription = b.subscribe("group/0", closed)
            b.subscribe("group/0", inbox)
            await reach(a, b)
            a.publish("group/0", b"1")
            await inbox.count(1)
            await closed.count(1)
            subscription.close()
            subscription.close()
            a.publish("group/0", b"2")
            await inbox.count(2)
            assert closed.got == [b"1"]

        self.run(2, scenario)

    def test_b05_the_largest_message_passes_unchanged(self) -> None:
        async def scenario(a: Bus, b: Bus) -> None:
            inbox = Inbox()
            b.subscribe("group/0", inbox)
            await reach(a, b)
            data = bytes(range(256)) * (limits.BUS_MESSAGE_BYTES_MAX // 256)
            for _ in range(8):
                a.publish("group/0", data)
            assert a.waiting_bytes > 0
            assert await inbox.count(8) == [data] * 8
            await eventually(lambda: a.waiting_bytes == 0)

        self.run(2, scenario)

    def test_b05_close_sends_what_was_published_before(self) -> None:
        async def scenario(a: Bus, b: Bus) -> None:
            inbox, silent = Inbox(), Inbox()
            b.subscribe("group/0", inbox)
            a.subscribe("group/0", silent)
            await reach(a, b)
            for number in range(100):
                a.publish("group/0", b"%d" % number)
            a.close()
            a.publish("group/0", b"too late")
            await inbox.count(100)
            b.publish("group/0", b"last")
            assert (await inbox.count(101))[-1] == b"last"
            assert silent.got == []

        self.run(2, scenario)

    def test_b05_members_are_seen_to_be_there_to_come_and_to_go(self) -> None:
        async def scenario(a: Bus, b: Bus) -> None:
            early, late = Inbox(), Inbox()
            a.watch(early)
            a.join("mm/0")
            first = b.join("cm/01")
            await early.until(lambda got: {("mm/0", True), ("cm/01", True)} <= set(got))
            b.watch(late)
            await late.until(lambda got: {("mm/0", True), ("cm/01", True)} <= set(got))
            first.close()
            first.close()
            await early.until(lambda got: got[-1:] == [("cm/01", False)])
            b.join("cm/02")
            await early.until(lambda got: got[-1:] == [("cm/02", True)])
            b.close()
            await early.until(lambda got: got[-1:] == [("cm/02", False)])
            assert len(early.got) == 5

        self.run(2, scenario)

    def test_b05_who_sees_a_member_reaches_what_it_subscribed_before(self) -> None:
        async def scenario(a: Bus, b: Bus) -> None:
            members, inbox = Inbox(), Inbox()
            a.watch(members)
            b.subscribe("group/0", inbox)
            b.join("mm/0")
            await members.count(1)
            a.publish("group/0", b"1")
            assert await inbox.count(1) == [b"1"]

        self.run(2, scenario)


async def reach(sender: Bus, receiver: Bus) -> None:
    """Until `sender` reaches all that `receiver` has subscribed so far."""
    probe = Inbox()
    subscription = receiver.subscribe("probe", probe)
    async with asyncio.timeout(WAIT_S):
        while not probe.got:
            sender.publish("probe", b"")
            await _soon(probe.count(1))
    subscription.close()


async def eventually(condition: Callable[[], bool]) -> None:
    """Until `condition` holds, for what nobody announces."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def _soon(awaitable: Awaitable[object]) -> None:
    try:
        await asyncio.wait_for(awaitable, 0.02)
    except TimeoutError:
        pass
