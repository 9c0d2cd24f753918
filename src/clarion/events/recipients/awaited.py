"""Events that are safe at a multiplexer and not confirmed by all behind it: which delivery each belongs to.

Pure. An event is known by its origin (producer, sequence); a delivery by its `Later` and the index of the event in it.
Costs a small object for each run of events that follow each other, not for each event.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from clarion.events.memory.layout import Recorded
from clarion.events.recipients.base import Later

Run = tuple[int, int, Later, int]
"""Sequences [first, end), the delivery they belong to, and the index of the first one in it."""
Taken = list[tuple[Later, list[tuple[int, int]]]]
"""Deliveries, and ranges of indexes in them."""


class Awaited:
    """See the module."""

    def __init__(self) -> None:
        self._runs: dict[int, list[Run]] = {}
        """By producer, ascending, without overlaps."""
        self.count = 0

    def add(self, records: Sequence[Recorded], later: Later) -> None:
        """These events, in this order, belong to a delivery."""
        start = 0
        for index in range(1, len(records) + 1):
            first, last = records[start], records[index - 1]
            if index < len(records):
                following = records[index]
                if following.producer == first.producer and following.sequence == last.sequence + 1:
                    continue
            self._add(first.producer, first.sequence, last.sequence + 1, later, start)
            start = index

    def _add(self, producer: int, first: int, end: int, later: Later, index: int) -> None:
        self.take(producer, first, end)  # an event that is delivered again belongs to its last delivery
        runs = self._runs.setdefault(producer, [])
        runs.insert(bisect_right(runs, first, key=_first), (first, end, later, index))
        self.count += end - first

    def take(self, producer: int, first: int, end: int) -> Taken:
        """No longer awaited: those of [first, end) that were."""
        runs = self._runs.get(producer)
        if not runs:
            return []
        low = bisect_right(runs, first, key=_end)
        high = low
        taken: Taken = []
        kept: list[Run] = []
        while high < len(runs) and runs[high][0] < end:
            begin, until, later, index = runs[high]
            from_, to = max(begin, first), min(until, end)
            taken.append((later, [(index + from_ - begin, index + to - begin)]))
            self.count -= to - from_
            if begin < from_:
                kept.append((begin, from_, later, index))
            if to < until:
                kept.append((to, until, later, index + to - begin))
            high += 1
        runs[low:high] = kept
        if not runs:
            del self._runs[producer]
        return taken

    def drop(self, later: Later) -> None:
        """A delivery failed: nothing of it is awaited."""
        for producer in list(self._runs):
            kept = [run for run in self._runs[producer] if run[2] is not later]
            self.count -= sum(run[1] - run[0] for run in self._runs[producer] if run[2] is later)
            if kept:
                self._runs[producer] = kept
            else:
                del self._runs[producer]

    def ranges(self) -> list[tuple[int, int, int]]:
        """(producer, first, end) of everything that is awaited."""
        found: list[tuple[int, int, int]] = []
        for producer, runs in self._runs.items():
            for first, end, _, _ in runs:
                if found and found[-1][0] == producer and found[-1][2] == first:
                    found[-1] = producer, found[-1][1], end
                else:
                    found.append((producer, first, end))
        return found


def _first(run: Run) -> int:
    return run[0]


def _end(run: Run) -> int:
    return run[1]
