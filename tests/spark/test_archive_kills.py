"""`clarion pipeline run archive` as users run it, killed at labelled steps: every message is archived once (D-04)."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion import sync
from clarion.pipelines.archive import layout, retention
from clarion.pipelines.archive.files import LocalFiles
from clarion.pipelines.archive.log import Log
from clarion.testing.server import ServerProcess
from tests.unit.pipelines.archive_rows import rows_of

WAIT_S = 240.0
TOPICS = ("topic:orders.eu", "topic:orders.us")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as process:
        yield process


def run(server: ServerProcess, folder: Path, arm: str = "") -> int:
    """One run over all there is; how its process ended. Nothing that it started is left."""
    command = [sys.executable, "-m", "clarion", "pipeline", "run", "archive", "--url", server.url, "--once", "--json"]
    command += ["--checkpoint", str(folder / "checkpoints"), "--master", "local[2]"]
    for setting in (f"path={folder / 'archive'}", "destination=glob:orders.*", "rows_per_batch=500", "files_min=2"):
        command += ["--set", setting]
    with (folder / "archive.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CLARION_ARM": arm},
            start_new_session=True,
        )
    try:
        return process.wait(WAIT_S)
    finally:
        end(process.pid)


def end(session: int) -> None:
    """Kill what is left of a session of the kernel, and wait until it is gone."""
    for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]:
        try:
            if os.getsid(pid) != session:
                continue
            descriptor = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        select.select([descriptor], [], [], WAIT_S)
        os.close(descriptor)


def killed_at(steps: list[str], server: ServerProcess, folder: Path) -> None:
    files, sent = LocalFiles(folder / "archive"), 0
    assert run(server, folder) == 0, (folder / "archive.log").read_text()[-3000:]
    with sync.connect(server.url) as connection, connection.session() as session:
        for step in steps:
            for topic in TOPICS:
                session.send_many(topic, [f"{number}".encode() for number in range(600)])
            sent += 600
            assert run(server, folder, step) == -signal.SIGKILL, step
        assert run(server, folder) == 0, (folder / "archive.log").read_text()[-3000:]
        with session.reader("glob:orders.*", subscription="pipeline.archive") as reader:
            assert all(one.floor == one.end == sent + 1 for one in reader.open())
    expected = [(topic, number + 1) for topic in TOPICS for number in range(sent)]
    assert rows_of(files) == expected
    retention.vacuum(files, grace_ms=0, orphan_grace_ms=-1_000)
    assert rows_of(files) == expected
    assert {one.path for one in files.walk(layout.DATA)} == Log(files).latest().files.keys()


@pytest.mark.soak
@pytest.mark.timeout(1_200)
def test_d04_a_driver_killed_between_the_entry_and_sparks_own_commit(server: ServerProcess, tmp_path: Path) -> None:
    killed_at(["archive.entered=kill@2"], server, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_d04_a_driver_killed_at_every_step(server: ServerProcess, tmp_path: Path) -> None:
    names = ("staged", "placed", "placed=kill@3", "entry", "writing=kill@2", "entered", "compacted", "vacuumed")
    killed_at([f"archive.{name}" if "=" in name else f"archive.{name}=kill" for name in names], server, tmp_path)
