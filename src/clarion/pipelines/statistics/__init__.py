"""Statistics of events and confirmations in windows of time: pure functions, and the pipeline `statistics` (D-05)."""

from clarion.pipelines.statistics.confirmations import by_event, records, times
from clarion.pipelines.statistics.counting import GROUPS, counts, dropped, events
from clarion.pipelines.statistics.wiring import PIPELINE, StatisticsSettings, messages

__all__ = [
    "GROUPS",
    "PIPELINE",
    "StatisticsSettings",
    "by_event",
    "counts",
    "dropped",
    "events",
    "messages",
    "records",
    "times",
]
