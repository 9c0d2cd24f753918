"""`clarion pipeline` as people use it: real processes, a real server, signals.

Every run starts a Java process, which takes most of the time; so each test has many assertions.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import clarion.sync
from clarion.pipelines.publishing import topic
from clarion.testing.server import ServerProcess

WAIT_S = 240.0
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as started:
        yield started


class Shop:
    """A server, a folder for pipelines, and what users type."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.url = server.url
        self.folder = folder

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "clarion", "pipeline", *arguments, "--checkpoint", str(self.folder)]

    def run_command(self, *arguments: str) -> list[str]:
        return [*self.command("run", "--master", "local[2]", *arguments), "--url", self.url]

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=WAIT_S)

    def call_run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.run_command(*arguments), capture_output=True, text=True, timeout=WAIT_S)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            self.run_command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def send(self, destination: str, numbers: range) -> None:
        with clarion.sync.connect(self.url) as connection, connection.session() as session:
            for number in numbers:
                body = b"%d" % number
                session.send_nowait(destination, body, type="number", priority=number % 10, properties={"n": number})
            session.flush()

    def numbers(self, destination: str) -> list[int]:
        """What is in a queue, without taking it."""
        with clarion.sync.connect(self.url) as connection, connection.session() as session:
            return [int(message.body) for message in session.browse(destination)]

    def depth(self, destination: str) -> int:
        with clarion.sync.connect(self.url) as connection:
            return next(
                int(found["depth"])
                for found in connection.command("destinations")
                if f"{found['kind']}:{found['name']}" == destination
            )

    def status(self, name: str) -> dict[str, Any]:
        done = self.call("status", name, "--json")
        assert done.returncode == 0, done
        found: dict[str, Any] = msgspec.json.decode(done.stdout)
        return found


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended: {process.communicate()}")
        time.sleep(0.1)


COPY = ("--set", "source=queue:in", "--set", "target=queue:out")


def test_d11_once_does_what_there_is_and_leaves_nothing_at_the_broker(server: ServerProcess, tmp_path: Path) -> None:
    shop = Shop(server, tmp_path / "pipelines")
    shop.send("queue:in", range(300))
    done = shop.call_run("copy", "--once", "--json", *COPY)
    assert done.returncode == 0 and done.stderr == "", done
    said = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert [one["state"] for one in said[:1] + said[-1:]] == ["starting", "finished"]
    assert (said[-1]["rows"], said[-1]["lag"], said[-1]["error"]) == (300, 0, None)
    assert shop.depth("queue:in") == 0
    assert sorted(shop.numbers("queue:out")) == list(range(300))
    with clarion.sync.connect(shop.url) as connection, connection.session() as session:
        copies = {int(message.body): message for message in session.browse("queue:out")}
    assert all(copy.type == "number" and copy.priority == number % 10 for number, copy in copies.items())
    assert all(copy.properties == {"n": number} for number, copy in copies.items())
    status = shop.status("copy")
    assert (status["state"], status["rows"], status["pipeline"]) == ("finished", 300, "copy")
    assert not (tmp_path / "spark-warehouse").exists() and not Path("spark-warehouse").exists()


def test_d11_a_stream_stops_by_signal_goes_on_and_stops_when_asked(server: ServerProcess, tmp_path: Path) -> None:
    shop = Shop(server, tmp_path / "pipelines")
    shop.send("queue:in", range(100))
    config = tmp_path / "pipelines.toml"
    config.write_text(
        '[pipeline]\ntrigger_ms = "50 ms"\npublish_ms = 100\n'
        '[pipeline.evens]\nkind = "copy"\nsource = "queue:in"\ntarget = "queue:out"\n'
        'where = "cast(cast(body as string) as int) % 2 = 0"\n'
    )
    with clarion.sync.connect(shop.url) as connection, connection.session() as session:
        with session.receive(topic("evens"), durable="watch"):
            pass
        with shop.running("evens", "--config", str(config)) as process:
            wait_for(lambda: shop.depth("queue:in") == 0, process)
            status = shop.status("evens")
            assert status["state"] == "running" and status["pid"] == process.pid
            refused = shop.call_run("evens", "--config", str(config))
            assert refused.returncode == 1 and refused.stdout == ""
            assert refused.stderr.startswith(f"error: CLN-407 pipeline evens runs already: process {process.pid} on ")
            listed = shop.call("status")
            assert listed.returncode == 0 and "evens" in listed.stdout and "running" in listed.stdout
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=WAIT_S)
            assert process.returncode == 0 and err == "", err
            assert out.splitlines()[-1].startswith("evens: stopped, 100 rows"), out
        with session.receive(topic("evens"), durable="watch", timeout=1.0) as watch:
            told = [msgspec.json.decode(message.body) for message in watch]
        assert told[-1]["state"] == "stopped" and told[-1]["rows"] == 100
        assert {"running", "stopped"} <= {one["state"] for one in told}
    assert shop.status("evens")["state"] == "stopped"
    assert shop.call("stop", "evens").stderr.startswith("error: CLN-210 pipeline: evens does not run")

    shop.send("queue:in", range(100, 150))
    with shop.running("evens", "--config", str(config)) as process:
        wait_for(lambda: shop.depth("queue:in") == 0, process)
        stopped = shop.call("stop", "evens")
        assert stopped.returncode == 0 and stopped.stdout.startswith("evens: stopped, 50 rows"), stopped
        assert process.wait(WAIT_S) == 0
    assert sorted(shop.numbers("queue:out")) == list(range(0, 150, 2))


def test_d11_a_failure_is_one_line_with_the_reason(server: ServerProcess, tmp_path: Path) -> None:
    shop = Shop(server, tmp_path / "pipelines")
    shop.send("queue:in", range(3))
    config = tmp_path / "pipelines.toml"
    config.write_text("[pipeline]\nretries = 1\n")
    select = "--set", 'select=["raise_error(\\"too many coffees\\") as body"]'
    done = shop.call_run("copy", "--once", "--master", "local[1,1]", "--config", str(config), *COPY, *select)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: CLN-700 pipeline copy failed: "), done
    assert "too many coffees" in done.stderr and "Traceback" not in done.stderr + done.stdout
    assert done.stdout.count("started again in 1 s") == 1
    status = shop.status("copy")
    assert status["state"] == "failed" and "too many coffees" in status["error"]
    assert shop.depth("queue:in") == 3


def test_d10_spark_submit_runs_a_pipeline(server: ServerProcess, tmp_path: Path) -> None:
    import pyspark

    shop = Shop(server, tmp_path / "pipelines")
    shop.send("queue:in", range(10))
    program = subprocess.run(
        [sys.executable, "-m", "clarion.pipelines.submit"], capture_output=True, text=True, timeout=WAIT_S
    ).stdout.strip()
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [
            str(submit), "--master", "local[2]", "--conf", "spark.ui.enabled=false", program,
            "copy", "--once", "--json", "--url", shop.url, "--checkpoint", str(shop.folder), *COPY,
        ],
        capture_output=True, text=True, env=environment, timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done
    last = msgspec.json.decode(done.stdout.splitlines()[-1])
    assert (last["state"], last["rows"], last["master"]) == ("finished", 10, "local[2]")
    assert shop.depth("queue:in") == 0 and sorted(shop.numbers("queue:out")) == list(range(10))


@pytest.mark.soak
def test_d11_a_lost_checkpoint_is_refused_and_begun_anew_when_told_so(server: ServerProcess, tmp_path: Path) -> None:
    shop = Shop(server, tmp_path / "pipelines")
    shop.send("queue:in", range(20))
    assert shop.call_run("copy", "--once", *COPY).returncode == 0
    shutil.rmtree(shop.folder / "copy" / "queries")
    shop.send("queue:in", range(20, 30))
    refused = shop.call_run("copy", "--once", *COPY)
    assert refused.returncode == 1 and "CLN-223" in refused.stderr and refused.stderr.count("\n") == 1, refused
    assert "started again" not in refused.stdout and shop.depth("queue:in") == 10
    done = shop.call_run("copy", "--once", "--new-checkpoint", *COPY)
    assert done.returncode == 0, done
    assert sorted(shop.numbers("queue:out")) == list(range(30))


@pytest.mark.soak
def test_d11_a_killed_driver_is_gone_before_the_next_one_begins(server: ServerProcess, tmp_path: Path) -> None:
    """SIGKILL of the Python process: its Java process keeps the lock until it is gone; then the next run goes on."""
    shop = Shop(server, tmp_path / "pipelines")
    shop.send("queue:in", range(50))
    with shop.running("copy", *COPY) as process:
        wait_for(lambda: shop.depth("queue:in") == 0, process)
        process.kill()
        process.wait()
    assert shop.status("copy")["state"] in ("running", "died")
    wait_for(lambda: shop.status("copy")["state"] == "died")
    shop.send("queue:in", range(50, 80))
    assert shop.call_run("copy", "--once", *COPY).returncode == 0
    assert sorted(shop.numbers("queue:out")) == list(range(80))
