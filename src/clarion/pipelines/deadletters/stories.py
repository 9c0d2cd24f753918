"""The stories of dead messages as columns (D-08).

The broker writes the story of a message into its headers when it dies: why, when, where it was, what happened before.
`stories` reads it from the raw headers, many at once in each of Spark's Python workers, and puts it beside what the
message says of itself. Pure: from DataFrame to DataFrame, of a batch or of a stream.

    sequence         its number in `_DMQ`, which `clarion dmq` and `deadletters.resend` name it by
    id               of the message
    reason           why it died
    origin           where it was: `queue:NAME` or `topic:NAME`
    subscription     which it died in; null for a queue's own and for plain ones
    origin_sequence  its number there
    died             when
    deliveries       how often it was delivered
    history          what receivers said when they gave it back: array of (time, reason)
    age_s            seconds since it died, up to `at`
    age              the same in words: one of `AGES`
    lived_s          seconds from when it was sent until it died
    type, source, severity, time, priority, properties, body_bytes    as the message has them

A message without a story, or whose headers cannot be read, has nulls.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from clarion.message import Headers
from clarion.spark.headers import decoded
from clarion.spark.schema import TIME_MS_MAX, TIMESTAMP

DEAD = "queue:_DMQ"
COLUMNS = "sequence,id,time,priority,type,properties,body_bytes,headers"
"""What `stories` needs of the source. Bodies are not read."""
AGES = ("under 1 min", "under 1 h", "under 1 d", "under 7 d", "older")
_AGES_S = (60, 3_600, 86_400, 604_800)
_STORY = pa.struct(
    [
        ("reason", pa.string()),
        ("origin", pa.string()),
        ("subscription", pa.string()),
        ("origin_sequence", pa.int64()),
        ("died", TIMESTAMP),
        ("deliveries", pa.int32()),
        ("history", pa.list_(pa.struct([("time", TIMESTAMP), ("reason", pa.string())]))),
    ]
)
_DDL = (
    "reason string, origin string, subscription string, origin_sequence bigint, died timestamp, deliveries int, "
    "history array<struct<time: timestamp, reason: string>>"
)


class _Story(msgspec.Struct, frozen=True):
    reason: str
    destination: str
    subscription: str | None = None
    sequence: int | None = None
    time_ms: int | None = None
    deliveries: int | None = None
    history: list[tuple[int, str]] = []


def story_column(headers: pa.BinaryArray) -> pa.StructArray:
    """Stories from encoded headers; null where there is none. Pure, no Spark."""
    known = headers.fill_null(b"") if headers.null_count else headers
    return pa.array([_row(each) for each in decoded(known, properties=True)], _STORY)


def _row(headers: Any) -> dict[str, Any] | None:
    if not isinstance(headers, Headers) or headers.dead is None:
        return None
    try:
        story = msgspec.convert(headers.dead, _Story)
    except msgspec.ValidationError:
        return None
    return {
        "reason": story.reason,
        "origin": story.destination,
        "subscription": story.subscription,
        "origin_sequence": story.sequence,
        "died": _micros(story.time_ms),
        "deliveries": story.deliveries,
        "history": [{"time": _micros(time_ms), "reason": reason} for time_ms, reason in story.history],
    }


def _micros(time_ms: int | None) -> int | None:
    return time_ms * 1_000 if time_ms is not None and 0 <= time_ms <= TIME_MS_MAX else None


def _told(batch: pa.Array) -> pa.Array:
    return story_column(batch)


def stories(messages: DataFrame, at: Column | None = None) -> DataFrame:
    """Messages of `_DMQ`, with `COLUMNS`, as the columns above. `at` is the moment of ages, by default now."""
    now = F.current_timestamp() if at is None else at
    tell = arrow_udf(_told, _DDL)  # type: ignore[call-overload]  # its kind is taken from the hints
    told = messages.withColumn("story", tell("headers"))
    age_s = _seconds(F.col("story.died"), now)
    return told.select(
        "sequence",
        "id",
        *(F.col(f"story.{name}").alias(name) for name in ("reason", "origin", "subscription", "origin_sequence")),
        *(F.col(f"story.{name}").alias(name) for name in ("died", "deliveries", "history")),
        age_s.alias("age_s"),
        _age(age_s).alias("age"),
        _seconds(F.col("time"), F.col("story.died")).alias("lived_s"),
        "type",
        F.col("properties")["source"].alias("source"),
        F.col("properties")["severity"].alias("severity"),
        "time",
        "priority",
        "properties",
        "body_bytes",
    )


def _seconds(begin: Column, end: Column) -> Column:
    return (F.unix_micros(end) - F.unix_micros(begin)) / 1_000_000


def _age(age_s: Column) -> Column:
    word = F.when(age_s < _AGES_S[0], AGES[0])
    for name, bound in zip(AGES[1:], _AGES_S[1:], strict=False):
        word = word.when(age_s < bound, name)
    return word.when(age_s.isNotNull(), AGES[-1])
