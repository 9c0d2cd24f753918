"""The rows of an archive in order: destination by destination, each ascending by sequence, in bounded memory.

Theory of operation
    The files of a destination are put into *runs*: files whose sequences overlap are in one run, runs lie apart. A run
    is merged from its files, each of which ascends. Every row has its *place*: how many rows of the chosen files come
    before it, whether they are wanted or not. Places depend on nothing but the snapshot and the choice of files, so a
    place is all that must be remembered to go on; and whole runs before it need not be read.

Guarantees
    1. Rows of one destination come ascending by (incarnation, sequence).
    2. A chunk ends at a place; chunks that begin at a place hold exactly the wanted rows from it on, each once.
    3. In memory are at most a few thousand rows of each file of a run, and the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from clarion.pipelines.archive.compaction import conformed
from clarion.pipelines.archive.entries import DataFile
from clarion.pipelines.archive.reading import Wanted
from clarion.spark import schema

COLUMNS = ("destination", "sequence", "id", "time", "priority", "expires_at", "headers", "body", "large")
KEEP = "_keep"
_ROWS = 4_096
_SCHEMA = schema.arrow_schema(COLUMNS)

Rows = np.ndarray[Any, np.dtype[np.int64]]
Open = Callable[[str], Any]
"""A file of the archive, for pyarrow."""
Selection = dict[str, Rows]
"""For each file the wanted rows, ascending; a file that is not there has none."""


class Chunk(NamedTuple):
    """Wanted rows, in order."""

    rows: pa.Table
    end: int
    """The place after the last row that was looked at."""


class Run(NamedTuple):
    """Files of one destination and incarnation whose sequences overlap."""

    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def runs_of(files: Iterable[DataFile]) -> list[Run]:
    """Files in order, those that overlap together. Pure."""
    runs: list[Run] = []
    end: tuple[str, int, int] | None = None
    for file in sorted(files, key=lambda one: (one.destination, one.incarnation, one.first, one.path)):
        last = (file.destination, file.incarnation, file.last)
        if end is not None and end[:2] == last[:2] and file.first <= end[2]:
            runs[-1] = Run((*runs[-1].files, file))
            end = max(end, last)
        else:
            runs.append(Run((file,)))
            end = last
    return runs


class Ordered:
    """The wanted rows of some files of an archive."""

    def __init__(
        self, files: Iterable[DataFile], wanted: Wanted, open_file: Open, selection: Selection | None = None
    ) -> None:
        self._runs = runs_of(files)
        self._wanted = wanted
        self._open = open_file
        self._selection = selection

    @property
    def end(self) -> int:
        """The place after the last row."""
        return sum(run.rows for run in self._runs)

    def chunks(self, place: int, rows_max: int, bytes_max: int) -> Iterator[Chunk]:
        """All from a place on: chunks of at most so many wanted rows, about so many bytes; the last ends at `end`."""
        gathered: list[pa.Table] = []
        rows = size = 0
        for tables_end, table in self._tables(place):
            start = tables_end - table.num_rows
            kept = np.flatnonzero(table[KEEP].to_numpy())
            sizes = np.concatenate(([0], np.cumsum(_weights(table)[kept])))
            low = 0
            while low < len(kept):
                fits = int(np.searchsorted(sizes, sizes[low] + bytes_max - size, side="right")) - 1
                high = min(max(fits, low if rows else low + 1), low + rows_max - rows, len(kept))
                if low < high:
                    gathered.append(_taken(table, kept[low:high]).drop_columns([KEEP]))
                    rows += high - low
                    size += int(sizes[high] - sizes[low])
                if high == len(kept) and rows < rows_max:
                    break
                place = start + int(kept[high - 1] + 1 if high > low else kept[low])
                yield Chunk(pa.concat_tables(gathered), place)
                gathered, rows, size, low = [], 0, 0, high
        if place < self.end:
            yield Chunk(pa.concat_tables(gathered or [_SCHEMA.empty_table()]), self.end)

    def _tables(self, place: int) -> Iterator[tuple[int, pa.Table]]:
        """Rows from a place on, each table with the place after it."""
        at = 0
        for run in self._runs:
            if at + run.rows <= place:
                at += run.rows
                continue
            for table in merged([self._parts(file) for file in run.files]):
                end = at + table.num_rows
                if end > place:
                    yield end, table.slice(max(0, place - at))
                at = end

    def _parts(self, file: DataFile) -> Iterator[pa.Table]:
        """A file, little by little, each row with whether it is wanted."""
        chosen = None if self._selection is None else self._selection.get(file.path, np.zeros(0, np.int64))
        nothing = chosen is not None and not len(chosen)
        row = 0
        with pq.ParquetFile(self._open(file.path)) as source:
            names = [name for name in COLUMNS if name in source.schema_arrow.names]
            for batch in source.iter_batches(_ROWS, columns=["sequence"] if nothing else names):
                table = conformed(pa.Table.from_batches([batch]), _SCHEMA)
                yield table.append_column(KEEP, pa.array(self._keep(table, chosen, row)))
                row += table.num_rows

    def _keep(self, table: pa.Table, chosen: Rows | None, row: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        keep = np.ones(table.num_rows, np.bool_)
        if chosen is not None:
            low, high = np.searchsorted(chosen, [row, row + table.num_rows])
            keep[:] = False
            keep[chosen[low:high] - row] = True
        if self._wanted.since_us is not None or self._wanted.until_us is not None:
            times = table["time"].cast(pa.int64()).fill_null(0).to_numpy()
            keep &= times >= (self._wanted.since_us or 0)
            if self._wanted.until_us is not None:
                keep &= times < self._wanted.until_us
        return keep


def merged(sources: list[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """Tables that ascend by `sequence` each, as one that does; always the same one."""
    heads: list[tuple[Iterator[pa.Table], pa.Table]] = []
    for source in sources:
        _advance(heads, len(heads), source)
    while heads:
        if len(heads) == 1:
            source, table = heads.pop()
            yield table
            yield from source
            return
        bound = min(int(table["sequence"][-1].as_py()) for _, table in heads)
        taken: list[pa.Table] = []
        for place in reversed(range(len(heads))):
            source, table = heads[place]
            count = int(np.searchsorted(table["sequence"].to_numpy(), bound, side="right"))
            taken.insert(0, table.slice(0, count))
            del heads[place]
            if count < table.num_rows:
                heads.insert(place, (source, table.slice(count)))
            else:
                _advance(heads, place, source)
        yield pa.concat_tables(taken).take(_stable_order(taken))


def _advance(heads: list[tuple[Iterator[pa.Table], pa.Table]], place: int, source: Iterator[pa.Table]) -> None:
    """The next table of a source takes its place, if there is one."""
    for table in source:
        if table.num_rows:
            heads.insert(place, (source, table))
            return


def _stable_order(tables: list[pa.Table]) -> pa.Array:
    sequences = np.concatenate([table["sequence"].to_numpy() for table in tables])
    return pa.array(np.argsort(sequences, kind="stable"))


def _taken(table: pa.Table, rows: Rows) -> pa.Table:
    """Some rows of a table, which ascend; without a copy if they follow each other."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return table.slice(int(rows[0]), len(rows))
    return table.take(pa.array(rows))


def _weights(table: pa.Table) -> Rows:
    """About how many bytes each row is."""
    bodies = pc.fill_null(pc.binary_length(table["body"]), 0)
    headers = pc.fill_null(pc.binary_length(table["headers"]), 0)
    weights: Rows = pc.add(bodies, headers).to_numpy().astype(np.int64) + 64
    return weights
