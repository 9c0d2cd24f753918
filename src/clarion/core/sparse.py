"""Sparse batches: the exact producer sequences of a batch whose ids do not follow each other.

They are runs [first, end), ascending, apart from each other and never empty; never the span that covers them, because
what is in a gap may come later, and is stored then.

Packed, as the head of a log entry has them: u32 how many runs, u32 bytes of a number (1, 2 or 4), then for each run how
many sequences are left out before it, and how many it has. Events of ten types in turn are 2 bytes a message.

Pure, and without a step of Python for each message.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from clarion import ids
from clarion.wire.batch import IDS, Batch, Buffer

Range = tuple[int, int]

_PACKED = struct.Struct("<II")


def sequence_runs(batch: Batch) -> list[Range]:
    """Which sequences of its producer the messages of a batch have."""
    first = ids.sequence_of(batch.first_id)
    if not batch.flags & IDS:
        return [(first, first + batch.count)]
    sequences = batch.id_deltas().astype(np.int64) + first
    starts = np.flatnonzero(np.diff(sequences, prepend=sequences[0] - 2) != 1)
    lasts = np.append(starts[1:], batch.count) - 1
    return list(zip(sequences[starts].tolist(), (sequences[lasts] + 1).tolist(), strict=True))


def places(batch: Batch, runs: Sequence[Range]) -> list[Range]:
    """Where the messages with these sequences, all of them in the batch, stand in it: ranges of indexes, joined."""
    first = ids.sequence_of(batch.first_id)
    if not batch.flags & IDS:
        return [(low - first, high - first) for low, high in runs]
    bounds = np.array(runs, np.int64).reshape(-1) - first
    at = np.searchsorted(batch.id_deltas().astype(np.int64), bounds)
    lows, highs = at[0::2], at[1::2]
    begins = np.flatnonzero(np.append(True, lows[1:] != highs[:-1]))
    ends = np.append(begins[1:], len(lows)) - 1
    return list(zip(lows[begins].tolist(), highs[ends].tolist(), strict=True))


def pack_runs(runs: Sequence[Range]) -> bytes:
    """The inverse of `unpack_runs`."""
    bounds = np.array(runs, np.int64).reshape(-1)
    steps = np.diff(bounds, prepend=bounds[0])  # left out, in the run, left out …
    largest = int(steps.max())
    size = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
    return _PACKED.pack(len(runs), size) + steps.astype(np.dtype(f"<u{size}")).tobytes()


def unpack_runs(first: int, packed: Buffer) -> list[Range]:
    """Runs of sequences, the first of which is `first`."""
    count, size = _PACKED.unpack_from(packed)
    steps = np.frombuffer(packed, np.dtype(f"<u{size}"), 2 * count, _PACKED.size)
    bounds = first + np.cumsum(steps, dtype=np.int64)
    return list(zip(bounds[0::2].tolist(), bounds[1::2].tolist(), strict=True))
