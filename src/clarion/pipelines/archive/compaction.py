"""Compaction: many small files of a date and destination become few large ones, beside writers and readers.

Guarantees
    1. The rows of the archive are the same before, during and after: one entry adds the new file, removes the old.
    2. If somebody else has removed one of the old files meanwhile, nothing is entered and the new file is deleted.
    3. Killed anywhere, it leaves at most a file that no entry names, for the next vacuum.
    4. A new file is ascending by sequence, as every file is.

It reads and writes by pyarrow on local file systems, and needs no Spark there; elsewhere Spark does it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from clarion import limits
from clarion.pipelines.archive import layout, steps
from clarion.pipelines.archive.entries import DataFile, Entry
from clarion.pipelines.archive.files import Files, LocalFiles
from clarion.pipelines.archive.log import Log
from clarion.pipelines.archive.state import State
from clarion.spark import schema

TARGET_BYTES = 128 * limits.MIB
FILES_MIN = 8
_ROWS = 16_384
"""Rows in memory at a time."""

Rewrite = Callable[[list[DataFile], str], int]
"""Write the rows of files to a new one; its bytes."""


class Compacted(NamedTuple):
    """What a compaction has done."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    bytes: int = 0


def plan(
    files: Iterable[DataFile], target_bytes: int = TARGET_BYTES, files_min: int = FILES_MIN
) -> list[list[DataFile]]:
    """Groups of small files that belong together, each for one new file of about `target_bytes`. Pure.

    A file of half that size is not small. Groups of fewer than `files_min` wait for more.
    """
    places: dict[tuple[str, str, int], list[DataFile]] = {}
    for file in files:
        if 2 * file.bytes < target_bytes:
            places.setdefault((file.date, file.destination, file.incarnation), []).append(file)
    groups = []
    for _, small in sorted(places.items()):
        group: list[DataFile] = []
        for file in sorted(small, key=lambda one: (one.first, one.path)):
            if group and sum(one.bytes for one in group) + file.bytes > target_bytes:
                groups.append(group)
                group = []
            group.append(file)
        groups.append(group)
    return [group for group in groups if len(group) >= max(files_min, 2)]


def compact(
    files: Files,
    *,
    target_bytes: int = TARGET_BYTES,
    files_min: int = FILES_MIN,
    rewrite: Rewrite | None = None,
    stopping: Callable[[], bool] = lambda: False,
    report: Callable[[Compacted], None] = lambda _: None,
) -> Compacted:
    """Compact an archive as it is now, group by group; `report` hears after each, `stopping` is asked before."""
    log = Log(files)
    done = Compacted()
    if rewrite is None:
        if not isinstance(files, LocalFiles):
            raise TypeError("without Spark only local archives are compacted")
        rewrite = _Local(files).rewrite
    for group in plan(log.latest().files.values(), target_bytes, files_min):
        if stopping():
            break
        new = _compacted(files, log, group, rewrite)
        if new is not None:
            done = Compacted(
                done.files_before + len(group), done.files_after + 1, done.rows + new.rows, done.bytes + new.bytes
            )
            report(done)
    return done


def _compacted(files: Files, log: Log, group: list[DataFile], rewrite: Rewrite) -> DataFile | None:
    name = f"compact-{secrets.token_hex(8)}"
    path = layout.data_path(group[0].date, group[0].destination, name)
    new = msgspec.structs.replace(
        group[0],
        path=path,
        rows=sum(one.rows for one in group),
        bytes=rewrite(group, path),
        first=min(one.first for one in group),
        last=max(one.last for one in group),
        time_first_us=min(one.time_first_us for one in group),
        time_last_us=max(one.time_last_us for one in group),
        bodies=tuple(body for one in group for body in one.bodies),
    )
    files.settle([path])
    steps.at("archive.compacted")
    old = tuple(one.path for one in group)

    def decide(state: State) -> Entry | None:
        if not all(path in state.files for path in old):
            return None
        return Entry("compact", log.now_ms(), add=(new,), remove=old)

    if log.commit(decide) is None:
        files.remove(path)
        return None
    return new


class _Local:
    """Rewriting by pyarrow."""

    def __init__(self, files: LocalFiles) -> None:
        self._files = files

    def rewrite(self, group: list[DataFile], path: str) -> int:
        staged = f"{layout.STAGING}/{path.rpartition('/')[2]}"
        target = self._files.root / staged
        target.parent.mkdir(parents=True, exist_ok=True)
        sources = [self._files.root / one.path for one in sorted(group, key=lambda one: one.first)]
        known = {name for source in sources for name in pq.read_schema(source).names}
        wanted = schema.arrow_schema([name for name in schema.BY_NAME if name in known])
        apart = all(a.last < b.first for a, b in pairwise(sorted(group, key=lambda one: one.first)))
        rows = 0
        with pq.ParquetWriter(target, wanted, compression="zstd") as writer:
            for table in self._tables(sources, wanted, apart):
                writer.write_table(table)
                rows += table.num_rows
        if rows != sum(one.rows for one in group):
            raise RuntimeError(f"{rows} rows in files that should have {sum(one.rows for one in group)}")
        size = target.stat().st_size
        self._files.move(staged, path)
        return size

    @staticmethod
    def _tables(sources: list[Path], wanted: pa.Schema, apart: bool) -> Iterator[pa.Table]:
        """Ascending: one file after the other, or merged where they overlap."""
        if apart:
            for source in sources:
                with pq.ParquetFile(source) as file:
                    for batch in file.iter_batches(_ROWS):
                        yield conformed(pa.Table.from_batches([batch]), wanted)
        else:
            tables = [conformed(pq.read_table(source, partitioning=None), wanted) for source in sources]
            merged = pa.concat_tables(tables).sort_by("sequence")
            for first in range(0, merged.num_rows, _ROWS):
                yield merged.slice(first, _ROWS)


def conformed(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """A table with exactly these columns; those that it has not are null."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in wanted
    ]
    return pa.table(columns, schema=wanted)
