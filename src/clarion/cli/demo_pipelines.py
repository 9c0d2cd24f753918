"""The pipelines of `clarion demo`: archive, statistics and alerts over the same events, in one Spark session.

An example also of a pipeline of one's own, made of others: it is run under the name
`clarion.cli.demo_pipelines:PIPELINE`.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from clarion.pipelines import Context, Pipeline, Started, find

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

EVENTS = "glob:events.*"
STATISTICS = "queue:demo.statistics"
ALERTS = "queue:demo.alerts"
BEGIN_S = 30.0
INITIAL = ("Initializing StreamExecution", "Initializing sources")
"""What Spark says of a query before its source is there."""
NAMES = ("archive", "statistics", "alerts")
RULES = """
[[rule]]
name = "disk-full"
kind = "threshold"
where = "JMSType = 'disk.full'"
count = 8
within = "10 s"
severity = "critical"
message = "{count} times no space left on {key}"

[[rule]]
name = "link-flaps"
kind = "flapping"
where = "JMSType = 'link.changed'"
value = "state"
changes = 6
within = "10 s"
message = "{key} goes up and down"
"""


class DemoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folder: str
    """For the archive, and the rules of alerts."""


def start(context: Context, settings: DemoSettings) -> Started:
    """All three, each under its own name and with its own checkpoint."""
    folder = Path(settings.folder)
    rules = folder / "rules.toml"
    rules.write_text(RULES, "utf-8")
    tables = {
        "archive": {"path": str(folder / "archive"), "destination": EVENTS, "batch_ms": 500, "maintain_ms": 0},
        "statistics": {
            "destination": EVENTS, "by": ["type"], "window_ms": 5_000, "watermark_ms": 60_000, "mode": "update",
            "confirmations": "off", "to": STATISTICS,
        },
        "alerts": {"destination": EVENTS, "rules": str(rules), "to": ALERTS},
    }  # fmt: skip
    begun = []
    for name in NAMES:
        pipeline = find(name)
        assert pipeline.start is not None
        own = dataclasses.replace(context, name=name, checkpoint=context.below(name))
        begun.append(pipeline.start(own, msgspec.convert(tables[name], pipeline.settings)))
        for query in begun[-1].queries:
            _wait_begun(query)

    def close() -> None:
        for each in begun:
            if each.close is not None:
                each.close()

    return Started([query for each in begun for query in each.queries], close)


def _wait_begun(query: StreamingQuery) -> None:
    """One after the other: Spark gives each query's Python process ten seconds to start, on a small machine too."""
    deadline = time.monotonic() + BEGIN_S
    while query.isActive and query.status["message"] in INITIAL and time.monotonic() < deadline:
        time.sleep(0.05)


PIPELINE = Pipeline(
    name="demo", summary="archive, statistics and alerts over all events", settings=DemoSettings, start=start
)
