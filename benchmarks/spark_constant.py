"""The limit that Spark itself sets: a source that yields the same Arrow batch over and over, and a sink that drops it.

Same schema, same sizes of rows and partitions as what is measured beside it, and nothing but Spark's own work around.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from clarion.spark.schema import arrow_schema, spark_ddl

COLUMNS = ("destination", "sequence", "time", "body")
CHUNK_ROWS = 20_000


def rows(count: int, body_bytes: int) -> pa.RecordBatch:
    """So many rows of the columns above."""
    body = pa.array([b"x" * body_bytes] * count, pa.binary())
    columns = [
        pa.array(["topic:numbers"] * count, pa.string()),
        pa.array(np.arange(count), pa.int64()),
        pa.array(np.full(count, 1_800_000_000_000_000), pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        body,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(COLUMNS))


class Share(InputPartition):
    """Rows that one task yields."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


def _shares(count: int, partitions: int) -> list[InputPartition]:
    return [Share(count * (number + 1) // partitions - count * number // partitions) for number in range(partitions)]


class _Yielding:
    def __init__(self, options: Any) -> None:
        self.count = int(options["rows"])
        self.body_bytes = int(options["bodyBytes"])
        self.per_batch = int(options.get("maxRowsPerBatch", self.count))
        self.partition_count = int(options["partitions"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        chunk = rows(CHUNK_ROWS, self.body_bytes)
        while left > 0:
            yield chunk if left >= CHUNK_ROWS else chunk.slice(0, left)
            left -= CHUNK_ROWS


class _Reader(_Yielding, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return _shares(self.count, self.partition_count)


class _StreamReader(_Yielding, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> dict[str, Any]:
        return {"next": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.per_batch)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"next": min(self.count, start["next"] + self.per_batch)}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _shares(end["next"] - start["next"], self.partition_count)

    def commit(self, end: dict[str, Any]) -> None:
        pass


class _Counted(WriterCommitMessage):
    def __init__(self, count: int) -> None:
        self.count = count


class _Dropping(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


class ConstantSource(DataSource):
    """`format("constant")`: options rows, bodyBytes, partitions, maxRowsPerBatch."""

    @classmethod
    def name(cls) -> str:
        return "constant"

    def schema(self) -> str:
        return spark_ddl(COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _Dropping()
