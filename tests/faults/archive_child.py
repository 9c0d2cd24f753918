"""What is done to an archive in a process of its own, so that a test can kill it at any step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from clarion.pipelines.archive import log
from clarion.pipelines.archive.compaction import compact
from clarion.pipelines.archive.files import LocalFiles
from clarion.pipelines.archive.retention import retain, vacuum
from tests.unit.pipelines.archive_rows import DAY, Row, append

CHECKPOINT_ENTRIES = 4
BATCH_ROWS = 4
DAYS = 2


def batch_rows(batch: int) -> list[Row]:
    """What the writer appends: ascending sequences of two destinations, over several days."""
    first = batch * BATCH_ROWS
    return [
        Row(("topic:a", "topic:b")[number % 2], number + 1, day=number // 2 % DAYS)
        for number in range(first, first + BATCH_ROWS)
    ]


def append_batch(files: LocalFiles, batch: int) -> None:
    append(files, batch_rows(batch), "query", batch)


def compact_all(files: LocalFiles, _: int) -> None:
    compact(files, files_min=2)


def retain_days(files: LocalFiles, days: int) -> None:
    now_s = DAY.timestamp() + (DAYS - 1) * 86_400
    retain(files, days=days, clock=lambda: now_s)


def vacuum_all(files: LocalFiles, _: int) -> None:
    """As if it were long after everything that happened."""
    vacuum(files, clock=lambda: time.time() + 10 * 86_400)


OPERATIONS: dict[str, Callable[[LocalFiles, int], None]] = {
    "append": append_batch,
    "compact": compact_all,
    "retain": retain_days,
    "vacuum": vacuum_all,
}


def live(root: str, operation: str, argument: int, arm: str) -> None:
    """One operation, with test points armed."""
    log.CHECKPOINT_ENTRIES = CHECKPOINT_ENTRIES
    os.environ["CLARION_ARM"] = arm
    OPERATIONS[operation](LocalFiles(root), argument)


def write_on(root: str, batches: int) -> None:
    """All batches that are not there yet, one after the other."""
    files = LocalFiles(root)
    for batch in range(batches):
        append_batch(files, batch)


def keep_up(root: str) -> None:
    """Compaction and vacuum, over and over."""
    files = LocalFiles(root)
    while True:
        compact(files, files_min=3)
        vacuum(files, grace_ms=0)
