"""The pipeline `alerts` with a real server: events in, alerts out, also over a restart."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import clarion.spark
from clarion import sync
from clarion.events.event import Severity
from clarion.pipelines import Context, Started
from clarion.pipelines.alerts import PIPELINE, AlertsSettings
from clarion.testing.server import ServerProcess

WITHIN_S = 120.0
pytestmark = pytest.mark.timeout(600)
RULES = """
[[rule]]
name = "failing"
kind = "threshold"
where = "JMSType = 'disk.error' AND severity_level >= 40"
count = 3
within = "1 h"
severity = "critical"
message = "{source} failed {count} times"

[[rule]]
name = "down"
kind = "sequence"
steps = ["JMSType = 'host.down'", "JMSType = 'host.up'"]
within = "100 ms"
lateness = "100 ms"
missing_last = true
"""


@contextmanager
def _running(spark: SparkSession, url: str, folder: Path) -> Iterator[Started]:
    (folder / "rules.toml").write_text(RULES)
    clarion.spark.register(spark)
    assert PIPELINE.start is not None
    context = Context(spark, url, str(folder / "checkpoint"), "alerts", trigger_ms=100)
    started = PIPELINE.start(context, AlertsSettings(rules=str(folder / "rules.toml")))
    (query,) = started.queries
    try:
        until = time.monotonic() + WITHIN_S
        while query.lastProgress is None:
            assert time.monotonic() < until and not query.awaitTermination(1), query.exception()
        yield started
    finally:
        query.stop()


def _emit(session: sync.Session, type_: str, source: str, severity: Severity) -> None:
    session.send(f"topic:events.{type_}", b"{}", type=type_, properties={"source": source, "severity": severity.text})


def test_d06_events_become_alerts_and_the_state_survives_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, sync.connect(server.url) as connection:
        session = connection.session()
        alerts = session.receive("glob:events.alert.*", subscription="people")
        with _running(spark, server.url, tmp_path):
            _emit(session, "disk.error", "volume/1", Severity.ERROR)
            _emit(session, "disk.error", "volume/1", Severity.WARNING)  # not severe enough
            _emit(session, "host.down", "host/9", Severity.NOTICE)
            raised = alerts.receive(timeout=WITHIN_S)
            assert (
                raised is not None and raised.type == "alert.raised" and raised.destination == "topic:events.alert.down"
            )
            body = json.loads(raised.body)
            assert (body["rule"], body["key"], body["count"]) == ("down", {"source": "host/9"}, 1)
            _emit(session, "host.up", "host/9", Severity.NOTICE)
            cleared = alerts.receive(timeout=WITHIN_S)
            assert cleared is not None and cleared.type == "alert.cleared"
            assert cleared.correlation_id == raised.correlation_id
            _emit(session, "disk.error", "volume/1", Severity.ERROR)
        with _running(spark, server.url, tmp_path):
            _emit(session, "disk.error", "volume/1", Severity.CRITICAL)
            failed = alerts.receive(timeout=WITHIN_S)
            assert failed is not None and failed.destination == "topic:events.alert.failing"
            assert failed.properties is not None
            assert {name: failed.properties[name] for name in ("source", "severity", "key")} == {
                "source": "alerts/failing",
                "severity": "critical",
                "key": "volume/1",
            }
            body = json.loads(failed.body)
            assert body["message"] == "volume/1 failed 3 times" and len(set(body["evidence"])) == 3
