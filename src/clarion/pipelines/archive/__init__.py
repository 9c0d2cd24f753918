"""The archive: every message of some destinations in Parquet files by date and destination, exactly once (D-04).

    data ──► writing ──► log ◄── compaction, retention
                          │
                          └────► reading, replay

A folder of Parquet files, and a log (`log.py`) that says which of them are the archive: so writers, compaction,
retention and readers work beside each other, and each can be killed at any moment. Local or of any file system that
Spark knows. `docs/formats/archive.md` has the format, `docs/adr/0014-a-table-log.md` the reasons.

Importing this package imports no Spark.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from clarion.pipelines.archive import compaction, retention
from clarion.pipelines.archive.files import Files, files_of
from clarion.pipelines.archive.log import Log
from clarion.pipelines.archive.maintenance import Maintenance, rewriter
from clarion.pipelines.archive.reading import read
from clarion.pipelines.archive.writing import ALL_COLUMNS, Writer, write
from clarion.pipelines.registry import Context, Pipeline, Report, Started, Stopping

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PIPELINE", "Compact", "Retain", "Settings", "Writer", "describe", "read", "write"]

_CHUNK_BYTES = 1 << 20


class Compact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`archive.compact`."""

    path: str
    """The folder of the archive."""
    target_bytes: int = compaction.TARGET_BYTES
    """About so large a compacted file becomes; one of half that size is not small."""
    files_min: int = compaction.FILES_MIN
    """Fewer small files of a date and destination stay as they are."""


class Retain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`archive.retain`: retention, then a vacuum."""

    path: str
    keep_days: int | None = None
    """Dates more than so many days ago are removed; None: none are."""
    keep_bytes: int | None = None
    """The oldest dates are removed while the archive is larger; None: none are."""
    grace_ms: int = retention.GRACE_MS
    """Removed files stay so long for whoever reads them."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`archive`."""

    path: str
    """The folder of the archive: a local path, or one that Spark knows (`hdfs://…`)."""
    destination: str = "glob:*"
    """What is archived: a destination, or all topics of a pattern."""
    selector: str | None = None
    """Only these messages."""
    rows_per_batch: int = 1_000_000
    """Of one batch."""
    partitions: int | None = None
    """Into so many parts a batch is read and written; None: as the source decides."""
    batch_ms: int = 5_000
    """Least time from the begin of a batch to that of the next: every batch makes new files."""
    gather: bool = False
    """Few files for each batch, by a shuffle; else each task writes its own."""
    maintain_ms: int = 600_000
    """How often it is compacted, retained and vacuumed while it runs; 0: never, the jobs do it."""
    target_bytes: int = compaction.TARGET_BYTES
    files_min: int = compaction.FILES_MIN
    keep_days: int | None = None
    keep_bytes: int | None = None
    grace_ms: int = retention.GRACE_MS


def _start(context: Context, settings: Settings) -> Started:
    slow = dataclasses.replace(context, trigger_ms=max(context.trigger_ms, settings.batch_ms))
    frame = slow.source(
        settings.destination,
        selector=settings.selector,
        columns=",".join(ALL_COLUMNS),
        maxRowsPerBatch=settings.rows_per_batch,
        partitions=settings.partitions,
    )
    writer = Writer(settings.path, fetch=lambda reference: fetched(context.url, reference), gather=settings.gather)
    maintenance = Maintenance(lambda: _maintain(context, settings), settings.maintain_ms)
    query = slow.begin(frame.writeStream.foreachBatch(writer), "archive")
    if not context.once:
        maintenance.start()
    return Started([query], maintenance.close)


def fetched(url: str, reference: str) -> Iterator[bytes]:
    """A large body from its broker."""
    from clarion import spark

    with spark.open_body(url, reference) as body:
        while chunk := body.read(_CHUNK_BYTES):
            yield chunk


def _maintain(context: Context, settings: Settings) -> None:
    """All that an archive needs now and then."""
    files = files_of(context.spark, settings.path)
    rewrite = rewriter(context.spark, files)
    compaction.compact(files, target_bytes=settings.target_bytes, files_min=settings.files_min, rewrite=rewrite)
    retention.retain(files, days=settings.keep_days, bytes_max=settings.keep_bytes)
    retention.vacuum(files, grace_ms=settings.grace_ms)


def _compact(context: Context, settings: Compact, report: Report, stopping: Stopping) -> dict[str, Any]:
    files = files_of(context.spark, settings.path)
    done = compaction.compact(
        files,
        target_bytes=settings.target_bytes,
        files_min=settings.files_min,
        rewrite=rewriter(context.spark, files),
        stopping=stopping,
        report=lambda so_far: report(so_far._asdict()),
    )
    return done._asdict()


def _retain(context: Context, settings: Retain, report: Report, stopping: Stopping) -> dict[str, Any]:
    files = files_of(context.spark, settings.path)
    retained = retention.retain(files, days=settings.keep_days, bytes_max=settings.keep_bytes)
    report({"rows": retained.rows, "files": retained.files, "bytes": retained.bytes})
    vacuumed = retention.Vacuumed() if stopping() else retention.vacuum(files, grace_ms=settings.grace_ms)
    return {
        "rows": retained.rows,
        "files": retained.files,
        "bytes": retained.bytes,
        "deleted": vacuumed.removed,
        "orphans": vacuumed.orphans,
    }


def describe(files: Files) -> dict[str, Any]:
    """What an archive holds now: rows, files, bytes, first and last date, destinations, number of its last entry."""
    state = Log(files).latest()
    live = state.files.values()
    return {
        "entry": state.number,
        "rows": sum(file.rows for file in live),
        "files": len(live),
        "bytes": sum(file.bytes for file in live),
        "dates": sorted({file.date for file in live}),
        "destinations": sorted({file.destination for file in live}),
        "removed": len(state.removed),
    }


PIPELINE = Pipeline(
    name="archive",
    summary="Messages into Parquet by date and destination, exactly once, with compaction and retention.",
    settings=Settings,
    start=_start,
    jobs=(
        Pipeline(
            name="archive.compact",
            summary="Small files of an archive into few large ones.",
            settings=Compact,
            run=_compact,
        ),
        Pipeline(
            name="archive.retain",
            summary="What is too old or too much leaves the archive; files that nobody needs are deleted.",
            settings=Retain,
            run=_retain,
        ),
    ),
)
