"""Alerts in Spark: from messages to matches to alerts to messages.

Theory of operation
    `matched` is one projection: each rule's condition and key are expressions over columns, and a row that matches no
    rule goes no further. What matches is spread over buckets and meets their state in Python (`bucket`). `alerts`
    gives events as columns, `sendable` the columns of Clarion's sink.

    With state that waits for time, Spark runs a micro-batch at each trigger, with or without rows. The time of a
    batch is written to the checkpoint before the batch runs, so a batch that is repeated gives the same alerts; the
    sink stores them once.

Rules
    1. Alerts are not looked at: messages of type `alert.raised` and `alert.cleared` match no rule, so alerts cannot
       feed on themselves.
    2. The time of an event is its property `time`, if that is a time, and else when the message was sent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from clarion.events.event import CONTENT_JSON, PROPERTY_SEVERITY, PROPERTY_SOURCE, PROPERTY_TIME
from clarion.pipelines.alerts import messages as events
from clarion.pipelines.alerts.bucket import BUCKETS, Match, Ruleset, handle
from clarion.pipelines.alerts.conditions import NEEDED, condition, text_of
from clarion.pipelines.alerts.machine import NEVER, Row
from clarion.pipelines.alerts.rules import Rule

COLUMNS = NEEDED
"""Of the source."""
DESTINATION = "topic:events.alert.{rule}"
MATCHES = "bucket int, rule string, key string, time_us bigint, sequence bigint, id string, bits int, text string"
_CONCATENATION = "The behavior of DataFrame concatenation"
"""Of pandas about Spark's own worker, in every micro-batch."""
ALERTS = ", ".join(f"{name} string" for name in events.Event._fields)


def matched(messages: DataFrame, rules: tuple[Rule, ...]) -> DataFrame:
    """A row for each rule that a message matches, with the columns of `MATCHES`."""
    own_time = text_of(PROPERTY_TIME).try_cast("timestamp")
    time_us = F.greatest(F.unix_micros(F.coalesce(own_time, F.col("time"))), F.lit(0))
    found = F.array_compact(F.array(*(_match(rule) for rule in rules)))
    rows = messages.where(~F.coalesce(F.col("type").isin(events.RAISED, events.CLEARED), F.lit(False)))
    rows = rows.select(time_us.alias("time_us"), "sequence", "id", F.explode(found).alias("match"))
    key = F.concat_ws(" ", "match.rule", "match.key")
    return rows.select(
        F.pmod(F.crc32(F.encode(key, "utf-8")), F.lit(BUCKETS)).cast("int").alias("bucket"),
        "match.rule",
        "match.key",
        "time_us",
        "sequence",
        "id",
        "match.bits",
        "match.text",
    )


def _match(rule: Rule) -> Column:
    """What a row is to a rule; null if nothing."""
    bits = F.lit(1)
    if rule.selectors:
        bits = F.lit(0)
        for number, selector in enumerate(rule.selectors):
            bits = bits + F.when(condition(selector), F.lit(1 << number)).otherwise(F.lit(0))
    text = text_of(rule.reported) if rule.reported is not None else F.lit(None).cast("string")
    key = F.to_json(F.array(*(text_of(name) for name in rule.by))) if rule.by else F.lit("[]")
    made = F.struct(
        F.lit(rule.name).alias("rule"),
        key.alias("key"),
        bits.cast("int").alias("bits"),
        text.cast("string").alias("text"),
    )
    wanted = condition(rule.where)
    return F.when(wanted & (bits != 0), made) if rule.selectors else F.when(wanted, made)


def alerts(matches: DataFrame, rules: tuple[Rule, ...]) -> DataFrame:
    """The alerts of a stream of matches, with the columns of `ALERTS`.

    A row of `matches` without a rule only makes its bucket look at the time and the rules.
    """
    return matches.groupBy("bucket").applyInPandasWithState(
        handler(rules), ALERTS, "state binary", "append", GroupStateTimeout.ProcessingTimeTimeout
    )


def handler(rules: tuple[Rule, ...]) -> Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """What Spark calls for each bucket that has rows, or whose time has come."""
    ruleset = Ruleset(rules)

    def take(bucket: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        warnings.filterwarnings("ignore", _CONCATENATION, FutureWarning)
        matches = [] if state.hasTimedOut else [match for frame in frames for match in _matches(frame)]
        blob = bytes(state.get[0]) if state.exists else None
        batch_ms = state.getCurrentProcessingTimeMs()
        blob, wake_ms, found = handle(ruleset, int(bucket[0]), blob, matches, batch_ms)
        if blob is not None:
            state.update((blob,))
            if wake_ms != NEVER:
                state.setTimeoutDuration(max(wake_ms - batch_ms, 1))
        elif state.exists:
            state.remove()
        if found:
            rows = [events.event(each.rule, each.key, each.alert) for each in found]
            yield pd.DataFrame(rows, columns=list(events.Event._fields))

    return take


def _matches(frame: pd.DataFrame) -> Iterator[Match]:
    columns = ("rule", "key", "time_us", "sequence", "id", "bits", "text")
    for rule, key, time_us, sequence, identity, bits, text in zip(
        *(frame[name].tolist() for name in columns), strict=True
    ):
        if rule is not None:
            yield Match(rule, key, time_us, sequence, Row(time_us // 1000, identity, bits, text))


def sendable(found: DataFrame, destination: str = DESTINATION) -> DataFrame:
    """Alerts as rows for Clarion's sink. `{rule}` in `destination` is the name of the rule."""
    before, has_rule, after = destination.partition("{rule}")
    where = F.concat(F.lit(before), F.col("rule"), F.lit(after)) if has_rule else F.lit(destination)
    properties = {
        PROPERTY_SOURCE: "source",
        PROPERTY_SEVERITY: "severity",
        PROPERTY_TIME: "time",
        "rule": "rule",
        "key": "key",
    }
    return found.select(
        where.alias("destination"),
        "type",
        F.lit(CONTENT_JSON).alias("content_type"),
        "correlation_id",
        F.create_map(*(part for name, column in properties.items() for part in (F.lit(name), F.col(column)))).alias(
            "properties"
        ),
        F.encode("body", "utf-8").alias("body"),
    )
