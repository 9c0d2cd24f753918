"""Generated messages as DataFrames, without a loop through Python workers: many examples in one Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from clarion.spark.schema import TIMESTAMP, arrow_schema
from tests.spark.models.statistics import EPOCH, Confirmation, Event

DAY_US = 86_400_000_000
NOON_US = int(datetime(2026, 3, 2, 12, tzinfo=UTC).timestamp()) * 1_000_000
"""Example n is about the day n days after this one, so that windows of two examples never meet."""
DESTINATIONS = ("topic:events.disk.full", "topic:events.login", "queue:jobs", "topic:other")
TYPES = (None, "disk.full", "login")
SEVERITIES = (None, "info", "error")
SOURCES = (None, "volume/7", "host-1")
COLUMNS = ("destination", "sequence", "time", "type", "properties")
_OFFSET_US = 7_200_000_000


def _said(us: int, form: int) -> tuple[str | None, int | None]:
    """A property `time`, and what it means."""
    moment = EPOCH + timedelta(microseconds=us)
    match form:
        case 0:
            return None, None
        case 1:
            return "yesterday", None
        case 2:
            return moment.isoformat(timespec="microseconds").replace("+00:00", "+02:00"), us - _OFFSET_US
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z"), us


@st.composite
def _event(draw: st.DrawFn) -> Event:
    us = NOON_US + draw(st.integers(0, 7_200_000_000))
    said, said_us = _said(us, draw(st.sampled_from((0, 1, 2, 3, 3, 3, 3, 3))))
    delay_ms = st.one_of(st.integers(0, 120), st.integers(-2_000, 10_000_000))
    return Event(
        draw(st.sampled_from(TYPES)),
        draw(st.sampled_from(SEVERITIES)),
        draw(st.sampled_from(SOURCES)),
        draw(st.sampled_from(DESTINATIONS)),
        draw(st.integers(1, 12)),
        said,
        said_us,
        us + draw(delay_ms) * 1_000,
        us + draw(delay_ms) * 1_000 + draw(st.integers(0, 999)),
    )


@st.composite
def _confirmation(draw: st.DrawFn) -> Confirmation:
    stored_ms = NOON_US // 1_000 + draw(st.integers(0, 7_200_000))
    waits_ms = st.one_of(st.integers(-5, 120), st.integers(0, 3_000_000))
    first = draw(st.integers(1, 12))
    return Confirmation(
        draw(st.sampled_from(DESTINATIONS)),
        first,
        first + draw(st.integers(1, 6)),
        draw(st.sampled_from((None, stored_ms, stored_ms, stored_ms))),
        draw(st.sampled_from((None, stored_ms + draw(waits_ms)))),
        stored_ms + draw(waits_ms),
    )


EVENTS = st.lists(_event(), min_size=1, max_size=12)
_T = TypeVar("_T")
CONFIRMATIONS = st.lists(_confirmation(), min_size=1, max_size=8)


def many(example: st.SearchStrategy[_T]) -> st.SearchStrategy[list[_T]]:
    """As many examples as one Spark job looks at."""
    return st.lists(example, min_size=20, max_size=100)


def day(events: Sequence[Event], number: int) -> list[Event]:
    """An example, moved to its own day."""
    moved = []
    for one in events:
        text, said_us = one.said, one.said_us
        if text is not None and said_us is not None:
            local = text.endswith("+02:00")
            text, said_us = _said(said_us + number * DAY_US + local * _OFFSET_US, 2 if local else 3)
        time_us, read_us = one.time_us + number * DAY_US, one.read_us + number * DAY_US
        moved.append(one._replace(said=text, said_us=said_us, time_us=time_us, read_us=read_us))
    return moved


def confirmation_day(records: Sequence[Confirmation], number: int) -> list[Confirmation]:
    moved_ms = number * DAY_US // 1_000

    def later(ms: int | None) -> int | None:
        return None if ms is None else ms + moved_ms

    return [
        one._replace(
            stored_ms=later(one.stored_ms),
            delivered_ms=later(one.delivered_ms),
            confirmed_ms=one.confirmed_ms + moved_ms,
        )
        for one in records
    ]


def event_table(events: Sequence[Event]) -> pa.Table:
    """Events as the source has them, and `read_at`."""
    rows = [
        {
            "destination": one.destination,
            "sequence": one.sequence,
            "time": one.time_us,
            "type": one.type,
            "properties": [
                (name, value)
                for name, value in (("source", one.source), ("severity", one.severity), ("time", one.said))
                if value is not None
            ],
            "read_at": one.read_us,
        }
        for one in events
    ]
    return pa.Table.from_pylist(rows, arrow_schema(COLUMNS).append(pa.field("read_at", TIMESTAMP)))


def feed_table(bodies: Sequence[Confirmation | bytes]) -> pa.Table:
    """Records of the feed as the source has them; bytes are bodies as they are."""
    encoded = [one if isinstance(one, bytes) else msgspec.json.encode(one._asdict()) for one in bodies]
    return pa.table({"body": pa.array(encoded, pa.binary())}, schema=arrow_schema(("body",)))


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table)


def found(rows: DataFrame) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows by window and group; no two are for the same."""
    table = rows.toArrow().to_pylist()
    keys = ("window_start", "window_end", "type", "severity", "source", "destination")
    made = {tuple(row[name] for name in keys): {k: v for k, v in row.items() if k not in keys} for row in table}
    assert len(made) == len(table)
    return made
