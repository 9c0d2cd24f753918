"""Processes of a pair, each forked by one that has imported everything and runs in the network of its system."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from typing import IO

import msgspec

from tests.faults.pair_child import Child

WAIT_S = 60.0


class Forked:
    """One of them, as `subprocess.Popen` has it."""

    def __init__(self, pid: int, nursery: Nursery, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._nursery = nursery
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, seconds: float) -> int:
        status = self._ended(seconds)
        if status is None:
            raise TimeoutError(f"process {self.pid} does not end")
        return status

    def _ended(self, seconds: float) -> int | None:
        if self.returncode is None and select.select([self._descriptor], [], [], seconds)[0]:
            self.returncode = int(self._nursery.ask(f"ended {self.pid}"))
            os.close(self._descriptor)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """Forks systems of a pair; `within`: a command in front, to run in a network. Leaves none behind."""

    def __init__(self, within: list[str]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [*within, sys.executable, "-m", "tests.faults.pair_child", str(theirs.fileno())]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        self._channel.settimeout(WAIT_S)

    def start(self, child: Child, log: int) -> Forked:
        """`log`: a descriptor for what it says on standard error."""
        (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
        request = b"start " + msgspec.json.encode(child)
        socket.send_fds(self._channel, [request], [read_in, write_out, log])
        os.close(read_in)
        os.close(write_out)
        pid = int(self._channel.recv(1 << 10))
        return Forked(pid, self, os.fdopen(write_in, "wb"), os.fdopen(read_out, "rb", buffering=0))

    def ask(self, line: str) -> str:
        self._channel.send(line.encode())
        return self._channel.recv(1 << 10).decode()

    def close(self) -> None:
        self._channel.close()
        self._process.wait(WAIT_S)
