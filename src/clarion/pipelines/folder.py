"""The local folder of a pipeline: who runs it, how it is, and how it is asked to stop.

    lock          held (flock) by the process that runs the pipeline, and by its Java process until that is gone too
    status.json   how it is, replaced as a whole
    stop          somebody asks it to stop; removed by the one that is asked
    spark.log     what Spark logs; spark.out: what its processes print

Guarantees
    1. At most one process runs a pipeline with this folder. A lock goes with its process: a crash leaves none behind.
    2. Whoever looks reads a whole status, of this run or of an earlier one, and never disturbs the one that runs.
    3. A stop that was asked for before a run began does not end that run.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from clarion.errors import ConfigurationError, NoPermission, PipelineRuns

_LOCK = "lock"
_STATUS = "status.json"
_STOP = "stop"
_LOCK_S = 1.0
"""A looker has the lock for some microseconds; longer than this it is a pipeline."""


class Folder:
    """Of one pipeline."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    # --- of the one that runs ----------------------------------------------------------------------

    def take(self, name: str) -> int:
        """Take the lock, and forget what was asked earlier. Returns its descriptor, for child processes.

        Raises `PipelineRuns`, `NoPermission`, `ConfigurationError`.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except PermissionError:
            raise NoPermission(path=str(self.path)) from None
        except OSError as error:
            raise ConfigurationError(
                detail=f"{self.path} cannot be the folder of a pipeline: {error.strerror}"
            ) from None
        try:
            if not _locked(descriptor, _LOCK_S):
                raise PipelineRuns(name=name, pid=_owner(descriptor), path=str(self.path))
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)
            (self.path / _STOP).unlink(missing_ok=True)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor

    def release(self) -> None:
        """Give the lock back. A child that has it too keeps it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def write(self, status: dict[str, Any]) -> None:
        """How it is now. A disk that is full does not stop a pipeline."""
        new = self.path / f"{_STATUS}.new"
        with suppress(OSError):
            new.write_bytes(msgspec.json.encode(status))
            new.replace(self.path / _STATUS)

    def is_stop_wanted(self) -> bool:
        return (self.path / _STOP).exists()

    # --- of everybody else ---------------------------------------------------------------------------

    def is_running(self) -> bool:
        try:
            descriptor = os.open(self.path / _LOCK, os.O_RDWR)
        except FileNotFoundError:
            return False
        except PermissionError:
            raise NoPermission(path=str(self.path / _LOCK)) from None
        try:
            return not _locked(descriptor, 0.0)
        finally:
            os.close(descriptor)

    def read(self) -> dict[str, Any] | None:
        """How it is, or was; None if it never ran. One that ended without a word is `died`."""
        running = self.is_running()
        try:
            status = msgspec.json.decode((self.path / _STATUS).read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            status = None
        if not isinstance(status, dict):
            return {"name": self.path.name, "state": "starting"} if running else None
        if not running and status.get("state") in ("starting", "running", "stopping"):
            status = {**status, "state": "died"}
        return status

    def ask_stop(self) -> None:
        """Ask the one that runs to stop."""
        try:
            (self.path / _STOP).touch()
        except PermissionError:
            raise NoPermission(path=str(self.path / _STOP)) from None

    def wait_stopped(self, limit_s: float) -> bool:
        """Wait until nobody runs it; False if that takes longer."""
        deadline = time.monotonic() + limit_s
        while self.is_running():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
        with suppress(OSError):
            (self.path / _STOP).unlink(missing_ok=True)
        return True


def all_of(root: Path) -> list[Folder]:
    """The folders of all pipelines that ever ran here."""
    try:
        return [Folder(path) for path in sorted(root.iterdir()) if (path / _LOCK).is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        raise NoPermission(path=str(root)) from None


def _locked(descriptor: int, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode("utf-8", "replace") or "?"
