"""Archives made by pyarrow alone, for tests that need no Spark: real Parquet files, real entries."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from clarion.message import Headers, encode_headers
from clarion.pipelines.archive import layout, steps
from clarion.pipelines.archive.entries import DataFile, Entry
from clarion.pipelines.archive.files import LocalFiles
from clarion.pipelines.archive.log import Log
from clarion.pipelines.archive.state import State
from clarion.spark import schema

DAY = datetime(2026, 11, 1, tzinfo=UTC)


class Row(NamedTuple):
    """What tells rows apart."""

    destination: str
    sequence: int
    day: int = 0
    body: bytes = b""


def table_of(rows: Sequence[Row]) -> pa.Table:
    """All columns of messages."""
    count = len(rows)
    headers = [encode_headers(Headers(type="t", properties={"n": row.sequence})) for row in rows]
    columns: dict[str, Any] = {
        "destination": [row.destination for row in rows],
        "sequence": [row.sequence for row in rows],
        "id": [f"{row.sequence:032x}" for row in rows],
        "time": [DAY + timedelta(days=row.day, microseconds=row.sequence) for row in rows],
        "priority": [9 if row.sequence % 1_000 == 0 else 4 for row in rows],
        "type": ["t"] * count,
        "properties": [[("n", str(row.sequence))] for row in rows],
        "headers": headers,
        "body": [row.body or f"{row.destination} {row.sequence}".encode() for row in rows],
        "body_bytes": [len(row.body or f"{row.destination} {row.sequence}".encode()) for row in rows],
    }
    wanted = schema.arrow_schema(tuple(schema.BY_NAME))
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
        for field in wanted
    ]
    return pa.table(arrays, schema=wanted)


def place(files: LocalFiles, rows: Iterable[Row]) -> list[DataFile]:
    """Files for these rows, in their places: one for each date and destination."""
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in sorted(rows, key=lambda one: one.sequence):
        groups.setdefault((row.day, row.destination), []).append(row)
    new = []
    for (day, destination), several in sorted(groups.items()):
        date = (DAY + timedelta(days=day)).date().isoformat()
        path = layout.data_path(date, destination, f"test-{secrets.token_hex(6)}")
        staged = f"{layout.STAGING}/{path.rpartition('/')[2]}"
        (files.root / layout.STAGING).mkdir(parents=True, exist_ok=True)
        table = table_of(several)
        pq.write_table(table, files.root / staged)
        size = (files.root / staged).stat().st_size
        files.move(staged, path)
        times = table["time"].cast(pa.int64()).to_pylist()
        new.append(
            DataFile(
                path, date, destination, len(several), size,
                several[0].sequence, several[-1].sequence, min(times), max(times),
            )
        )  # fmt: skip
        steps.at("archive.placed")
    files.settle(file.path for file in new)
    return new


def append(files: LocalFiles, rows: Iterable[Row], writer: str = "", batch: int = -1) -> bool:
    """One batch; False if it is there."""
    log = Log(files)
    if writer and log.latest().has_batch(writer, batch):
        return False
    new = place(files, rows)

    def decide(state: State) -> Entry | None:
        if writer and state.has_batch(writer, batch):
            return None
        return Entry("append", log.now_ms(), writer=writer, batch=batch, add=state.numbered(new, writer))

    return log.commit(decide) is not None


def rows_of(files: LocalFiles, at: int | None = None) -> list[tuple[str, int]]:
    """Destination and sequence of every row, sorted; every file must hold what its entry says, ascending."""
    found: list[tuple[str, int]] = []
    for file in Log(files).at(at).files.values():
        table = pq.read_table(files.root / file.path, columns=["destination", "sequence"], partitioning=None)
        sequences = table["sequence"].to_pylist()
        assert table.num_rows == file.rows and sequences == sorted(sequences)
        assert (sequences[0], sequences[-1]) == (file.first, file.last)
        assert set(table["destination"].to_pylist()) == {file.destination}
        found += [(file.destination, sequence) for sequence in sequences]
    return sorted(found)
