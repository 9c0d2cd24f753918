"""Spans: disjoint half-open ranges of sequences, sorted, each with a value.

The state of a destination is kept per range, not per message; this is the one structure for it: what is
in flight with a consumer, what came back, how often it was returned, what a producer has sent.

Rules: spans never overlap and are never empty; touching spans of equal value are joined, so a
contiguous history costs one span. Operations cost a binary search plus the spans they touch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

_MERGED_MAX = 64
"""Spans that are looked at for each range of many, rather than put it alone."""


class Spans:
    """A sorted map from ranges of integers to small integers."""

    __slots__ = ("_ends", "_firsts", "_values")

    def __init__(self, spans: list[tuple[int, int, int]] | None = None) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._values: list[int] = []
        for first, end, value in spans or ():
            self.put(first, end, value)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        """How many spans, not how many integers."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return zip(self._firsts, self._ends, self._values, strict=True)

    @property
    def first(self) -> int:
        """The lowest integer; there must be one."""
        return self._firsts[0]

    def total(self) -> int:
        """How many integers."""
        return sum(self._ends) - sum(self._firsts)

    def put(self, first: int, end: int, value: int = 0) -> None:
        """Set [first, end) to `value`, whatever was there."""
        firsts, ends, values = self._firsts, self._ends, self._values
        if not firsts or first > ends[-1]:  # the usual case: the sequence goes on
            firsts.append(first)
            ends.append(end)
            values.append(value)
            return
        if first == ends[-1]:
            if value == values[-1]:
                ends[-1] = end
            else:
                firsts.append(first)
                ends.append(end)
                values.append(value)
            return
        self.take(first, end)
        at = bisect_right(firsts, first)
        if at and ends[at - 1] == first and values[at - 1] == value:
            at -= 1
            first = firsts[at]
            del firsts[at], ends[at], values[at]
        if at < len(firsts) and firsts[at] == end and values[at] == value:
            end = ends[at]
            del firsts[at], ends[at], values[at]
        firsts.insert(at, first)
        ends.insert(at, end)
        values.insert(at, value)

    def go_on(self, first: int, end: int, floor: int) -> bool:
        """`put` and `cut_below` at once, if there is just one span, of value 0, and it goes on; False if not so."""
        firsts, ends = self._firsts, self._ends
        if len(ends) != 1 or ends[0] != first or self._values[0] or not firsts[0] <= floor < end:
            return False
        firsts[0], ends[0] = floor, end
        return True

    def put_all(self, ranges: Sequence[tuple[int, int]]) -> None:
        """`put` for many ranges that ascend and lie apart; every value must be 0.

        One by one each would move all that follows it: quadratic, seconds for a batch with the most gaps.
        """
        firsts, ends = self._firsts, self._ends
        low = bisect_left(ends, ranges[0][0])
        high = bisect_right(firsts, ranges[-1][1])
        if high - low > _MERGED_MAX * len(ranges):
            for first, end in ranges:
                self.put(first, end)
            return
        joined_firsts: list[int] = []
        joined_ends: list[int] = []
        last = -1
        for first, end in sorted([*zip(firsts[low:high], ends[low:high], strict=True), *ranges]):
            if first > last or not joined_ends:
                joined_firsts.append(first)
                joined_ends.append(end)
                last = end
            elif end > last:
                joined_ends[-1] = last = end
        firsts[low:high] = joined_firsts
        ends[low:high] = joined_ends
        self._values[low:high] = [0] * len(joined_firsts)

    def take(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """Remove [first, end); what was there comes back as pieces."""
        firsts, ends, values = self._firsts, self._ends, self._values
        low = bisect_right(ends, first)
        high = low
        taken: list[tuple[int, int, int]] = []
        kept: list[tuple[int, int, int]] = []
        while high < len(firsts) and firsts[high] < end:
            span_first, span_end, value = firsts[high], ends[high], values[high]
            taken.append((max(span_first, first), min(span_end, end), value))
            if span_first < first:
                kept.append((span_first, first, value))
            if span_end > end:
                kept.append((end, span_end, value))
            high += 1
        if low != high:
            firsts[low:high] = [span[0] for span in kept]
            ends[low:high] = [span[1] for span in kept]
            values[low:high] = [span[2] for span in kept]
        return taken

    def overlap(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """The pieces inside [first, end), left where they are."""
        low = bisect_right(self._ends, first)
        pieces: list[tuple[int, int, int]] = []
        while low < len(self._firsts) and self._firsts[low] < end:
            pieces.append((max(self._firsts[low], first), min(self._ends[low], end), self._values[low]))
            low += 1
        return pieces

    def pieces(self, first: int, end: int, default: int = 0) -> Iterator[tuple[int, int, int]]:
        """[first, end) cut where the value changes; `default` where there is no span."""
        at = first
        for span_first, span_end, value in self.overlap(first, end):
            if at < span_first:
                yield at, span_first, default
            yield span_first, span_end, value
            at = span_end
        if at < end:
            yield at, end, default

    def update(self, first: int, end: int, change: Callable[[int], int], default: int = 0) -> None:
        """Replace the value of every integer of [first, end) by `change(value)`."""
        for piece_first, piece_end, value in list(self.pieces(first, end, default)):
            self.put(piece_first, piece_end, change(value))

    def cut_below(self, floor: int) -> None:
        """Forget everything below `floor`."""
        if self._firsts and self._firsts[0] < floor:
            if floor < self._ends[0]:  # the usual case: the floor moves within the oldest span
                self._firsts[0] = floor
            else:
                self.take(self._firsts[0], floor)

    def clear(self) -> None:
        """Remove everything."""
        self._firsts.clear()
        self._ends.clear()
        self._values.clear()
