"""Batches as they come from the broker, made into record batches of Spark's columns.

Guarantees
    1. A column is what `Message` says of each message (`schema.COLUMNS`). Its type is that of `schema.arrow_schema`.
    2. No loop over messages, unless a column needs their headers decoded; then one over headers that differ.
    3. Headers that cannot be decoded make nulls, in their own row only.
    4. `joined` keeps the order, and leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from clarion import limits
from clarion.spark.headers import HeaderColumns, decoded
from clarion.spark.references import Reference, format_reference, is_sound
from clarion.spark.schema import HEADER_FIELDS, TIME_MS_MAX, TIMESTAMP, arrow_schema
from clarion.wire.batch import Batch
from clarion.wire.columns import Records

ROWS_MAX: Final = 50_000
"""Rows of a record batch that is made of many batches …"""
BYTES_MAX: Final = 32 * limits.MIB
"""… and what their records take, if they are more than one batch."""

_TEXT_FIELDS = {name: name for name in ("type", "content_type", "reply_to", "correlation_id")} | {"group_id": "group"}


def record_batch(batch: Batch, first_sequence: int, destination: str, names: Sequence[str]) -> pa.RecordBatch:
    """The messages of one batch. Raises `BadArgument` for a column that does not exist."""
    return _record_batch([(first_sequence, batch)], destination, arrow_schema(names))


def joined(
    parts: Iterable[tuple[int, Batch]],
    destination: str,
    names: Sequence[str],
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """Batches of one destination as record batches of at most `rows_max` rows, and nearly as many while there are more.

    Small batches are gathered, so that lone messages are not a record batch each. None is empty. Raises `BadArgument`
    for a column that does not exist, when the first is asked for.
    """
    schema = arrow_schema(names)
    waiting: list[tuple[int, Batch]] = []
    rows = size = 0
    for part in parts:
        batch = part[1]
        if waiting and (rows + batch.count > rows_max or size + batch.size > bytes_max):
            yield from _cut(_record_batch(waiting, destination, schema), rows_max)
            waiting, rows, size = [], 0, 0
        waiting.append(part)
        rows += batch.count
        size += batch.size
    if waiting:
        yield from _cut(_record_batch(waiting, destination, schema), rows_max)


def _cut(rows: pa.RecordBatch, rows_max: int) -> Iterator[pa.RecordBatch]:
    for at in range(0, rows.num_rows, rows_max):
        yield rows.slice(at, rows_max)


def _record_batch(parts: Sequence[tuple[int, Batch]], destination: str, schema: pa.Schema) -> pa.RecordBatch:
    columns = _Columns(Records(parts), destination, schema.names)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


class _Columns:
    """The columns of some records, each made when it is asked for."""

    def __init__(self, records: Records, destination: str, names: Sequence[str]) -> None:
        self._records = records
        self._destination = destination
        wanted = frozenset(names)
        self._headers = records.headers() if wanted & HEADER_FIELDS or "headers" in wanted else None
        self._fields: HeaderColumns | None = None
        if wanted & HEADER_FIELDS:
            self._fields = HeaderColumns(self._headers, properties="properties" in wanted)
        self._large: dict[int, tuple[bytes, int, int]] = {}
        if wanted & {"body", "body_bytes", "large"}:
            self._large = _large(records)

    def __getitem__(self, name: str) -> pa.Array:
        if name in _TEXT_FIELDS:
            assert self._fields is not None
            return self._fields.text(_TEXT_FIELDS[name])
        return _MADE[name](self)

    def destination(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._destination, pa.string()), self._records.count)

    def sequence(self) -> pa.Array:
        return pa.array(self._records.sequences())

    def id(self) -> pa.Array:
        return self._records.ids()

    def time(self) -> pa.Array:
        times_ms = np.clip(self._records.times_ms(), 0, TIME_MS_MAX)  # a sender may say anything
        return pa.array(times_ms * 1_000).view(TIMESTAMP)

    def priority(self) -> pa.Array:
        return pa.array(self._records.priorities())

    def expires_at(self) -> pa.Array:
        assert self._fields is not None
        return self._fields.expires_at()

    def properties(self) -> pa.Array:
        assert self._fields is not None
        return self._fields.properties()

    def headers(self) -> pa.Array:
        return self._headers

    def body(self) -> pa.Array:
        bodies = self._records.bodies()
        if not self._large:
            return bodies
        present = np.ones(self._records.count, bool)
        present[list(self._large)] = False
        validity = pa.py_buffer(np.packbits(present, bitorder="little"))
        return pa.Array.from_buffers(pa.binary(), len(bodies), [validity, *bodies.buffers()[1:]])

    def body_bytes(self) -> pa.Array:
        sizes = self._records.body_sizes()
        for row, (_stream, size, _checksum) in self._large.items():
            sizes[row] = size
        return pa.array(sizes)

    def large(self) -> pa.Array:
        if not self._large:
            return pa.nulls(self._records.count, pa.string())
        sequences = self._records.sequences()
        references: list[str | None] = [None] * self._records.count
        for row, large in self._large.items():
            references[row] = format_reference(Reference(self._destination, int(sequences[row]), *large))
        return pa.array(references, pa.string())


_MADE: dict[str, Callable[[_Columns], pa.Array]] = {
    "destination": _Columns.destination,
    "sequence": _Columns.sequence,
    "id": _Columns.id,
    "time": _Columns.time,
    "priority": _Columns.priority,
    "expires_at": _Columns.expires_at,
    "properties": _Columns.properties,
    "headers": _Columns.headers,
    "body": _Columns.body,
    "body_bytes": _Columns.body_bytes,
    "large": _Columns.large,
}


def _large(records: Records) -> dict[int, tuple[bytes, int, int]]:
    """By row, what the headers of large ones say of their body. Only messages without a body can be large.

    Headers that say what cannot be, which no broker lets through as those of a large body, are passed over.
    """
    if records.sizes is None:
        return {}
    rows = np.flatnonzero((records.sizes > 0) & (records.body_sizes() == 0))
    if not len(rows):
        return {}
    found = decoded(records.headers().take(pa.array(rows)), properties=False)
    return {
        int(row): each.large
        for row, each in zip(rows, found, strict=True)
        if each is not None and each.large is not None and is_sound(*each.large)
    }
