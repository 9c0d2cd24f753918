"""Processes of a measurement: servers, workers, ports and directories, all of them bounded and all of them reaped.

Rules
    1. Every process started here is ended here: asked first, then killed with its process group, then waited for.
    2. Every wait has a limit. A limit that passes is a `BenchmarkError` with the end of the process's own log.
    3. Only 127.0.0.1 is ever bound or connected to.
    4. A server asks the kernel for SIGTERM when this process dies, so that a killed benchmark leaves none behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contestant import BenchmarkError, Result

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parent.parent
STATE = Path(__file__).resolve().parent / ".peers"

START_S_MAX = 60.0
STOP_S_MAX = 15.0
RUN_S_MAX = 120.0
_PR_SET_PDEATHSIG = 1
_LASTING_PORTS = range(12_000, 32_000)
"""Below those that connections get."""
_libc = ctypes.CDLL(None)


def free_ports(count: int) -> list[int]:
    """Distinct ports that were free a moment ago; all held at once so that none is given twice."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in held]


def lasting_ports(count: int) -> list[int]:
    """Free ports that the kernel gives to nobody, for servers that go away and come back."""
    found: list[int] = []
    for port in random.sample(_LASTING_PORTS, len(_LASTING_PORTS)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            return found
    raise BenchmarkError("there is no free port")


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """An empty directory on the file system of the repository (a temporary file system would not sync)."""
    STATE.mkdir(exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="run-", dir=STATE))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _reap(process: subprocess.Popen[bytes], ask_s: float) -> None:
    """Ask, then kill the whole process group, then wait. A process that is gone already is only reaped."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ask_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Server:
    """One server process with its log."""

    def __init__(self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None):
        self._log = log
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def wait_for_port(self, port: int, limit_s: float = START_S_MAX) -> None:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BenchmarkError(f"server ended with {self._process.returncode}: {tail(self._log)}")
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1.0):
                return
            time.sleep(0.05)
        raise BenchmarkError(f"no answer on its port within {limit_s:.0f} s: {tail(self._log)}")

    def stop(self) -> None:
        _reap(self._process, STOP_S_MAX)


class Worker:
    """One `benchmarks.worker` child and its handshake."""

    def __init__(self, python: Path, target: str, arguments: Mapping[str, Any], log: Path, limit_s: float):
        self._target, self._log, self._pending = target, log, b""
        self._deadline = time.monotonic() + limit_s
        encoded = json.dumps(arguments)
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [str(python), "-m", "benchmarks.worker", target, encoded, str(int(limit_s) + 5)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                start_new_session=True,
            )

    def _line(self) -> str:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._pending:
            left = self._deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise BenchmarkError(f"{self._target} passed its time limit: {tail(self._log)}")
            data = os.read(descriptor, 65536)
            if not data:
                code = self._process.wait(STOP_S_MAX)
                raise BenchmarkError(f"{self._target} ended with {code} and without an answer: {tail(self._log)}")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def until_ready(self) -> None:
        self.until("ready")

    def until(self, word: str) -> None:
        """It says this word next."""
        if (line := self._line()) != word:
            raise BenchmarkError(f"{self._target} said {line!r} instead of {word!r}")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        answer = json.loads(self._line())
        assert isinstance(answer, dict)
        return answer

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        _reap(self._process, 1.0 if self._process.poll() is None else 0.0)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


Job = tuple[str, Mapping[str, Any]]
"""A worker's function as "module:function" and its arguments."""


def run_workers(
    jobs: Sequence[Job], directory: Path, python: Path | None = None, limit_s: float = RUN_S_MAX
) -> list[dict[str, Any]]:
    """Run the jobs together: all are ready before any starts; they start in the order given."""
    workers: list[Worker] = []
    try:
        for index, (target, arguments) in enumerate(jobs):
            log = directory / f"worker-{index}.log"
            workers.append(Worker(python or Path(sys.executable), target, arguments, log, limit_s))
        for worker in workers:
            worker.until_ready()
        for worker in workers:
            worker.go()
        return [worker.answer() for worker in workers]
    finally:
        for worker in workers:
            worker.stop()


def run_pair(consumer: Job, producer: Job, directory: Path, size: int, python: Path | None = None) -> Result:
    """Throughput by one consumer and one producer; checks that both handled the same number of messages."""
    consumed, produced = run_workers([consumer, producer], directory, python)
    if consumed["count"] != produced["count"]:
        raise BenchmarkError(f"{produced['count']} produced but {consumed['count']} consumed")
    ended_ns = max(consumed["ended_ns"], produced["ended_ns"])
    return Result(produced["count"], size, (ended_ns - produced["started_ns"]) / 1e9)


def tail(log: Path, characters: int = 400) -> str:
    with contextlib.suppress(OSError):
        return " ".join(log.read_text(errors="replace")[-characters:].split())
    return "(no log)"
