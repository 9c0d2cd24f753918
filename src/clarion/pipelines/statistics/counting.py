"""Events counted in windows of time: how many, how fast, how long they were under way (D-05).

Theory of operation
    `events` finds in a message what statistics are about. `counts` groups events by windows of the time at which they
    were recognised, and by type, severity, source and destination, or some of these. A batch and a stream give the
    same rows.

Rules
    1. Pure: from DataFrame to DataFrame. The only clock is the time of the micro-batch, which Spark keeps in the
       checkpoint: a batch that is done again gives the same rows.
    2. No event is recognised after it was read. A clock that is ahead does not move the watermark beyond now, which
       would make everybody else's events late.
    3. In a stream, events of a window count as long as the watermark, the latest time seen less `watermark_ms`, has not
       passed the window's end; later ones are dropped, and Spark says how many (`dropped`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

from clarion.errors import BadArgument
from clarion.pipelines.statistics import percentiles

Group = Literal["type", "severity", "source", "destination"]
GROUPS: tuple[Group, ...] = ("type", "severity", "source", "destination")


def events(messages: DataFrame, read_at: Column | None = None) -> DataFrame:
    """Of each message: type, severity, source, destination, sequence, and when it was recognised, handed over, read.

    `recognised` is the property `time` of an event; of other messages, and where it is no time, when the sender handed
    the message over. It is never later than `read_at`, by default the time of the micro-batch.
    """
    now = F.current_timestamp() if read_at is None else read_at
    said = F.coalesce(F.try_to_timestamp(F.col("properties")["time"]), F.col("time"))
    return messages.select(
        "type",
        F.col("properties")["severity"].alias("severity"),
        F.col("properties")["source"].alias("source"),
        "destination",
        "sequence",
        F.least(said, now).alias("recognised"),
        F.col("time").alias("handed_over"),
        now.alias("read"),
        (said > now).alias("ahead"),
    )


def counts(
    seen: DataFrame,
    *,
    window_ms: int,
    slide_ms: int | None = None,
    watermark_ms: int | None = None,
    by: Sequence[str] = GROUPS,
) -> DataFrame:
    """Windows of `events`, one row for each window and group; see the guide for its columns.

    `watermark_ms` is for streams. What is not in `by` is null. Raises `BadArgument`.
    """
    chosen = check_groups(by)
    delay = percentiles.milliseconds(F.col("recognised"), F.col("read"))
    sent = percentiles.milliseconds(F.col("recognised"), F.col("handed_over"))
    one = F.lit(1)
    found = windowed(seen, "recognised", window_ms, slide_ms, watermark_ms, chosen).agg(
        F.count(one).alias("events"),
        F.count(F.when(F.col("ahead"), one)).alias("ahead"),
        *percentiles.summary("delay", delay, one),
        *percentiles.summary("sent", sent, one),
    )
    return found.select(
        *labels(chosen),
        "events",
        rate("events", window_ms),
        "ahead",
        *percentiles.columns("delay"),
        *percentiles.columns("sent"),
    )


# --- what windows have in common ------------------------------------------------------------------


def check_groups(by: Sequence[str]) -> list[str]:
    """Raises `BadArgument` for what events are not grouped by."""
    for name in by:
        if name not in GROUPS:
            raise BadArgument(argument="by", detail=f"{name} is none of {', '.join(GROUPS)}")
    return [name for name in GROUPS if name in by]


def check_windows(window_ms: int, slide_ms: int | None, watermark_ms: int | None) -> None:
    """Raises `BadArgument` for windows that Spark would refuse, or that miss events."""
    if window_ms < 1:
        raise BadArgument(argument="window_ms", detail="a window has at least 1 ms")
    if slide_ms is not None and not 1 <= slide_ms <= window_ms:
        raise BadArgument(argument="slide_ms", detail=f"{slide_ms} is not between 1 and the window's {window_ms}")
    if watermark_ms is not None and watermark_ms < 0:
        raise BadArgument(argument="watermark_ms", detail="it is not less than 0")


def windowed(
    rows: DataFrame, time: str, window_ms: int, slide_ms: int | None, watermark_ms: int | None, by: Sequence[str]
) -> GroupedData:
    """Rows grouped by windows of their `time`, and by columns. Rows without a time are in no window."""
    check_windows(window_ms, slide_ms, watermark_ms)
    if watermark_ms is not None:
        rows = rows.withWatermark(time, f"{watermark_ms} milliseconds")
    slide = None if slide_ms is None else f"{slide_ms} milliseconds"
    return rows.groupBy(F.window(time, f"{window_ms} milliseconds", slide), *by)


def labels(by: Sequence[str]) -> list[Column]:
    """The window and the group of a row; groups that were not asked for are null."""
    groups = [F.col(name) if name in by else F.lit(None).cast("string").alias(name) for name in GROUPS]
    return [F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end"), *groups]


def rate(count: str, window_ms: int) -> Column:
    """How many a second."""
    return (F.col(count) * 1000 / F.lit(window_ms)).alias("per_second")


def dropped(progress: Mapping[str, Any]) -> int:
    """What a micro-batch dropped because it was later than the watermark, from its progress as a dict.

    Spark adds up before it looks at the watermark: late events of one task, window and group count once.
    """
    return sum(int(state.get("numRowsDroppedByWatermark", 0)) for state in progress.get("stateOperators", ()))
