"""Clarion for Spark: `format("clarion")` as a source and a sink, streaming and batch, exactly once.

    stream = spark.readStream.format("clarion").option("url", …).option("destination", "topic:orders")…
    stream.writeStream.format("clarion").option("destination", "audit")…

The format is known to a session by itself where this package is installed; `register` says it explicitly. Spark is
imported when it is needed: `schema`, `decoding`, `encoding`, `offsets` work without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from clarion.spark.bodies import LargeBody as LargeBody
    from clarion.spark.listening import Attached as Attached

__all__ = ["attach", "each_batch", "open_body", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("clarion")` known to a session; a second time does no harm."""
    from clarion.spark.datasource import ClarionDataSource

    spark.dataSource.register(ClarionDataSource)


def attach(spark: SparkSession, url: str | None = None) -> Attached:
    """Confirm to the broker as soon as Spark has committed a micro-batch, whatever the trigger: see `Attached`.

    `url` is needed if the address of the sources has a password: offsets do not carry it. Sources with other addresses
    are confirmed there.
    """
    from clarion.spark.listening import Attached

    return Attached(spark, url)


def each_batch(**options: object) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: send every micro-batch exactly once, in any output mode.

    Options as of the sink, by their names: `each_batch(url=…, destination=…, sinkKey="counts")`. `sinkKey` is
    needed, and another one for each use within a query. Raises `BadArgument`.
    """
    from clarion.spark.each import each_batch

    return each_batch({name: str(value) for name, value in options.items() if value is not None})


def open_body(url: str, reference: str) -> LargeBody:
    """The large body that a row's `large` stands for, as a binary file: see `clarion.spark.bodies.open_body`."""
    from clarion.spark.bodies import open_body

    return open_body(url, reference)
