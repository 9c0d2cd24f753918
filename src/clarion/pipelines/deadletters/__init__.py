"""Dead messages: analysis of `_DMQ`, bulk resubmission, and the pipelines `deadletters…` (D-08)."""

from clarion.pipelines.deadletters.analysis import BY, GROUPS, counts, samples, windows
from clarion.pipelines.deadletters.stories import AGES, COLUMNS, DEAD, stories
from clarion.pipelines.deadletters.wiring import PIPELINE, AnalysisSettings, ResendSettings, WatchSettings

__all__ = [
    "AGES",
    "BY",
    "COLUMNS",
    "DEAD",
    "GROUPS",
    "PIPELINE",
    "AnalysisSettings",
    "ResendSettings",
    "WatchSettings",
    "counts",
    "samples",
    "stories",
    "windows",
]
