"""A real Spark cluster on this machine for tests: masters that elect a leader by ZooKeeper, and workers.

    with SparkCluster(tmp_path, masters=2, workers=2) as cluster:
        ... SparkSession.builder.master(cluster.url) ...
        cluster.kill_leader()       # SIGKILL: the other master takes over
        cluster.kill_worker(0)      # with its executors, as if the machine was lost

All processes come from PySpark's own jars, ZooKeeper too.

Guarantees: entering returns when there is a leader that knows every worker; leaving leaves no process behind.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

START_S_MAX = 120.0
_HOST = "127.0.0.1"


class ClusterFailed(RuntimeError):
    """A process ended, or what was waited for did not come in time."""


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def spark_home() -> Path:
    """Where PySpark keeps Spark."""
    import pyspark

    return Path(pyspark.__file__).parent


class _Process:
    """One of the cluster's processes, with all that it starts: they are one group."""

    def __init__(self, name: str, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to it and all that it started; waits for its end."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")


class _Master(_Process):
    def __init__(self, number: int, folder: Path, environment: dict[str, str]) -> None:
        self.port, self.page = free_port(), free_port()
        arguments = ["--host", _HOST, "--port", str(self.port), "--webui-port", str(self.page)]
        super().__init__(f"master-{number}", _spark_class("master.Master", arguments), folder, environment)

    def state(self) -> dict[str, Any]:
        """What it says of itself: `status` is ALIVE for the leader. Empty if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{_HOST}:{self.page}/json/", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (urllib.error.URLError, ConnectionError, TimeoutError, ValueError):
            return {}


def _spark_class(name: str, arguments: list[str]) -> list[str]:
    return [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]


class SparkCluster:
    """Masters, workers and a ZooKeeper, each a process of its own."""

    def __init__(self, folder: Path, *, masters: int = 2, workers: int = 2, worker_memory: str = "1500m") -> None:
        self._folder = folder / "spark-cluster"
        self._worker_memory = worker_memory
        self._counts = (masters, workers)
        self._zookeeper: _Process | None = None
        self._masters: list[_Master] = []
        self._workers: list[_Process] = []

    def __enter__(self) -> SparkCluster:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def url(self) -> str:
        """For `--master`: all masters there ever were."""
        return "spark://" + ",".join(f"{_HOST}:{master.port}" for master in self._masters)

    def leader(self) -> _Master | None:
        """The master that decides now."""
        return next((one for one in self._masters if one.is_alive and one.state().get("status") == "ALIVE"), None)

    def kill_leader(self) -> None:
        """Kill the leading master, and wait until another one leads."""
        leader = self.leader()
        if leader is None:
            raise ClusterFailed("no master leads")
        leader.kill()
        self._until(lambda: self.leader() is not None, "another master leads")

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors."""
        self._workers[number].kill()

    def alive_workers(self) -> int:
        """How many the leader counts on."""
        leader = self.leader()
        workers = leader.state().get("workers", []) if leader is not None else []
        return sum(1 for worker in workers if worker.get("state") == "ALIVE")

    def _start(self) -> None:
        self._folder.mkdir(parents=True)
        port = self._start_zookeeper()
        options = {
            "spark.deploy.recoveryMode": "ZOOKEEPER",
            "spark.deploy.zookeeper.url": f"{_HOST}:{port}",
            "spark.worker.timeout": "20",
            "spark.dead.worker.persistence": "1",
        }
        environment = {
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(f"-D{name}={value}" for name, value in options.items()),
            "PYSPARK_PYTHON": sys.executable,
        }
        masters, workers = self._counts
        self._masters = [_Master(number, self._folder, environment) for number in range(masters)]
        self._until(lambda: self.leader() is not None, "a master leads")
        for number in range(workers):
            place = ["--host", _HOST, "--webui-port", "0", "--work-dir", str(self._folder / f"work-{number}")]
            size = ["--cores", "1", "--memory", self._worker_memory, self.url]
            command = _spark_class("worker.Worker", [*place, *size])
            self._workers.append(_Process(f"worker-{number}", command, self._folder, environment))
        self._until(lambda: self.alive_workers() == workers, "the leader knows all workers")

    def _start_zookeeper(self) -> int:
        port = free_port()
        settings = self._folder / "zookeeper.cfg"
        settings.write_text(
            f"dataDir={self._folder / 'zookeeper'}\nclientPort={port}\nclientPortAddress={_HOST}\n"
            "tickTime=500\nadmin.enableServer=false\n"
        )
        jars = str(spark_home() / "jars" / "*")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = ["java", "-Xmx192m", "-cp", jars, main, str(settings)]
        self._zookeeper = _Process("zookeeper", command, self._folder, {})
        self._until(lambda: _answers(port), "ZooKeeper answers")
        return port

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not holds():
            if self._zookeeper is not None and not self._zookeeper.is_alive:
                raise ClusterFailed(f"ZooKeeper has ended:\n{self._zookeeper.log()[-2_000:]}")
            if time.monotonic() > deadline:
                logs = "\n".join(f"{one.name}: {one.log()[-1_000:]}" for one in [*self._masters, *self._workers])
                raise ClusterFailed(f"not within {START_S_MAX} s: {what}\n{logs}")
            time.sleep(0.1)

    def _end(self) -> None:
        for one in [*self._workers, *self._masters, *([self._zookeeper] if self._zookeeper else [])]:
            one.kill()


def _answers(port: int) -> bool:
    try:
        socket.create_connection((_HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
