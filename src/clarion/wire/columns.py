"""Records of batches as columns: numpy and Arrow over the buffers as they came, without a loop over messages.

Guarantees
    1. Records of one batch are not copied, unless headers lie between the bodies; those of several batches are copied
       once, side by side.
    2. What is done for each batch is a few microseconds, so that many small ones can be read together; what is done
       for each message is done in C.

Needs the extra `arrow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from clarion.wire.batch import HEADERS, IDS, TIMES, Batch, Buffer

_LOW_64 = (1 << 64) - 1
_DIGITS = np.frombuffer("".join(f"{value:02x}" for value in range(256)).encode(), np.uint16)
"""The two hexadecimal digits of each byte, as they lie in memory."""
_ID_DIGITS = 32


class Records:
    """Messages of one or several batches: `parts` are (sequence of the first message, batch).

    All batches together have less than 2 GiB: offsets are 32 bits.
    """

    __slots__ = ("_counts", "_parts", "count", "data", "offsets", "sizes")

    def __init__(self, parts: Sequence[tuple[int, Batch]]) -> None:
        self._parts = parts
        self._counts = np.fromiter((batch.count for _first, batch in parts), np.int64, len(parts))
        self.count = int(self._counts.sum())
        """How many messages there are."""
        self.data: Buffer
        """All records, one after the other: of each its headers, then its body."""
        self.offsets = np.empty(self.count + 1, np.int32)
        """Where each record begins in `data`, and where the last one ends."""
        if len(parts) == 1:
            batch = parts[0][1]
            self.data = batch.data
            np.subtract(batch.offsets(), batch.base, out=self.offsets, casting="unsafe")
        else:
            views = [batch.data for _first, batch in parts]
            self.data = b"".join(views)
            ends = np.cumsum(np.fromiter(map(len, views), np.int64, len(views)))
            bases = np.fromiter((batch.base for _first, batch in parts), np.int64, len(parts))
            begins = np.concatenate(([0], ends[:-1])) - bases
            if parts:
                starts = np.concatenate([batch.offsets()[:-1] for _first, batch in parts])
                np.add(starts, self._each(begins), out=self.offsets[:-1], casting="unsafe")
            self.offsets[-1] = len(self.data)
        self.sizes = self._header_sizes()
        """How many bytes of each record are headers; None if there are none at all."""

    def _each(self, values: Any) -> Any:
        """A value of each batch, for each of its messages."""
        return np.repeat(values, self._counts)

    def _header_sizes(self) -> np.ndarray[tuple[int], np.dtype[np.int32]] | None:
        if not any(batch.flags & HEADERS for _first, batch in self._parts):
            return None
        columns = [
            batch.header_sizes() if batch.flags & HEADERS else np.zeros(batch.count, np.uint32)
            for _first, batch in self._parts
        ]
        return np.concatenate(columns).astype(np.int32)

    # --- columns ------------------------------------------------------------------------------------

    def sequences(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The number of each message within its destination."""
        firsts = np.fromiter((first for first, _batch in self._parts), np.int64, len(self._parts))
        before = np.cumsum(self._counts) - self._counts
        sequences: np.ndarray[tuple[int], np.dtype[np.int64]] = self._each(firsts - before)
        sequences += np.arange(self.count)
        return sequences

    def times_ms(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """When each message was handed to its client, in Unix milliseconds."""
        created = np.fromiter((batch.created_ms for _first, batch in self._parts), np.int64, len(self._parts))
        times: np.ndarray[tuple[int], np.dtype[np.int64]] = self._each(created)
        at = 0
        for _first, batch in self._parts:
            if batch.flags & TIMES:
                times[at : at + batch.count] += batch.time_deltas()
            at += batch.count
        return times

    def priorities(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """The priority of each message."""
        each: np.ndarray[tuple[int], np.dtype[np.int32]] = self._each(
            np.fromiter((batch.priority for _first, batch in self._parts), np.int32, len(self._parts))
        )
        return each

    def ids(self) -> pa.StringArray:
        """The id of each message: 32 hexadecimal digits."""
        count = len(self._parts)
        words = np.empty((self.count, 2), np.dtype(">u8"))
        words[:, 0] = self._each(np.fromiter((batch.first_id >> 64 for _, batch in self._parts), np.uint64, count))
        low = np.fromiter((batch.first_id & _LOW_64 for _, batch in self._parts), np.uint64, count)
        before = (np.cumsum(self._counts) - self._counts).astype(np.uint64)
        # A producer's sequences never reach the upper half.
        lows = self._each(low - before) + np.arange(self.count, dtype=np.uint64)
        at = 0
        for _first, batch in self._parts:
            if batch.flags & IDS:
                lows[at : at + batch.count] = batch.id_deltas() + np.uint64(batch.first_id & _LOW_64)
            at += batch.count
        words[:, 1] = lows
        digits = _DIGITS[words.view(np.uint8)]
        offsets = np.arange(0, _ID_DIGITS * (self.count + 1), _ID_DIGITS, dtype=np.int32)
        return pa.Array.from_buffers(pa.string(), self.count, [None, pa.py_buffer(offsets), pa.py_buffer(digits)])

    def headers(self) -> pa.BinaryArray:
        """The encoded headers of each message, empty for none."""
        if self.sizes is None:
            return binary(np.zeros(self.count + 1, np.int32), b"")
        return self._sections().take(pa.array(np.arange(0, 2 * self.count, 2)))

    def bodies(self) -> pa.BinaryArray:
        """The body of each message; of a large one it is empty."""
        if self.sizes is None:
            return binary(self.offsets, self.data)
        return self._sections().take(pa.array(np.arange(1, 2 * self.count, 2)))

    def body_sizes(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Bytes of each body; of a large one 0."""
        sizes = np.diff(self.offsets)
        if self.sizes is not None:
            sizes -= self.sizes
        return sizes.astype(np.int64)

    def _sections(self) -> pa.BinaryArray:
        """Headers and body of each message in turn, without a copy."""
        edges = np.repeat(self.offsets, 2)[:-1]
        edges[1::2] += 0 if self.sizes is None else self.sizes
        return binary(edges, self.data)


def binary(offsets: np.ndarray[tuple[int], np.dtype[np.int32]], data: Buffer | pa.Buffer) -> pa.BinaryArray:
    """Pieces of a buffer, one after the other, without a copy."""
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
