"""Alerts: rules over events with memory, and the pipeline `alerts` (D-06).

rules, reading, table, places     what a rule is; TOML, with line and column of what is wrong
machine, machines                 what a rule remembers of one key: pure
keyed, bucket                     clocks and lateness of one key; many keys as one state: pure
conditions, streaming, beats      selectors as columns; the operator in Spark
messages, wiring                  alerts as events; `clarion pipeline run alerts`
"""

from clarion.pipelines.alerts.reading import parse
from clarion.pipelines.alerts.rules import Rule, load
from clarion.pipelines.alerts.streaming import alerts, matched, sendable
from clarion.pipelines.alerts.wiring import PIPELINE, AlertsSettings

__all__ = ["PIPELINE", "AlertsSettings", "Rule", "alerts", "load", "matched", "parse", "sendable"]
