"""NATS JetStream, a file-backed stream on one server, with `sync_interval: always` and with its default.

Durability: with `sync_interval: always` the server syncs every write before it acknowledges the publication. With
the default it acknowledges when the operating system has the write and syncs every two minutes: a power cut loses
what was acknowledged since. That line is shown because it is what most installations run; it is not our promise.

Contestants: nats-py on uvloop, publications awaited one at a time, or 256 in flight by `publish_async` (faster here
than `asyncio.gather` of as many `publish`); a pull consumer that fetches up to 256 and acknowledges each message. An
acknowledgement is not itself confirmed (`Msg.ack`, the usual call); the clock stops after a flush of the connection.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from benchmarks.contestant import UNSYNCED, Peer, latency_of
from benchmarks.environment import peers_python, version_line
from benchmarks.peers.base import ServerPeer
from benchmarks.processes import HOST, Server
from benchmarks.worker import Gate

_FETCH_MAX = 256


def _server_program() -> Path:
    return peers_python().parent / "nats-server"


class NatsJetStream(ServerPeer):
    sync_always = True

    def version(self) -> str:
        return version_line([_server_program(), "--version"]).removeprefix("nats-server: v")

    def start(self, directory: Path) -> None:
        self.directory, port = directory, self.ports(1)[0]
        self.client["port"] = port
        sync = "sync_interval: always" if self.sync_always else ""
        config = directory / "nats.conf"
        config.write_text(
            f"listen: {HOST}:{port}\njetstream {{\n store_dir: '{directory}/store'\n max_file: 20GB\n {sync}\n}}\n"
        )
        self.servers.append(Server([_server_program(), "-c", config], directory / "nats.log"))
        self.servers[-1].wait_for_port(port)


class NatsJetStreamDefault(NatsJetStream):
    sync_always = False


async def _connect(port: int) -> Any:
    import nats

    return await nats.connect(f"nats://{HOST}:{port}", pending_size=64 << 20)


async def _produce(gate: Gate, port: int, queue: str, count: int, size: int, in_flight: int) -> dict[str, Any]:
    connection = await _connect(port)
    stream = connection.jetstream(publish_async_max_pending=in_flight)
    body = os.urandom(size)
    confirmed = count
    gate.wait()
    if in_flight == 1:
        for _ in range(count):
            await stream.publish(queue, body)
    else:
        answers = [await stream.publish_async(queue, body) for _ in range(count)]
        await stream.publish_async_completed()
        confirmed = sum(answer.done() and answer.exception() is None for answer in answers)
    times = gate.times(confirmed)
    await connection.close()
    return times


async def _consume(gate: Gate, port: int, queue: str, count: int, size: int) -> dict[str, Any]:
    from nats.errors import TimeoutError as NatsTimeoutError
    from nats.js.api import StorageType

    connection = await _connect(port)
    stream = connection.jetstream()
    await stream.add_stream(name=queue, subjects=[queue], storage=StorageType.FILE)
    subscription = await stream.pull_subscribe(queue, durable="group", stream=queue)
    gate.wait()
    got = 0
    while got < count:
        try:
            messages = await subscription.fetch(min(_FETCH_MAX, count - got), timeout=2)
        except NatsTimeoutError:
            continue
        for message in messages:
            assert len(message.data) == size
            await message.ack()
        got += len(messages)
    await connection.flush()
    times = gate.times(got)
    await connection.close()
    return times


async def _measure_latency(gate: Gate, port: int, queue: str, count: int, size: int) -> dict[str, float]:
    from nats.js.api import StorageType

    connection = await _connect(port)
    stream = connection.jetstream()
    await stream.add_stream(name=queue, subjects=[queue], storage=StorageType.FILE)
    body = os.urandom(size)
    gate.wait()
    samples = []
    for _ in range(count):
        before = time.perf_counter_ns()
        await stream.publish(queue, body)
        samples.append(time.perf_counter_ns() - before)
    await connection.close()
    return latency_of(samples, size)


def produce(gate: Gate, *, port: int, queue: str, count: int, size: int, in_flight: int) -> dict[str, Any]:
    import uvloop

    return uvloop.run(_produce(gate, port, queue, count, size, in_flight))


def consume(gate: Gate, *, port: int, queue: str, count: int, size: int, in_flight: int) -> dict[str, Any]:
    import uvloop

    return uvloop.run(_consume(gate, port, queue, count, size))


def measure_latency(gate: Gate, *, port: int, queue: str, count: int, size: int, in_flight: int) -> dict[str, float]:
    import uvloop

    return uvloop.run(_measure_latency(gate, port, queue, count, size))


def contestants() -> list[Peer]:
    return [
        NatsJetStream("NATS sync always, one at a time", "fsync before ack", {"in_flight": 1}),
        NatsJetStream("NATS sync always, 256 in flight", "fsync before ack", {"in_flight": 256}),
        NatsJetStreamDefault("NATS default, one at a time", f"{UNSYNCED}; fsync every 2 min", {"in_flight": 1}),
        NatsJetStreamDefault("NATS default, 256 in flight", f"{UNSYNCED}; fsync every 2 min", {"in_flight": 256}),
    ]
