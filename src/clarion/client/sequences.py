"""Sets of sequences, most of which follow each other while others come with gaps. Pure.

What follows each other is kept as spans. What is of a sparse batch is kept as numbers: that is 0.1 us a message, and a
span for each would be ten times as much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from clarion.core.spans import Spans

STORED_MAX = 65_536
"""Spans, and numbers, above a floor. With more gaps than that the floor waits until it is told to rise."""


class Flying:
    """Sequences that are on their way. A `range` is a batch of its own, anything else one with gaps."""

    __slots__ = ("_single", "_spans")

    def __init__(self) -> None:
        self._spans = Spans()
        self._single: set[int] = set()

    def meets(self, sequences: Sequence[int]) -> bool:
        """Is one of these, which ascend, on its way?"""
        if self._single and not self._single.isdisjoint(sequences):
            return True
        for first, end, _ in self._spans.overlap(sequences[0], sequences[-1] + 1):
            at = bisect_left(sequences, first)
            if at < len(sequences) and sequences[at] < end:
                return True
        return False

    def add(self, sequences: Sequence[int]) -> None:
        """They leave; none of them is on its way."""
        if isinstance(sequences, range):
            self._spans.put(sequences.start, sequences.stop)
        else:
            self._single.update(sequences)

    def remove(self, sequences: Sequence[int]) -> None:
        """They are answered, or come back: exactly those of one `add`."""
        if isinstance(sequences, range):
            self._spans.take(sequences.start, sequences.stop)
        else:
            self._single.difference_update(sequences)


class Stored:
    """A floor, and the sequences above it that are stored. It may forget those, so the floor may be too low: never
    too high."""

    __slots__ = ("_single", "_spans", "floor")

    def __init__(self) -> None:
        self._spans = Spans()
        self._single: set[int] = set()
        """May hold some that are below the floor."""
        self.floor = 1
        """Everything below is stored, or was given up."""

    def add(self, sequences: Sequence[int]) -> None:
        """These, which ascend, are stored."""
        if sequences[-1] < self.floor:
            return
        if isinstance(sequences, range):
            self._spans.put(max(sequences.start, self.floor), sequences.stop)
        else:
            self._single.update(sequences)

    def rise(self, floor: int = 1) -> None:
        """The floor goes to `floor`, if it is lower, and on over what is stored as far as there is no gap."""
        if floor > self.floor:
            self.floor = floor
            self._spans.cut_below(floor)
        single = self._single
        while True:
            if self._spans and self._spans.first <= self.floor:
                _first, end, _value = next(iter(self._spans))
                self.floor = max(self.floor, end)
                self._spans.cut_below(self.floor)
            elif self.floor in single:
                single.discard(self.floor)
                self.floor += 1
            else:
                break
        if len(self._spans) > STORED_MAX:
            self._spans.clear()
        if len(single) > STORED_MAX:
            above = {sequence for sequence in single if sequence > self.floor}
            self._single = above if len(above) <= STORED_MAX // 2 else set()
