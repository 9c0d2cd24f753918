"""Dead messages by reason, origin, subscription, age, type: counts, samples, windows of time (D-08).

Pure: from the DataFrame of `stories` to DataFrames. `counts` and `samples` are of a batch, `windows` of a stream too.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from clarion.errors import BadArgument
from clarion.pipelines.statistics.counting import check_windows, rate

BY = ("reason", "origin", "subscription", "type")
GROUPS = (*BY, "source", "severity", "age")
"""What may be grouped by."""


def _facts() -> list[Column]:
    return [
        F.count(F.lit(1)).alias("messages"),
        F.sum("body_bytes").alias("bytes"),
        F.min("died").alias("first_died"),
        F.max("died").alias("last_died"),
        F.max("deliveries").alias("deliveries_max"),
        F.min("sequence").alias("first_sequence"),
        F.max("sequence").alias("last_sequence"),
    ]


def counts(told: DataFrame, by: Sequence[str] = BY) -> DataFrame:
    """One row a group: messages, bytes, first_died, last_died, deliveries_max, first_sequence, last_sequence.

    Raises `BadArgument`.
    """
    return told.groupBy(*_checked(by)).agg(*_facts())


def samples(told: DataFrame, by: Sequence[str] = BY, each: int = 3) -> DataFrame:
    """The first `each` messages of every group, whole stories, ordered by sequence within it. Raises `BadArgument`."""
    if each < 1:
        raise BadArgument(argument="each", detail="at least one")
    first = Window.partitionBy(*_checked(by)).orderBy("sequence")
    return told.withColumn("_n", F.row_number().over(first)).where(F.col("_n") <= each).drop("_n")


def windows(told: DataFrame, *, window_ms: int, watermark_ms: int | None = None, by: Sequence[str] = BY) -> DataFrame:
    """How many died when: `counts` for windows of the time of death, with window_start, window_end and per_second.

    `watermark_ms` is for streams. A group of ages is none: they depend on when one looks. Raises `BadArgument`.
    """
    check_windows(window_ms, None, watermark_ms)
    chosen = _checked(by)
    if "age" in chosen:
        raise BadArgument(argument="by", detail="windows of time have no ages")
    if watermark_ms is not None:
        told = told.withWatermark("died", f"{watermark_ms} milliseconds")
    found = told.groupBy(F.window("died", f"{window_ms} milliseconds"), *chosen).agg(*_facts())
    return found.select(
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        *chosen,
        "messages",
        rate("messages", window_ms),
        *("bytes", "first_died", "last_died", "deliveries_max", "first_sequence", "last_sequence"),
    )


def _checked(by: Sequence[str]) -> list[str]:
    for name in by:
        if name not in GROUPS:
            raise BadArgument(argument="by", detail=f"{name} is none of {', '.join(GROUPS)}")
    return list(dict.fromkeys(by))
