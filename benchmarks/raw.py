"""The limits no broker on this machine can pass: how long a disk sync takes and how long a loopback round trip takes.

Both are measured in every round, in between the contestants, because a shared machine's disk has good and bad
minutes. Files are written through before the measurement: the first sync after a file grew also writes metadata
and is many times slower, so brokers that care pre-write their segments.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.contestant import latency_of, percentile
from benchmarks.processes import HOST, Job, run_workers
from benchmarks.worker import Gate

BLOCK_SIZES = (4 << 10, 64 << 10, 256 << 10)
FILE_SIZE = 16 << 20
ECHO_SIZE = 64


@dataclass(frozen=True, slots=True)
class SyncTime:
    """pwrite + fdatasync of one block, in microseconds."""

    block_size: int
    p50_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class RawLimits:
    syncs: tuple[SyncTime, ...]
    echo_p50_us: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def sync_time(directory: Path, block_size: int, count: int) -> SyncTime:
    """Blocks one after the other through a pre-written file, from its start again at its end."""
    path = directory / f"sync-{block_size}"
    block = os.urandom(block_size)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        for offset in range(0, FILE_SIZE, block_size):
            os.pwrite(descriptor, block, offset)
        os.fsync(descriptor)
        samples = []
        for index in range(count):
            before = time.perf_counter_ns()
            os.pwrite(descriptor, block, index * block_size % FILE_SIZE)
            os.fdatasync(descriptor)
            samples.append((time.perf_counter_ns() - before) / 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    return SyncTime(block_size, percentile(samples, 0.50), percentile(samples, 0.99))


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _Pinger(asyncio.Protocol):
    """Sends the next ping when the echo of the last has come back."""

    def __init__(self, count: int) -> None:
        self._left, self._pending = count, 0
        self.samples_ns: list[int] = []
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ping()

    def _ping(self) -> None:
        self._pending = ECHO_SIZE
        self._sent_ns = time.perf_counter_ns()
        self._transport.write(bytes(ECHO_SIZE))

    def data_received(self, data: bytes) -> None:
        self._pending -= len(data)
        if self._pending > 0:
            return
        self.samples_ns.append(time.perf_counter_ns() - self._sent_ns)
        self._left -= 1
        if self._left > 0:
            self._ping()
        elif not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the echo server went away"))


def echo_server(gate: Gate, *, path: str) -> dict[str, Any]:
    """Serves one client and ends with it; leaves its port number in a file."""
    import uvloop

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        class Once(_Echo):
            def connection_lost(self, exc: Exception | None) -> None:
                ended.set()

        server = await loop.create_server(Once, HOST, 0)
        os.write(port_file, str(server.sockets[0].getsockname()[1]).encode())
        gate.wait()
        await ended.wait()
        server.close()

    port_file = os.open(path, os.O_WRONLY | os.O_CREAT)
    uvloop.run(serve())
    os.close(port_file)
    return {}


def echo_client(gate: Gate, *, path: str, count: int) -> dict[str, float]:
    import uvloop

    async def ping(port: int) -> list[int]:
        loop = asyncio.get_running_loop()
        transport, pinger = await loop.create_connection(lambda: _Pinger(count), HOST, port)
        await pinger.done
        transport.close()
        return pinger.samples_ns

    gate.wait()
    return latency_of(uvloop.run(ping(int(Path(path).read_text()))), ECHO_SIZE)


def measure(directory: Path, count: int) -> RawLimits:
    syncs = tuple(sync_time(directory, size, count) for size in BLOCK_SIZES)
    path = str(directory / "echo-port")
    module = "benchmarks.raw"
    server: Job = (f"{module}:echo_server", {"path": path})
    client: Job = (f"{module}:echo_client", {"path": path, "count": count * 5})
    _, echo = run_workers([server, client], directory)
    return RawLimits(syncs, echo["p50_us"])


def median_of(rounds: Sequence[RawLimits]) -> RawLimits:
    """Each figure's median over the rounds."""
    syncs = tuple(
        SyncTime(
            size,
            statistics.median(each.syncs[index].p50_us for each in rounds),
            statistics.median(each.syncs[index].p99_us for each in rounds),
        )
        for index, size in enumerate(each.block_size for each in rounds[0].syncs)
    )
    return RawLimits(syncs, statistics.median(each.echo_p50_us for each in rounds))
