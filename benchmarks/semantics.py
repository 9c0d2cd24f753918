"""What selectors, wildcards and slow consumers cost a server: real processes, and results that are checked.

    python -m benchmarks.semantics [--topics N] [--patterns N] [--messages N] [--rounds N]

Prints one line of JSON for each:
    creating     milliseconds for each new topic, while so many wildcard subscriptions wait for topics
    wildcard     seconds until a wildcard subscription over all topics is ready, plain and durable; the longest that
                 anybody else waited for an answer meanwhile; and what a hostile regular expression costs
    slow         throughput of nine consumers beside one that stopped reading, as a part of that of nine alone;
                 how much the memory of the server grew
    selector     messages per second through a consumer whose selector takes every tenth

Rounds with and without are interleaved, and medians are reported: the machine is never as quiet as one hopes.
A wrong result is an `AssertionError`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import clarion
from benchmarks.processes import work_directory
from clarion.testing.server import ServerProcess
from clarion.wire import frames
from clarion.wire.frames import Type

HOSTILE = "regex:(((a|a?)+)+)+((x+x+)+y)*[^.]{1,40}$"
"""What takes a backtracking engine for ever."""
NINE = 9
WAIT_S = 120.0
_BATCH = 200
_HEARTBEAT_MS = 60_000
_LOOK_S = 0.005


def memory_bytes(pid: int) -> int:
    """The resident memory of a process, now."""
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def median(values: list[float]) -> float:
    return round(statistics.median(values), 4)


# --- wildcards --------------------------------------------------------------------------------------------


@dataclass
class Wildcards:
    """Figures of many topics and many patterns."""

    topics: int
    patterns: int
    matched_max: int = 0
    """Patterns that match one topic, at most."""
    creating_ms: float = 0.0
    received: int = 0
    ready_s: dict[str, float] = field(default_factory=dict)
    """plain, durable, and durable once more; over all topics."""
    others_waited_s: float = 0.0
    hostile_ms: float = 0.0
    memory_mib: float = 0.0


def topic(number: int) -> str:
    """A name with a desk (number modulo 1,000) that patterns are written for."""
    return f"topic:market.desk{number % 1_000:03}.item{number}"


def pattern(number: int) -> str:
    """Each matches the topics of one desk; beyond a thousand they repeat in other words."""
    desk, how = f"desk{number % 1_000:03}", number % 3
    return (f"glob:market.{desk}.*", f"glob:*.{desk}.item*", rf"regex:market\.{desk}\.item[0-9]+")[how]


def matching(number: int, patterns: int) -> int:
    """How many of so many patterns match a topic."""
    return len(range(number % 1_000, patterns, 1_000))


async def measure_wildcards(url: str, pid: int, topics: int, patterns: int) -> Wildcards:
    """Create topics under wildcard subscriptions, by their first message; then subscribe to all of them."""
    seen = Wildcards(topics, patterns)
    before = memory_bytes(pid)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        connection, other = await enter(clarion.connect(url)), await enter(clarion.connect(url))
        producer, asking = await enter(connection.session()), await enter(other.session())
        consumers = []
        session = await enter(connection.session())
        for number in range(patterns):
            if number % 500 == 499:
                session = await enter(connection.session())
            consumers.append(await enter(session.receive(pattern(number))))
        began = time.perf_counter()
        for number in range(topics):
            if number % 1_000 == 999:
                await producer.flush()
            producer.send_nowait(topic(number), b"%d" % number)
        await producer.flush()
        seen.creating_ms = round((time.perf_counter() - began) / topics * 1_000, 4)
        wanted = [matching(number, patterns) for number in range(topics)]
        seen.matched_max, seen.received = max(wanted), await _receive_first(consumers, topics, patterns)
        assert seen.received == sum(wanted), f"{seen.received} first messages came, not {sum(wanted)}"
        for how, options in (("plain", {}), ("durable", {"durable": "all"}), ("again", {"durable": "all"})):
            await _ready(producer, asking, how, options, topics, seen)
        began = time.perf_counter()
        async with producer.receive(HOSTILE):
            await producer.send(f"topic:{'a' * 200}", b"")
        seen.hostile_ms = round((time.perf_counter() - began) * 1_000, 2)
    seen.memory_mib = round((memory_bytes(pid) - before) / (1 << 20), 1)
    return seen


async def _receive_first(consumers: list[clarion.Consumer], topics: int, patterns: int) -> int:
    """Every consumer gets the first message of every topic of its pattern, and no other."""
    received = 0
    for number, consumer in enumerate(consumers):
        mine = {b"%d" % one for one in range(number % 1_000, topics, 1_000)}
        got: list[bytes] = []
        while len(got) < len(mine):
            message = await consumer.receive(timeout=WAIT_S)
            assert message is not None, f"{pattern(number)}: {len(got)} of {len(mine)} first messages came"
            got.append(message.body)
        assert set(got) == mine
        received += len(got)
    return received


async def _ready(
    session: clarion.Session, asking: clarion.Session, how: str, options: Any, topics: int, seen: Wildcards
) -> None:
    """A subscription over all topics: when it is ready, and how long somebody else waits meanwhile."""
    over = False

    async def ask() -> None:
        while not over:
            began = time.perf_counter()
            await asking.command("patterns")
            seen.others_waited_s = max(seen.others_waited_s, round(time.perf_counter() - began, 4))

    waiting = asyncio.ensure_future(ask())
    await asyncio.sleep(0)
    began = time.perf_counter()
    async with session.receive("glob:market.*", **options) as consumer:
        seen.ready_s[how] = round(time.perf_counter() - began, 3)
        over = True
        await waiting
        last = topic(topics - 1)
        await session.send(last, how)
        message = await consumer.receive(timeout=WAIT_S)
        assert message is not None and (message.body, message.destination) == (how.encode(), last)
        await message.confirm()


# --- slow consumers ---------------------------------------------------------------------------------------


@dataclass
class Slow:
    """Nine consumers beside one that stopped reading."""

    messages: int
    body_bytes: int
    ratios: list[float] = field(default_factory=list)
    alone_per_s: list[float] = field(default_factory=list)
    shares: list[int] = field(default_factory=list)
    """Messages that the one that stopped kept from the others, until it left."""
    grown_mib: float = 0.0

    def figures(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": median(self.ratios), "alone_per_s": median(self.alone_per_s)}


class Stopped:
    """A consumer whose process never reads what it is sent."""

    def __init__(self, server: ServerProcess, destination: str, credit_messages: int) -> None:
        self._server = server
        self.destination = destination
        self._credit_messages = credit_messages
        self.session = ""
        self.share = 0

    async def __aenter__(self) -> Self:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._server.port, limit=1 << 12)
        incoming = frames.FrameReader()

        async def answer(kind: int) -> None:
            while not any(one.type == kind for one in incoming.feed(await reader.read(1 << 12))):
                pass

        self._say(Type.HELLO, 0, versions=[1, 1], heartbeat_ms=_HEARTBEAT_MS, authentication={"mechanism": "none"})
        await answer(Type.WELCOME)
        self._say(Type.OPEN, 1, producer=None)
        await answer(Type.OPENED)
        credit = {"credit_messages": self._credit_messages, "credit_bytes": 64 << 20, "unconfirmed_max": 1_000_000}
        self._say(Type.SUBSCRIBE, 1, request=1, consumer=1, destination=self.destination, **credit)
        await answer(Type.REPLY)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    def _say(self, kind: int, channel: int, **said: object) -> None:
        self._writer.writelines(bytes(part) for part in frames.frame(kind, channel, [frames.pack(said)], 0))

    async def look(self, connection: clarion.Connection) -> None:
        """What an administrator sees of it: the first consumer of its destination."""
        known = await connection.command("consumers", {"destination": self.destination})
        self.session = self.session or known[0]["session"]
        self.share = sum(one["in_flight"] for one in known if one["session"] == self.session)


async def _consume(url: str, destination: str, got: list[bytes], came: asyncio.Event) -> None:
    async with clarion.connect(url) as connection, connection.session() as session:
        async for received in session.receive_batches(destination, prefetch_messages=500):
            got += received.bodies()
            received.confirm_nowait()
            came.set()


async def _nine(url: str, destination: str, bodies: list[bytes], enough: Callable[[int], Awaitable[bool]]) -> float:
    """Send all, let nine consume; seconds until `enough` says so of the count. In the end they have everything."""
    came, got = asyncio.Event(), list[bytes]()
    tasks = [asyncio.ensure_future(_consume(url, destination, got, came)) for _ in range(NINE)]

    async def more() -> None:
        came.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(came.wait(), _LOOK_S)
        for task in tasks:
            assert not task.done(), task

    try:
        async with asyncio.timeout(WAIT_S), clarion.connect(url) as connection, connection.session() as session:
            began = time.perf_counter()
            for number in range(0, len(bodies), _BATCH):
                await session.send_many(destination, bodies[number : number + _BATCH])
            while not await enough(len(got)):
                await more()
            seconds = time.perf_counter() - began
            while len(got) < len(bodies):
                await more()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(got) == sorted(bodies), "lost or doubled"
    return seconds


async def _alone(server: ServerProcess, destination: str, bodies: list[bytes]) -> float:
    async def enough(count: int) -> bool:
        return count >= len(bodies)

    return len(bodies) / await _nine(server.url, destination, bodies, enough)


async def _beside(server: ServerProcess, destination: str, bodies: list[bytes], credit: int, seen: Slow) -> float:
    """Messages per second of nine beside one that stopped; when it has left, they get its share."""
    before = memory_bytes(server.pid)
    async with clarion.connect(server.url) as connection, AsyncExitStack() as stack:
        stopped = await stack.enter_async_context(Stopped(server, destination, credit))
        await stopped.look(connection)

        async def enough(count: int) -> bool:
            if count < len(bodies) - credit:
                return False
            await stopped.look(connection)
            if count + stopped.share < len(bodies):
                return False
            seen.grown_mib = max(seen.grown_mib, round((memory_bytes(server.pid) - before) / (1 << 20), 1))
            await stack.aclose()
            return True

        seconds = await _nine(server.url, destination, bodies, enough)
        seen.shares.append(stopped.share)
        return (len(bodies) - stopped.share) / seconds


async def measure_slow(
    server: ServerProcess, messages: int, rounds: int, *, body_bytes: int = 1_000, credit: int = 500
) -> Slow:
    """Interleaved: nine alone, and nine beside one that stopped with so much credit."""
    seen = Slow(messages, body_bytes)
    bodies = [b"%09d" % number + bytes(body_bytes - 9) for number in range(messages)]
    for number in range(rounds):
        alone = await _alone(server, f"queue:alone-{number}", bodies)
        beside = await _beside(server, f"queue:beside-{number}", bodies, credit, seen)
        seen.alone_per_s.append(round(alone))
        seen.ratios.append(round(beside / alone, 3))
    return seen


# --- selectors --------------------------------------------------------------------------------------------


async def measure_selector(url: str, messages: int) -> float:
    """Messages per second that a consumer's selector looks through, of which it takes every tenth."""
    async with clarion.connect(url) as connection, connection.session() as session:
        for number in range(messages):
            if number % 1_000 == 0:
                await session.flush()
            session.send_nowait("queue:selected", b"%d" % number, properties={"n": number, "region": f"r{number % 10}"})
        await session.flush()
        began, got = time.perf_counter(), list[bytes]()
        async with session.receive_batches("queue:selected", selector="region = 'r3'") as consumer:
            while len(got) < len(range(3, messages, 10)):
                received = await consumer.receive(timeout=WAIT_S)
                assert received is not None, f"{len(got)} came"
                got += received.bodies()
                received.confirm_nowait()
            await session.flush()
        seconds = time.perf_counter() - began
        assert sorted(map(int, got)) == list(range(3, messages, 10))
        return round(messages / seconds)


# --- the command line -------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.semantics")
    parser.add_argument("--topics", type=int, default=100_000 - 1_000)
    parser.add_argument("--patterns", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()

    def show(name: str, figures: dict[str, Any]) -> None:
        print(json.dumps({"figure": name, **figures}), flush=True)

    with work_directory() as folder:
        with ServerProcess(folder / "slow") as server:
            show("slow", asyncio.run(measure_slow(server, wanted.messages, wanted.rounds)).figures())
            show("selector", {"per_s": asyncio.run(measure_selector(server.url, wanted.messages))})
        with ServerProcess(folder / "wildcards") as server:
            figures = asyncio.run(measure_wildcards(server.url, server.pid, wanted.topics, wanted.patterns))
            show("wildcards", asdict(figures))


if __name__ == "__main__":
    main()
