"""The pipeline `copy` as users run it, broken on purpose; and what must hold afterwards.

A run is a process with all that Spark starts for it: the Java process, the Python processes that plan and commit, and
those that run tasks. They share a session of the kernel, by which all of them are found and ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import psutil

import clarion
from clarion.testing.server import ServerProcess

WAIT_S = 240.0
SOURCE, TARGET = "topic:orders", "queue:audit"
SUBSCRIPTION = "pipeline.copy"
CHUNK = 10_000


def until(condition: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
    """Ask again until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


class Run:
    """One `clarion pipeline run copy`."""

    def __init__(
        self,
        server: ServerProcess,
        folder: Path,
        *,
        arm: str = "",
        once: bool = False,
        master: str = "local[2,4]",
        rows_per_batch: int = 2_000,
        settings: tuple[str, ...] = (),
    ) -> None:
        chosen = (f"source={SOURCE}", f"target={TARGET}", f"rows_per_batch={rows_per_batch}", *settings)
        command = [sys.executable, "-m", "clarion", "pipeline", "run", "copy", "--url", server.url, "--json"]
        command += ["--checkpoint", str(folder / "checkpoints"), "--master", master]
        command += [part for one in chosen for part in ("--set", one)] + ["--once"] * once
        self.log_path = folder / "copy.log"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "CLARION_ARM": arm},
                start_new_session=True,
            )

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """All that belong to this run, alive or stopped."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self._process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return found

    def workers(self) -> list[psutil.Process]:
        """Python processes that run tasks: children of Spark's Python daemon."""
        found = []
        for process in self.processes():
            try:
                parent = process.parent()
                if parent is not None and "pyspark.daemon" in parent.cmdline():
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def kill(self) -> None:
        """SIGKILL to every process of the run at once, as if the machine was lost."""
        while left := self.processes():
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(left, timeout=10)
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Until it ends by itself; the exit code."""
        try:
            return self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.log()}") from None

    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")[-6_000:]


class Story:
    """A broker, what was sent to the source, and what must be in the target."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = ServerProcess(folder / "data")
        self.sent = 0
        self._marks = 0

    def __enter__(self) -> Story:
        self.server.start()
        with clarion.sync.connect(self.server.url) as connection, connection.session() as session:
            session.command("create", {"destination": SOURCE})
            session.command("create", {"destination": TARGET})
            session.reader(SOURCE, subscription=SUBSCRIPTION).open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.kill()

    def send(self, count: int) -> None:
        """So many more messages, each with its number as body."""
        with clarion.sync.connect(self.server.url) as connection, connection.session() as session:
            while count:
                part = min(count, CHUNK)
                session.send_many(SOURCE, [b"%d" % number for number in range(self.sent, self.sent + part)])
                self.sent += part
                count -= part

    def run(self, **options: object) -> Run:
        return Run(self.server, self.folder, **options)  # type: ignore[arg-type]

    def stopped_at(self, step: str, passing: int = 1) -> tuple[str, Path]:
        """An arming that stops a process at a step, and the file that says so."""
        self._marks += 1
        mark = self.folder / f"mark-{self._marks}"
        return f"spark.{step}=log:{mark}@{passing},spark.{step}=stop@{passing}", mark

    def kill_at(self, step: str, passing: int = 1, **options: object) -> None:
        """Run until one of its processes is at a step, then kill all of them."""
        arm, mark = self.stopped_at(step, passing)
        with self.run(arm=arm, **options) as run:
            until(lambda: mark.exists() or not run.is_alive, f"{step} is reached")
            assert mark.exists(), run.log()

    def depth(self, destination: str, subscription: str | None = None) -> int:
        """Messages that a subscription (a queue's own) has not confirmed."""
        name = destination.partition(":")[2]
        with clarion.sync.connect(self.server.url) as connection:
            found = next(one for one in connection.command("destinations") if one["name"] == name)
        return int(next(one["depth"] for one in found["subscriptions"] if one["name"] == subscription))

    def check(self) -> None:
        """Every message is in the target exactly once, none is in the source."""
        with clarion.sync.connect(self.server.url) as connection, connection.session() as session:
            bodies: Counter[bytes] = Counter()
            with session.receive_batches(TARGET, timeout=2.0) as batches:
                for batch in batches:
                    bodies.update(batch.bodies())
                    batch.confirm_nowait()  # a consumer gets no more than a million that it has not confirmed
        twice = [body for body, count in bodies.items() if count > 1]
        assert not twice, f"{len(twice)} came twice, {twice[:5]} among them"
        missing = [number for number in range(self.sent) if b"%d" % number not in bodies]
        assert not missing, f"{len(missing)} are missing, {missing[:5]} among them"
        assert len(bodies) == self.sent
        assert self.depth(SOURCE, SUBSCRIPTION) == 0
