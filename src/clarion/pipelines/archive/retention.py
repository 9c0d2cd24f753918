"""Retention and vacuum: an archive lets go of what is too old or too much, and later of the files themselves.

Theory of operation
    Retention is one entry that removes files by their dates: from then on nobody sees their rows. The files lie there
    until a vacuum, so that whoever reads an earlier state goes on reading. A vacuum deletes files that were removed
    longer ago than a grace and are not pinned, notes that they are gone, and deletes what writers that died have left.

Guarantees
    1. No file that an entry names is deleted, and none that was live at a pin.
    2. Killed anywhere, the next run goes on: a file that is deleted and not noted is deleted, and noted, again.
    3. A date is removed as a whole, the oldest first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import date, timedelta
from typing import NamedTuple

from clarion.pipelines.archive import layout, steps
from clarion.pipelines.archive.entries import DataFile, Entry
from clarion.pipelines.archive.files import Files
from clarion.pipelines.archive.log import ORPHAN_GRACE_MS, Log
from clarion.pipelines.archive.state import State

GRACE_MS = 24 * 3_600_000


class Retained(NamedTuple):
    """What retention has removed."""

    files: int = 0
    rows: int = 0
    bytes: int = 0


class Vacuumed(NamedTuple):
    """What a vacuum has deleted."""

    removed: int = 0
    """Files that were part of the archive once."""
    orphans: int = 0
    """Files that never were."""
    entries: int = 0
    """Old files of the log."""


def expired(
    files: Iterable[DataFile], today: date, days: int | None = None, bytes_max: int | None = None
) -> list[DataFile]:
    """Files of dates that are more than `days` ago, and of the oldest dates while all together have too many bytes.

    Pure. Today is never removed: it would be begun again by the next batch.
    """
    by_date: dict[str, list[DataFile]] = {}
    for file in files:
        by_date.setdefault(file.date, []).append(file)
    total = sum(file.bytes for several in by_date.values() for file in several)
    gone: list[DataFile] = []
    for day in sorted(by_date):
        old = days is not None and date.fromisoformat(day) < today - timedelta(days=days)
        much = bytes_max is not None and total > bytes_max and day < today.isoformat()
        if not old and not much:
            break
        gone += by_date[day]
        total -= sum(file.bytes for file in by_date[day])
    return gone


def retain(
    files: Files,
    *,
    days: int | None = None,
    bytes_max: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Retained:
    """Remove what is too old or too much, in one entry."""
    log = Log(files, clock)
    gone: list[DataFile] = []

    def decide(state: State) -> Entry | None:
        now_ms = log.now_ms()
        gone[:] = expired(state.files.values(), layout.today(now_ms), days, bytes_max)
        steps.at("archive.retain")
        return Entry("retain", now_ms, remove=tuple(file.path for file in gone)) if gone else None

    log.commit(decide)
    return Retained(len(gone), sum(file.rows for file in gone), sum(file.bytes for file in gone))


def vacuum(
    files: Files,
    *,
    grace_ms: int = GRACE_MS,
    orphan_grace_ms: int = ORPHAN_GRACE_MS,
    clock: Callable[[], float] = time.time,
) -> Vacuumed:
    """Delete what is not part of the archive any more, or never was, and old entries of its log."""
    log = Log(files, clock)
    removed = _delete_removed(files, log, grace_ms)
    orphans = _delete_orphans(files, log, orphan_grace_ms)
    for folder in (layout.DATA, layout.BODIES, layout.STAGING):
        files.prune(folder, log.now_ms() - orphan_grace_ms)
    return Vacuumed(removed, orphans, log.clean())


def _delete_removed(files: Files, log: Log, grace_ms: int) -> int:
    state = log.latest()
    doomed = state.removable(log.now_ms(), grace_ms)
    paths = {removed.path for removed in doomed}
    needed = state.bodies()
    needed.update(body for one in state.removed.values() if one.path not in paths for body in one.bodies)
    for removed in doomed:
        for path in (*removed.bodies, removed.path):
            if path not in needed:
                steps.at("archive.vacuum")
                files.remove(path)
    steps.at("archive.vacuumed")
    if doomed:
        log.commit(lambda now: _forgetting(now, paths, log.now_ms()))
    return len(doomed)


def _forgetting(state: State, paths: set[str], now_ms: int) -> Entry | None:
    gone = tuple(path for path in state.removed if path in paths)
    return Entry("vacuum", now_ms, forget=gone) if gone else None


def _delete_orphans(files: Files, log: Log, grace_ms: int) -> int:
    oldest_ms = log.now_ms() - grace_ms
    found = [
        one.path
        for folder in (layout.DATA, layout.BODIES, layout.STAGING)
        for one in files.walk(folder)
        if one.modified_ms <= oldest_ms
    ]
    state = log.latest()  # after looking: whatever has an entry now is none
    known = state.files.keys() | state.removed.keys() | state.bodies()
    known |= {body for one in state.removed.values() for body in one.bodies}
    orphans = [path for path in found if path not in known]
    for path in orphans:
        steps.at("archive.vacuum")
        files.remove(path)
    return len(orphans)
