"""Redis Streams with every command synced to the append-only file before its reply.

Durability: `appendonly yes`, `appendfsync always`: the server writes and syncs the log once per turn of its event
loop, before the replies of that turn. XADD, the consumer group's cursor and XACK are all covered by it.

Contestants: the `redis` client (with the C parser hiredis) one command at a time; the same with pipelines of 100;
and `redis-benchmark`, the C tool that comes with the server, which only publishes: it shows what the server can do
when no Python takes part and nobody consumes.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.contestant import BenchmarkError, Latency, Peer, Result, latency_of
from benchmarks.environment import debian_program, version_line
from benchmarks.peers.base import ServerPeer
from benchmarks.processes import HOST, RUN_S_MAX, Server
from benchmarks.worker import Gate

_DURABILITY = "fsync before each reply"


def _server_program() -> Path:
    return debian_program("redis-server", "redis-server")


class RedisStreams(ServerPeer):
    port = 0

    def version(self) -> str:
        words = version_line([_server_program(), "--version"]).split()
        return next((word[2:] for word in words if word.startswith("v=")), "unknown")

    def prepare(self) -> None:
        super().prepare()
        _server_program()

    def start(self, directory: Path) -> None:
        self.directory, self.port = directory, self.ports(1)[0]
        self.client["port"] = self.port
        options = {
            "port": self.port,
            "bind": HOST,
            "dir": directory,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "auto-aof-rewrite-percentage": 0,
        }
        arguments = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        self.servers.append(Server([_server_program(), *arguments], directory / "redis.log"))
        self.servers[-1].wait_for_port(self.port)


class RedisBenchmark(RedisStreams):
    """Publish only, by the C tool: 8 connections with pipelines of 256, a good pair in one short search."""

    connections = 8
    pipeline = 256

    def throughput(self, count: int, size: int) -> Result:
        rows = self._tool(count, size, self.connections, self.pipeline)
        return Result(count, size, count / rows["rps"])

    def latency(self, count: int, size: int) -> Latency:
        rows = self._tool(count, size, 1, 1)
        return Latency(count, size, rows["p50_latency_ms"] * 1000, rows["p99_latency_ms"] * 1000)

    def _tool(self, count: int, size: int, connections: int, pipeline: int) -> dict[str, float]:
        self.runs += 1
        program = debian_program("redis-benchmark", "redis-tools")
        options = {"-h": HOST, "-p": self.port, "-n": count, "-c": connections, "-P": pipeline}
        command = [str(program), "--csv", *(str(part) for pair in options.items() for part in pair)]
        command += ["XADD", f"bench{self.runs}", "*", "b", "x" * size]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
        if done.returncode != 0 or len(lines) < 2:
            raise BenchmarkError(f"redis-benchmark ended with {done.returncode}: {done.stderr[-200:]}")
        names, values = ([cell.strip('"') for cell in line.split('","')] for line in (lines[0], lines[-1]))
        return {name: float(value) for name, value in zip(names[1:], values[1:], strict=True)}


def _connect(port: int) -> Any:
    import redis

    client = redis.Redis(host=HOST, port=port)
    client.ping()
    return client


def produce(gate: Gate, *, port: int, queue: str, count: int, size: int, pipeline: int) -> dict[str, Any]:
    client = _connect(port)
    entry = {"b": os.urandom(size)}
    gate.wait()
    if pipeline == 1:
        for _ in range(count):
            client.xadd(queue, entry)
        return gate.times(count)
    sent = 0
    while sent < count:
        turn = min(pipeline, count - sent)
        with client.pipeline(transaction=False) as pipe:
            for _ in range(turn):
                pipe.xadd(queue, entry)
            pipe.execute()
        sent += turn
    return gate.times(sent)


def consume(gate: Gate, *, port: int, queue: str, count: int, size: int, pipeline: int) -> dict[str, Any]:
    """Reads and acknowledges one entry, or up to a pipeline of entries, per command."""
    client = _connect(port)
    client.xgroup_create(queue, "group", id="0", mkstream=True)
    gate.wait()
    got = 0
    while got < count:
        for _, entries in client.xreadgroup("group", "consumer", {queue: ">"}, count=pipeline, block=1000):
            assert all(len(body[b"b"]) == size for _, body in entries)
            client.xack(queue, "group", *(entry_id for entry_id, _ in entries))
            got += len(entries)
    return gate.times(got)


def measure_latency(gate: Gate, *, port: int, queue: str, count: int, size: int, pipeline: int) -> dict[str, float]:
    client = _connect(port)
    entry = {"b": os.urandom(size)}
    gate.wait()
    samples = []
    for _ in range(count):
        before = time.perf_counter_ns()
        client.xadd(queue, entry)
        samples.append(time.perf_counter_ns() - before)
    return latency_of(samples, size)


def contestants() -> list[Peer]:
    return [
        RedisStreams("Redis Streams, one at a time", _DURABILITY, {"pipeline": 1}),
        RedisStreams("Redis Streams, pipelines of 100", _DURABILITY, {"pipeline": 100}),
        RedisBenchmark("redis-benchmark XADD (no consumer)", _DURABILITY),
    ]
