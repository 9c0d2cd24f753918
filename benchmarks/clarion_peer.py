"""Clarion itself, as a user has it: `clarion serve` with its defaults, the asyncio client, two client processes.

Durability: the default, `power`: a confirmation leaves when the batch and the acknowledgement are synced.

Contestants: the fast forms (`send_nowait` with `flush`, `receive_batches`, every body taken out of its batch), the
same for who has the bodies in lists (`send_many_nowait`), and one message at a time through `send`, `receive` and
`confirm`, with 256 in flight on either side.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clarion
from benchmarks.contestant import Latency, Peer, Result, latency_from, latency_of
from benchmarks.peers.base import ServerPeer
from benchmarks.processes import HOST, Server, free_ports, run_pair, run_workers
from benchmarks.worker import Gate

_DURABILITY = "fsync before confirming"
_YIELD_EVERY = 1_024
"""A producer gives the loop a turn after so many messages, as any application does."""
_LIST_MESSAGES = 10_000


@dataclass
class ClarionPeer(ServerPeer):
    """A server of our own; its workers run in this interpreter."""

    def version(self) -> str:
        from importlib.metadata import version

        return version("clarion")

    def prepare(self) -> None:
        """Nothing: it is what is being measured."""

    def start(self, directory: Path) -> None:
        self.directory = directory
        port = free_ports(1)[0]
        self.client["url"] = f"clarion://{HOST}:{port}"
        data = str(directory / "data")
        command = [sys.executable, "-m", "clarion", "serve", "--data", data, "--listen", f"{HOST}:{port}"]
        self.servers.append(Server(command, directory / "clarion.log"))
        self.servers[-1].wait_for_port(port)

    def throughput(self, count: int, size: int) -> Result:
        arguments = self._arguments(count, size)
        consumer, producer = (f"{__name__}:consume", arguments), (f"{__name__}:produce", arguments)
        return run_pair(consumer, producer, self.directory, size)

    def latency(self, count: int, size: int) -> Latency:
        job = (f"{__name__}:measure_latency", self._arguments(count, size))
        return latency_from(run_workers([job], self.directory)[0])


def _run(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    import uvloop

    return uvloop.run(work)


def produce(gate: Gate, **arguments: Any) -> dict[str, Any]:
    if arguments.pop("singly", 0):
        return _run(_produce_singly(gate, **arguments))
    return _run((_produce_lists if arguments.pop("lists", 0) else _produce)(gate, **arguments))


def consume(gate: Gate, **arguments: Any) -> dict[str, Any]:
    arguments.pop("lists", None)
    return _run((_consume_singly if arguments.pop("singly", 0) else _consume)(gate, **arguments))


def measure_latency(gate: Gate, **arguments: Any) -> dict[str, float]:
    arguments.pop("singly", None)
    return _run(_measure(gate, **arguments))


def _properties(count: int) -> dict[str, Any] | None:
    return {f"property{n}": n if n % 2 else f"value {n}" for n in range(count)} or None


def _names(queue: str, destinations: int) -> list[str]:
    return [f"{queue}.{n}" for n in range(destinations)]


async def _produce(
    gate: Gate, *, url: str, queue: str, count: int, size: int, destinations: int = 1, properties: int = 0
) -> dict[str, Any]:
    body = os.urandom(size)
    async with clarion.connect(url) as connection, connection.session() as session:
        names = _names(queue, destinations)
        await asyncio.to_thread(gate.wait)
        send = session.send_nowait
        sent = 0
        facts = _properties(properties)
        while sent < count:
            turn = min(_YIELD_EVERY, count - sent)
            name = names[sent // _YIELD_EVERY % destinations]
            if facts:
                for _ in range(turn):
                    send(name, body, properties=facts)
            else:
                for _ in range(turn):
                    send(name, body)
            sent += turn
            await session.writable()
            await asyncio.sleep(0)
        await session.flush()
        return gate.times(sent)


async def _produce_lists(gate: Gate, *, url: str, queue: str, count: int, size: int) -> dict[str, Any]:
    body = os.urandom(size)
    async with clarion.connect(url) as connection, connection.session() as session:
        await asyncio.to_thread(gate.wait)
        for sent in range(0, count, _LIST_MESSAGES):
            session.send_many_nowait(f"{queue}.0", [body] * min(_LIST_MESSAGES, count - sent))
            await session.writable()
            await asyncio.sleep(0)
        await session.flush()
        return gate.times(count)


async def _consume(
    gate: Gate, *, url: str, queue: str, count: int, size: int, destinations: int = 1, properties: int = 0
) -> dict[str, Any]:
    got = 0
    done = asyncio.Event()

    async def take(session: clarion.Session, name: str) -> None:
        nonlocal got
        async with session.receive_batches(name) as batches:
            async for batch in batches:
                bodies = batch.bodies()
                assert len(bodies[-1]) == size
                batch.confirm_nowait()
                got += len(bodies)
                if got >= count:
                    done.set()
                    return

    async with clarion.connect(url) as connection, connection.session() as session:
        names = _names(queue, destinations)
        for name in names:
            await connection.command("create", {"destination": f"queue:{name}"})
        await asyncio.to_thread(gate.wait)
        tasks = [asyncio.create_task(take(session, name)) for name in names]
        await done.wait()
        await session.flush()  # every confirmation is durable
        answer = gate.times(got)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return answer


async def _produce_singly(gate: Gate, *, url: str, queue: str, count: int, size: int) -> dict[str, Any]:
    body = os.urandom(size)
    async with clarion.connect(url) as connection, connection.session() as session:
        await asyncio.to_thread(gate.wait)
        await _in_flight(256, count, lambda: session.send(f"{queue}.0", body))
        return gate.times(count)


async def _in_flight(width: int, count: int, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    left = iter(range(count))

    async def one() -> None:
        for _ in left:
            await work()

    await asyncio.gather(*(one() for _ in range(width)))


async def _consume_singly(gate: Gate, *, url: str, queue: str, count: int, size: int) -> dict[str, Any]:
    async with clarion.connect(url) as connection, connection.session() as session:
        await connection.command("create", {"destination": f"queue:{queue}.0"})
        await asyncio.to_thread(gate.wait)
        got = 0
        async for message in session.receive(f"{queue}.0"):
            assert len(message.body) == size
            message.confirm_nowait()
            got += 1
            if got == count:
                break
        await session.flush()
        return gate.times(got)


async def _measure(gate: Gate, *, url: str, queue: str, count: int, size: int, **_: Any) -> dict[str, float]:
    body = os.urandom(size)
    async with clarion.connect(url) as connection, connection.session() as session:
        await session.send(queue, body)
        await asyncio.to_thread(gate.wait)
        samples = []
        for _n in range(count):
            before = time.perf_counter_ns()
            await session.send(queue, body)
            samples.append(time.perf_counter_ns() - before)
        return latency_of(samples, size)


def contestants() -> list[Peer]:
    return [
        ClarionPeer("Clarion", _DURABILITY),
        ClarionPeer("Clarion, lists of bodies", _DURABILITY, {"lists": 1}),
        ClarionPeer("Clarion, one at a time, 256 in flight", _DURABILITY, {"singly": 1}),
        ClarionPeer("Clarion, 100 destinations", _DURABILITY, {"destinations": 100}),
        ClarionPeer("Clarion, five properties", _DURABILITY, {"properties": 5}),
    ]
