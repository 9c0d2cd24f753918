"""`format("clarion")`: which class does what."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from clarion.errors import BadArgument
from clarion.spark.options import sink_options, source_options
from clarion.spark.rows import shape

NAME = "clarion"


class ClarionDataSource(DataSource):
    """Destinations of a Clarion broker as tables and streams: options are those of docs/guide/spark.md."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        # Spark does not say here whether it is a stream: what only streams need is checked when one is made.
        options = {name: value for name, value in self.options.items() if name.lower() != "subscription"}
        return shape(source_options(options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from clarion.spark.source import StreamReader

        return StreamReader(source_options(self.options, streaming=True), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        from clarion.spark.batch import BatchReader, PushingBatchReader

        options = source_options(self.options, streaming=False)
        return (PushingBatchReader if options.push_filters else BatchReader)(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from clarion.spark.sink import StreamWriter

        if overwrite:
            detail = "complete would send all results again with each batch: use append, or update in foreachBatch"
            raise BadArgument(argument="outputMode", detail=detail)
        return StreamWriter(sink_options(self.options), schema.fieldNames())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from clarion.spark.sink import BatchWriter

        if overwrite:
            raise BadArgument(argument="mode", detail="messages cannot be overwritten: use mode('append')")
        return BatchWriter(sink_options(self.options), schema.fieldNames())
