"""Statistics as streams: late data, clocks that are ahead, a restart half way, the join of two streams (D-05)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from clarion.pipelines import statistics
from tests.spark import generated
from tests.spark.models import statistics as model
from tests.spark.test_statistics import check

MINUTE_US = 60_000_000
WAIT_S = 120


def event(at_us: int, sequence: int = 1, severity: str = "info", kind: str = "login") -> model.Event:
    said, said_us = generated._said(at_us, 3)
    return model.Event(
        kind, severity, "host-1", f"topic:events.{kind}", sequence, said, said_us, at_us + 5_000, at_us + 9_000
    )


class Folder:
    """A folder of files that a stream reads, one file a micro-batch, in the order in which they were put there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir()
        self.files = 0

    def put(self, table: pa.Table) -> None:
        self.files += 1
        written = self.path.with_name(f"{self.path.name}.new")
        pq.write_table(table, written)
        written.rename(self.path / f"{self.files:04}.parquet")

    def stream(self, spark: SparkSession) -> DataFrame:
        schema = spark.read.parquet(str(self.path)).schema
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.path))


def run(rows: DataFrame, output: Path, checkpoint: Path) -> list[dict[str, Any]]:
    """Everything there is now, into files; the progress of each micro-batch."""
    writer = rows.writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
    query = writer.start(str(output), checkpointLocation=str(checkpoint))
    assert query.awaitTermination(WAIT_S)
    return [msgspec.json.decode(progress.json) for progress in query.recentProgress]


def counted(spark: SparkSession, folder: Folder) -> DataFrame:
    return statistics.counts(
        statistics.events(folder.stream(spark)), window_ms=60_000, watermark_ms=120_000, by=("type", "severity")
    )


def without_read(rows: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Delays depend on when the test runs."""
    return {where: {k: v for k, v in row.items() if not k.startswith("delay")} for where, row in rows.items()}


def test_d05_late_events_count_until_the_watermark_and_a_restart_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    begin = generated.NOON_US
    folder, output, checkpoint = Folder(tmp_path / "in"), tmp_path / "out", tmp_path / "checkpoint"
    first = [event(begin + n * 1_000_000) for n in range(10)]
    second = [event(begin + 4 * MINUTE_US)]  # the watermark is 12:02 after this one
    late = [event(begin + MINUTE_US * 3 + n, severity="error") for n in range(3)]  # late, and in time
    for some in (first, second, late):
        folder.put(generated.event_table(some))
    progress = run(counted(spark, folder), output, checkpoint)
    assert sum(map(statistics.dropped, progress)) == 0
    assert sum(batch["numInputRows"] for batch in progress) == 14
    early = generated.found(spark.read.parquet(str(output)))
    assert {where[0] for where in early} == {model.moment(begin)}  # what ended before the watermark, no more

    too_late = [event(begin + 30_000_000), event(begin + 31_000_000)]
    third = [event(begin + 5 * MINUTE_US)]
    last = [event(begin + 60 * MINUTE_US)]
    for some in (third, too_late, last):
        folder.put(generated.event_table(some))
    progress = run(counted(spark, folder), output, checkpoint)
    assert sum(map(statistics.dropped, progress)) == 1  # two events of one task, window and group
    rows = generated.found(spark.read.parquet(str(output)))  # each window once: `found` checks it
    wanted = model.counts([*first, *second, *late, *third], 60_000, None, ("type", "severity"))
    check(without_read(rows), without_read(wanted))


def test_d05_a_clock_that_is_ahead_makes_nobody_late(spark: SparkSession, tmp_path: Path) -> None:
    now = int(time.time()) * 1_000_000
    folder = Folder(tmp_path / "in")
    folder.put(generated.event_table([event(now + 400 * generated.DAY_US, severity="error")]))
    for _ in range(3):
        folder.put(generated.event_table([event(now - 30 * MINUTE_US)]))
    rows = statistics.counts(
        statistics.events(folder.stream(spark)), window_ms=60_000, watermark_ms=3_600_000, by=("severity",)
    )
    writer = rows.writeStream.format("memory").queryName("ahead").outputMode("update").trigger(availableNow=True)
    query = writer.start(checkpointLocation=str(tmp_path / "checkpoint"))
    assert query.awaitTermination(WAIT_S)
    assert sum(statistics.dropped(msgspec.json.decode(one.json)) for one in query.recentProgress) == 0
    seen = {(row["severity"], row["events"], row["ahead"]) for row in spark.table("ahead").collect()}
    assert seen == {("error", 1, 1), ("info", 1, 0), ("info", 2, 0), ("info", 3, 0)}


def test_d05_events_and_confirmations_are_joined_as_streams(spark: SparkSession, tmp_path: Path) -> None:
    begin = generated.NOON_US
    end = begin + 120 * MINUTE_US
    left, right = Folder(tmp_path / "events"), Folder(tmp_path / "feed")
    events = [event(begin + n * 1_000_000, n, ("info", "error")[n % 2]) for n in range(1, 41)]
    records = [record(begin, 1, 11, 700), record(begin, 11, 21, 1_500), record(begin, 21, 31, 90_000)]
    closing = [event(end, 99)], [record(end, 200, 201, 0)]
    for some in (events[:20], events[20:], closing[0]):
        left.put(generated.event_table(some))
    for one in (records[:1], records[1:], closing[1]):
        right.put(generated.feed_table(one))
    joined = statistics.by_event(
        statistics.events(left.stream(spark)),
        statistics.records(right.stream(spark)),
        within_ms=600_000,
        watermark_ms=60_000,
    )
    run(statistics.times(joined, window_ms=60_000, by=("severity",)), tmp_path / "out", tmp_path / "checkpoint")
    rows = generated.found(spark.read.parquet(str(tmp_path / "out")))
    assert sum(row["messages"] for row in rows.values()) == 30
    check(rows, model.times_by_event(events, records, 600_000, 60_000, None, ("severity",)))


def record(at_us: int, first: int, end: int, confirm_ms: int) -> model.Confirmation:
    stored_ms = at_us // 1_000 + 10
    return model.Confirmation("topic:events.login", first, end, stored_ms, stored_ms + 3, stored_ms + confirm_ms)


def test_d05_rows_become_messages(spark: SparkSession) -> None:
    events = [event(generated.NOON_US, severity="error"), event(generated.NOON_US + 1, severity="error")]
    seen = statistics.events(generated.frame(spark, generated.event_table(events)))
    rows = statistics.messages(statistics.counts(seen, window_ms=1_000, by=("severity",)), "events")
    (row,) = rows.collect()
    assert (row["type"], row["content_type"]) == ("statistics.events", "application/json")
    assert row["properties"] == {"severity": "error"}
    told: dict[str, Any] = msgspec.json.decode(row["body"])
    assert told["window_start"] == "2026-03-02T12:00:00.000Z"
    assert told["window_end"] == "2026-03-02T12:00:01.000Z"
    assert (told["events"], told["per_second"], told["severity"], told["type"]) == (2, 2.0, "error", None)
    assert (told["sent_p50_ms"], told["sent_max_ms"]) == (5.0, 5)
