"""The pipeline `copy`: messages of one destination, or of all that match a pattern, to another, each exactly once.

    clarion pipeline run copy --set source=topic:orders --set target=queue:audit

`where` is a condition of Spark SQL over the columns of a message. Without `select` a message is sent as it is, byte for
byte: headers, properties, body. With `select`, a list of expressions, their names are the columns that are sent.

Large bodies cannot be copied: such a message has a reference and no body. They stop the pipeline unless `where` leaves
them out (`large is null`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from clarion.errors import BadArgument
from clarion.pipelines.registry import Context, Pipeline, Started
from clarion.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FAITHFUL = ("priority", "headers", "body", "large")
"""Columns that a copy byte for byte needs."""


class CopySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    source: str
    """Destination or pattern."""
    target: str | None = None
    """Destination; None: `select` names one, the column `destination`."""
    selector: str | None = None
    """Evaluated in the broker."""
    where: str | None = None
    """Condition of Spark SQL."""
    select: list[str] = []
    """Expressions of Spark SQL; empty: the message as it is."""
    subscription: str | None = None
    """Durable subscription of a topic or pattern; None: `pipeline.<name>`."""
    rows_per_batch: int = 100_000
    partitions: int = 2

    def __post_init__(self) -> None:
        if self.target is None and not self.select:
            raise BadArgument(argument="target", detail="where do messages go? Name it, or select a destination")
        if self.rows_per_batch < 1 or self.partitions < 1:
            raise BadArgument(argument="rows_per_batch, partitions", detail="at least 1")


def columns(settings: CopySettings) -> list[str]:
    """Those that are read: a column that no expression names is not even decoded."""
    texts = " ".join([settings.where or "", *settings.select])
    words = set(re.findall(r"\w+", texts))
    known = [column.name for column in COLUMNS]
    if any(text.strip().endswith("*") for text in settings.select):
        return known
    return [name for name in known if name in words or (not settings.select and name in FAITHFUL)] or ["body"]


def transform(messages: DataFrame, settings: CopySettings) -> DataFrame:
    """What is sent, of the messages that came."""
    from pyspark.sql import functions as F

    if settings.where is not None:
        messages = messages.where(settings.where)
    if settings.select:
        return messages.selectExpr(*settings.select)
    unsendable = F.raise_error(F.concat(F.lit("CLN-210 copy: a large body cannot be copied: "), F.col("large")))
    body = F.when(F.col("large").isNull(), F.col("body")).otherwise(unsendable.cast("binary"))
    return messages.select(body.alias("body"), "headers", "priority")


def start(context: Context, settings: CopySettings) -> Started:
    messages = context.source(
        settings.source,
        selector=settings.selector,
        subscription=settings.subscription or f"pipeline.{context.name}",
        maxRowsPerBatch=settings.rows_per_batch,
        partitions=settings.partitions,
        columns=",".join(columns(settings)),
    )
    return Started([context.send(transform(messages, settings), "copy", settings.target)])


PIPELINE = Pipeline(
    name="copy",
    summary="Messages of a destination to another, exactly once; filtered and changed by SQL.",
    settings=CopySettings,
    start=start,
)
