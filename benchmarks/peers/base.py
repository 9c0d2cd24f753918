"""What all peers share: a list of server processes, and client workers that run in the peers' own interpreter.

A peer's module has three worker functions, `produce`, `consume` and `measure_latency`. `consume` makes the queue
before it is ready, so nothing is sent before there is a queue. Every run has a queue of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contestant import Latency, Result, latency_from
from benchmarks.environment import peers_python, reason_of
from benchmarks.processes import Server, free_ports, lasting_ports, run_pair, run_workers


@dataclass
class ServerPeer:
    """A peer that is one or more server processes and is used through its Python client."""

    name: str
    durability: str
    client: dict[str, Any] = field(default_factory=dict)
    """How this contestant uses the client library: passed to its workers."""
    servers: list[Server] = field(default_factory=list, init=False)
    directory: Path = field(default=Path(), init=False)
    runs: int = field(default=0, init=False)
    keeps_ports: bool = field(default=False, init=False)
    """It starts again where it was: a broker that comes back."""
    held_ports: list[int] = field(default_factory=list, init=False)

    def prepare(self) -> None:
        """Install what is missing, or raise `Unavailable`."""
        peers_python()

    def ports(self, count: int) -> list[int]:
        """Where its servers listen."""
        if not self.keeps_ports:
            return free_ports(count)
        if not self.held_ports:
            self.held_ports = lasting_ports(count)
        return self.held_ports

    def available(self) -> str | None:
        return reason_of(self.prepare)

    def stop(self) -> None:
        while self.servers:
            self.servers.pop().stop()

    def throughput(self, count: int, size: int) -> Result:
        arguments = self._arguments(count, size)
        module = type(self).__module__
        consumer, producer = (f"{module}:consume", arguments), (f"{module}:produce", arguments)
        return run_pair(consumer, producer, self.directory, size, peers_python())

    def latency(self, count: int, size: int) -> Latency:
        job = (f"{type(self).__module__}:measure_latency", self._arguments(count, size))
        return latency_from(run_workers([job], self.directory, peers_python())[0])

    def _arguments(self, count: int, size: int) -> dict[str, Any]:
        self.runs += 1
        return {**self.client, "queue": f"bench{self.runs}", "count": count, "size": size}
