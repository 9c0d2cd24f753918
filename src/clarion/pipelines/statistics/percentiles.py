"""Percentiles of durations that many tasks can add up, with an error that can be stated.

Theory of operation
    A duration is rounded to one of a few values before it is counted: below `EXACT_MS` to the whole millisecond, above
    to the nearest power of `_STEP`. Spark counts how often each value occurs (`percentile` with a frequency), so one
    row may stand for a million messages, and the parts of a window may be joined in any order.

Guarantees
    1. A percentile differs from the exact one, interpolated between neighbours, by at most `ERROR` of it, and is shown
       to a tenth of a millisecond; where nothing is above `EXACT_MS` that is all the difference.
    2. The state of one window and group holds at most `EXACT_MS` values and some 130 for each further power of ten,
       however many messages it counts.
    3. Nulls are not counted; where there are nulls alone the percentiles are null. The maximum is exact.
"""

from __future__ import annotations

import math

from pyspark.sql import Column
from pyspark.sql import functions as F

EXACT_MS = 100
ERROR = 0.01
RANKS = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
_STEP = 1.018
"""Half a step, sqrt(_STEP) - 1, and half a tenth of `EXACT_MS` are less than ERROR together."""


def rounded(duration_ms: Column) -> Column:
    """The value under which a duration is counted. Durations are not negative."""
    steps = F.round(F.log(duration_ms / F.lit(EXACT_MS)) / F.lit(math.log(_STEP)))
    return F.when(duration_ms <= EXACT_MS, duration_ms.cast("double")).otherwise(
        F.lit(float(EXACT_MS)) * F.pow(F.lit(_STEP), steps)
    )


def summary(name: str, duration_ms: Column, weight: Column) -> list[Column]:
    """Aggregates of a group: `<name>_p50_ms`, `<name>_p95_ms`, `<name>_p99_ms` in one array, and the maximum."""
    return [
        F.percentile(rounded(duration_ms), list(RANKS.values()), weight).alias(f"_{name}"),
        F.max(F.when(weight > 0, duration_ms)).alias(f"{name}_max_ms"),
    ]


def columns(name: str) -> list[Column]:
    """What `summary` found, under its names."""
    ranks = [F.round(F.col(f"_{name}")[at], 1).alias(f"{name}_{rank}_ms") for at, rank in enumerate(RANKS)]
    return [*ranks, F.col(f"{name}_max_ms")]


def milliseconds(begin: Column, end: Column) -> Column:
    """Whole milliseconds from one moment to another, not less than none; null if either is."""
    passed = F.floor((F.unix_micros(end) - F.unix_micros(begin)) / 1000)
    return F.when(passed < 0, F.lit(0).cast("bigint")).otherwise(passed)
