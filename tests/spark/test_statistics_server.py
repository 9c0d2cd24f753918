"""The pipeline `statistics` from end to end: events and confirmations of a real broker, rows as messages (D-05)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import clarion.spark
from clarion import sync
from clarion.message import PropertyValue
from clarion.pipelines import registry, statistics
from clarion.testing.server import ServerProcess
from tests.spark.dying import drain

WAIT_S = 120
ATTEMPTS = 5
"""A machine that is busy may take longer than the ten seconds that Spark gives to a Python process."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as server:
        yield server


def run(context: registry.Context, settings: statistics.StatisticsSettings) -> int:
    """All there is; how many rows were read. Begun again, as `running` does, if Spark waits in vain for its Python."""
    pipeline = registry.find("statistics")
    assert pipeline.start is not None
    rows = 0
    for _ in range(ATTEMPTS):
        queries = pipeline.start(context, settings).queries
        well = [ended(query) for query in queries]
        rows += sum(progress.numInputRows for query in queries for progress in query.recentProgress)
        if all(well):
            return rows
    raise AssertionError("Python did not start in time")


def ended(query: StreamingQuery) -> bool:
    try:
        assert query.awaitTermination(WAIT_S)
    except StreamingQueryException as error:
        if "connect back" not in str(error):
            raise
        return False
    return True


def event(session: sync.Session, kind: str, severity: str, age_s: float) -> None:
    recognised = datetime.fromtimestamp(time.time() - age_s, UTC).isoformat(timespec="microseconds")
    properties: dict[str, PropertyValue] = {
        "source": "volume/7",
        "severity": severity,
        "time": recognised.replace("+00:00", "Z"),
    }
    session.send(f"topic:events.{kind}", b"{}", type=kind, properties=properties)


def told(session: sync.Session) -> list[dict[str, Any]]:
    return [msgspec.json.decode(body) for body in drain(session, "queue:statistics")]


def test_d05_events_and_confirmations_of_a_broker_become_rows(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    clarion.spark.register(spark)
    checkpoint = str(tmp_path / "checkpoint")
    context = registry.Context(spark=spark, url=server.url, checkpoint=checkpoint, name="statistics", once=True)
    common = statistics.StatisticsSettings(
        mode="update", window_ms=3_600_000, by=("type", "severity", "destination"), to="queue:statistics"
    )
    events_only = msgspec.structs.replace(common, confirmations="off")
    confirmations_only = msgspec.structs.replace(common, destination="")
    with sync.connect(server.url) as connection, connection.session() as session:
        assert run(context, events_only) + run(context, confirmations_only) == 0  # from now on it is subscribed
        for _ in range(3):
            event(session, "disk.full", "error", age_s=0.2)
        event(session, "login", "info", age_s=0.2)
        event(session, "login", "info", age_s=-1_000)  # its clock is ahead
        session.send_many("queue:jobs", [b"1", b"2", b"3", b"4"])
        assert len(drain(session, "queue:jobs")) == 4
        assert run(context, events_only) >= 5
        assert run(context, confirmations_only) >= 1
        rows = told(session)
        events = Counter[tuple[str, str, int]]()
        for row in rows:
            if "events" in row:
                events[row["type"], row["severity"], row["ahead"]] += row["events"]
                assert row["per_second"] == row["events"] / 3_600
                assert row["source"] is None
                assert row["ahead"] or 200 <= row["delay_max_ms"] < WAIT_S * 1_000
                assert row["ahead"] or 190 <= row["sent_max_ms"] <= row["delay_max_ms"]
        assert sum(events.values()) == 5 and events["disk.full", "error", 0] == 3
        jobs = [row for row in rows if row["destination"] == "queue:jobs"]
        assert sum(row["messages"] for row in jobs) == 4
        assert all(0 <= row["deliver_max_ms"] <= row["confirm_max_ms"] < WAIT_S * 1_000 for row in jobs)
        assert run(context, events_only) == 0
        assert not [row for row in told(session) if "events" in row]  # nothing is told twice
