"""The set of confirmed sequences of one subscription: a floor and a roaring bitmap above it.

Everything below the floor is confirmed, the floor itself never is (unless it is the tail). In-order
consumption moves only the floor; out-of-order confirmations cost bits until the gap below closes.
"""

from __future__ import annotations

from pyroaring import BitMap64


class Confirmed:
    """A floor plus a bitmap of what is confirmed above it."""

    __slots__ = ("_bits", "floor")

    def __init__(self, floor: int, bits: bytes | None = None) -> None:
        self.floor = floor
        self._bits: BitMap64 = BitMap64() if bits is None else BitMap64.deserialize(bits)

    def serialize(self) -> bytes:
        """The bitmap for a checkpoint; the floor goes beside it."""
        return bytes(self._bits.serialize())

    def add(self, first: int, end: int) -> int:
        """Confirm [first, end); how many were not confirmed before."""
        if first <= self.floor:
            if end <= self.floor:
                return 0
            if not self._bits:
                fresh = end - self.floor
                self.floor = end
                return fresh
            first = self.floor
        fresh = end - first - int(self._bits.range_cardinality(first, end))
        if first == self.floor:
            self.floor = self._run_end(end)
            self._bits.remove_range(first, self.floor)
        else:
            self._bits.add_range(first, end)
        return fresh

    def covers(self, first: int, end: int) -> bool:
        """Is all of [first, end) confirmed?"""
        if end <= self.floor:
            return True
        return bool(self._bits) and bool(self._bits.contains_range(max(first, self.floor), end))

    def count(self, first: int, end: int) -> int:
        """How many of [first, end) are confirmed."""
        below = max(0, min(end, self.floor) - first)
        first = max(first, self.floor)
        return below + (int(self._bits.range_cardinality(first, end)) if first < end and self._bits else 0)

    def gap(self, first: int, end: int) -> tuple[int, int] | None:
        """The first run of unconfirmed sequences inside [first, end)."""
        first = max(first, self.floor)
        if self._bits:
            first = self._run_end(first)
        if first >= end:
            return None
        if not self._bits:
            return first, end
        try:
            return first, min(end, int(self._bits.next_set_bit(first)))
        except ValueError:
            return first, end

    def gaps(self, first: int, end: int) -> list[tuple[int, int]]:
        """All runs of unconfirmed sequences inside [first, end)."""
        runs: list[tuple[int, int]] = []
        while (run := self.gap(first, end)) is not None:
            runs.append(run)
            first = run[1]
        return runs

    def _run_end(self, at: int) -> int:
        """The first integer from `at` on that has no bit: doubling, then halving; O(log run)."""
        bits = self._bits
        if at not in bits:
            return at
        step = 1
        while bits.contains_range(at, at + step):
            at += step
            step *= 2
        while step > 1:
            step //= 2
            if bits.contains_range(at, at + step):
                at += step
        return at
