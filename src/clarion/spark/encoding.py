"""Rows made into batches, ready to be sent: the inverse of `decoding`, and as cheap.

Guarantees
    1. All of a record batch is checked before anything of it is given out: whatever is wrong with a row raises, with
       the number of the row, and nothing was sent.
    2. Rows of one destination keep their order, among those of the same priority and time of delivery.
    3. Every batch obeys `limits`, and what the broker said in its welcome.

Costs (2 cores, 100-byte bodies): rows that have only a body are not copied, and cost nothing each; headers are put
together by Arrow, see `msgpack_columns`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from clarion import limits
from clarion.client.lanes import MESSAGE_WEIGHT_BYTES
from clarion.client.prepacked import Packed
from clarion.spark import msgpack_columns
from clarion.spark.sink_columns import Rows, SinkDefaults, check_names
from clarion.spark.sink_reading import Numbers, too_large
from clarion.wire import batch as wire

__all__ = ["SinkDefaults", "packed"]

_CHUNK_ROWS: Final = 16_384
"""Rows that are looked at together: their headers fit an array of Arrow."""
_CHUNK_BYTES: Final = 256 * limits.MIB
_COLUMN_BYTES: Final = 4
_DELTA_MS_MAX: Final = (1 << 32) - 1


def packed(
    record_batch: pa.RecordBatch, defaults: SinkDefaults, *, now_ms: int | None = None
) -> Iterator[tuple[str, Packed]]:
    """Destinations and batches for them, in the order in which they are to be sent; none for no rows.

    `now_ms` is when the rows are handed over: by it they are stamped, and from it on they live; the clock's if it is
    None. Raises `BadArgument`, `BadName` and `MessageTooLarge`, all before the first batch.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    check_names(record_batch.schema.names, defaults)
    batches: list[tuple[str, Packed]] = []
    for low, high in _chunks(record_batch):
        _encode(Rows(record_batch.slice(low, high - low), defaults, now_ms, low), defaults, now_ms, low, batches)
    return iter(batches)


def _chunks(rows: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Ranges of rows that are looked at together."""
    step = _CHUNK_ROWS
    while step > 1 and rows.num_rows and rows.nbytes // rows.num_rows * step > _CHUNK_BYTES:
        step //= 2
    for low in range(0, rows.num_rows, step):
        yield low, min(rows.num_rows, low + step)


class _Group(NamedTuple):
    """Rows [low, high) with the same terms."""

    low: int
    high: int
    destination: int
    priority: int
    deliver_at_ms: int


def _encode(rows: Rows, defaults: SinkDefaults, now_ms: int, at: int, batches: list[tuple[str, Packed]]) -> None:
    records = _Records.of(rows, now_ms)
    destinations, names = rows.destinations()
    order, groups = _grouped(rows.count, destinations, rows.priorities(), rows.deliver_at_ms(), defaults.priority)
    if order is not None:
        records = records.taken(order)
    for low, high, destination, priority, deliver_at_ms in groups:
        name = names[destination]
        room = defaults.batch_bytes_max - wire.HEADER_BYTES - len(name.encode()) - 3
        limit = room - _COLUMN_BYTES * (2 + records.columns)
        sizes = np.diff(records.ends[low : high + 1])
        if int(sizes.max()) > limit:
            index = int(np.argmax(sizes > limit))
            row = low + index if order is None else int(order[low + index])
            raise too_large(int(sizes[index]), max(0, limit), at + row, "message")
        for first, end in records.cuts(low, high, min(limits.BATCH_BYTES_TARGET, room // 2)):
            batches.append((name, records.packed(first, end, priority, deliver_at_ms)))


def _grouped(
    count: int, destinations: Numbers | None, priorities: Numbers | None, deliver_at_ms: Numbers | None, priority: int
) -> tuple[Numbers | None, list[_Group]]:
    """The order in which rows of the same terms stand together, None if they do already; and the groups.

    The order is stable. A column that is None is the same for all: the first destination, `priority`, at once.
    """
    if destinations is None and priorities is None and deliver_at_ms is None:
        return None, [_Group(0, count, 0, priority, 0)]
    moments, codes = np.zeros(1, np.int64), np.zeros(count, np.int64)
    if destinations is not None:
        codes += destinations
    codes *= limits.PRIORITY_MAX + 1
    codes += priority if priorities is None else priorities
    if deliver_at_ms is not None:
        moments, moment_codes = np.unique(deliver_at_ms, return_inverse=True)
        codes *= len(moments)
        codes += moment_codes
    order: Numbers | None = None
    if (codes[1:] < codes[:-1]).any():
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
    groups = []
    for low, high in pairwise([0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), count]):
        terms, moment = divmod(int(codes[low]), len(moments))
        destination, each_priority = divmod(terms, limits.PRIORITY_MAX + 1)
        groups.append(_Group(low, high, destination, each_priority, int(moments[moment])))
    return order, groups


class _Records:
    """Records of rows: headers and body of each, and the columns of a batch beside them."""

    __slots__ = ("_data", "_expires_ms", "_hashes", "_now_ms", "_records", "_sizes", "_times_ms", "columns", "ends")

    def __init__(
        self,
        records: pa.BinaryArray,
        sizes: Numbers | None,
        hashes: Numbers | None,
        expires_ms: Numbers | None,
        times_ms: Numbers | None,
        now_ms: int,
    ) -> None:
        self._records = records
        data = records.buffers()[2]
        self._data = memoryview(b"" if data is None else data)
        self.ends = _edges(records)
        """Where each record begins in the data, and where the last one ends."""
        self._sizes, self._hashes, self._expires_ms, self._times_ms = sizes, hashes, expires_ms, times_ms
        self._now_ms = now_ms
        self.columns = sum(column is not None for column in (sizes, hashes, times_ms))
        """Optional columns that a batch of these may have."""

    @classmethod
    def of(cls, rows: Rows, now_ms: int) -> _Records:
        """Those of rows, as they stand."""
        records = rows.bodies()
        headers, hashes, expires_ms = rows.headers()
        sizes: Numbers | None = None
        if headers is not None:
            sizes = np.diff(_edges(headers))
            records = msgpack_columns.joined(headers, records)
        return cls(records, sizes, hashes, expires_ms, rows.times_ms(), now_ms)

    def taken(self, order: Numbers) -> _Records:
        """These in another order."""

        def moved(column: Numbers | None) -> Numbers | None:
            return None if column is None else column[order]

        return _Records(
            self._records.take(pa.array(order)),
            moved(self._sizes),
            moved(self._hashes),
            moved(self._expires_ms),
            moved(self._times_ms),
            self._now_ms,
        )

    def cuts(self, low: int, high: int, weight_max: int) -> Iterator[tuple[int, int]]:
        """Ranges of [low, high), each a batch: at most `weight_max`, or one message."""
        weights = self.ends[low : high + 1].astype(np.int64)
        weights += MESSAGE_WEIGHT_BYTES * np.arange(high - low + 1)
        first, count = 0, high - low
        while first < count:
            end = int(np.searchsorted(weights, weights[first] + weight_max, side="right")) - 1
            end = self._soon_enough(low + first, low + max(first + 1, min(end, count))) - low
            yield low + first, low + end
            first = end

    def _soon_enough(self, low: int, high: int) -> int:
        """A batch says times as differences to its oldest message, which have their bound: 49 days."""
        if self._times_ms is not None:
            while high - low > 1 and np.ptp(self._times_ms[low:high]) > _DELTA_MS_MAX:
                high = low + (high - low) // 2
        return high

    def packed(self, low: int, high: int, priority: int, deliver_at_ms: int) -> Packed:
        """The records [low, high) as a batch."""
        begin, end = int(self.ends[low]), int(self.ends[high])
        created_ms, deltas = self._now_ms, None
        if self._times_ms is not None:
            created_ms = int(self._times_ms[low:high].min())
            deltas = self._times_ms[low:high] - created_ms
        expiry_first_ms = expiry_last_ms = 0
        if self._expires_ms is not None:
            expires_ms = self._expires_ms[low:high]
            some = expires_ms[expires_ms > 0]
            expiry_first_ms = int(some.min()) if len(some) else 0
            expiry_last_ms = int(some.max()) if len(some) == high - low else 0
        return Packed(
            count=high - low,
            offsets=_column(self.ends[low : high + 1] - begin),
            data=self._data[begin:end],
            header_sizes=_optional(self._sizes, low, high),
            group_hashes=_optional(self._hashes, low, high),
            time_deltas=_column(deltas) if deltas is not None and deltas.any() else None,
            priority=priority,
            created_ms=created_ms,
            deliver_at_ms=deliver_at_ms,
            expiry_first_ms=expiry_first_ms,
            expiry_last_ms=expiry_last_ms,
        )


def _edges(array: pa.BinaryArray) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)


def _column(values: np.ndarray[Any, Any]) -> bytes:
    return values.astype(np.dtype("<u4")).tobytes()


def _optional(values: Numbers | None, low: int, high: int) -> bytes | None:
    """The column of a batch; None if it says nothing."""
    return _column(values[low:high]) if values is not None and values[low:high].any() else None
