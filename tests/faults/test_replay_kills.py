"""Replays against a real server, killed and stopped half way: no gap, no double, byte for byte, in order (D-09)."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from clarion import sync
from clarion.errors import BadArgument
from clarion.pipelines.archive import compaction, retention
from clarion.pipelines.archive.files import LocalFiles
from clarion.pipelines.archive.log import Log
from clarion.pipelines.replay import Settings, replay
from clarion.testing.server import ServerProcess
from tests.faults import replay_child
from tests.unit.pipelines.archive_rows import Row, append

ROWS = 20_000
WAIT_S = 60.0
Sent = tuple[bytes, bytes, int, int]
"""Headers, body, priority, time in milliseconds."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two destinations over three days, in files that overlap."""
    files = LocalFiles(tmp_path_factory.mktemp("archive"))
    rows = [
        Row(f"topic:{'ab'[number % 2]}", number // 2 + 1, day=number * 3 // ROWS, body=f"{number}".encode())
        for number in range(ROWS)
    ]
    append(files, rows[:7_000])
    append(files, rows[7_000 : ROWS - 100 : 2])
    append(files, rows[7_001 : ROWS - 100 : 2])
    append(files, rows[ROWS - 100 :])
    return str(files.root)


@pytest.fixture(scope="module")
def processes() -> Iterator[ForkServerContext]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.replay_child"])
    yield context
    assert not multiprocessing.active_children()


def archived(path: str, destination: str) -> list[Sent]:
    """What the archive has of a destination, in order, read in the plainest way."""
    files = LocalFiles(path)
    rows: list[dict[str, Any]] = []
    for file in Log(files).latest().files.values():
        if file.destination == destination:
            rows += pq.read_table(files.root / file.path, partitioning=None).to_pylist()
    rows.sort(key=lambda row: row["sequence"])
    return [(row["headers"], row["body"], row["priority"], int(row["time"].timestamp() * 1000)) for row in rows]


def stored(url: str, destination: str) -> list[Sent]:
    """What a destination holds, in order."""
    found: list[Sent] = []
    with sync.connect(url) as connection, connection.session() as session:
        (readable,) = session.reader(destination).open()
        for _, batch in session.read(destination, readable.floor, readable.end):
            for index in range(batch.count):
                headers, body = batch.record(index)
                found.append((bytes(headers), bytes(body), batch.priority, batch.time_ms(index)))
    return found


def keep(url: str, *topics: str) -> None:
    """Somebody to keep messages for."""
    with sync.connect(url) as connection, connection.session() as session:
        for topic in topics:
            with session.reader(topic, subscription="kept") as reader:
                reader.open()


STEPS = ("pinned=kill", "sent=kill@2", "prepared=kill@2", "committed=kill@2", "done=kill")


@pytest.mark.parametrize("step", [f"replay.{step}" for step in STEPS])
def test_d09_killed_at_a_step_and_run_again_everything_is_there_once_and_in_order(
    step: str, server: ServerProcess, archive: str, processes: ForkServerContext
) -> None:
    label = step.partition("=")[0].partition(".")[2]
    keep(server.url, f"topic:{label}.a", f"topic:{label}.b")
    settings = Settings(path=archive, job=label, to=f"topic:{label}.{{name}}", chunk_rows=3_000)
    child = processes.Process(target=replay_child.live, args=(server.url, settings, step))
    child.start()
    child.join(WAIT_S)
    assert child.exitcode == -signal.SIGKILL
    child.close()
    before = Log(LocalFiles(archive)).latest().pins[label]
    compaction.compact(LocalFiles(archive), files_min=2)
    retention.vacuum(LocalFiles(archive), grace_ms=0)
    told = replay(server.url, settings)
    assert told["done"] and told["rows"] == told["total"] == ROWS
    assert (told["sent"] < ROWS) == (label in ("committed", "sent", "prepared", "done")), before
    for name in "ab":
        assert stored(server.url, f"topic:{label}.{name}") == archived(archive, f"topic:{name}")
    assert label not in Log(LocalFiles(archive)).latest().pins
    assert replay(server.url, settings)["sent"] == 0, "a job that is done sends nothing again"
    assert len(stored(server.url, f"topic:{label}.a")) == ROWS // 2


def test_d09_stopped_half_way_at_a_rate_and_resumed(server: ServerProcess, archive: str) -> None:
    keep(server.url, "topic:paced")
    settings = Settings(path=archive, job="paced", to="topic:paced", destinations=("topic:a",), rate=2_000.0)
    reports: list[dict[str, Any]] = []
    began_s = time.monotonic()
    told = replay(server.url, settings, report=reports.append, stopping=lambda: len(reports) >= 2)
    assert time.monotonic() - began_s >= 1.0 and not told["done"]
    assert told["sent"] == 4_000 and [report["sent"] for report in reports] == [2_000, 4_000, 4_000]
    assert stored(server.url, "topic:paced") == archived(archive, "topic:a")[:4_000]
    with pytest.raises(BadArgument, match="begun with other settings"):
        replay(server.url, Settings(path=archive, job="paced", to="topic:elsewhere"))
    fast = Settings(path=archive, job="paced", to="topic:paced", destinations=("topic:a",))
    assert replay(server.url, fast)["sent"] == ROWS // 2 - 4_000
    assert stored(server.url, "topic:paced") == archived(archive, "topic:a")


def test_d09_two_processes_of_one_job_and_a_broker_that_is_killed_beneath_them(tmp_path: Path, archive: str) -> None:
    with ServerProcess(tmp_path / "data") as server:
        keep(server.url, "topic:a", "topic:b")
        settings = Settings(path=archive, job="both", chunk_rows=500)
        halfway, results = threading.Event(), []

        def one() -> None:
            results.append(
                replay(server.url, settings, report=lambda told: halfway.set() if told["rows"] > ROWS // 3 else None)
            )

        threads = [threading.Thread(target=one) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert halfway.wait(WAIT_S)
        server.kill()
        server.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert len(results) == 2 and sum(told["sent"] for told in results) <= ROWS
        for name in "ab":
            assert stored(server.url, f"topic:{name}") == archived(archive, f"topic:{name}")


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_d09_a_million_messages_killed_again_and_again(tmp_path: Path, processes: ForkServerContext) -> None:
    files, count = LocalFiles(tmp_path / "archive"), 1_000_000
    for first in range(0, count, 100_000):
        append(files, [Row("topic:a", number + 1, day=number * 9 // count) for number in range(first, first + 100_000)])
    settings = Settings(path=str(files.root), job="million", chunk_rows=10_000)
    with ServerProcess(tmp_path / "data") as server:
        keep(server.url, "topic:a")
        for step in (f"replay.{name}=kill@13" for name in ("sent", "prepared", "committed") * 2):
            child = processes.Process(target=replay_child.live, args=(server.url, settings, step))
            child.start()
            child.join(WAIT_S)
            assert child.exitcode == -signal.SIGKILL
            child.close()
            compaction.compact(files, files_min=2)
            retention.vacuum(files, grace_ms=0)
        began_s = time.monotonic()
        told = replay(server.url, settings)
        print(f"\n{told['sent']} messages in {time.monotonic() - began_s:.1f} s")
        assert told["done"] and stored(server.url, "topic:a") == archived(str(files.root), "topic:a")
