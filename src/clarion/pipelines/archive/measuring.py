"""What is in the Parquet files that Spark has just staged: destination, rows, sequences, times, large bodies.

On a local file system from the footers of the files, without reading a row; elsewhere by one small Spark job over the
few columns that are needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

from clarion.errors import BadArgument
from clarion.pipelines.archive.files import Files, Found, LocalFiles
from clarion.pipelines.archive.layout import day_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Large(NamedTuple):
    """A row whose body is still at the broker."""

    id: str
    reference: str


class Measured(NamedTuple):
    """A staged file: its rows are of one destination and one date."""

    path: str
    bytes: int
    rows: int
    destination: str
    first: int
    last: int
    time_first_us: int
    time_last_us: int
    large: tuple[Large, ...] = ()

    @property
    def date(self) -> str:
        return day_of(self.time_first_us)


def measured(files: Files, found: Iterable[Found], spark: SparkSession | None) -> list[Measured]:
    """All of these files."""
    if isinstance(files, LocalFiles):
        return [from_footer(files, one) for one in found]
    assert spark is not None
    return _by_spark(spark, files, list(found))


def from_footer(files: LocalFiles, found: Found) -> Measured:
    """One file of a local file system."""
    path = files.root / found.path
    metadata = pq.read_metadata(path)
    columns = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]

    def bounds(name: str) -> tuple[Any, Any]:
        statistics = [group.column(columns[name]).statistics for group in groups]
        if not statistics or any(one is None or not one.has_min_max or one.null_count for one in statistics):
            raise BadArgument(argument=found.path, detail=f"the column {name} has rows without a value")
        return min(one.min for one in statistics), max(one.max for one in statistics)

    destinations, sequences, times = bounds("destination"), bounds("sequence"), bounds("time")
    large: tuple[Large, ...] = ()
    if "large" in columns:
        counts = [group.column(columns["large"]).statistics for group in groups]
        if any(one is None or one.null_count is None or one.num_values for one in counts):
            rows = pq.read_table(path, columns=["id", "large"], partitioning=None).to_pylist()
            large = tuple(Large(row["id"], row["large"]) for row in rows if row["large"] is not None)
    return Measured(
        found.path,
        found.bytes,
        metadata.num_rows,
        destinations[0],
        sequences[0],
        sequences[1],
        (times[0] - _EPOCH) // timedelta(microseconds=1),
        (times[1] - _EPOCH) // timedelta(microseconds=1),
        large,
    )


def _by_spark(spark: SparkSession, files: Files, found: list[Found]) -> list[Measured]:
    from pyspark.sql import functions as F

    if not found:
        return []
    frame = spark.read.parquet(*(f"{files.uri}/{one.path}" for one in found))
    path = F.col("_metadata.file_path")
    has_large = "large" in frame.columns
    rows = (
        frame.groupBy(path.alias("path"))
        .agg(
            F.count("*").alias("rows"),
            F.min("destination").alias("destination"),
            F.min("sequence").alias("first"),
            F.max("sequence").alias("last"),
            F.min(F.unix_micros("time")).alias("time_first"),
            F.max(F.unix_micros("time")).alias("time_last"),
            (F.count("large") if has_large else F.lit(0)).alias("large"),
        )
        .collect()
    )
    large: dict[str, list[Large]] = {}
    if any(row["large"] for row in rows):
        for row in frame.where("large is not null").select(path.alias("path"), "id", "large").collect():
            large.setdefault(_name(row["path"]), []).append(Large(row["id"], row["large"]))
    by_name = {_name(row["path"]): row for row in rows}
    return [_of_row(one, by_name[_name(one.path)], large.get(_name(one.path), [])) for one in found]


def _of_row(found: Found, row: Any, large: list[Large]) -> Measured:
    return Measured(
        found.path,
        found.bytes,
        row["rows"],
        row["destination"],
        row["first"],
        row["last"],
        row["time_first"],
        row["time_last"],
        tuple(large),
    )


def _name(path: str) -> str:
    """What files of one stage differ by, whatever their paths are escaped like: folder of the date, and file."""
    parts = path.rsplit("/", 3)
    return f"{parts[-3]}/{parts[-1]}"
