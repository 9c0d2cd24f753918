"""Batch reads: what destinations have at the moment at which a query is planned.

Guarantees
    1. A snapshot: what is there when Spark plans, and nothing that comes later. What expires or is confirmed by
       everybody before a task comes to it is missing.
    2. Nothing changes at the broker: no subscription, no confirmation, and consumers are not disturbed.
    3. With `filters=push`, destinations, sequences and headers are decided in the broker (`filters`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from clarion.spark import connecting, offsets
from clarion.spark.filters import Pushed
from clarion.spark.offsets import Range
from clarion.spark.options import SourceOptions
from clarion.spark.rows import Rows, Share

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """`spark.read.format("clarion")`."""

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        self._options = options
        self._wanted = wanted
        conditions = [options.selector] if options.selector is not None else []
        if options.starting_time is not None:
            conditions.append(f"JMSTimestamp >= {math.ceil(options.starting_time.timestamp() * 1000)}")
        self._pushed = Pushed(conditions, first=options.starting_sequence or 1)
        self._rows = self._reading()

    def _reading(self) -> Rows:
        chosen = msgspec.structs.replace(self._options, selector=self._pushed.selector)
        return Rows(chosen, self._wanted, streaming=False)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with (
            connecting.connect(options.url, options.reconnect_s, "spark batch") as connection,
            connection.session() as session,
        ):
            found = session.reader(options.destination).look()
        ranges = [Range(one.destination, one.identity, max(one.floor, 1), one.end) for one in found]
        return [Share(part) for part in offsets.split(self._pushed.cut(ranges), options.partitions)] or [Share([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return self._rows.read(partition)


class PushingBatchReader(BatchReader):
    """The same with `pushFilters`: Spark refuses readers that have it unless its configuration allows them."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over what the broker can decide; the rest is left to Spark."""
        left = [one for one in filters if not self._pushed.take(one)]
        self._rows = self._reading()
        return left
