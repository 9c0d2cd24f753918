"""`clarion pipeline run alerts`: rules over a destination, their alerts as events to another.

Theory of operation
    One query: messages and `beats` are matched, meet their state, and leave through Clarion's sink, exactly once.
    Spark runs a batch at each trigger, because state waits for time; a run that ends (`--once`) does without these:
    in it time passes by events alone, and no silence is seen that no later event ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from clarion.core.patterns import is_pattern
from clarion.errors import BadArgument, BadName
from clarion.message import check_name
from clarion.pipelines.alerts import rules, streaming
from clarion.pipelines.alerts.beats import beats
from clarion.pipelines.alerts.bucket import BUCKETS
from clarion.pipelines.registry import Context, Pipeline, Started

_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
_PARTITIONS = "spark.sql.shuffle.partitions"
_RULE = "{rule}"


class AlertsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline.alerts]`."""

    rules: str
    """File of the rules."""
    destination: str = "glob:events.*"
    """Where events are: a destination or a pattern."""
    selector: str | None = None
    """Evaluated in the broker, before all rules."""
    subscription: str | None = None
    """None: the durable one of this pipeline."""
    to: str = streaming.DESTINATION
    """Where alerts go; `{rule}` is the name of the rule."""
    rows_per_batch: int = 100_000
    partitions: int = 2
    """Tasks that read, and tasks that have the state. The latter stay as they were when the checkpoint was made; each
    costs a little time in every micro-batch, so few give early alerts."""

    def __post_init__(self) -> None:
        kind, colon, name = self.to.partition(":")
        if not colon or kind not in ("topic", "queue") or is_pattern(self.to):
            raise BadArgument(argument="to", detail=f"{self.to!r} is not topic:NAME or queue:NAME")
        try:
            check_name(name.replace(_RULE, "rule", 1))
        except BadName as error:
            raise BadArgument(argument="to", detail=str(error)) from None
        if self.rows_per_batch < 1:
            raise BadArgument(argument="rows_per_batch", detail="at least 1")
        if not 1 <= self.partitions <= BUCKETS:
            raise BadArgument(argument="partitions", detail=f"1 to {BUCKETS}")


def start(context: Context, settings: AlertsSettings) -> Started:
    """Start the query. Raises `BadSetting` for rules that are wrong, with line and column."""
    known = rules.load(Path(settings.rules))
    messages = context.source(
        settings.destination,
        selector=settings.selector,
        subscription=settings.subscription or f"pipeline.{context.name}",
        columns=",".join(streaming.COLUMNS),
        maxRowsPerBatch=settings.rows_per_batch,
        partitions=settings.partitions,
    )
    matches = streaming.matched(messages, known).unionByName(beats(context.spark, known))
    found = streaming.sendable(streaming.alerts(matches, known), settings.to)
    with configured(context.spark, empty_batches=not context.once, partitions=settings.partitions):
        return Started([context.send(found, "alerts")])


@contextmanager
def configured(spark: SparkSession, *, empty_batches: bool, partitions: int) -> Iterator[None]:
    """Queries that are started within keep these settings; others do not see them.

    With batches without rows a run of AvailableNow would never end.
    """
    wanted = {_EMPTY_BATCHES: str(empty_batches).lower(), _PARTITIONS: str(partitions)}
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, kept in before.items():
            spark.conf.set(name, str(kept))


PIPELINE = Pipeline(
    name="alerts",
    summary="Rules over events: thresholds, storms, silence, flapping, sequences. Alerts are events.",
    settings=AlertsSettings,
    start=start,
)
