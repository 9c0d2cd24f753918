"""Reading an archive: exactly the files of one moment, with partitions by date and destination.

Whatever happens meanwhile, a DataFrame of `read` shows the archive as it was when it was made. Its files stay for the
grace of a vacuum (a day unless told otherwise).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from clarion.core.patterns import parse_pattern
from clarion.errors import BadArgument
from clarion.pipelines.archive import layout
from clarion.pipelines.archive.entries import DataFile
from clarion.pipelines.archive.files import Files, files_of
from clarion.pipelines.archive.log import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Wanted(NamedTuple):
    """What is read of an archive."""

    destinations: tuple[str, ...] = ()
    """`topic:NAME`, `queue:NAME`, or patterns `glob:…` and `regex:…` over names; none: all."""
    since_us: int | None = None
    """The first time …"""
    until_us: int | None = None
    """… and the end of times, which is not part of it."""

    def chosen(self, files: Iterable[DataFile]) -> list[DataFile]:
        """The files that may have such rows, by date, destination and sequence. Pure."""
        names = _Names(self.destinations)
        return sorted(
            (
                file
                for file in files
                if names.has(file.destination)
                and (self.since_us is None or file.time_last_us >= self.since_us)
                and (self.until_us is None or file.time_first_us < self.until_us)
            ),
            key=lambda file: (file.date, file.destination, file.incarnation, file.first, file.path),
        )


class _Names:
    """Which destinations are meant."""

    def __init__(self, texts: Collection[str]) -> None:
        self._all = not texts
        self._names = {text for text in texts if text.startswith(("topic:", "queue:"))}
        self._patterns = [parse_pattern(text) for text in texts if text not in self._names]

    def has(self, destination: str) -> bool:
        name = destination.partition(":")[2]
        return self._all or destination in self._names or any(one.matches(name) for one in self._patterns)


def micros(moment: datetime | None, argument: str) -> int | None:
    """Unix microseconds. Raises `BadArgument` for a time without a zone."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise BadArgument(argument=argument, detail="a time needs its zone: datetime(…, tzinfo=UTC)")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def read(
    spark: SparkSession,
    path: str,
    *,
    at: int | None = None,
    destinations: Collection[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """The archive at `path` as a DataFrame: the columns of messages, and `date`.

    `at`: as it was after that entry of its log. Filters on `date` and `destination` choose files, others go down into
    Parquet; those of the arguments choose files before Spark hears of them.
    """
    from pyspark.sql import functions as F

    wanted = Wanted(tuple(destinations), micros(since, "since"), micros(until, "until"))
    files = files_of(spark, path)
    frame = frame_of(spark, files, wanted.chosen(Log(files).at(at).files.values()))
    if wanted.since_us is not None:
        frame = frame.where(F.col("time") >= F.timestamp_micros(F.lit(wanted.since_us)))
    if wanted.until_us is not None:
        frame = frame.where(F.col("time") < F.timestamp_micros(F.lit(wanted.until_us)))
    return frame


def frame_of(spark: SparkSession, files: Files, chosen: Iterable[DataFile], *, places: bool = False) -> DataFrame:
    """The rows of these files; with `places` also the name of its file (`_file`) and its number there (`_row`)."""
    from clarion.spark import schema

    names = tuple(schema.BY_NAME)
    ddl = schema.spark_ddl(names) + ", date date"
    kinds: dict[bool, list[str]] = {}
    for file in chosen:
        kinds.setdefault(layout.is_long(file.destination), []).append(f"{files.uri}/{file.path}")
    more = ["date", "_metadata.file_name as _file", "_metadata.row_index as _row"] if places else ["date"]
    if not kinds:
        return spark.createDataFrame([], ddl + (", _file string, _row bigint" if places else ""))
    reader = spark.read.schema(ddl).option("basePath", f"{files.uri}/{layout.DATA}")
    frames = [reader.parquet(*paths).selectExpr(*names, *more) for _, paths in sorted(kinds.items())]
    return frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])
