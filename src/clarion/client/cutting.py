"""Lists of messages cut into batches: pure, and without a step of Python for each message.

Guarantees
    1. A list that can be cut can be encoded, batch by batch: whatever is wrong with it raises here, before any of it
       is sent.
    2. A batch has at most `limits.BATCH_BYTES_TARGET` bytes of records, or is one message.
    3. Sequences of a batch lie within a producer's window. A batch whose sequences follow each other is an ordinary
       one, any other is sparse.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice, repeat
from operator import add, lt, sub

from clarion import ids, limits
from clarion.errors import BadArgument, MessageTooLarge
from clarion.wire import batch as wire
from clarion.wire.batch import Buffer

_COLUMNS_BYTES = 12
"""What a message takes besides its record: offset, size of its headers, time."""
_ID_BYTES = 4
"""And in a sparse batch: its id."""
_DELTA_MS_MAX = (1 << 32) - 1


class Messages:
    """Bodies, encoded headers, times and sequences of messages for one destination."""

    __slots__ = ("_bodies", "_columns_bytes", "_headers", "_name", "_sequences", "_times_ms", "cuts")

    def __init__(
        self,
        destination: bytes,
        bodies: Sequence[Buffer],
        headers: Sequence[bytes],
        times_ms: Sequence[int] | None,
        batch_bytes_max: int,
        sequences: int | Sequence[int] = 1,
    ) -> None:
        """`sequences`: the first one, if they follow each other. Raises `BadArgument` and `MessageTooLarge`."""
        self._name = destination
        self._bodies = bodies
        self._headers = headers
        self._times_ms = times_ms
        self._sequences = _checked(sequences, len(bodies))
        self._columns_bytes = _COLUMNS_BYTES
        if not isinstance(self._sequences, range):
            self._columns_bytes += _ID_BYTES
        self.cuts: list[tuple[int, int]] = []
        """Which messages [low, high) are a batch."""
        if not bodies:
            return
        try:
            headers_bytes_max, sizes = self._sizes()
            if times_ms is not None and not 0 <= min(times_ms) <= max(times_ms) < 1 << 63:
                raise BadArgument(argument="times_ms", detail="they are Unix milliseconds")
        except TypeError as error:
            raise BadArgument(argument="bodies", detail=str(error)) from None
        if headers_bytes_max > limits.HEADERS_BYTES_MAX:
            raise MessageTooLarge(size=headers_bytes_max, limit=limits.HEADERS_BYTES_MAX)
        room = batch_bytes_max - wire.HEADER_BYTES - len(destination) - 8
        if (largest := max(sizes)) > room - self._columns_bytes:
            raise MessageTooLarge(size=largest, limit=max(0, room - self._columns_bytes))
        self._cut(list(accumulate(sizes, initial=0)), room)

    def _sizes(self) -> tuple[int, list[int]]:
        """The longest headers, and the size of each record."""
        for argument, column in (("headers", self._headers), ("times_ms", self._times_ms)):
            if column is not None and len(column) != len(self._bodies):
                detail = f"there are {len(column)} of them for {len(self._bodies)} bodies"
                raise BadArgument(argument=argument, detail=detail)
        for body in {type(body) for body in self._bodies}:
            if not issubclass(body, bytes | bytearray | memoryview):
                raise BadArgument(argument="bodies", detail=f"one is a {body.__name__}, not bytes")
        sizes = list(map(len, self._headers))
        return max(sizes), list(map(add, sizes, map(len, self._bodies)))

    def _cut(self, ends: list[int], room: int) -> None:
        bytes_max = min(limits.BATCH_BYTES_TARGET, room // 2)
        count_max = max(1, min(limits.BATCH_MESSAGES_TARGET, room // 2 // self._columns_bytes))
        low, total = 0, len(ends) - 1
        while low < total:
            high = bisect_right(ends, ends[low] + bytes_max, low + 1, min(total, low + count_max) + 1) - 1
            high = self._soon_enough(low, self._near_enough(low, max(low + 1, high)))
            self.cuts.append((low, high))
            low = high

    def _near_enough(self, low: int, high: int) -> int:
        """A batch says sequences as differences to its first one; those beyond the window wait for its floor."""
        sequences = self._sequences
        if isinstance(sequences, range):
            return high
        return bisect_left(sequences, sequences[low] + limits.PRODUCER_WINDOW_MESSAGES, low + 1, high)

    def _soon_enough(self, low: int, high: int) -> int:
        """A batch says times as differences to its oldest message, which have their bound: 49 days."""
        if self._times_ms is not None:
            while high - low > 1:
                times_ms = self._times_ms[low:high]
                if max(times_ms) - min(times_ms) <= _DELTA_MS_MAX:
                    break
                high = low + (high - low) // 2
        return high

    @property
    def first(self) -> int:
        """The first sequence; there must be a message."""
        return self._sequences[0]

    def sequences(self, low: int, high: int) -> Sequence[int]:
        """Those of one batch of `cuts`: a `range` if they follow each other."""
        sequences = self._sequences
        if not isinstance(sequences, range) and sequences[high - 1] - sequences[low] == high - low - 1:
            return range(sequences[low], sequences[low] + high - low)
        return sequences[low:high]

    def encode(self, low: int, high: int, producer: int, now_ms: int) -> bytearray:
        """One batch of `cuts`. `now_ms` is for messages without a time."""
        sequences = self.sequences(low, high)
        headers, bodies = self._headers[low:high], self._bodies[low:high]
        created_ms, deltas_ms = now_ms, None
        if self._times_ms is not None:
            times_ms = self._times_ms[low:high]
            created_ms = min(times_ms)
            deltas_ms = list(map(sub, times_ms, repeat(created_ms)))
        return wire.encode(
            self._name,
            producer + sequences[0],
            bodies,
            headers if any(headers) else None,
            None,
            deltas_ms if deltas_ms is not None and any(deltas_ms) else None,
            created_ms=created_ms,
            id_deltas=None if isinstance(sequences, range) else list(map(sub, sequences, repeat(sequences[0]))),
        )


def _checked(sequences: int | Sequence[int], count: int) -> Sequence[int]:
    """Sequences that can be sent: a `range` if they follow each other. Raises `BadArgument`."""
    try:
        if isinstance(sequences, int):
            sequences = range(sequences, sequences + count)
        if len(sequences) != count:
            raise BadArgument(argument="sequences", detail=f"there are {len(sequences)} of them for {count} bodies")
        if not count:
            return range(0)
        first, last = sequences[0], sequences[-1]
        if not 1 <= first <= last <= ids.SEQUENCE_MAX:
            raise BadArgument(argument="sequences", detail=f"{first} to {last}: they are 1 to {ids.SEQUENCE_MAX}")
        if isinstance(sequences, range) and sequences.step == 1:
            return sequences
        if {*map(type, sequences)} != {int} or not all(map(lt, sequences, islice(sequences, 1, None))):
            raise BadArgument(argument="sequences", detail="they are integers, and ascend")
    except (TypeError, KeyError) as error:
        raise BadArgument(argument="sequences", detail=str(error)) from None
    # From here on a range is one that goes on by 1.
    return range(first, last + 1) if last - first == count - 1 else list(sequences)
