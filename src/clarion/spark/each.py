"""Sending from `foreachBatch`: what output mode update needs, as Spark lets no Python sink have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from clarion.errors import BadArgument
from clarion.spark.options import sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def each_batch(options: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch`. Raises `BadArgument` for options that a sink does not take."""
    checked = sink_options(options)
    if checked.key is None or checked.version is not None:
        detail = "foreachBatch needs one: it tells this use from others of the query, which gives the version"
        raise BadArgument(argument="sinkKey", detail=detail)

    def send(frame: DataFrame, batch: int) -> None:
        frame.write.format("clarion").options(**options).mode("append").save()

    return send
