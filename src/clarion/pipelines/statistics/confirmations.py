"""How long messages wait until they are delivered and confirmed: from the feed `_CONFIRMATIONS` (D-05).

Theory of operation
    While somebody is subscribed to the feed the broker reports each run of messages that every subscription has
    confirmed: destination, first and last sequence, when they were stored, first delivered, and confirmed. A record
    stands for as many messages as its run has, and is counted so. The feed knows destinations; the type of an event is
    in the name of its topic. Severity and source are in the message: `by_event` joins the two by sequence.

Rules
    1. Pure: from DataFrame to DataFrame.
    2. A record that cannot be read is passed over: a feed of statistics stops nobody.
    3. In a stream both sides of the join forget: an event is found if it was confirmed within `within_ms` after it was
       recognised.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from clarion.pipelines.statistics import percentiles
from clarion.pipelines.statistics.counting import check_groups, labels, rate, windowed

FEED = "topic:_CONFIRMATIONS"
GROUPS = ("type", "destination")
"""What the feed alone can be grouped by."""
_RECORD = "destination string, first bigint, end bigint, stored_ms bigint, delivered_ms bigint, confirmed_ms bigint"
_EVENTS = "topic:events."
"""How the topics of events are called; the rest of the name is the type."""


def records(feed: DataFrame) -> DataFrame:
    """Messages of the feed as columns: destination, type, first, end, messages, stored, delivered, confirmed."""
    read = feed.select(F.from_json(F.col("body").cast("string"), _RECORD).alias("record")).select("record.*")
    sound = read.where("destination IS NOT NULL AND first < end AND confirmed_ms IS NOT NULL")
    return sound.select(
        F.when(F.col("destination").startswith(_EVENTS), F.substring("destination", len(_EVENTS) + 1, 255)).alias(
            "type"
        ),
        F.lit(None).cast("string").alias("severity"),
        F.lit(None).cast("string").alias("source"),
        "destination",
        "first",
        "end",
        (F.col("end") - F.col("first")).alias("messages"),
        F.timestamp_millis("stored_ms").alias("stored"),
        F.timestamp_millis("delivered_ms").alias("delivered"),
        F.timestamp_millis("confirmed_ms").alias("confirmed"),
    )


def by_event(seen: DataFrame, confirmed: DataFrame, *, within_ms: int, watermark_ms: int | None = None) -> DataFrame:
    """`events` with their `records`, one row a message: the same columns, with severity and source.

    A message whose time of storing the feed does not know counts from when it was handed over.
    """
    single = confirmed.select(
        F.col("destination").alias("_destination"),
        F.explode(F.sequence(F.col("first"), F.col("end") - 1)).alias("_sequence"),
        "stored",
        "delivered",
        "confirmed",
    )
    if watermark_ms is not None:
        seen = seen.withWatermark("recognised", f"{watermark_ms} milliseconds")
        single = single.withWatermark("confirmed", f"{watermark_ms} milliseconds")
    reach = F.expr(f"INTERVAL {int(within_ms)} MILLISECONDS")
    same = (
        (F.col("destination") == F.col("_destination"))
        & (F.col("sequence") == F.col("_sequence"))
        & (F.col("confirmed") >= F.col("recognised") - reach)
        & (F.col("confirmed") <= F.col("recognised") + reach)
    )
    return seen.join(single, same).select(
        "type",
        "severity",
        "source",
        "destination",
        F.col("sequence").alias("first"),
        (F.col("sequence") + 1).alias("end"),
        F.lit(1).cast("bigint").alias("messages"),
        F.coalesce("stored", "handed_over").alias("stored"),
        "delivered",
        "confirmed",
    )


def times(
    confirmed: DataFrame,
    *,
    window_ms: int,
    slide_ms: int | None = None,
    watermark_ms: int | None = None,
    by: Sequence[str] = GROUPS,
) -> DataFrame:
    """Windows of `records` or of `by_event`, by the time of confirmation; see the guide for its columns.

    `watermark_ms` is for streams; a stream from `by_event` has its watermark already. Raises `BadArgument`.
    """
    chosen = check_groups(by)
    weight = F.col("messages")
    found = windowed(confirmed, "confirmed", window_ms, slide_ms, watermark_ms, chosen).agg(
        F.sum(weight).alias("messages"),
        *percentiles.summary("deliver", percentiles.milliseconds(F.col("stored"), F.col("delivered")), weight),
        *percentiles.summary("confirm", percentiles.milliseconds(F.col("stored"), F.col("confirmed")), weight),
    )
    return found.select(
        *labels(chosen),
        "messages",
        rate("messages", window_ms),
        *percentiles.columns("deliver"),
        *percentiles.columns("confirm"),
    )
