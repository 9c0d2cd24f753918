"""A source of one row for each bucket whenever the rules are other ones than before.

Theory of operation
    A bucket learns of new rules when it is called, and it is called when it has rows or waits for a time. A key that is
    expected and never seen has neither. So this source stands beside the messages in every query of alerts: its
    offset is the version of the rules, and when that changes, which is at a start, it gives a row for each bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from clarion.pipelines.alerts.bucket import BUCKETS, Ruleset
from clarion.pipelines.alerts.rules import Rule

FORMAT = "clarion_alert_beats"


class _All(InputPartition):
    def __init__(self) -> None:
        super().__init__(None)


class _Beats(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, version: str) -> None:
        self._version = version

    def initialOffset(self) -> dict[str, str]:
        return {"rules": ""}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, str]:
        return {"rules": self._version}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [] if start == end else [_All()]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(BUCKETS)])

    def commit(self, end: dict[str, Any]) -> None:
        pass


class Beats(DataSource):
    """Option `version`: that of the rules."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "bucket int"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Beats(self.options["version"])


def beats(spark: SparkSession, rules: tuple[Rule, ...]) -> DataFrame:
    """The rows, with the columns of matches and no rule. Numbers are not null: pandas would make all of them floats."""
    spark.dataSource.register(Beats)
    rows = spark.readStream.format(FORMAT).option("version", Ruleset(rules).version).load()
    return rows.selectExpr(
        "bucket",
        "cast(null as string) as rule",
        "cast(null as string) as key",
        "0L as time_us",
        "0L as sequence",
        "cast(null as string) as id",
        "0 as bits",
        "cast(null as string) as text",
    )
