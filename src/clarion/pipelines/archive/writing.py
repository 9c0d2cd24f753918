"""Appending to an archive with Spark: many executors write, one entry makes it true.

Theory of operation
    Spark writes a batch to a folder in `_staging` that nobody else writes to. Its files are measured, moved to their
    places, and made durable. Then one entry of the log adds them all, with the id of the query and the number of the
    batch. A batch that comes again after a crash is recognised by these.

Guarantees
    1. Every row of a batch is in the archive exactly once, whatever dies at any moment: a file that no entry names is
       not part of the archive.
    2. A large body is in the archive, durable and with the checksum of its sender, before the entry that names it. So
       the broker may forget it as soon as the batch is committed.
    3. A repeated batch that has rows beyond those of the first time (the checkpoint of the query lost its last steps in
       a loss of power) appends exactly these.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clarion.errors import BadArgument, NotReady
from clarion.pipelines.archive import layout, steps
from clarion.pipelines.archive.bodies import Fetch, bring
from clarion.pipelines.archive.entries import DataFile, Entry
from clarion.pipelines.archive.files import Files, Found, files_of
from clarion.pipelines.archive.log import ORPHAN_GRACE_MS, Log
from clarion.pipelines.archive.measuring import Measured, measured
from clarion.pipelines.archive.state import State
from clarion.spark import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL_COLUMNS = tuple(schema.BY_NAME)
NEEDED = ("destination", "sequence", "time")
_DAYS = f"(unix_micros(time) - pmod(unix_micros(time), {layout.DAY_US})) div {layout.DAY_US}"
_DATE = f"date_from_unix_date(cast({_DAYS} as int))"
_DIGEST = "concat('~', md5(cast(destination as binary)))"
_PART = f"if(octet_length(destination) > {layout.PLAIN_BYTES_MAX}, {_DIGEST}, destination)"
Ends = dict[str, tuple[int, int]]
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


class Writer:
    """Appends the batches of one streaming query: `frame.writeStream.foreachBatch(Writer(path, …))`."""

    def __init__(self, path: str, *, fetch: Fetch | None = None, gather: bool = False) -> None:
        self._path = path
        self._fetch = fetch
        self._gather = gather
        self._appender: Appender | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        spark = frame.sparkSession
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise BadArgument(argument="writer", detail="it is for foreachBatch of a streaming query")
        if self._appender is None:
            self._appender = Appender(spark, files_of(spark, self._path), self._fetch, self._gather)
        self._appender.append(frame, query, batch)


def write(frame: DataFrame, path: str, *, writer: str = "", batch: int = -1, fetch: Fetch | None = None) -> int:
    """Append a batch DataFrame to the archive at `path`, which is made if need be; how many rows.

    All of its rows, or none. With `writer` and `batch` a call that is repeated, by whoever, appends nothing.
    """
    if bool(writer) != (batch >= 0):
        raise BadArgument(argument="writer", detail="a writer numbers its batches: both are given, or none")
    spark = frame.sparkSession
    return Appender(spark, files_of(spark, path), fetch).append(frame, writer, batch)


class Appender:
    """Appends to one archive."""

    def __init__(self, spark: SparkSession, files: Files, fetch: Fetch | None, gather: bool = False) -> None:
        self._spark = spark
        self._files = files
        self._fetch = fetch
        self._gather = gather
        self._log = Log(files)

    def append(self, frame: DataFrame, writer: str, batch: int) -> int:
        """Append a batch, unless it is there; how many rows."""
        check_columns(frame)
        state, began_ms = self._log.latest(), self._log.now_ms()
        ends = state.ends(writer) if writer and state.has_batch(writer, batch) else None
        if ends is not None:
            frame = beyond(frame, {name: last for name, (_, last) in ends.items()})
            if frame.isEmpty():
                return 0
        name = f"{writer or 'write'}-{max(batch, 0)}-{secrets.token_hex(4)}"
        new: list[DataFile] = []
        try:
            new = self._placed(name, self._staged(frame, name))
            if self._log.now_ms() - began_ms > ORPHAN_GRACE_MS // 2:
                raise NotReady(detail="writing a batch took so long that a vacuum may take its files for orphans")
            appended = bool(new) and self._enter(new, writer, batch, ends)
        finally:
            self._files.remove(f"{layout.STAGING}/{name}")
        if not appended:
            for file in new:
                self._files.remove(file.path)
            return 0
        return sum(file.rows for file in new)

    def _staged(self, frame: DataFrame, name: str) -> list[Measured]:
        from pyspark.sql import functions as F

        dated = frame.withColumn("_date", F.expr(_DATE)).withColumn("_part", F.expr(_PART))
        if self._gather:
            dated = dated.repartition("_date", "_part")
        folder = f"{layout.STAGING}/{name}"
        with micros_in_parquet(frame.sparkSession):
            (
                dated.sortWithinPartitions("_date", "_part", "sequence")
                .write.partitionBy("_date", "_part")
                .option("compression", "zstd")
                .parquet(f"{self._files.uri}/{folder}")
            )
        steps.at("archive.staged")
        found = [one for one in self._files.walk(folder) if is_data(one)]
        return measured(self._files, sorted(found), frame.sparkSession)

    def _placed(self, name: str, staged: Iterable[Measured]) -> list[DataFile]:
        """Files in their places and durable, bodies before those whose rows need them."""
        new = []
        for number, one in enumerate(staged):
            bodies = bring(self._files, one, self._fetch)
            path = layout.data_path(one.date, one.destination, f"{name}-{number}")
            self._files.move(one.path, path)
            steps.at("archive.placed")
            new.append(
                DataFile(
                    path, one.date, one.destination, one.rows, one.bytes,
                    one.first, one.last, one.time_first_us, one.time_last_us, bodies=bodies,
                )
            )  # fmt: skip
        self._files.settle(file.path for file in new)
        return new

    def _enter(self, new: list[DataFile], writer: str, batch: int, ends: Ends | None) -> bool:
        def decide(state: State) -> Entry | None:
            if writer and (state.has_batch(writer, batch) if ends is None else state.ends(writer) != ends):
                return None  # another driver of the same query was faster
            return Entry("append", self._log.now_ms(), writer=writer, batch=batch, add=state.numbered(new, writer))

        return self._log.commit(decide) is not None


def check_columns(frame: DataFrame) -> None:
    """Raises `BadArgument` unless the columns are those of messages (`clarion.spark.schema`)."""
    schema.checked(frame.columns)
    missing = [name for name in NEEDED if name not in frame.columns]
    if missing:
        raise BadArgument(argument="columns", detail=f"an archive needs {', '.join(missing)}")
    for name, kind in frame.dtypes:
        if kind != schema.BY_NAME[name].ddl:
            detail = f"{name} is {kind}, not {schema.BY_NAME[name].ddl}"
            raise BadArgument(argument="columns", detail=detail)


def beyond(frame: DataFrame, lasts: dict[str, int]) -> DataFrame:
    """The rows whose sequence is greater than the last one of their destination."""
    from pyspark.sql import functions as F

    if not lasts:
        return frame
    known = frame.sparkSession.createDataFrame(list(lasts.items()), "_destination string, _last bigint")
    return (
        frame.join(F.broadcast(known), frame["destination"] == known["_destination"], "left")
        .where("_last is null or sequence > _last")
        .select(*frame.columns)
    )


def is_data(found: Found) -> bool:
    """Whether it is a Parquet file that somebody has finished."""
    name = found.path.rpartition("/")[2]
    return name.endswith(".parquet") and not name.startswith((".", "_")) and "/_temporary/" not in found.path


@contextmanager
def micros_in_parquet(spark: SparkSession) -> Iterator[None]:
    """Times are written as a number of microseconds: Spark's default has no statistics, and others cannot read it."""
    before = spark.conf.get(_TIMESTAMPS)
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(_TIMESTAMPS, before)
