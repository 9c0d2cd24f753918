"""`clarion pipeline run deadletters`, `deadletters.resend`, `deadletters.watch`.

    deadletters           what is dead now, by group: a report, and if wanted messages
    deadletters.resend    sends back what a filter finds; killed and run again it goes on, see `job` and `resubmission`
    deadletters.watch     tells what died since it last looked, each dead message once

None of them takes anything out of `_DMQ` that it was not told to: they read it as a batch, which confirms nothing. A
stream of `queue:_DMQ` would, as of any queue.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from clarion import sync
from clarion.errors import BadArgument
from clarion.pipelines.archive.files import files_of
from clarion.pipelines.deadletters import analysis, steps
from clarion.pipelines.deadletters.job import SELECTION, Job, Journal, Progress
from clarion.pipelines.deadletters.resubmission import CHUNK, Resubmission, end_of_dead
from clarion.pipelines.deadletters.stories import COLUMNS, DEAD, stories
from clarion.pipelines.registry import Context, Pipeline, Report, Stopping

_JSON = {"ignoreNullFields": "false", "timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"}
_PAUSE_S = 0.2
RECONNECT_S = 60.0
_WRITTEN = "spark-write:"
"""What the sink puts before `sinkKey`, for the broker."""


class AnalysisSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline.deadletters]`."""

    where: str | None = None
    """Which dead messages: SQL over the columns of `stories`. None: all."""
    by: tuple[str, ...] = analysis.BY
    samples: int = 3
    """So many of each group are told as they are."""
    groups_max: int = 1_000
    """The largest groups are told, not more."""
    report_to: str | None = None
    """Destination that a message for each group goes to."""


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline.deadletters.watch]`."""

    where: str | None = None
    by: tuple[str, ...] = analysis.BY
    report_to: str = "topic:statistics"
    interval_ms: int = 10_000


class ResendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[pipeline.deadletters.resend]`."""

    which: str
    """Which dead messages: SQL over the columns of `stories`; `true` for all. Not `where`, so that a filter for looking
    never becomes one for sending."""
    to: str | None = None
    """None: back where they were."""
    per_second: float = 0.0
    """At most so many a second; 0: as fast as it goes."""
    chunk: int = CHUNK
    abandon: bool = False
    """Give up a job that was not finished, and begin a new one."""

    def __post_init__(self) -> None:
        if not self.which.strip():
            raise BadArgument(argument="which", detail="it says which messages are sent; true for all")
        if self.per_second < 0:
            raise BadArgument(argument="per_second", detail="it is not less than 0")
        if not 1 <= self.chunk <= CHUNK:
            raise BadArgument(argument="chunk", detail=f"{self.chunk} is not between 1 and {CHUNK}")


def _dead(context: Context, where: str | None, first: int | None = None, *, name: str = "where") -> DataFrame:
    """The stories of what is dead now, from a sequence on. Raises `BadArgument` for a filter that is none."""
    told = stories(context.messages(DEAD, columns=COLUMNS, startingSequence=first))
    if where is None:
        return told
    try:
        return told.where(where)
    except AnalysisException as error:
        message = str(error).partition(" SQLSTATE")[0].partition("\n")[0]
        raise BadArgument(argument=name, detail=message) from None


def _messages(rows: DataFrame, kind: str) -> DataFrame:
    return rows.select(
        F.to_json(F.struct(*rows.columns), _JSON).alias("body"),
        F.lit(kind).alias("type"),
        F.lit("application/json").alias("content_type"),
    )


# --- what is dead ---------------------------------------------------------------------------------


def analyse(context: Context, settings: AnalysisSettings, report: Report, stopping: Stopping) -> dict[str, Any]:
    """Tell what is dead now: groups, the largest first, and samples of each."""
    told = _dead(context, settings.where).cache()
    try:
        report({"rows": 0})
        groups = analysis.counts(told, settings.by).orderBy(F.desc("messages"), *settings.by).limit(settings.groups_max)
        found = [_plain(row) for row in groups.toArrow().to_pylist()]
        if not stopping():
            for group in found:
                group["samples"] = []
            if settings.samples:
                _add_samples(told, settings, found)
            if settings.report_to is not None:
                writer = _messages(groups, "deadletters.group").write.format("clarion").mode("append")
                writer.options(url=context.url, destination=settings.report_to).save()
    finally:
        told.unpersist()
    last = {"rows": sum(group["messages"] for group in found), "groups": found}
    report(last)
    return last


def _add_samples(told: DataFrame, settings: AnalysisSettings, found: list[dict[str, Any]]) -> None:
    by_group = {tuple(group[name] for name in settings.by): group["samples"] for group in found}
    for row in analysis.samples(told, settings.by, settings.samples).orderBy("sequence").toArrow().to_pylist():
        plain = _plain({**row, "properties": dict(row["properties"] or {})})
        if (wanted := by_group.get(tuple(row[name] for name in settings.by))) is not None:
            wanted.append(plain)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it."""
    plain: dict[str, Any] = msgspec.to_builtins(row)
    return plain


# --- what has died --------------------------------------------------------------------------------


def watch(context: Context, settings: WatchSettings, report: Report, stopping: Stopping) -> dict[str, Any]:
    """Tell what died since the last look, again and again: each dead message is counted once.

    How far it is, is kept by the broker with the messages it sends, in one commit: nothing is told twice. What left
    `_DMQ` between two looks is not seen.
    """
    key = f"pipeline.{context.name}"
    seen = {"rows": 0, "looks": 0, "next": 0}
    with sync.connect(context.url, reconnect_timeout=RECONNECT_S) as connection, connection.session() as session:
        while not stopping():
            begun = time.monotonic()
            first = max(1, session.committed_version(f"{_WRITTEN}{key}") or 1)
            end = end_of_dead(session)
            if end > first:
                seen["rows"] += _tell(context, settings, key, first, end)
            seen.update(looks=seen["looks"] + 1, next=end)
            report(dict(seen))
            if context.once:
                break
            _wait(begun + settings.interval_ms / 1000, stopping)
    return dict(seen)


def _tell(context: Context, settings: WatchSettings, key: str, first: int, end: int) -> int:
    told = _dead(context, settings.where, first).where(F.col("sequence") < end)
    rows = analysis.counts(told, settings.by).where("messages > 0").cache()
    try:
        count = int(rows.agg(F.coalesce(F.sum("messages"), F.lit(0))).collect()[0][0])
        steps.at("counted")
        sent = _messages(rows, "deadletters.died").write.format("clarion").mode("append")
        sent.options(url=context.url, destination=settings.report_to, sinkKey=key, sinkVersion=end).save()
        steps.at("told")
    finally:
        rows.unpersist()
    return count


# --- sending back ---------------------------------------------------------------------------------


def resend(context: Context, settings: ResendSettings, report: Report, stopping: Stopping) -> dict[str, Any]:
    """Send back what the filter finds, or go on with what an earlier run has found."""
    journal = Journal(files_of(context.spark, context.below("resend")))
    job, progress = _job(context, settings, journal)
    selected = journal.selected(job)
    with sync.connect(context.url, reconnect_timeout=RECONNECT_S) as connection, connection.session() as session:
        sender = Resubmission(session, settings.to)
        sender.check(selected, progress.done)
        report(_told(job, progress))
        while progress.done < job.total and not stopping():
            begun = time.monotonic()
            chunk = selected.slice(progress.done, _size(settings))
            steps.at("asked")
            left = sender.send(chunk)
            steps.at("sent")
            progress = _advanced(job, progress, chunk.num_rows, left)
            journal.note(progress)
            steps.at("noted")
            report(_told(job, progress))
            if settings.per_second:
                _wait(begun + chunk.num_rows / settings.per_second, stopping)
    if job.total == 0:
        journal.note(Progress(job.number, finished=True))
    return _told(job, progress)


def _size(settings: ResendSettings) -> int:
    """At a low rate chunks are small, so that a stop need not wait and messages come evenly."""
    return settings.chunk if not settings.per_second else max(1, min(settings.chunk, int(settings.per_second)))


def _job(context: Context, settings: ResendSettings, journal: Journal) -> tuple[Job, Progress]:
    """The job that was not finished, or a new one."""
    last = journal.last()
    if last is not None and not last[1].finished and not settings.abandon:
        job, progress = last
        if (job.which, job.to) != (settings.which, settings.to):
            detail = f"which = {job.which!r}, to = {job.to!r} is not finished: {progress.done} of {job.total}"
            raise BadArgument(argument="which", detail=f"the job {detail}; finish it, or say abandon = true")
        return job, progress
    found: pa.Table = _dead(context, settings.which, name="which").select(*SELECTION.names).toArrow()
    steps.at("selected")
    job = journal.begin(settings.which, settings.to, found)
    steps.at("frozen")
    return job, Progress(job.number)


def _advanced(job: Job, progress: Progress, count: int, left: dict[str, int]) -> Progress:
    problems = {why: progress.problems.get(why, 0) + left.get(why, 0) for why in {**progress.problems, **left}}
    done = progress.done + count
    return Progress(job.number, done, progress.left + sum(left.values()), problems, done >= job.total)


def _told(job: Job, progress: Progress) -> dict[str, Any]:
    return {
        "rows": progress.done,
        "total": job.total,
        "sent": progress.done - progress.left,
        "left": progress.left,
        "problems": progress.problems,
        "job": job.number,
    }


def _wait(until: float, stopping: Stopping) -> None:
    while (left := until - time.monotonic()) > 0 and not stopping():
        time.sleep(min(left, _PAUSE_S))


PIPELINE = Pipeline(
    name="deadletters",
    summary="Dead messages by reason, origin, age; sent back in bulk.",
    settings=AnalysisSettings,
    run=analyse,
    jobs=(
        Pipeline(
            name="deadletters.resend",
            summary="Sends back the dead messages that a filter finds.",
            settings=ResendSettings,
            run=resend,
        ),
        Pipeline(
            name="deadletters.watch",
            summary="Tells what dies, as messages.",
            settings=WatchSettings,
            run=watch,
        ),
    ),
)
