"""How a pipeline is, in numbers: made of what Spark says of each micro-batch, or of what a job reports. Pure.

The same status is shown on the screen, kept in `status.json`, printed by --json and sent to `topic:pipelines.<name>`:

    name, pipeline, state, pid, host, url, master, since, updated      since and updated as RFC 3339
    rows           taken in since it was started
    rows_per_s     of the last micro-batch that had rows; of a job since it was started
    lag            messages that the broker has and no committed batch; null: not known yet
    batch_s        seconds that the last micro-batch took
    batches        that were committed since it was started
    error          the last one, also if the pipeline goes on after it
    queries        the same for each query
    report         of a job, as the job says it

States: starting, running, stopping; then finished (all was done), stopped (it was asked to) or failed. A process that
could not say how it ended has died.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from clarion.errors import BadArgument
from clarion.spark import offsets

ACTIVE = ("starting", "running", "stopping")


class QueryStatus(msgspec.Struct):
    """Of one streaming query."""

    name: str
    id: str = ""
    batch: int | None = None
    """Id of the last micro-batch that was committed."""
    rows: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None
    batch_s: float | None = None
    batches: int = 0
    seen: tuple[str, int] | None = None
    """Run and batch of the progress that was counted last."""

    def is_next(self, progress: Mapping[str, Any]) -> bool:
        """No micro-batch is between this progress and the last one that was counted."""
        return self.seen is not None and (
            self.seen[0] == str(progress["runId"]) and int(progress["batchId"]) <= self.seen[1] + 1
        )

    def take(self, progress: Mapping[str, Any]) -> bool:
        """Count what Spark says of a micro-batch; False if it was counted already.

        Spark says now and then how an idle query is, under the id of the batch that will be next: such a progress has
        no rows, and is no batch.
        """
        rows, batch = rows_of(progress), int(progress["batchId"])
        run = str(progress["runId"])
        is_old = self.seen is not None and self.seen[0] == run and batch <= self.seen[1]
        if "addBatch" not in progress["durationMs"] or is_old:
            self.lag = self.lag if is_old else lag_of(progress)
            return False
        self.lag = lag_of(progress)
        self.id, self.seen, self.batch = str(progress["id"]), (run, batch), batch
        self.batches += 1
        self.rows += rows
        self.batch_s = round(int(progress["durationMs"].get("triggerExecution", 0)) / 1000, 3)
        if rows:
            self.rows_per_s = round(rows / self.batch_s, 1) if self.batch_s else float(rows)
        return True

    def facts(self) -> dict[str, Any]:
        facts = msgspec.structs.asdict(self)
        del facts["seen"]
        return facts


class Status(msgspec.Struct, kw_only=True):
    """Of a pipeline that runs."""

    name: str
    pipeline: str
    pid: int
    host: str
    url: str
    master: str
    since: str
    state: str = "starting"
    error: str | None = None
    queries: dict[str, QueryStatus] = {}
    report: dict[str, Any] | None = None
    elapsed_s: float = 0.0

    def facts(self, now: str) -> dict[str, Any]:
        """What is shown, kept and sent."""
        facts = msgspec.structs.asdict(self)
        queries = list(self.queries.values())
        del facts["elapsed_s"]
        facts.update(updated=now, queries=[query.facts() for query in queries])
        if self.report is not None:
            rows = self.report.get("rows")
            rows = rows if isinstance(rows, int) else 0
            rate = round(rows / self.elapsed_s, 1) if self.elapsed_s > 0 else 0.0
            total = self.report.get("total")
            lag = max(0, total - rows) if isinstance(total, int) else None
            return {**facts, "rows": rows, "rows_per_s": rate, "lag": lag, "batch_s": None, "batches": 0}
        lags = [query.lag for query in queries if query.lag is not None]
        took = [query.batch_s for query in queries if query.batch_s is not None]
        return {
            **facts,
            "rows": sum(query.rows for query in queries),
            "rows_per_s": round(sum(query.rows_per_s for query in queries), 1),
            "lag": sum(lags) if lags else None,
            "batch_s": max(took) if took else None,
            "batches": sum(query.batches for query in queries),
        }


def rows_of(progress: Mapping[str, Any]) -> int:
    """Messages that a micro-batch took in; of a query that reads no messages all rows."""
    ours = [source for source in progress["sources"] if _positions(source["endOffset"]) is not None]
    return sum(int(source["numInputRows"] or 0) for source in ours or progress["sources"])


def lag_of(progress: Mapping[str, Any]) -> int | None:
    """Messages that the sources have and the last committed batch has not; None if no source says it."""
    behind: int | None = None
    for source in progress["sources"]:
        latest = _positions(source["latestOffset"])
        if latest is not None:
            ranges = offsets.between(_positions(source["endOffset"]) or {}, latest)
            behind = (behind or 0) + sum(one.rows for one in ranges)
    return behind


def _positions(text: object) -> offsets.Offsets | None:
    """Of an offset of our data source; None for one of another."""
    try:
        found = msgspec.json.decode(text) if isinstance(text, str | bytes) else text
        if not isinstance(found, dict) or not all(":" in name for name in found if name != offsets.SOURCE):
            return None
        return offsets.decode(found)
    except (msgspec.DecodeError, BadArgument):
        return None
