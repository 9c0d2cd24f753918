"""Zeros go to the disk without a sync for each piece, and by one where the system knows no other way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clarion.journal import pushing


@pytest.mark.parametrize("known", [True, False])
def test_b13_what_is_pushed_is_written_and_synced_only_where_it_must_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    if not known:
        monkeypatch.setattr(pushing, "_sync_file_range", None)
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(descriptor, bytes(100_000), 0)
        pushing.push(descriptor, 0, 100_000)
        assert synced == ([] if known and pushing._sync_file_range is not None else [descriptor])
    finally:
        os.close(descriptor)


def test_b13_a_file_that_cannot_be_pushed_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    reading, writing = os.pipe()
    try:
        pushing.push(writing, 0, 10)  # not for a pipe
        assert synced == [writing]
    finally:
        os.close(reading)
        os.close(writing)
