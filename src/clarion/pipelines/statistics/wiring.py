"""`clarion pipeline run statistics`: windows of events, and of confirmations, as messages.

Theory of operation
    Two queries, each with its own checkpoint: `events` counts what it reads, `confirmations` reads the feed, and with
    `confirmations = "event"` the events too, to know their severity and source. Rows leave as JSON, exactly once.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from clarion.errors import BadArgument
from clarion.pipelines.registry import Context, Pipeline, Started
from clarion.pipelines.statistics import confirmations, counting

COLUMNS = "destination,sequence,time,type,properties"
"""What events are counted by; bodies are not read."""
_JSON = {"ignoreNullFields": "false", "timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"}


class StatisticsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline.statistics]`."""

    destination: str = "glob:events.*"
    """What is counted: a destination or a pattern. Empty: nothing, confirmations alone."""
    subscription: str | None = None
    """None: the durable one of this pipeline."""
    selector: str | None = None
    by: tuple[counting.Group, ...] = counting.GROUPS
    window_ms: int = 60_000
    slide_ms: int | None = None
    """None: windows do not overlap."""
    watermark_ms: int = 600_000
    """How long a window waits for events that are late."""
    mode: Literal["append", "update"] = "append"
    """append: each window once, when nothing more can come; update: whenever it changes."""
    confirmations: Literal["off", "destination", "event"] = "destination"
    """Time to confirm: not at all, from the feed alone, or joined with the events for their severity and source."""
    within_ms: int = 3_600_000
    """How long after it was recognised an event may be confirmed, to be found by the join."""
    output: Literal["clarion", "console", "parquet"] = "clarion"
    to: str = "topic:statistics"
    """Destination of the rows, with `output = "clarion"`."""
    path: str | None = None
    """Folder of the rows, with `output = "parquet"`; below it `events` and `confirmations`."""

    def __post_init__(self) -> None:
        counting.check_windows(self.window_ms, self.slide_ms, self.watermark_ms)
        if not self.destination and self.confirmations != "destination":
            raise BadArgument(argument="destination", detail="without one there are confirmations by destination alone")
        if self.mode == "update" and (self.output == "parquet" or self.confirmations == "event"):
            what = "output" if self.output == "parquet" else "confirmations"
            raise BadArgument(argument="mode", detail=f"{what} = {getattr(self, what)} needs append")
        if (self.output == "parquet") != (self.path is not None):
            raise BadArgument(argument="path", detail='it goes with output = "parquet"')


def start(context: Context, settings: StatisticsSettings) -> Started:
    """Start the queries."""
    queries: list[StreamingQuery] = []
    if settings.destination:
        seen = counting.events(_events(context, settings, settings.subscription))
        rows = counting.counts(
            seen,
            window_ms=settings.window_ms,
            slide_ms=settings.slide_ms,
            watermark_ms=settings.watermark_ms,
            by=settings.by,
        )
        queries.append(_begin(context, settings, rows, "events"))
    if settings.confirmations != "off":
        queries.append(_begin(context, settings, _confirmations(context, settings), "confirmations"))
    return Started(queries)


def _events(context: Context, settings: StatisticsSettings, subscription: str | None) -> DataFrame:
    return context.source(
        settings.destination,
        selector=settings.selector,
        columns=COLUMNS,
        subscription=subscription or f"pipeline.{context.name}",
    )


def _confirmations(context: Context, settings: StatisticsSettings) -> DataFrame:
    found = confirmations.records(context.source(confirmations.FEED, columns="body"))
    by: tuple[str, ...] = tuple(name for name in settings.by if name in confirmations.GROUPS)
    watermark_ms: int | None = settings.watermark_ms
    if settings.confirmations == "event":
        own = f"{settings.subscription or f'pipeline.{context.name}'}.joined"
        seen = counting.events(_events(context, settings, own))
        found = confirmations.by_event(seen, found, within_ms=settings.within_ms, watermark_ms=watermark_ms)
        by, watermark_ms = settings.by, None
    return confirmations.times(
        found, window_ms=settings.window_ms, slide_ms=settings.slide_ms, watermark_ms=watermark_ms, by=by
    )


def messages(rows: DataFrame, kind: str) -> DataFrame:
    """Rows as messages: a JSON body, the type `statistics.<kind>`, and the group as properties for selectors."""
    groups = F.create_map(*(part for name in counting.GROUPS for part in (F.lit(name), F.col(name))))
    return rows.select(
        F.to_json(F.struct(*rows.columns), _JSON).alias("body"),
        F.lit(f"statistics.{kind}").alias("type"),
        F.lit("application/json").alias("content_type"),
        F.map_filter(groups, lambda _, value: value.isNotNull()).alias("properties"),
    )


def _begin(context: Context, settings: StatisticsSettings, rows: DataFrame, kind: str) -> StreamingQuery:
    match settings.output:
        case "clarion":
            return context.send(messages(rows, kind), kind, settings.to, mode=settings.mode)
        case "console":
            writer = rows.writeStream.format("console").outputMode(settings.mode)
            return context.begin(writer, kind, truncate=False, numRows=1_000)
        case "parquet":
            writer = rows.writeStream.format("parquet").outputMode(settings.mode)
            return context.begin(writer, kind, path=f"{str(settings.path).rstrip('/')}/{kind}")


PIPELINE = Pipeline(
    name="statistics",
    summary="Events counted in windows of time: rates, delays, time to confirm.",
    settings=StatisticsSettings,
    start=start,
)
