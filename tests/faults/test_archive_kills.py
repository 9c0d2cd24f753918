"""An archive whose writers, compaction, retention and vacuum are killed by SIGKILL at every labelled step (D-04)."""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest

from clarion.pipelines.archive import layout
from clarion.pipelines.archive import log as log_module
from clarion.pipelines.archive.files import LocalFiles
from clarion.pipelines.archive.log import Log
from tests.faults import archive_child
from tests.faults.archive_child import CHECKPOINT_ENTRIES, OPERATIONS, append_batch, batch_rows
from tests.unit.pipelines.archive_rows import rows_of

WAIT_S = 60.0


@pytest.fixture(scope="module")
def processes() -> Iterator[ForkServerContext]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.archive_child"])
    yield context
    assert not multiprocessing.active_children()


def ended(process: ForkServerProcess) -> int | None:
    process.join(WAIT_S)
    code = process.exitcode
    process.close()
    return code


def rows_after(batches: int, oldest_day: int = 0) -> list[tuple[str, int]]:
    """Model."""
    rows = [row for batch in range(batches) for row in batch_rows(batch)]
    return sorted((row.destination, row.sequence) for row in rows if row.day >= oldest_day)


def garbage(files: LocalFiles) -> set[str]:
    """Files that an archive has on disk and not in its log."""
    found = {one.path for folder in (layout.DATA, layout.STAGING) for one in files.walk(folder)}
    return found - Log(files).latest().files.keys()


CASES = [
    *(("append", f"archive.{step}") for step in ("placed", "placed=kill@3", "entry", "writing", "entered")),
    ("append", "archive.checkpoint"),
    *(("compact", f"archive.{step}") for step in ("compacted", "compacted=kill@3", "entry=kill@2", "writing")),
    *(("compact", f"archive.{step}") for step in ("entered", "entered=kill@4", "checkpoint")),
    *(("retain", f"archive.{step}") for step in ("retain", "entry", "writing", "entered")),
    *(("vacuum", f"archive.{step}") for step in ("vacuum", "vacuum=kill@7", "vacuumed", "entry", "writing")),
    *(("vacuum", f"archive.{step}") for step in ("entered", "cleaned", "cleaned=kill@3")),
]


@pytest.mark.parametrize(("operation", "step"), CASES)
def test_d04_killed_at_a_step_no_row_is_lost_or_doubled(
    operation: str, step: str, tmp_path: Path, processes: ForkServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LocalFiles(tmp_path)
    monkeypatch.setattr(log_module, "CHECKPOINT_ENTRIES", CHECKPOINT_ENTRIES)
    batches = 3
    for batch in range(batches):
        append_batch(files, batch)
    if operation == "vacuum":  # something to delete: old files, an old log
        OPERATIONS["compact"](files, 0)
        for more in range(batches, batches + 5):
            append_batch(files, more)
        batches += 5
    before = rows_of(files)
    assert before == rows_after(batches)
    argument = batches if operation == "append" else 0
    arm = step if "=" in step else f"{step}=kill"
    child = processes.Process(target=archive_child.live, args=(str(tmp_path), operation, argument, arm))
    child.start()
    assert ended(child) == -signal.SIGKILL, f"{operation} never came to {step}"
    after = rows_after(batches + 1) if operation == "append" else rows_after(batches, operation == "retain")
    assert rows_of(files) in (before, after)
    if operation in ("compact", "vacuum"):
        assert rows_of(files) == before
    OPERATIONS[operation](files, argument)  # the next run goes on
    assert rows_of(files) == after
    OPERATIONS["vacuum"](files, 0)
    assert rows_of(files) == after and garbage(files) == set()
    assert not any(name.startswith(layout.TEMPORARY) for name in files.names(layout.LOG))


def test_d04_writer_and_compaction_killed_at_random_moments_beside_each_other(
    tmp_path: Path, processes: ForkServerContext
) -> None:
    killed_at_random(tmp_path, processes, batches=40, kills=4, seed=7)


@pytest.mark.soak
def test_d04_writer_and_compaction_killed_at_random_moments_for_long(
    tmp_path: Path, processes: ForkServerContext
) -> None:
    killed_at_random(tmp_path, processes, batches=600, kills=60, seed=11)


def killed_at_random(folder: Path, processes: ForkServerContext, batches: int, kills: int, seed: int) -> None:
    files, chance = LocalFiles(folder), random.Random(seed)
    keeper = processes.Process(target=archive_child.keep_up, args=(str(folder),))
    writer = processes.Process(target=archive_child.write_on, args=(str(folder), batches))
    keeper.start()
    writer.start()
    for number in range(kills):
        (writer if number % 2 else keeper).join(chance.uniform(0.05, 0.6))
        if number % 2:
            writer.kill()
            assert ended(writer) in (-signal.SIGKILL, 0)
            writer = processes.Process(target=archive_child.write_on, args=(str(folder), batches))
            writer.start()
        else:
            keeper.kill()
            assert ended(keeper) == -signal.SIGKILL
            keeper = processes.Process(target=archive_child.keep_up, args=(str(folder),))
            keeper.start()
    assert ended(writer) == 0
    keeper.kill()
    assert ended(keeper) == -signal.SIGKILL
    assert rows_of(files) == rows_after(batches)
    OPERATIONS["vacuum"](files, 0)
    assert rows_of(files) == rows_after(batches) and garbage(files) == set()
