"""What size does to a server: a backlog of ten million, one by one or in batches, and thousands of idle connections.

    python -m benchmarks.scale [--messages N] [--connections N] [--singly]

Prints and returns, measured against a real `clarion serve`:
    publishing with a full backlog, as a ratio to publishing into an empty server of the same run;
    draining it, as a ratio to live delivery of the same run;
    the server's memory at its largest; the time from start to ready on that backlog;
    memory per idle connection; latency at half of the highest rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import clarion
from benchmarks.contestant import percentile
from benchmarks.processes import work_directory
from clarion.testing.server import ServerProcess

_T = TypeVar("_T")

BODY = b"x" * 100
_TURN = 1_024
_SAMPLE = 20
"""A rate is measured over this part of the backlog."""


@dataclass
class Scale:
    """What was seen."""

    messages: int
    singly: bool
    publish_empty_per_s: float = 0.0
    publish_backlog_per_s: float = 0.0
    live_per_s: float = 0.0
    drain_per_s: float = 0.0
    restart_s: float = 0.0
    memory_bytes_max: int = 0
    connections: int = 0
    connection_bytes: int = 0
    half_rate_per_s: float = 0.0
    half_rate_p50_us: float = 0.0
    half_rate_p99_us: float = 0.0

    @property
    def publish_ratio(self) -> float:
        return self.publish_backlog_per_s / self.publish_empty_per_s

    @property
    def drain_ratio(self) -> float:
        return self.drain_per_s / self.live_per_s


def memory_bytes(pid: int) -> int:
    """Resident memory of a process, without what it maps of files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} says nothing of its memory")


async def _publish(url: str, name: str, count: int, *, singly: bool) -> float:
    """Messages a second, all confirmed."""
    async with clarion.connect(url) as connection, connection.session() as session:
        began = time.perf_counter()
        if singly:
            left = iter(range(count))

            async def one() -> None:
                async with connection.session() as own:
                    for _ in left:
                        await own.send(name, BODY)

            # Each session waits for its confirmation before it sends again: every message is a batch of its own.
            await asyncio.gather(*(one() for _ in range(128)))
        else:
            for sent in range(0, count, _TURN):
                for _ in range(min(_TURN, count - sent)):
                    session.send_nowait(name, BODY)
                await session.writable()
                await asyncio.sleep(0)
            await session.flush()
        return count / (time.perf_counter() - began)


async def _drain(url: str, name: str, count: int) -> float:
    """Messages a second, all taken out of their batches and confirmed."""
    async with clarion.connect(url) as connection, connection.session() as session:
        began, got = time.perf_counter(), 0
        async with session.receive_batches(name) as batches:
            async for batch in batches:
                got += len(batch.bodies())
                batch.confirm_nowait()
                if got >= count:
                    break
            await session.flush()
        assert got == count, f"{got} of {count} arrived"
        return count / (time.perf_counter() - began)


async def _live(url: str, name: str, count: int, *, singly: bool = False) -> float:
    """Published, delivered and confirmed at the same time: messages a second."""
    began = time.perf_counter()
    await asyncio.gather(_publish(url, name, count, singly=singly), _drain(url, name, count))
    return count / (time.perf_counter() - began)


async def _half_rate(url: str, name: str, rate_per_s: float, seconds: float) -> tuple[float, float]:
    """p50 and p99 in microseconds from send to confirmation of one message among a steady stream."""
    samples: list[float] = []
    async with clarion.connect(url) as connection, connection.session() as session, connection.session() as probe:
        drain = asyncio.create_task(_consume_until_cancelled(url, name))
        began = time.perf_counter()
        sent = 0

        async def lone() -> None:
            at = time.perf_counter()
            await probe.send(f"{name}.probe", BODY)
            samples.append((time.perf_counter() - at) * 1e6)

        while (now := time.perf_counter()) < began + seconds:
            due = int((now - began) * rate_per_s)
            for _ in range(min(due - sent, 4 * _TURN)):
                session.send_nowait(name, BODY)
                sent += 1
            await session.writable()
            await lone()
        await session.flush()
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)
    return percentile(samples, 0.5), percentile(samples, 0.99)


async def _consume_until_cancelled(url: str, name: str) -> None:
    async with clarion.connect(url) as connection, connection.session() as session:
        async for batch in session.receive_batches(name):
            batch.confirm_nowait()


def measure_backlog(messages: int, *, singly: bool) -> Scale:
    """A backlog of so many messages, and what it costs."""
    seen = Scale(messages, singly)
    sample = max(messages // _SAMPLE, 1_000)
    with work_directory() as directory, ServerProcess(directory / "data") as server:

        def watch() -> None:
            seen.memory_bytes_max = max(seen.memory_bytes_max, memory_bytes(server.pid))

        seen.live_per_s = _run(_live(server.url, "live", sample, singly=singly))
        seen.publish_empty_per_s = _run(_publish(server.url, "backlog", sample, singly=singly))
        rest = messages - 2 * sample
        for part in range(0, rest, sample):
            _run(_publish(server.url, "backlog", min(sample, rest - part), singly=singly))
            watch()
        seen.publish_backlog_per_s = _run(_publish(server.url, "backlog", sample, singly=singly))
        watch()
        server.kill()
        began = time.perf_counter()
        server.start()
        seen.restart_s = time.perf_counter() - began
        watch()
        seen.drain_per_s = _run(_drain(server.url, "backlog", messages))
        watch()
    return seen


def measure_connections(count: int) -> Scale:
    """What an idle connection with a session costs the server."""
    seen = Scale(0, False, connections=count)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def connect() -> None:
        warm = [await clarion.connect(server.url) for _ in range(50)]
        before = memory_bytes(server.pid)
        idle: list[clarion.Connection] = []
        for _ in range(0, count, 50):
            idle += await asyncio.gather(*(_connected(server.url) for _ in range(50)))
        seen.connection_bytes = (memory_bytes(server.pid) - before) // len(idle)
        await asyncio.gather(*(connection.close() for connection in (*warm, *idle)))

    try:
        with work_directory() as directory, ServerProcess(directory / "data") as server:
            _run(connect())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return seen


async def _connected(url: str) -> clarion.Connection:
    connection = await clarion.connect(url)
    await connection.session()
    return connection


def measure_half_rate(seconds: float) -> Scale:
    """Latency beside a stream at half of the highest rate."""
    seen = Scale(0, False)
    with work_directory() as directory, ServerProcess(directory / "data") as server:
        seen.live_per_s = _run(_live(server.url, "live", int(100_000 * seconds)))
        seen.half_rate_per_s = seen.live_per_s / 2
        p50, p99 = _run(_half_rate(server.url, "half", seen.half_rate_per_s, seconds))
        seen.half_rate_p50_us, seen.half_rate_p99_us = p50, p99
    return seen


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    import uvloop

    return uvloop.run(work)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale")
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--singly", action="store_true")
    wanted = parser.parse_args()
    if wanted.messages:
        seen = measure_backlog(wanted.messages, singly=wanted.singly)
        print(json.dumps({**asdict(seen), "publish_ratio": seen.publish_ratio, "drain_ratio": seen.drain_ratio}))
        print(json.dumps(asdict(measure_half_rate(5.0))))
    if wanted.connections:
        print(json.dumps(asdict(measure_connections(wanted.connections))))


if __name__ == "__main__":
    main()
