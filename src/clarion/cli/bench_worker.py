"""A process of `clarion bench`: a producer or a consumer. Talks JSON lines with the process that started it.

    it is told its task; it says {"ready": true}; it is told "go"; it says {"count": n} now and then, at last its result

The task comes on standard input: an address may have a password, and arguments are public.

Every body begins with eight bytes: the number of the message, or, when latency is measured, the time of sending.
Numbers are looked at by numpy, whole batches at a time: to check every message costs next to nothing.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import msgspec
import numpy as np

from clarion.client import Connection, Session, connect
from clarion.errors import ClarionError

IDLE_S_MAX = 15.0
"""A consumer that got nothing for so long ends, and says what it has."""
SAY_EVERY_S = 0.2
CHUNK_MESSAGES = 1_000
CHUNK_BYTES = 1 << 20
BUFFER_BYTES = 32 << 20
"""What a producer may be ahead of the server: enough to keep it busy, and no queue in the client."""


class Task(msgspec.Struct):
    """What a worker is to do."""

    role: str
    url: str
    destinations: list[str]
    messages: int
    """A producer's own; a consumer's: of all producers together."""
    size: int
    first: int = 0
    """The number of a producer's first message."""
    properties: int = 0
    latency: bool = False


def say(**facts: Any) -> None:
    """One line to whoever started us."""
    sys.stdout.buffer.write(msgspec.json.encode(facts) + b"\n")
    sys.stdout.buffer.flush()


async def main(task: Task) -> None:
    name = f"clarion-bench-{task.role}"
    async with connect(task.url, name=name, connect_timeout=5, buffer_bytes=BUFFER_BYTES) as connection:
        if task.role == "consume":
            await Consuming(task).run(connection)
            return
        async with connection.session() as session:
            say(ready=True)
            sys.stdin.readline()
            started_ns = time.monotonic_ns()
            await (_one_by_one(task, session) if task.latency else _at_full_speed(task, session))
            say(started_ns=started_ns, ended_ns=time.monotonic_ns())


# --- producing ------------------------------------------------------------------------------------


async def _at_full_speed(task: Task, session: Session) -> None:
    properties: dict[str, Any] = {f"property_{number}": number for number in range(task.properties)}
    size, step = task.size, max(1, min(CHUNK_MESSAGES, CHUNK_BYTES // task.size))
    for turn, start in enumerate(range(task.first, task.first + task.messages, step)):
        numbers = np.arange(start, min(start + step, task.first + task.messages), dtype="<u8")
        bodies = np.zeros((len(numbers), size), np.uint8)
        bodies[:, :8] = numbers.view(np.uint8).reshape(-1, 8)
        data = bodies.tobytes()
        to = task.destinations[turn % len(task.destinations)]
        await session.writable()
        cut = [data[at : at + size] for at in range(0, len(data), size)]
        session.send_many_nowait(to, cut, properties=properties or None)
        await asyncio.sleep(0)  # let the connection write
    await session.flush()


async def _one_by_one(task: Task, session: Session) -> None:
    rest = bytes(task.size - 8)
    properties: dict[str, Any] = {f"property_{number}": number for number in range(task.properties)}
    for number in range(task.messages):
        to = task.destinations[number % len(task.destinations)]
        await session.send(to, time.monotonic_ns().to_bytes(8, "little") + rest, properties=properties or None)


# --- consuming ------------------------------------------------------------------------------------


class Consuming:
    """All destinations of a run, until every message was consumed and its confirmation is durable."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._seen = np.zeros(task.messages, np.uint8)
        self._latencies: list[Any] = []
        self._count = 0
        self._said = 0.0
        self._all = asyncio.Event()

    async def run(self, connection: Connection) -> None:
        task = self._task
        async with connection.session() as session:
            started = asyncio.Barrier(len(task.destinations) + 1)
            consumers = [asyncio.create_task(self._consume(session, name, started)) for name in task.destinations]
            await started.wait()
            say(ready=True)
            await self._until_all(consumers)
            for consumer in consumers:
                consumer.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)
            await session.flush()
            ended_ns = time.monotonic_ns()
        say(ended_ns=ended_ns, **self._result())

    async def _until_all(self, consumers: list[asyncio.Task[None]]) -> None:
        """Until everything was consumed, nothing comes any more, or a consumer fails."""
        before = -1
        everything = asyncio.create_task(self._all.wait())
        try:
            while before != self._count:
                before = self._count
                waited_for = [everything, *consumers]
                done, _ = await asyncio.wait(waited_for, timeout=IDLE_S_MAX, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    for ended in done:
                        ended.result()
                    return
        finally:
            everything.cancel()

    async def _consume(self, session: Session, name: str, started: asyncio.Barrier) -> None:
        async with session.receive_batches(name) as consumer:
            await started.wait()
            async for batch in consumer:
                self._look(np.frombuffer(b"".join(batch.bodies()), np.uint8).reshape(len(batch), -1))
                batch.confirm_nowait()
                self._count += len(batch)
                self._report()

    def _look(self, bodies: Any) -> None:
        numbers = np.ascontiguousarray(bodies[:, :8]).view("<u8").ravel()
        if self._task.latency:
            self._latencies.append(time.monotonic_ns() - numbers.astype(np.int64))
        else:
            np.add.at(self._seen, numbers[numbers < len(self._seen)], 1)

    def _report(self) -> None:
        if self._count >= self._task.messages:
            self._all.set()
        elif (now := time.monotonic()) - self._said > SAY_EVERY_S:
            self._said = now
            say(count=self._count)

    def _result(self) -> dict[str, Any]:
        if self._task.latency:
            known = np.concatenate(self._latencies) if self._latencies else np.zeros(1)
            p50, p99 = np.percentile(known, (50, 99))
            return {"consumed": self._count, "p50_us": float(p50) / 1000, "p99_us": float(p99) / 1000}
        return {
            "consumed": self._count,
            "missing": int((self._seen == 0).sum()),
            "doubled": int((self._seen > 1).sum()),
        }


if __name__ == "__main__":
    import uvloop

    try:
        uvloop.run(main(msgspec.json.decode(sys.stdin.readline(), type=Task)))
    except ClarionError as failed:
        say(code=failed.code, facts=failed.facts)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
