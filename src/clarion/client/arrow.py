"""A batch as an Arrow table, by numpy over its offset table: no loop over messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clarion.errors import MissingExtra
from clarion.wire.batch import GROUPS, HEADERS, TIMES, Batch

if TYPE_CHECKING:
    import pyarrow


def table(batch: Batch, first_sequence: int) -> pyarrow.Table:
    """Columns `sequence`, `body`, `timestamp_ms`. Bodies are not copied unless headers lie between them."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra(extra="arrow") from None
    import numpy as np

    count = batch.count
    offsets = (batch.offsets().astype(np.int64) - batch.base).astype(np.int32)
    data = np.frombuffer(batch.data, np.uint8)
    if batch.flags & HEADERS:
        sizes = batch.header_sizes().astype(np.int32)
        # +1 where a header begins, -1 where its body begins: the running sum is 1 inside headers.
        edges = np.zeros(len(data) + 1, np.int32)
        np.add.at(edges, offsets[:-1], 1)
        np.add.at(edges, offsets[:-1] + sizes, -1)
        data = data[np.cumsum(edges[:-1]) == 0]
        offsets = offsets - np.concatenate((np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)))
    bodies = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    times = np.full(count, batch.created_ms, np.int64)
    if batch.flags & TIMES:
        column = batch._columns_at + 4 * (count + 1) + 4 * count * (batch.flags & (HEADERS | GROUPS)).bit_count()
        times += batch._column(column, count)
    sequences = np.arange(first_sequence, first_sequence + count, dtype=np.int64)
    return pa.table({"sequence": sequences, "body": bodies, "timestamp_ms": times})
