"""The functions of the deadletters pipeline against a model in plain Python (D-08)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from clarion.errors import BadArgument
from clarion.message import Headers
from clarion.pipelines import deadletters
from clarion.pipelines.deadletters.stories import story_column
from clarion.spark.schema import arrow_schema
from tests.spark.models import deadletters as model
from tests.spark.models.statistics import moment

AT_US = 1_772_452_800_000_000
FEW_JOBS = settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
"""Each example of Hypothesis is a few Spark jobs over hundreds of messages."""
SPOILT = (b"", b"\xc1", b"\x80", b"\x81\xa1d\x01", b"\x81\xa1d\x81\xa6reason\x01", b"\x91", b"\x81\xa1d")
"""Headers without a story, or with what is none."""


@st.composite
def _dead(draw: st.DrawFn) -> model.Dead:
    ages_ms = st.one_of(st.integers(0, 120_000), st.integers(0, 30 * 86_400_000), st.sampled_from((60_000, 3_600_000)))
    has_story = draw(st.integers(0, 9)) > 0
    died_ms = AT_US // 1_000 - draw(ages_ms)
    history = draw(st.lists(st.tuples(st.integers(0, 1 << 41), st.text(max_size=5)), max_size=2))
    return model.Dead(
        sequence=0,
        reason=draw(st.sampled_from(("too often", "expired", "äöü"))) if has_story else None,
        origin=draw(st.sampled_from(("queue:jobs", "topic:events.login"))) if has_story else None,
        subscription=draw(st.sampled_from((None, "audit"))) if has_story else None,
        origin_sequence=draw(st.integers(1, 1 << 62)) if has_story else None,
        died_ms=died_ms if has_story else None,
        deliveries=draw(st.integers(0, 30)) if has_story else None,
        history=tuple(history) if has_story else (),
        type=draw(st.sampled_from((None, "login"))),
        source=draw(st.sampled_from((None, "host-1"))),
        severity=draw(st.sampled_from((None, "error"))),
        time_us=died_ms * 1_000 - draw(st.integers(0, 10**12)),
        body_bytes=draw(st.integers(0, 1 << 40)),
    )


def encoded(dead: model.Dead) -> bytes:
    """Its headers, as the broker writes them."""
    if dead.reason is None:
        return SPOILT[dead.sequence % len(SPOILT)]
    story = {
        "reason": dead.reason,
        "destination": dead.origin,
        "subscription": dead.subscription,
        "time_ms": dead.died_ms,
        "deliveries": dead.deliveries,
        "history": dead.history,
        "sequence": dead.origin_sequence,
    }
    return msgspec.msgpack.encode(Headers(type=dead.type, dead=story))


def table(messages: Sequence[model.Dead]) -> pa.Table:
    rows = [{**model.told(one, AT_US), "time": one.time_us, "headers": encoded(one)} for one in messages]
    schema = arrow_schema(deadletters.COLUMNS.split(","))
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema)


@FEW_JOBS
@given(
    generated=st.lists(_dead(), min_size=20, max_size=200),
    by=st.sets(st.sampled_from(deadletters.GROUPS)).map(sorted),
    each=st.integers(1, 3),
)
def test_d08_stories_counts_and_samples_are_those_of_the_model(
    spark: SparkSession, generated: list[model.Dead], by: list[str], each: int
) -> None:
    messages = [one._replace(sequence=n) for n, one in enumerate(generated, 1)]
    at = F.timestamp_micros(F.lit(AT_US))
    told = deadletters.stories(spark.createDataFrame(table(messages)), at).cache()
    wanted = [model.told(one, AT_US) for one in messages]
    assert told.orderBy("sequence").toArrow().to_pylist() == wanted
    found = deadletters.counts(told, by).toArrow().to_pylist()
    assert {tuple(row.pop(name) for name in by): row for row in found} == model.counts(wanted, by)
    sequences = deadletters.samples(told, by, each).select("sequence").toArrow()["sequence"].to_pylist()
    assert sorted(sequences) == model.samples(wanted, by, each)
    windows = deadletters.windows(told, window_ms=60_000, by=("reason", "origin")).toArrow().to_pylist()
    assert _windows(windows) == _wanted_windows(wanted)
    told.unpersist()


def _windows(rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    found = {}
    for row in rows:
        start, end = row.pop("window_start"), row.pop("window_end")
        assert (end - start).total_seconds() == 60
        assert row.pop("per_second") == row["messages"] / 60
        found[start, row.pop("reason"), row.pop("origin")] = row
    return found


def _wanted_windows(rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    dated = [row for row in rows if row["died"] is not None]
    starts = [{**row, "start": moment(row_us(row) // 60_000_000 * 60_000_000)} for row in dated]
    return model.counts(starts, ("start", "reason", "origin"))


def row_us(row: dict[str, Any]) -> int:
    return int(row["died"].timestamp() * 1_000 + 0.5) * 1_000


def test_d08_a_story_is_read_whatever_is_beside_it() -> None:
    good = encoded(model.Dead(1, "expired", "queue:a", None, 7, 1_000, 2, ((5, "no"),), "t", None, None, 0, 0))
    rows = story_column(pa.array([*SPOILT, good, None, good], pa.binary())).to_pylist()
    assert [row is None for row in rows] == [True] * len(SPOILT) + [False, True, False]
    assert rows[-1]["reason"] == "expired" and rows[-1]["history"] == [{"time": moment(5_000), "reason": "no"}]
    assert story_column(pa.array([], pa.binary())).to_pylist() == []


def test_d08_what_cannot_be_grouped_is_refused(spark: SparkSession) -> None:
    told = deadletters.stories(spark.createDataFrame(table([])))
    with pytest.raises(BadArgument):
        deadletters.counts(told, ("colour",))
    with pytest.raises(BadArgument):
        deadletters.samples(told, each=0)
    with pytest.raises(BadArgument):
        deadletters.windows(told, window_ms=0)
    with pytest.raises(BadArgument):
        deadletters.windows(told, window_ms=1_000, by=("age",))
    for which in ({"which": " "}, {"which": "true", "per_second": -1.0}, {"which": "true", "chunk": 1_001}):
        with pytest.raises(BadArgument):
            deadletters.ResendSettings(**which)
