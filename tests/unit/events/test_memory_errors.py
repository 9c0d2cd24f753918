"""What may find no memory inside of a `with` comes early in its function (A-03): see rule 4 of `memory.writing`."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clarion.events.memory import Section
from clarion.events.memory.committing import SyncedWriter
from clarion.events.memory.writing import MappedWriter

CACHED_MAX = 256
"""The largest number that the interpreter need not make."""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="how errors are handled there was not looked at")
@pytest.mark.parametrize(
    "function", [SyncedWriter.stage, SyncedWriter.commit, SyncedWriter._take, SyncedWriter._store, MappedWriter.stage]
)
def test_a03_no_error_needs_a_number_that_has_to_be_made(function: Callable[..., Any]) -> None:
    table = dis._parse_exception_table(function.__code__)  # type: ignore[attr-defined]
    guarded = [entry for entry in table if entry.lasti and entry.depth == 1]
    assert guarded, "there is no `with` in it any more"
    assert max(entry.end for entry in guarded) // 2 <= CACHED_MAX + 1


@pytest.mark.parametrize("durability", ["power", "process"])
def test_a03_a_lock_that_could_not_be_let_go_for_want_of_memory_is_let_go(
    tmp_path: Path, durability: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = Section.create(
        tmp_path / "own.ring", name="own", kind="normal", producer=1 << 64, bytes_=1 << 20, event_bytes_max=4096,
        durability=durability,
    )  # fmt: skip
    writer = section.writer
    stage = writer.stage

    def leaving_it_locked(*arguments: Any) -> int:
        monkeypatch.setattr(writer, "stage", stage)
        writer._committing.acquire()
        writer._lock.acquire()
        raise MemoryError

    monkeypatch.setattr(writer, "stage", leaving_it_locked)
    assert section.record("disk.full", "volume/7", 40, 1, None, bits=1) == 1
    assert not writer.held_here()
    assert section.record("disk.full", "volume/7", 40, 1, None, bits=1) == 2
    section.close()
