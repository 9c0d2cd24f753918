"""A sender and a receiver of large bodies in processes of their own, so that their memory can be measured.

    python -m tests.integration.large_process send URL DESTINATION BYTES [KEY]
    python -m tests.integration.large_process receive URL DESTINATION
    python -m tests.integration.large_process others URL DESTINATION

While the body is under way, small messages go to and fro on the same connection. Each prints one line of JSON: how much
the process grew, how many bytes went over the wire, and how long small messages took; the receiver also whether every
byte is the one that was sent. `others` has nothing to do with the body: for every line that it reads it prints how long
small messages took since the last one, in milliseconds and sorted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import clarion
from clarion.wire import frames
from clarion.wire.frames import Type

MIB = 1 << 20
PAUSE_S = 0.05
"""Between small messages on the connection of the body: they show that they pass, and are no load of their own."""
_BLOCK = Random(12).randbytes(MIB)
_REST = _BLOCK[8:]


def blocks(size: int) -> Iterator[bytes]:
    """The body of so many bytes: no two blocks of it are equal."""
    for at in range(0, size, MIB):
        yield ((at // MIB).to_bytes(8, "big") + _REST)[: size - at]


class Expected:
    """Compares a body with what `blocks` made, as it comes in pieces of any size."""

    def __init__(self) -> None:
        self.size = 0
        self.is_equal = True

    def take(self, piece: bytes | memoryview) -> None:
        """The next bytes of it."""
        piece = memoryview(piece)
        while len(piece):
            block, inside = divmod(self.size, MIB)
            is_head = inside < 8
            part = piece[: (8 if is_head else MIB) - inside]
            whole = block.to_bytes(8, "big") if is_head else _BLOCK
            self.is_equal &= bytes(part) == whole[inside : inside + len(part)]  # views compare item by item
            self.size += len(part)
            piece = piece[len(part) :]


def status_mib(pid: int | str, field: str) -> float:
    """VmRSS or VmHWM of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"there is no {field} of {pid}")


class Growth:
    """How much a process grows from now on, at its peak."""

    def __init__(self, pid: int | str = "self") -> None:
        self._pid = pid
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak counts from here
        self._before = status_mib(pid, "VmRSS")

    @property
    def mib(self) -> float:
        return round(status_mib(self._pid, "VmHWM") - self._before, 1)


class Counted:
    """Counts what a connection sends of large bodies, and asks for.

    What the server could not take for want of room, and told to send again, does not count: how fast its journal grows
    is the machine's business.
    """

    def __init__(self, connection: clarion.Connection) -> None:
        self.sent_bytes = 0
        self.asked_bytes = 0
        self._unanswered = 0
        """Fragments on their way."""
        self._behind = 0
        """Of these, how many were sent before the server refused one: it can take none of them."""
        self._send, self._receive = connection.send, connection._received
        connection.send = self._counting  # type: ignore[method-assign]
        connection._received = self._answered  # type: ignore[method-assign, assignment]

    def _counting(self, kind: int, channel: int, parts: Any = (), flags: int = 0) -> None:
        parts = list(parts)
        if kind == Type.FRAGMENT:
            self.sent_bytes += len(parts[1])
            self._unanswered += 1
        elif kind == Type.REQUEST:
            asked = frames.unpack(parts[0])
            if asked["verb"] == "fragment":
                self.asked_bytes += asked["arguments"]["bytes"]
            elif asked["verb"] == "stream":  # on a new connection
                self._unanswered = self._behind = 0
        self._send(kind, channel, parts, flags)

    def _answered(self, received: list[frames.Frame]) -> None:
        for frame in received:
            if frame.type == Type.FRAGMENT_STORED:
                _, _, size, how = frames.STORED.unpack_from(frame.payload)
                if size:
                    self._fragment_answered(size, how)
        self._receive(received)

    def _fragment_answered(self, size: int, how: int) -> None:
        self._unanswered -= 1
        if how == frames.STORED_WAIT or (how == frames.STORED_ELSE and self._behind):
            self.sent_bytes -= size
        self._behind = self._unanswered if how == frames.STORED_WAIT else max(0, self._behind - 1)


async def chatter(connection: clarion.Connection, name: str, took_ms: list[float], pause_s: float = 0) -> None:
    """Small messages to and fro, one after the other, until cancelled."""
    async with connection.session() as session, session.receive(name) as consumer:
        while True:
            began = time.perf_counter()
            await session.send(name, b"small")
            message = await consumer.receive()
            assert message is not None
            took_ms.append((time.perf_counter() - began) * 1000)
            await message.confirm()
            if pause_s:
                await asyncio.sleep(pause_s)


async def while_chatting(connection: clarion.Connection, work: Any, name: str) -> tuple[Any, list[float]]:
    """The result of `work`, and how long small messages took meanwhile."""
    took_ms: list[float] = []
    talking = asyncio.create_task(chatter(connection, name, took_ms, PAUSE_S))
    try:
        result = await work
    finally:
        talking.cancel()
        with suppress(asyncio.CancelledError):
            await talking
    return result, sorted(took_ms)


async def send(url: str, destination: str, size: int, key: str | None) -> dict[str, Any]:
    async with clarion.connect(url) as connection, connection.session() as session:
        counted = Counted(connection)
        growth, began = Growth(), time.perf_counter()
        sending = session.send_stream(destination, blocks(size), key=key, size=size)
        _, took_ms = await while_chatting(connection, sending, "queue:chatter-send")
        return report(growth, began, size, counted.sent_bytes, took_ms)


async def receive(url: str, destination: str) -> dict[str, Any]:
    expected = Expected()
    async with clarion.connect(url) as connection, connection.session() as session:
        counted = Counted(connection)
        async with session.receive(destination) as consumer:
            message = await consumer.receive(timeout=60)
            assert message is not None
            growth, began = Growth(), time.perf_counter()

            async def read() -> None:
                async for chunk in message.stream():
                    expected.take(chunk)

            _, took_ms = await while_chatting(connection, read(), "queue:chatter-receive")
            await message.confirm()
        told = report(growth, began, expected.size, counted.asked_bytes, took_ms)
        return {**told, "is_equal": expected.is_equal}


def report(growth: Growth, began: float, size: int, wire_bytes: int, took_ms: list[float]) -> dict[str, Any]:
    return {
        "grown_mib": growth.mib,
        "seconds": round(time.perf_counter() - began, 2),
        "bytes": size,
        "wire_bytes": wire_bytes,
        "small_messages": len(took_ms),
        "small_p99_ms": round(took_ms[len(took_ms) * 99 // 100], 1) if took_ms else None,
    }


async def others(url: str, name: str) -> None:
    """Small messages to and fro; a line that is read says how many there have to be before it is answered."""
    async with clarion.connect(url) as connection:
        took_ms: list[float] = []
        talking = asyncio.create_task(chatter(connection, name, took_ms))
        reading = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        while line := await reading:
            while len(took_ms) < int(line):
                await asyncio.wait([talking], timeout=0.1)
            sys.stdout.write(json.dumps(sorted(took_ms)) + "\n")
            sys.stdout.flush()
            took_ms.clear()
            reading = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        talking.cancel()
        with suppress(asyncio.CancelledError):
            await talking


async def main(verb: str, url: str, destination: str, *rest: str) -> None:
    if verb == "others":
        await others(url, destination)
        return
    if verb == "send":
        result = await send(url, destination, int(rest[0]), rest[1] if len(rest) > 1 else None)
    else:
        result = await receive(url, destination)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
