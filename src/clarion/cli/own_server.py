"""A server of one's own: a real `clarion serve` process on a free port, in a directory that goes away with it.

Used by `bench` and `demo`. Rule: whatever happens in the `with` block, no process and no file stays behind.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from clarion.errors import ConfigurationError

READY_S_MAX = 15.0
STOP_S_MAX = 10.0


class OwnServer:
    """Started on entering; may be killed and started again, at the same address and with the same data."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = {
            name: value
            for name, value in (os.environ if environment is None else environment).items()
            if name not in ("CLARION_NODE_LOG_FORMAT", "CLARION_NODE_DATA", "CLARION_CLIENT_MANAGER_LISTEN")
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._listen = "127.0.0.1:0"
        self.url = ""

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="clarion-", ignore_cleanup_errors=True)
        self._log = Path(self._directory.name, "server.log")
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self._directory.cleanup()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Start it; returns when it serves, with the seconds that took."""
        began = time.monotonic()
        data = str(Path(self._directory.name, "data"))
        command = [sys.executable, "-m", "clarion", "serve", "--data", data, "--listen", self._listen]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=self._environment
            )
        self.url = self._ready(self._process, began + READY_S_MAX)
        self._listen = self.url.removeprefix("clarion://")
        return time.monotonic() - began

    def _ready(self, process: subprocess.Popen[bytes], deadline: float) -> str:
        """The address in its ready line."""
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            self.kill()
            raise ConfigurationError(detail=f"the server was not ready within {READY_S_MAX:.0f} s: {self._last_line()}")
        words = process.stdout.readline().decode().split()
        url = next((word.removeprefix("url=") for word in words if word.startswith("url=")), None)
        if words[:1] != ["ready"] or url is None:
            self.kill()
            raise ConfigurationError(detail=f"the server did not start: {self._last_line()}")
        return url

    def _last_line(self) -> str:
        lines = self._log.read_text("utf-8", "replace").splitlines()
        return lines[-1] if lines else "it said nothing"

    def kill(self) -> None:
        """SIGKILL: it gets no chance to write anything more."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that takes too long."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            if process.stdout is not None:
                process.stdout.close()
