"""A real server process for tests: started, killed, stopped and restarted like a user's.

    with ServerProcess(tmp_path / "data") as server:
        ... clarion.connect(server.url) ...
        server.kill()           # SIGKILL
        server.start()          # again, on the same port and data

Guarantees: `start` returns when clients are served; leaving the block leaves no process behind.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

START_S_MAX = 30.0
_READY = re.compile(r"(clarion://[^\s\"]+)")


class ServerFailed(RuntimeError):
    """The server ended instead of becoming ready; the text is what it printed."""


class ServerProcess:
    """One `clarion serve` (or other command line) and its data directory."""

    def __init__(
        self,
        data: Path,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        wrap: Sequence[str] = (),
    ) -> None:
        self.data = data
        self.port = 0
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.log_path = data.parent / f"{data.name}.log"
        self._arguments = list(arguments)
        self._environment = dict(environment or {})
        self._wrap = list(wrap)
        """A command in front: `prlimit …`, `ip netns exec …`."""

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self.process is not None
        return self.process.pid

    def command(self) -> list[str]:
        """What is run."""
        serve = [sys.executable, "-m", "clarion", "serve", "--data", str(self.data)]
        return [*self._wrap, *serve, "--listen", f"127.0.0.1:{self.port}", *self._arguments]

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start, and wait until it serves. Raises `ServerFailed` if it ends first."""
        assert self.process is None or self.process.poll() is not None, "it is running"
        offset = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._environment, **(environment or {})},
            )
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            printed = self.log_path.read_bytes()[offset:].decode("utf-8", "replace")
            if any(line.startswith("ready ") and self._is_ready(line) for line in printed.splitlines()):
                return
            if self._ended_within(0.01):
                raise ServerFailed(printed)
        self.kill()
        raise ServerFailed(f"not ready within {START_S_MAX} s")

    def _is_ready(self, line: str) -> bool:
        """Whether this line, that begins with `ready`, is the one; what it tells is noted."""
        found = _READY.search(line)
        if found is not None:
            self.url = found[1]
            self.port = int(self.url.rpartition(":")[2])
        return found is not None

    def _ended_within(self, seconds: float) -> bool:
        """Wait for the process's end, at most so long."""
        assert self.process is not None
        descriptor = os.pidfd_open(self.process.pid)
        try:
            select.select([descriptor], [], [], seconds)
        finally:
            os.close(descriptor)
        return self.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and wait for the end; the exit code."""
        return self._signal(signal.SIGTERM)

    def wait(self, seconds: float = START_S_MAX) -> int:
        """Wait until it ends by itself; the exit code."""
        assert self.process is not None
        return self.process.wait(seconds)

    def _signal(self, number: int) -> int:
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(START_S_MAX)

    def log(self) -> str:
        """Everything it printed so far, over all its lives."""
        return self.log_path.read_text("utf-8", "replace")
