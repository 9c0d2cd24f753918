"""Dead messages of a real broker: told, counted as they die, sent back by a job that is killed half way (D-08)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import clarion.spark
from clarion import sync
from clarion.errors import BadArgument
from clarion.pipelines import deadletters, registry
from clarion.pipelines.archive.files import LocalFiles
from clarion.pipelines.deadletters import steps
from clarion.pipelines.deadletters.job import SELECTION, Journal
from clarion.pipelines.deadletters.wiring import analyse, resend, watch
from clarion.testing.server import ServerProcess
from tests.spark.deadletters_child import CHUNK
from tests.spark.dying import dead, dead_count, drain, expire, reject

CHILD_S = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as server:
        yield server


@pytest.fixture
def session(server: ServerProcess) -> Iterator[sync.Session]:
    with sync.connect(server.url) as connection, connection.session() as session:
        yield session


def context(spark: SparkSession, server: ServerProcess, folder: Path) -> registry.Context:
    clarion.spark.register(spark)
    return registry.Context(spark=spark, url=server.url, checkpoint=str(folder), name="deadletters.test", once=True)


def child(server: ServerProcess, folder: Path, which: str, arm: str = "") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "tests.spark.deadletters_child", server.url, str(folder), which]
    environment = {**os.environ, "CLARION_ARM": arm}
    return subprocess.run(command, env=environment, capture_output=True, timeout=CHILD_S, check=False)


def never() -> bool:
    return False


def silent(report: dict[str, Any]) -> None:
    """Nobody wants to know."""


def test_d08_a_job_that_is_killed_at_any_step_sends_each_message_once(
    spark: SparkSession, server: ServerProcess, session: sync.Session, tmp_path: Path
) -> None:
    repairs = [b"repair-%d" % n for n in range(40)]
    others = [b"other-%d" % n for n in range(5)]
    for n in range(5):  # those that are sent and those that stay are mixed
        expire(session, "queue:repairs", repairs[n * 8 : n * 8 + 8], properties={"customer": n})
        expire(session, "queue:others", others[n : n + 1])
    which = "origin = 'queue:repairs' AND properties['customer'] < 4 AND age_s >= 0"
    settings = deadletters.ResendSettings(which=which, chunk=CHUNK)
    here = context(spark, server, tmp_path / "job")
    report = resend(here, settings, silent, lambda: True)  # stopped before anything is sent: it is written down
    assert (report["rows"], report["total"], report["sent"]) == (0, 32, 0)
    with pytest.raises(BadArgument, match="not finished: 0 of 32"):
        resend(here, deadletters.ResendSettings(which="true"), silent, never)
    expire(session, "queue:repairs", [b"later"], properties={"customer": 1})  # what dies now is not of this job

    for gone, arm in ((0, "asked=kill"), (7, "sent=kill"), (14, "noted=kill@2"), (21, "sent=kill")):
        assert child(server, tmp_path / "job", which, f"deadletters.{arm}").returncode == -9
        assert dead_count(session) == 46 - gone
    died_again = drain_one_and_let_it_die(session)
    ended = child(server, tmp_path / "job", which)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert {key: report[key] for key in ("rows", "total", "sent", "left")} == {
        "rows": 32, "total": 32, "sent": 32, "left": 0,
    }  # fmt: skip
    assert sorted([*drain(session, "queue:repairs"), died_again]) == sorted(repairs[:32])
    assert sorted(dead(session)) == sorted([*repairs[32:], *others, b"later", died_again])
    assert resend(here, deadletters.ResendSettings(which="false"), silent, never)["job"] == 2  # the next one is anew


def drain_one_and_let_it_die(session: sync.Session) -> bytes:
    """One that was sent back dies again: beyond what the job was made for."""
    (first, *_) = session.browse("queue:repairs", count=1)
    reject(session, "queue:repairs", 1, "again")
    session.command("remove_policy", {"pattern": "repairs"})
    return first.body


def test_d08_what_cannot_be_sent_is_told_and_holds_up_nothing(
    spark: SparkSession, server: ServerProcess, session: sync.Session, tmp_path: Path
) -> None:
    with session.receive("topic:news", durable="audit"):
        pass
    with session.receive("topic:news", durable="archive"):
        pass
    expire(session, "queue:repairs", [b"r1"])
    expire(session, "topic:news", [b"n1", b"n2"], subscriptions=2)
    expire(session, "queue:repairs", [b"r2"])
    session.command("unsubscribe", {"destination": "topic:news", "subscription": "audit"})
    here = context(spark, server, tmp_path / "job")
    reports: list[dict[str, Any]] = []
    report = resend(here, deadletters.ResendSettings(which="true"), reports.append, never)
    assert (report["rows"], report["sent"], report["left"]) == (6, 4, 2)
    ((why, count),) = report["problems"].items()
    assert count == 2 and "audit" in why
    assert [one["rows"] for one in reports] == [0, 6]
    assert sorted(drain(session, "queue:repairs")) == [b"r1", b"r2"]

    groups = analyse(here, deadletters.AnalysisSettings(by=("origin", "subscription")), silent, never)["groups"]
    (group,) = groups
    assert (group["origin"], group["subscription"], group["messages"]) == ("topic:news", "audit", 2)
    assert [sample["reason"] for sample in group["samples"]] == ["its time to live was over"] * 2
    json.dumps(groups)  # it is plain
    with pytest.raises(BadArgument, match="colour"):
        analyse(here, deadletters.AnalysisSettings(where="colour = 'red'"), silent, never)

    report = resend(here, deadletters.ResendSettings(which="true", to="queue:repair-shop"), silent, never)
    assert (report["sent"], report["left"], dead_count(session)) == (2, 0, 0)
    assert sorted(drain(session, "queue:repair-shop")) == [b"n1", b"n2"]


def test_d08_each_death_is_told_once_also_after_a_crash(
    spark: SparkSession, server: ServerProcess, session: sync.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = context(spark, server, tmp_path / "watch")
    settings = deadletters.WatchSettings(report_to="queue:told", by=("reason", "origin"))
    assert watch(here, settings, silent, never) == {"rows": 0, "looks": 1, "next": 1}
    expire(session, "queue:repairs", [b"r1", b"r2"])
    session.send_many("queue:orders", [b"o1"])
    reject(session, "queue:orders", 1, "no such part")

    class Crash(Exception):
        pass

    def crash(step: str) -> None:
        if step == "told":
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(steps, "at", crash)
        with pytest.raises(Crash):
            watch(here, settings, silent, never)
    assert watch(here, settings, silent, never)["rows"] == 0
    expire(session, "queue:repairs", [b"r3"])
    assert watch(here, settings, silent, never)["rows"] == 1
    told = [msgspec.json.decode(body) for body in drain(session, "queue:told")]
    assert [(row["origin"], row["reason"], row["messages"], row["last_sequence"]) for row in told[2:]] == [
        ("queue:repairs", "its time to live was over", 1, 4)
    ]
    assert {(row["origin"], row["reason"], row["messages"]) for row in told[:2]} == {
        ("queue:repairs", "its time to live was over", 2),
        ("queue:orders", "it was delivered too often", 1),
    }
    assert dead_count(session) == 4  # watching takes nothing away


def test_d08_a_job_is_not_done_at_another_server(tmp_path: Path, server: ServerProcess, session: sync.Session) -> None:
    expire(session, "queue:repairs", [b"r1", b"r2"])
    (known, _) = session.browse(deadletters.DEAD)
    for sequence, identity, what in ((1, "0" * 32, "another one"), (9, known.id, "never had")):
        folder = tmp_path / f"job-{sequence}"
        frozen(folder, "true", [(sequence, identity)])
        ended = child(server, folder, "true")
        assert ended.returncode == 1 and what.encode() in ended.stderr
    assert dead_count(session) == 2


def frozen(folder: Path, which: str, messages: list[tuple[int, str]]) -> None:
    """A job as Spark would have found it."""
    rows = [{"sequence": sequence, "id": identity, "origin": "queue:repairs"} for sequence, identity in messages]
    Journal(LocalFiles(folder / "resend")).begin(which, None, pa.Table.from_pylist(rows, SELECTION))


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_d08_twenty_thousand_messages_and_thirty_kills(
    tmp_path: Path, server: ServerProcess, session: sync.Session
) -> None:
    """Kills of the job at its steps, and of the broker at random: no gap, no double."""
    kill_and_go_on(tmp_path, server, session, messages=20_000, kills=30)


def kill_and_go_on(tmp_path: Path, server: ServerProcess, session: sync.Session, messages: int, kills: int) -> None:
    chance = random.Random(5)
    for first in range(0, messages, 5_000):
        expire(session, "queue:repairs", [b"%d" % n for n in range(first, min(messages, first + 5_000))])
    odd = [(message.sequence, message.id) for message in session.browse(deadletters.DEAD) if int(message.body) % 2]
    frozen(tmp_path / "job", "odd ones", odd)
    command = [sys.executable, "-m", "tests.spark.deadletters_child", server.url, str(tmp_path / "job"), "odd ones"]
    chunks = messages // 2 // CHUNK
    for kill in range(kills):
        passing = chance.randint(1, chunks // kills - 1)  # so that something is left after the last one
        arm = f"deadletters.{chance.choice(('asked', 'sent', 'noted'))}=kill@{passing}"
        process = subprocess.Popen(command, env={**os.environ, "CLARION_ARM": arm}, stdout=subprocess.DEVNULL)
        if kill % 3 == 0:
            try:
                process.wait(chance.uniform(1.0, 3.0))
            except subprocess.TimeoutExpired:
                server.kill()
                server.start()
        assert process.wait(CHILD_S * 5) == -signal.SIGKILL
    ended = child(server, tmp_path / "job", "odd ones")
    assert ended.returncode == 0, ended.stderr
    assert sorted(map(int, drain(session, "queue:repairs"))) == list(range(1, messages, 2))
    assert sorted(map(int, dead(session))) == list(range(0, messages, 2))
