"""The functions of the statistics pipeline against a model in plain Python (D-05)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from clarion.errors import BadArgument
from clarion.pipelines import statistics
from clarion.pipelines.statistics import percentiles
from tests.spark import generated
from tests.spark.generated import found, frame
from tests.spark.models import statistics as model

FEW_JOBS = settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
        HealthCheck.large_base_example,
    ],
)
"""Each example of Hypothesis is one Spark job over up to a hundred examples of ours."""
WINDOWS = st.sampled_from(((60_000, None), (1_000, None), (60_000, 20_000), (3_600_000, 900_000), (90_000, 60_000)))
BY = st.sets(st.sampled_from(statistics.GROUPS)).map(sorted)


def check(got: dict[Any, dict[str, Any]], wanted: dict[Any, dict[str, Any]]) -> None:
    """The same rows; percentiles as near as they are promised to be."""
    assert got.keys() == wanted.keys()
    for where, row in wanted.items():
        assert got[where].keys() == row.keys()
        for name, value in row.items():
            seen = got[where][name]
            if value is None or name.rpartition("_p")[0] == "" or not name.endswith("_ms"):
                assert seen == value, (where, name)
            else:
                highest = row[f"{name.partition('_')[0]}_max_ms"]
                error = 0.0 if highest is not None and highest <= percentiles.EXACT_MS else percentiles.ERROR
                assert abs(seen - value) <= error * value + 0.0501, (where, name, seen, value)


@FEW_JOBS
@given(examples=generated.many(generated.EVENTS), windows=WINDOWS, by=BY)
def test_d05_windows_of_events_are_those_of_the_model(
    spark: SparkSession, examples: list[list[model.Event]], windows: tuple[int, int | None], by: Sequence[str]
) -> None:
    events = [event for n, example in enumerate(examples) for event in generated.day(example, n)]
    window_ms, slide_ms = windows
    seen = statistics.events(frame(spark, generated.event_table(events)), F.col("read_at"))
    rows = statistics.counts(seen, window_ms=window_ms, slide_ms=slide_ms, by=by)
    check(found(rows), model.counts(events, window_ms, slide_ms, by))


@FEW_JOBS
@given(examples=generated.many(generated.CONFIRMATIONS), windows=WINDOWS, by=BY)
def test_d05_time_to_confirm_is_that_of_the_model(
    spark: SparkSession, examples: list[list[model.Confirmation]], windows: tuple[int, int | None], by: Sequence[str]
) -> None:
    records = [one for n, example in enumerate(examples) for one in generated.confirmation_day(example, n)]
    window_ms, slide_ms = windows
    spoilt = [b"", b"no JSON", b"[1]", b'{"destination": "topic:x", "first": 7, "end": 7, "confirmed_ms": 1}', b"{}"]
    feed = frame(spark, generated.feed_table([*records, *spoilt]))
    rows = statistics.times(statistics.records(feed), window_ms=window_ms, slide_ms=slide_ms, by=by)
    check(found(rows), model.times(records, window_ms, slide_ms, by))


@FEW_JOBS
@given(
    examples=generated.many(st.tuples(generated.EVENTS, generated.CONFIRMATIONS)),
    windows=WINDOWS,
    by=BY,
    within_ms=st.sampled_from((60_000, 3_600_000)),
)
def test_d05_time_to_confirm_by_severity_and_source_is_that_of_the_model(
    spark: SparkSession,
    examples: list[tuple[list[model.Event], list[model.Confirmation]]],
    windows: tuple[int, int | None],
    by: Sequence[str],
    within_ms: int,
) -> None:
    window_ms, slide_ms = windows
    events = [event for n, (some, _) in enumerate(examples) for event in generated.day(some, n)]
    records = [one for n, (_, some) in enumerate(examples) for one in generated.confirmation_day(some, n)]
    seen = statistics.events(frame(spark, generated.event_table(events)), F.col("read_at"))
    confirmed = statistics.records(frame(spark, generated.feed_table(records)))
    joined = statistics.by_event(seen, confirmed, within_ms=within_ms)
    rows = statistics.times(joined, window_ms=window_ms, slide_ms=slide_ms, by=by)
    check(found(rows), model.times_by_event(events, records, within_ms, window_ms, slide_ms, by))


def test_d05_a_run_of_a_million_messages_counts_as_a_million(spark: SparkSession) -> None:
    records = [
        model.Confirmation("queue:jobs", 1, 1_000_001, 1_000, 1_010, 61_000),
        model.Confirmation("queue:jobs", 1_000_001, 1_000_003, 0, 0, 61_500),
    ]
    rows = statistics.times(statistics.records(frame(spark, generated.feed_table(records))), window_ms=60_000)
    (row,) = found(rows).values()
    assert row["messages"] == 1_000_002
    assert row["confirm_p99_ms"] == pytest.approx(60_000, rel=percentiles.ERROR)
    assert row["confirm_max_ms"] == 61_500
    assert row["deliver_p50_ms"] == 10


def test_d05_an_event_is_found_as_long_after_it_as_was_asked_for(spark: SparkSession) -> None:
    at_ms = generated.NOON_US // 1_000
    destinations = [f"topic:events.{n}" for n in range(4)]
    said, said_us = generated._said(generated.NOON_US, 3)
    events = [
        model.Event("t", "info", "s", name, 5, said, said_us, generated.NOON_US, generated.NOON_US + 9_000)
        for name in destinations
    ]
    away_ms = (60_000, -60_000, 60_001, -60_001)
    records = [
        model.Confirmation(name, 5, 6, None, None, at_ms + away)
        for name, away in zip(destinations, away_ms, strict=True)
    ]
    seen = statistics.events(frame(spark, generated.event_table(events)), F.col("read_at"))
    confirmed = statistics.records(frame(spark, generated.feed_table(records)))
    joined = statistics.by_event(seen, confirmed, within_ms=60_000)
    assert sorted(joined.toArrow()["destination"].to_pylist()) == destinations[:2]


def test_d05_rounded_durations_are_few_and_near(spark: SparkSession) -> None:
    year_ms = 365 * 86_400_000
    numbers = spark.range(0, 200_000).select((F.pow(F.lit(1.0002), "id") / 2).cast("bigint").alias("ms"))
    near = numbers.where(F.col("ms") <= year_ms).select("ms", percentiles.rounded(F.col("ms")).alias("rounded"))
    away = F.abs(F.col("rounded") - F.col("ms")) / F.greatest(F.col("ms"), F.lit(1))
    (row,) = near.agg(
        F.max(away), F.count_distinct("rounded"), F.max(F.when(F.col("ms") <= 100, away)), F.max("ms")
    ).collect()
    assert row[0] <= percentiles.ERROR - 0.0005
    assert row[1] <= percentiles.EXACT_MS + 1 + 130 * 8.5
    assert row[2] == 0
    assert row[3] > year_ms * 0.99


def test_d05_what_cannot_be_counted_is_refused(spark: SparkSession) -> None:
    seen = statistics.events(frame(spark, generated.event_table([])))
    for arguments in (
        {"window_ms": 0},
        {"window_ms": 1_000, "slide_ms": 2_000},
        {"window_ms": 1_000, "watermark_ms": -1},
        {"window_ms": 1_000, "by": ("colour",)},
    ):
        with pytest.raises(BadArgument):
            statistics.counts(seen, **arguments)
    for settings_of in (
        {"slide_ms": 120_000},
        {"destination": ""} | {"confirmations": "event"},
        {"mode": "update", "confirmations": "event"},
        {"output": "parquet"},
        {"path": "/somewhere"},
        {"mode": "update", "output": "parquet", "path": "/somewhere"},
    ):
        with pytest.raises(BadArgument):
            statistics.StatisticsSettings(**settings_of)
