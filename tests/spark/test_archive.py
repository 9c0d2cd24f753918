"""The archive with Spark: streams and batches exactly once, reading with pruning, other file systems (D-03, D-04)."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from clarion.errors import BadArgument, BadBatch
from clarion.instruments import Fail
from clarion.instruments.arming import Arming
from clarion.pipelines import archive
from clarion.pipelines.archive import compaction, layout, measuring, retention, steps
from clarion.pipelines.archive.files import Files, LocalFiles, files_of
from clarion.pipelines.archive.log import Log
from clarion.pipelines.archive.maintenance import rewriter
from clarion.pipelines.archive.reading import frame_of
from clarion.pipelines.archive.writing import ALL_COLUMNS, Writer
from clarion.spark import schema
from clarion.spark.references import Reference, format_reference
from tests.unit.pipelines.archive_rows import DAY, Row, rows_of, table_of

LONG = "topic:" + "x" * 240
ODD = "queue:a=b%c{d}[e]#ü"


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(table_of(rows)).select(*ALL_COLUMNS).coalesce(1)


def keys(found: DataFrame) -> list[tuple[str, int]]:
    return sorted((row["destination"], row["sequence"]) for row in found.select("destination", "sequence").collect())


def test_d03_what_is_written_is_read_with_dates_destinations_and_all_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "archive")
    rows = [Row(name, number, day=number % 3) for name in ("topic:a", ODD, LONG) for number in range(1, 7)]
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")  # dates are those of UTC all the same
    try:
        assert archive.write(frame(spark, rows), path) == 18
        found = archive.read(spark, path)
        days = found.select("destination", "sequence", F.date_format("date", "yyyy-MM-dd").alias("date")).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert {(row[0], row[1], row[2]) for row in days} == {
        (row.destination, row.sequence, (DAY + timedelta(days=row.day)).date().isoformat()) for row in rows
    }
    assert rows_of(LocalFiles(path)) == sorted((row.destination, row.sequence) for row in rows)
    one = found.where(F.col("destination") == ODD).where("sequence = 4").toArrow().drop_columns(["date"])
    assert one.to_pylist() == table_of([Row(ODD, 4, day=1)]).to_pylist()
    assert keys(found.where(F.col("destination") == LONG)) == [(LONG, number) for number in range(1, 7)]
    plan = found.where("date = '2026-11-02' and destination = 'topic:a'")._jdf.queryExecution().executedPlan()
    assert "PartitionFilters: [isnotnull(date" in plan.toString()
    # chosen before Spark hears of it
    chosen = archive.read(
        spark, path, destinations=["topic:a", "glob:x*"], since=DAY + timedelta(days=1), until=DAY + timedelta(days=2)
    )
    assert keys(chosen) == [(name, number) for name in ("topic:a", LONG) for number in (1, 4)]
    assert len(chosen.inputFiles()) == 2
    # what was, and nothing
    archive.write(frame(spark, [Row("topic:b", 1)]), path)
    assert archive.read(spark, path).count() == 19 and archive.read(spark, path, at=1).count() == 18
    assert archive.read(spark, path, destinations=["topic:none"]).count() == 0
    with pytest.raises(BadArgument, match="needs its zone"):
        archive.read(spark, path, since=datetime(2026, 1, 1))
    # by anybody else
    assert sum(pq.read_table(file).num_rows for file in (tmp_path / "archive" / "data").rglob("*.parquet")) == 19


def test_d03_columns_that_are_not_those_of_messages_are_refused_and_a_named_batch_is_written_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path)
    good = frame(spark, [Row("topic:a", 1)])
    for bad, detail in (
        (good.withColumn("more", F.lit(1)), "there is no column more"),
        (good.drop("time"), "an archive needs time"),
        (good.withColumn("sequence", F.col("sequence").cast("int")), "sequence is int, not bigint"),
    ):
        with pytest.raises(BadArgument, match=detail):
            archive.write(bad, path)
    assert archive.write(good, path, writer="backfill", batch=1) == 1
    assert archive.write(good, path, writer="backfill", batch=1) == 0
    assert archive.write(frame(spark, [Row("topic:a", 1), Row("topic:a", 2)]), path, writer="backfill", batch=1) == 1
    with pytest.raises(BadArgument, match="both are given"):
        archive.write(good, path, writer="backfill")
    assert rows_of(LocalFiles(path)) == [("topic:a", 1), ("topic:a", 2)]
    assert not list((tmp_path / layout.STAGING).iterdir())


# --- streams --------------------------------------------------------------------------------------------------


class Stream:
    """A query that archives the files of a folder, one a batch; each run is a new life of it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.input, self.checkpoint, self.path = folder / "input", folder / "checkpoint", str(folder / "archive")
        self.input.mkdir()
        self.rows: list[Row] = []

    def add(self, rows: list[Row]) -> None:
        self.rows += rows
        pq.write_table(table_of(rows), self.folder / "new.parquet")
        (self.folder / "new.parquet").rename(self.input / f"{len(self.rows):08}.parquet")

    def run(self) -> None:
        source = self.spark.readStream.schema(schema.spark_ddl(ALL_COLUMNS))
        query = (
            source.option("maxFilesPerTrigger", 1)
            .parquet(str(self.input))
            .writeStream.foreachBatch(Writer(self.path))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(60)
        finally:
            query.stop()

    def is_right(self) -> bool:
        return rows_of(LocalFiles(self.path)) == sorted((row.destination, row.sequence) for row in self.rows)


def test_d04_a_stream_that_fails_at_any_step_archives_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    sequence = 1
    for number, step in enumerate(("staged", "placed", "entry", "writing", "entered")):
        stream.add([Row(f"topic:{'ab'[number % 2]}", one, day=one % 2) for one in range(sequence, sequence + 5)])
        sequence += 5
        point = steps.STEPS.point(f"archive.{step}")
        point.arm(Arming(f"archive.{step}", Fail("broken on purpose")))
        with pytest.raises(PySparkException, match="broken on purpose"):
            stream.run()
        assert point.read() and not point.armed
    stream.run()
    assert stream.is_right()
    assert Log(LocalFiles(stream.path)).latest().number == 5


def test_d04_a_checkpoint_that_lost_its_last_steps_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.add([Row("topic:a", 1), Row("topic:a", 2)])
    stream.run()
    # the batch comes again, the same
    (stream.checkpoint / "commits" / "0").unlink()
    stream.run()
    assert stream.is_right()
    # it comes again with more: Spark does not know any more what was in it
    stream.add([Row("topic:a", 3), Row("topic:b", 1)])
    for name in ("commits", "offsets"):
        (stream.checkpoint / name / "0").unlink()
    shutil.rmtree(stream.checkpoint / "sources")
    for file in sorted(stream.input.iterdir())[:-1]:
        file.unlink()
    pq.write_table(table_of(stream.rows), stream.input / "00000099.parquet")
    sorted(stream.input.iterdir())[0].unlink()
    stream.run()
    assert stream.is_right()
    assert {file.incarnation for file in Log(LocalFiles(stream.path)).latest().files.values()} == {0}


# --- large bodies ----------------------------------------------------------------------------------------------


def test_d04_large_bodies_become_files_before_their_rows_are_in_the_archive(
    spark: SparkSession, tmp_path: Path
) -> None:
    body = bytes(range(256)) * 1_000
    reference = format_reference(Reference("topic:a", 2, bytes(24), len(body), crc32c(body)))
    rows = frame(spark, [Row("topic:a", 1), Row("topic:a", 2)]).withColumn(
        "large", F.when(F.col("sequence") == 2, F.lit(reference))
    )
    files = LocalFiles(tmp_path)
    with pytest.raises(BadArgument, match="1 rows of topic:a have large bodies"):
        archive.write(rows, str(tmp_path))
    with pytest.raises(BadBatch, match="another checksum"):
        archive.write(rows, str(tmp_path), fetch=lambda _: [body[:-1], b"x"])
    assert rows_of(files) == [] and not list(files.walk(layout.BODIES))
    bodies = {reference: [body[:1000], body[1000:]]}
    assert archive.write(rows, str(tmp_path), fetch=lambda one: bodies[one]) == 2
    (file,) = Log(files).latest().files.values()
    assert [layout.body_owner(path) for path in file.bodies] == [f"{2:032x}"]
    assert files.read(file.bodies[0]) == body
    archive.write(frame(spark, [Row("topic:a", 3)]), str(tmp_path))
    compaction.compact(files, files_min=2)
    assert next(iter(Log(files).latest().files.values())).bodies == file.bodies
    retention.vacuum(files, grace_ms=0, orphan_grace_ms=-1_000)
    assert files.read(file.bodies[0]) == body


# --- other file systems ------------------------------------------------------------------------------------------


@pytest.fixture(params=["local", "hadoop"])
def files(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Files:
    """The same for both kinds."""
    return files_of(spark, str(tmp_path) if request.param == "local" else f"file://{tmp_path}")


def test_d04_files_are_made_once_moved_found_and_deleted_on_every_file_system(files: Files) -> None:
    assert files.names("_log") == [] and list(files.walk("data")) == []
    assert files.create("_log/1", b"one") and not files.create("_log/1", b"two")
    assert files.read("_log/1") == b"one" and [name for name in files.names("_log") if name[0] != "."] == ["1"]
    with pytest.raises(FileNotFoundError):
        files.read("_log/2")
    files.store("bodies/x/b", iter([b"a" * 10_000, b"b"]))
    files.store("bodies/x/b", iter([b"new"]))
    assert files.read("bodies/x/b") == b"new"
    files.move("bodies/x/b", "data/date=1/destination=topic%3Aa/ü.parquet")
    files.settle(["data/date=1/destination=topic%3Aa/ü.parquet"])
    (found,) = [one for one in files.walk("data") if not one.path.endswith(".crc")]
    assert (found.path, found.bytes) == ("data/date=1/destination=topic%3Aa/ü.parquet", 3)
    assert abs(found.modified_ms - datetime.now(UTC).timestamp() * 1000) < 60_000
    files.remove("data/date=1/destination=topic%3Aa")
    files.remove("data/none")
    files.prune("data", 0)
    assert list(files.walk("data")) == []


def test_d04_an_archive_of_a_hadoop_file_system_is_written_compacted_and_vacuumed_through_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = f"file://{tmp_path}/archive"
    rows = [Row(name, number, day=1) for name in ("topic:a", LONG) for number in (3, 1, 2)]
    archive.write(frame(spark, rows[:3]), path)
    archive.write(frame(spark, rows[3:]), path)
    archive.write(frame(spark, [Row("topic:a", 4, day=1)]), path)
    hadoop, local = files_of(spark, path), LocalFiles(tmp_path / "archive")
    assert {file.destination for file in Log(hadoop).latest().files.values()} == {"topic:a", LONG}
    expected = sorted([*((row.destination, row.sequence) for row in rows), ("topic:a", 4)])
    assert rows_of(local) == expected == keys(archive.read(spark, path))
    measured = measuring.from_footer  # the two ways of measuring agree
    for file in Log(local).latest().files.values():
        found = next(one for one in local.walk(layout.DATA) if one.path == file.path)
        assert measured(local, found)[2:8] == (
            file.rows, file.destination, file.first, file.last, file.time_first_us, file.time_last_us,
        )  # fmt: skip
    done = compaction.compact(hadoop, files_min=2, rewrite=rewriter(spark, hadoop))
    assert done.files_after >= 1 and rows_of(local) == expected
    assert retention.retain(hadoop, days=0, clock=lambda: DAY.timestamp()).rows == 0
    vacuumed = retention.vacuum(hadoop, grace_ms=0, orphan_grace_ms=-1_000)
    assert vacuumed.removed == done.files_before and rows_of(local) == expected
    places = frame_of(spark, hadoop, Log(hadoop).latest().files.values(), places=True)
    assert {row["_row"] for row in places.where("sequence = 1").collect()} == {0}
    assert json.loads(hadoop.read(layout.entry_path(1)))["kind"] == "append"
