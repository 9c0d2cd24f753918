"""Three networks on this machine, whose wires can be cut: for two systems and a witness."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import pytest

from clarion.testing.server import ServerProcess
from tests.faults.pair_processes import Nursery

PORT = 7_000
"""In a network of its own, where nobody else has any."""
NEEDS = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip"),
]
WIRES = {"ab": ("a", "b", 1), "aw": ("a", "w", 2), "bw": ("b", "w", 3)}


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)


class Networks:
    """Three of them, a, b and w, each connected with each other by a wire."""

    def __init__(self) -> None:
        self._names = {one: f"clarion-{os.getpid()}-{one}" for one in "abw"}
        self._made: list[str] = []
        self._nurseries: dict[str, Nursery] = {}

    def __enter__(self) -> Networks:
        try:
            for name in self._names.values():
                _ip("netns", "add", name)
                self._made.append(name)
                _ip("-n", name, "link", "set", "lo", "up")
            for wire, (one, other, number) in WIRES.items():
                ends = self._names[one], self._names[other]
                _ip("-n", ends[0], "link", "add", wire, "type", "veth", "peer", "name", wire, "netns", ends[1])
                for end, name in enumerate(ends, 1):
                    _ip("-n", name, "address", "add", f"10.77.{number}.{end}/24", "dev", wire)
                    _ip("-n", name, "link", "set", wire, "up")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for nursery in self._nurseries.values():
            nursery.close()
        for name in self._made:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=30)

    def within(self, network: str) -> list[str]:
        """A command in front, to run something there."""
        return ["ip", "netns", "exec", self._names[network]]

    def nursery(self, network: str) -> Nursery:
        """Whose processes live there."""
        if network not in self._nurseries:
            self._nurseries[network] = Nursery(self.within(network))
        return self._nurseries[network]

    def cut(self, wire: str) -> None:
        self._set(wire, "down")

    def heal(self, wire: str) -> None:
        self._set(wire, "up")

    def _set(self, wire: str, state: str) -> None:
        _ip("-n", self._names[WIRES[wire][0]], "link", "set", wire, state)


class WitnessServer(ServerProcess):
    """A Clarion server in the network w; also a recipient."""

    def __init__(self, data: Path, networks: Networks) -> None:
        super().__init__(data, environment={"CLARION_JOURNAL_SEGMENT_BYTES": str(8 << 20)})
        self._within = networks.within("w")

    def command(self) -> list[str]:
        serve = [sys.executable, "-m", "clarion", "serve", "--data", str(self.data)]
        return [*self._within, *serve, "--listen", f"0.0.0.0:{PORT}", "--insecure"]  # nobody else is in there

    def url_for(self, system: str) -> str:
        """As `a` or `b` reaches it."""
        return f"clarion://10.77.{WIRES[f'{system}w'][2]}.2:{PORT}"

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
