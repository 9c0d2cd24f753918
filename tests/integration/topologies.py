"""The shapes in which the same broker runs: one process, or a client and a message manager apart.

A `Topology` is started, stopped, killed and restarted as a whole; `Split` also lets a test take one of its
nodes. Clients keep one address through all of it.
"""

from __future__ import annotations

import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from clarion.testing.server import ServerProcess

SEGMENT_BYTES = 8 << 20
"""Small, so that a start costs little; large enough for the largest batch."""


def free_port() -> int:
    """A port of loopback that nobody has right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class NodeProcess(ServerProcess):
    """One `clarion node cm|mm`."""

    def __init__(self, kind: str, config: Path, data: Path, environment: Mapping[str, str]) -> None:
        super().__init__(data, environment=environment)
        self._kind = kind
        self._config = config

    def command(self) -> list[str]:
        return [sys.executable, "-m", "clarion", "node", self._kind, "--config", str(self._config)]

    def _is_ready(self, line: str) -> bool:
        """A message manager has no address."""
        return super()._is_ready(line) or self._kind == "mm"


class Topology(ABC):
    """A broker: however many processes."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = {"CLARION_JOURNAL_SEGMENT_BYTES": str(SEGMENT_BYTES), **(environment or {})}

    @property
    @abstractmethod
    def processes(self) -> list[ServerProcess]:
        """In the order of starting."""

    @property
    @abstractmethod
    def front(self) -> ServerProcess:
        """The process that clients talk to."""

    @property
    @abstractmethod
    def back(self) -> ServerProcess:
        """The process that keeps messages."""

    @property
    def url(self) -> str:
        return self.front.url

    @property
    def port(self) -> int:
        return self.front.port

    def start(self) -> None:
        for process in self.processes:
            process.start()

    def stop(self) -> None:
        """In order, clients first; every exit code must be 0."""
        codes = [process.stop() for process in reversed(self.processes)]
        assert codes == [0] * len(codes), f"{codes}\n{self.log()}"

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def check_alive(self) -> None:
        """Every process runs, and none has logged a fault."""
        for process in self.processes:
            assert process.process is not None and process.process.poll() is None, self.log()[-4000:]
        faults = [line for line in self.log().splitlines() if " ERROR " in line]
        assert not faults, faults[:5]

    def log(self) -> str:
        return "\n".join(process.log() for process in self.processes if process.log_path.exists())


class Single(Topology):
    """`clarion serve`."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, environment)
        self._server = ServerProcess(folder / "data", environment=self.environment)

    @property
    def processes(self) -> list[ServerProcess]:
        return [self._server]

    @property
    def front(self) -> ServerProcess:
        return self._server

    @property
    def back(self) -> ServerProcess:
        return self._server


class Split(Topology):
    """`clarion node mm` and `clarion node cm` on the Zenoh bus over loopback."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, environment)
        self._bus = f"tcp/127.0.0.1:{free_port()}"
        self._back = self._node("mm", 1, f'listen = ["{self._bus}"]', "")
        self.fronts: list[ServerProcess] = []
        self.add_front()

    def add_front(self) -> ServerProcess:
        """One more client manager; it is not started."""
        number = len(self.fronts) + 2
        listen = f'[client_manager]\nlisten = "127.0.0.1:{free_port()}"\n'
        front = self._node("cm", number, f'connect = ["{self._bus}"]', listen)
        self.fronts.append(front)
        return front

    def _node(self, kind: str, number: int, bus: str, rest: str) -> NodeProcess:
        name = f"{kind}{number}"
        data = self.folder / name
        config = self.folder / f"{name}.toml"
        node = f'[node]\nname = "{name}"\nnode = {number}\ndata = "{data}"\n'
        config.write_text(f'{node}[bus]\nkind = "zenoh"\n{bus}\n{rest}')
        return NodeProcess(kind, config, data, self.environment)

    @property
    def processes(self) -> list[ServerProcess]:
        return [self._back, *self.fronts]

    @property
    def front(self) -> ServerProcess:
        return self.fronts[0]

    @property
    def back(self) -> ServerProcess:
        return self._back


_Topology = TypeVar("_Topology", bound=Topology)


@contextmanager
def started(topology: _Topology) -> Iterator[_Topology]:
    """It runs within the block, and no process of it is left behind."""
    try:
        topology.start()
        yield topology
    finally:
        topology.kill()


TOPOLOGIES: dict[str, type[Topology]] = {"single": Single, "split": Split}
