"""How many messages one client reads by sequences in a second, over loopback, from a server with all durability on.

    python -m benchmarks.reading [--messages N] [--bytes N]

One process reads, another is the server; both have to share the machine. Sequences and counts are checked. `cold` is
the first reading after a start of the server, from the files; `warm` is what fits the read cache, again.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import clarion
from clarion.client.prepacked import Packed
from clarion.testing.server import ServerProcess

_TOPIC, _SUBSCRIPTION = "topic:read", "benchmark"
_BATCH_MESSAGES = 1_000
_WARM_BYTES = 32 << 20
"""Half of the read cache."""


class Speed(NamedTuple):
    """Messages per second."""

    sent: float
    cold: float
    warm: float


async def _send(session: clarion.Session, messages: int, size: int) -> float:
    offsets = np.arange(0, size * (_BATCH_MESSAGES + 1), size, dtype=np.uint32)
    batch = Packed(count=_BATCH_MESSAGES, offsets=offsets, data=bytes(size * _BATCH_MESSAGES))
    began = time.perf_counter()
    for _ in range(messages // _BATCH_MESSAGES):
        await session.writable()
        session.send_packed(_TOPIC, batch)
        await asyncio.sleep(0)
    await session.flush()
    return messages / (time.perf_counter() - began)


async def _read(session: clarion.Session, first: int, end: int) -> float:
    began, at = time.perf_counter(), first
    async for found, batch in session.read(_TOPIC, first, end, subscription=_SUBSCRIPTION):
        if found != at:
            raise AssertionError(f"{found} came where {at} was due")
        at += batch.count
    if at != end:
        raise AssertionError(f"{at - first} of {end - first} came")
    return (end - first) / (time.perf_counter() - began)


async def _measure(server: ServerProcess, messages: int, size: int) -> Speed:
    async with clarion.connect(server.url) as connection, connection.session() as session:
        await session.reader(_TOPIC, subscription=_SUBSCRIPTION).open()
        sent = await _send(session, messages, size)
    server.stop()
    server.start()
    async with clarion.connect(server.url) as connection, connection.session() as session:
        cold = await _read(session, 1, messages + 1)
        kept = min(messages, _WARM_BYTES // (size + 8))
        await _read(session, 1, kept + 1)
        warm = max([await _read(session, 1, kept + 1) for _ in range(3)])
    return Speed(sent, cold, warm)


def measure(messages: int, size: int) -> Speed:
    """Send so many, whole batches of them, and read them again; raises if one is missing."""
    messages = max(_BATCH_MESSAGES, messages // _BATCH_MESSAGES * _BATCH_MESSAGES)
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder) / "data") as server:
        return asyncio.run(_measure(server, messages, size))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--messages", type=int, default=2_000_000)
    arguments.add_argument("--bytes", type=int, default=100)
    asked = arguments.parse_args()
    for what, speed in measure(asked.messages, asked.bytes)._asdict().items():
        print(f"{speed:>14,.0f} messages/s  {what}")


if __name__ == "__main__":
    main()
