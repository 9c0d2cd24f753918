"""Compaction, retention and vacuum of real Parquet files, against a plain model of their rows (D-04)."""

from __future__ import annotations

import tempfile
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.pipelines.archive import compaction, describe, layout, retention
from clarion.pipelines.archive.compaction import compact, plan
from clarion.pipelines.archive.entries import DataFile, Entry
from clarion.pipelines.archive.files import LocalFiles
from clarion.pipelines.archive.log import Log
from clarion.pipelines.archive.retention import expired, retain, vacuum
from tests.unit.pipelines.archive_rows import DAY, Row, append, rows_of

ROWS = st.builds(Row, st.sampled_from(["topic:a", "queue:b"]), st.integers(1, 60), st.integers(0, 2))
NOW_S = DAY.timestamp() + 5 * 86_400


def sized(name: str, size: int, day: int = 1, first: int = 1) -> DataFile:
    date = f"2026-11-{day:02}"
    return DataFile(f"data/{name}", date, "topic:a", 1, size, first, first, 0, 0)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.lists(ROWS, min_size=1, max_size=12, unique_by=lambda row: row[:2]), max_size=4), st.data())
def test_d04_compaction_keeps_every_row_ascending(batches: list[list[Row]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = LocalFiles(folder)
        for batch in batches:
            append(files, batch)
        expected = sorted((row.destination, row.sequence) for batch in batches for row in batch)
        before = Log(files).latest().number
        target_bytes = data.draw(st.sampled_from([1, 20_000, compaction.TARGET_BYTES]))
        done = compact(files, files_min=2, target_bytes=target_bytes)
        assert rows_of(files) == expected and rows_of(files, before) == expected
        assert Log(files).latest().number == before + done.files_after
        if target_bytes == compaction.TARGET_BYTES:
            places = {(row.day, row.destination) for batch in batches for row in batch}
            assert len(Log(files).latest().files) == len(places)
        vacuum(files, grace_ms=0, orphan_grace_ms=0)
        assert rows_of(files) == expected
        on_disk = {found.path for found in files.walk(layout.DATA)}
        assert on_disk == Log(files).latest().files.keys()


def test_d04_a_compacted_row_is_the_same_to_the_last_column(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    for number in range(4):
        append(files, [Row("topic:a", sequence, body=bytes([sequence])) for sequence in range(number + 1, 41, 4)])
    tables = [pq.read_table(files.root / path, partitioning=None) for path in Log(files).latest().files]
    expected = sorted((row for table in tables for row in table.to_pylist()), key=lambda row: row["sequence"])
    assert compact(files, files_min=4).files_before == 4
    (path,) = Log(files).latest().files
    assert pq.read_table(files.root / path, partitioning=None).to_pylist() == expected


def test_d04_files_that_belong_together_are_planned_up_to_the_target() -> None:
    small = [sized(f"s{number}", 10, first=100 - number) for number in range(10)]
    groups = plan([*small, sized("large", 50), sized("other", 10, day=2)], target_bytes=40, files_min=2)
    assert [[file.first for file in group] for group in groups] == [[91, 92, 93, 94], [95, 96, 97, 98], [99, 100]]
    assert plan(small, target_bytes=40, files_min=5) == []
    assert plan([sized("a", 1), sized("b", 1)], target_bytes=40, files_min=1) != []


def test_d04_compaction_that_was_overtaken_enters_nothing_and_leaves_no_file(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    for number in range(3):
        append(files, [Row("topic:a", number + 1)])
    rewrite = compaction._Local(files).rewrite
    taken = sorted(Log(files).latest().files)[0]

    def overtaken(group: list[DataFile], path: str) -> int:
        size = rewrite(group, path)
        Log(files).commit(lambda _: Entry("retain", 1, remove=(taken,)))
        return size

    assert compact(files, files_min=2, rewrite=overtaken).files_after == 0
    assert len(rows_of(files)) == 2 and len(list(files.walk(layout.DATA))) == 3
    assert compact(files, files_min=2).files_after == 1 and len(rows_of(files)) == 2


FILES = st.builds(sized, st.uuids().map(str), st.integers(0, 100), st.integers(1, 28))


@given(st.lists(FILES, max_size=20), st.none() | st.integers(0, 40), st.none() | st.integers(0, 1000))
def test_d04_what_is_too_old_goes_and_the_oldest_dates_while_it_is_too_much(
    files: list[DataFile], days: int | None, bytes_max: int | None
) -> None:
    today = date(2026, 11, 20)
    gone = expired(files, today, days, bytes_max)
    kept = [file for file in files if file not in gone]
    dates = sorted({file.date for file in files})
    left = {file.date for file in kept}
    assert left == set(dates[len(dates) - len(left) :]), "the oldest go first, whole"
    for file in kept:
        assert days is None or (today - date.fromisoformat(file.date)).days <= days
    if bytes_max is not None and sum(file.bytes for file in kept) > bytes_max:
        assert not any(day < today.isoformat() for day in left)
    if gone:  # and not one date too many
        newest = max(file.date for file in gone)
        too_old = days is not None and (today - date.fromisoformat(newest)).days > days
        rest = sum(file.bytes for file in files if file.date >= newest)
        assert too_old or (bytes_max is not None and rest > bytes_max)


def test_d04_retention_hides_at_once_and_deletes_after_the_grace(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    append(files, [Row("topic:a", number + 1, day=number) for number in range(6)])
    now_s = [NOW_S]
    assert retain(files, days=2, clock=lambda: now_s[0]).rows == 3
    assert rows_of(files) == [("topic:a", 4), ("topic:a", 5), ("topic:a", 6)]
    assert len(rows_of(files, 1)) == 6, "who reads what was before goes on"
    assert vacuum(files, orphan_grace_ms=1 << 60, clock=lambda: now_s[0]).removed == 0
    now_s[0] += retention.GRACE_MS / 1000
    assert vacuum(files, orphan_grace_ms=1 << 60, clock=lambda: now_s[0]).removed == 3
    assert len(list(files.walk(layout.DATA))) == 3 and describe(files)["removed"] == 0
    assert retain(files, bytes_max=0, clock=lambda: now_s[0]).rows == 3
    assert retain(files, bytes_max=0, clock=lambda: now_s[0]).rows == 0


def test_d04_a_vacuum_leaves_what_somebody_may_still_enter_and_bodies_of_living_rows(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    append(files, [Row("topic:a", 1)])
    (live,) = Log(files).latest().files.values()
    body, other = layout.body_path(live.date, "ab" * 16, "1"), layout.body_path(live.date, "cd" * 16, "1")
    for path in (body, other, f"{layout.STAGING}/query-1/part.parquet", layout.data_path(live.date, "topic:a", "new")):
        files.store(path, [b"data"])
    named = DataFile(live.path + "2", live.date, "topic:a", 1, 4, 2, 2, 0, 0, bodies=(body,))
    files.store(named.path, [b"data"])
    Log(files).commit(lambda _: Entry("append", 1, add=(named,)))
    assert vacuum(files).orphans == 0
    assert vacuum(files, orphan_grace_ms=-1_000).orphans == 3
    assert files.read(body) == b"data" and {found.path for found in files.walk(layout.BODIES)} == {body}
    Log(files).commit(lambda _: Entry("retain", 1, remove=(named.path,)))
    assert vacuum(files, grace_ms=1 << 60, orphan_grace_ms=-1_000) == (0, 0, 0)
    assert vacuum(files, grace_ms=0).removed == 1
    assert not list(files.walk(layout.BODIES))
    vacuum(files, orphan_grace_ms=-1_000)
    assert not list((tmp_path / layout.BODIES).iterdir()), "empty folders go when they are old"


def test_d04_files_of_fewer_columns_are_compacted_with_those_of_more(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    append(files, [Row("topic:a", 1)])
    append(files, [Row("topic:a", 2)])
    first = next(iter(Log(files).latest().files.values()))
    table = pq.read_table(files.root / first.path, partitioning=None)
    pq.write_table(table.drop_columns(["headers", "type"]), files.root / first.path)
    assert compact(files, files_min=2).rows == 2
    (path,) = Log(files).latest().files
    assert pq.read_table(files.root / path, partitioning=None)["type"].to_pylist() == [None, "t"]


def test_d04_a_compaction_whose_rows_are_not_what_the_log_says_is_refused(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    append(files, [Row("topic:a", 1)])
    append(files, [Row("topic:a", 2), Row("topic:a", 3)])
    first, second = Log(files).latest().files.values()
    (files.root / first.path).write_bytes((files.root / second.path).read_bytes())
    with pytest.raises(RuntimeError, match="4 rows in files that should have 3"):
        compact(files, files_min=2)
    assert Log(files).latest().files.keys() == {first.path, second.path}
