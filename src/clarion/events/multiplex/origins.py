"""Which events of other systems a multiplexer has, or had: so that one that is sent again is known.

Theory of operation
    An event is known by its origin, the producer where it was emitted and its sequence there. It is *held* while it is
    in persistent memory here, then *complete*. The complete ones are kept as ranges; those of a producer that sends
    everything are one range. A sender that filters leaves gaps: it says below which sequence it will send nothing
    again. When there are many ranges, those are forgotten that lie below what all ways say by which the events of the
    producer came.

    Values of the ledger keep the complete ones, `BUCKETS` of them, each with the producers whose number falls to it. An
    event leaves persistent memory only when the value that knows it is durable (`outcomes`). So what was stored is in
    the section, or in the ledger, or in both, at every moment.

Guarantees
    1. What was not put is never known: nothing is mistaken for a double. Where there are too many gaps or producers,
       the oldest are forgotten, and an event of those that comes again is delivered again, under its id.
    2. A method has done all of its work or nothing of it when it raises `MemoryError`.
    3. Any thread may call any method.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import msgspec

from clarion import limits

HELD = 0
COMPLETE = 1
BUCKETS = 64
RANGES_KEPT = 1_024
"""Of a producer, whatever it says that it will not send again."""
WAYS_MAX = 16
RANGES_MAX = 4_096
_FORGET_EVERY = 128

Piece = tuple[int, int, int]
"""Sequences [first, end) and their state."""

_Row = tuple[bytes, list[int]]
"""Producer, and bounds of ranges as distances from one to the next."""
_decoder = msgspec.msgpack.Decoder(list[_Row])
_encode = msgspec.msgpack.Encoder().encode
_ROWS_BYTES = 8


def bucket_of(producer: int) -> int:
    """Which value of the ledger knows this producer."""
    return ((producer >> 48) * 0x9E3779B97F4A7C15 >> 40) % BUCKETS


class Origins:
    """See the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: dict[int, list[Piece]] = {}
        self._ways: dict[int, dict[int, int]] = {}
        """By producer: ways by which its events come, and below what nothing comes that way again."""
        self._used: dict[int, int] = {}
        """When a producer completed something last, as a number that grows."""
        self._use = 0

    def producers(self) -> list[int]:
        """Of whom something is, or was, here."""
        with self._lock:
            return list(self._pieces)

    # --- states -------------------------------------------------------------------------------------

    def state(self, producer: int, sequence: int) -> int | None:
        """`HELD`, `COMPLETE`, or None for what is not known."""
        pieces = self._pieces.get(producer)
        if not pieces or sequence >= pieces[-1][1]:
            return None
        with self._lock:
            at = bisect_right(pieces, sequence, key=_end)
            return pieces[at][2] if at < len(pieces) and pieces[at][0] <= sequence else None

    def pieces(self, producer: int, first: int, end: int) -> list[tuple[int, int, int | None]]:
        """[first, end) cut where the state changes."""
        found: list[tuple[int, int, int | None]] = []
        with self._lock:
            pieces = self._pieces.get(producer, ())
            at = first
            for number in range(bisect_right(pieces, first, key=_end), len(pieces)):
                begin, until, state = pieces[number]
                if begin >= end:
                    break
                if at < begin:
                    found.append((at, begin, None))
                found.append((max(begin, first), min(until, end), state))
                at = found[-1][1]
        if at < end:
            found.append((at, end, None))
        return found

    def hold(self, producer: int, first: int, end: int) -> None:
        """These are in persistent memory now."""
        with self._lock:
            pieces = self._pieces.get(producer)
            if pieces is None:
                self._pieces[producer] = [(first, end, HELD)]
            else:
                _put(pieces, first, end, HELD)

    def complete(self, producer: int, first: int, end: int) -> None:
        """All recipients have these, durably."""
        with self._lock:
            pieces = self._pieces.get(producer)
            if pieces is None:
                pieces = self._pieces[producer] = []
            _put(pieces, first, end, COMPLETE)
            self._use += 1
            self._used[producer] = self._use
            if len(pieces) > RANGES_KEPT and self._use % _FORGET_EVERY == 0:
                self._forget(producer, pieces)

    def _forget(self, producer: int, pieces: list[Piece]) -> None:
        floor = self._floor(producer)
        pieces[:] = [piece for piece in pieces if piece[2] == HELD or piece[1] > floor]
        surplus = sum(piece[2] == COMPLETE for piece in pieces) - RANGES_MAX
        if surplus > 0:
            kept = [piece for number, piece in enumerate(pieces) if piece[2] == HELD or number >= surplus]
            pieces[:] = kept

    # --- floors -------------------------------------------------------------------------------------

    def comes(self, producer: int, way: int) -> None:
        """Events of this producer come by this way."""
        ways = self._ways.get(producer)
        if ways is not None and way in ways:
            return
        with self._lock:
            ways = self._ways.setdefault(producer, {})
            if len(ways) < WAYS_MAX:
                ways[way] = 0
            else:
                ways[next(iter(ways))] = 0  # one for all others, of which nothing is known

    def will_not_come(self, producer: int, way: int, floor: int) -> None:
        """By this way nothing below `floor` comes again. By others it may: nothing is refused because of it."""
        with self._lock:
            ways = self._ways.get(producer)
            if ways is not None and floor > ways.get(way, floor):
                ways[way] = floor

    def _floor(self, producer: int) -> int:
        return min(self._ways.get(producer, {}).values(), default=0)

    def floor(self, producer: int) -> int:
        """Nothing of this producer below it will go on from here, unless it comes by a new way; 0: not known."""
        with self._lock:
            floor = self._floor(producer)
            for first, _, state in self._pieces.get(producer, ()):
                if state == HELD:
                    return min(floor, first)
            return floor

    def __contains__(self, producer: object) -> bool:
        """Something of this producer is known."""
        return producer in self._pieces

    def __len__(self) -> int:
        """Producers that are known."""
        return len(self._pieces)

    # --- durable ------------------------------------------------------------------------------------

    def dump(self, bucket: int, bytes_max: int = limits.EVENT_VALUE_BYTES_MAX) -> bytes:
        """What is complete of the producers of a bucket. If not all fit, those unused for longest are forgotten."""
        with self._lock:
            members = [producer for producer in self._pieces if bucket_of(producer) == bucket]
            members.sort(key=lambda producer: self._used.get(producer, 0), reverse=True)
            rows: list[bytes] = []
            size = _ROWS_BYTES
            for producer in members:
                row = _encode(self._row(producer, self._pieces[producer]))
                if size + len(row) > bytes_max:
                    self._drop(producer)
                    continue
                rows.append(row)
                size += len(row)
        return b"\xdd" + len(rows).to_bytes(4, "big") + b"".join(rows)

    def _row(self, producer: int, pieces: list[Piece]) -> _Row:
        distances: list[int] = []
        reached = 0
        for first, end, state in pieces:
            if state == COMPLETE:
                distances += (first - reached, end - first)
                reached = end
        return producer.to_bytes(16, "big"), distances

    def _drop(self, producer: int) -> None:
        held = [piece for piece in self._pieces[producer] if piece[2] == HELD]
        if held:
            self._pieces[producer] = held
            return
        for known in (self._pieces, self._ways, self._used):
            known.pop(producer, None)

    def load(self, value: bytes) -> None:
        """What `dump` made, beside what is known already. Raises `msgspec.MsgspecError` for anything else."""
        for identity, distances in _decoder.decode(value):
            producer = int.from_bytes(identity, "big")
            with self._lock:
                pieces = self._pieces.setdefault(producer, [])
                for first, end in _ranges(distances):
                    _put(pieces, first, end, COMPLETE)


def _end(piece: Piece) -> int:
    return piece[1]


def _ranges(distances: list[int]) -> Iterator[tuple[int, int]]:
    reached = 0
    for gap, size in zip(distances[::2], distances[1::2], strict=True):
        yield reached + gap, reached + gap + size
        reached += gap + size


def _put(pieces: list[Piece], first: int, end: int, state: int) -> None:
    """Set [first, end) to a state, whatever was there. One assignment changes the list."""
    if not pieces or first > pieces[-1][1]:
        pieces.append((first, end, state))
        return
    last = pieces[-1]
    if first == last[1]:
        if state == last[2]:
            pieces[-1] = (last[0], end, state)
        else:
            pieces.append((first, end, state))
        return
    low = bisect_left(pieces, first, key=_end)
    high = bisect_right(pieces, end, key=_first)
    fresh: list[Piece] = []
    begin, until = first, end
    before, after = pieces[low], pieces[high - 1] if high > low else pieces[low]
    if before[0] < first:
        if before[2] == state:
            begin = before[0]
        else:
            fresh.append((before[0], min(before[1], first), before[2]))
    if after[1] > end and after[0] <= end:
        if after[2] == state:
            until = after[1]
            after = (until, until, state)
        else:
            after = (end, after[1], after[2])
    else:
        after = (0, 0, state)
    fresh.append((begin, until, state))
    if after[0] < after[1]:
        fresh.append(after)
    pieces[low:high] = fresh


def _first(piece: Piece) -> int:
    return piece[0]
