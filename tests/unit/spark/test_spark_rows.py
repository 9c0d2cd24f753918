"""Record batches on their way to Spark: small ones are put together, nothing is lost or moved."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from pyspark.sql.types import MapType, StringType, StructType

from clarion.errors import BadArgument
from clarion.spark import rows, schema
from clarion.spark.options import SourceOptions


@settings(deadline=None)
@given(st.lists(st.integers(1, 3 * rows.SMALL_ROWS), max_size=40))
def test_d01_small_record_batches_are_put_together_in_order(sizes: list[int]) -> None:
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    given_ = [
        pa.record_batch({"n": pa.array(range(first, first + size))}) for first, size in zip(starts, sizes, strict=True)
    ]
    merged = list(rows._merged(iter(given_)))
    assert [value for batch in merged for value in batch.column("n").to_pylist()] == list(range(sum(sizes)))
    assert len(merged) <= len(given_)
    small = [batch.num_rows < rows.SMALL_ROWS for batch in merged]
    assert not any(first and second for first, second in pairwise(small))


def test_d01_columns_are_those_that_spark_was_told() -> None:
    options = SourceOptions(url="clarion://h", destination="topic:t")
    few = (
        StructType()
        .add("time", "timestamp")
        .add("properties", MapType(StringType(), StringType()))
        .add("body", "binary")
    )
    assert rows.Rows(options, few, streaming=True)._arrow.equals(schema.arrow_schema(few.fieldNames()))
    assert rows.shape(options) == schema.spark_ddl(schema.DEFAULT)
    with pytest.raises(BadArgument, match="the schema says body is string, it is binary"):
        rows.Rows(options, StructType().add("body", "string"), streaming=True)
    with pytest.raises(BadArgument, match="format=json needs a schema"):
        rows.shape(SourceOptions(url="clarion://h", destination="topic:t", format="json"))
