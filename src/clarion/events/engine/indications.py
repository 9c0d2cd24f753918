"""The event indication queue: which recipients each recorded event is for, until it is handled (A-06).

Guarantees
    1. Bounded and allocated once: putting and releasing allocate nothing that grows.
    2. A mirror of what one section of persistent memory holds and is not yet handled: first in, first out, by the
       sequences of the section. After a crash it is filled again from there.

One word of 64 bits an event, one bit a recipient. Which runs of events a recipient is owed is found in numpy: some
nanoseconds an event, so ten recipients cost hardly more than one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clarion.errors import InternalFault

Runs = list[tuple[int, int]]


class IndicationQueue:
    """Events [first, next) of one section."""

    __slots__ = ("_words", "capacity", "first", "next")

    def __init__(self, capacity: int, first: int = 1) -> None:
        self.capacity = capacity
        self.first = self.next = first
        self._words = np.zeros(capacity, np.uint64)

    def __len__(self) -> int:
        return self.next - self.first

    @property
    def room(self) -> int:
        """How many events may still be put."""
        return self.capacity - (self.next - self.first)

    def put(self, bits: Sequence[int]) -> None:
        """The next events, in the order of the section: for whom each is; 0 for nobody (or lost)."""
        count = len(bits)
        if count > self.room:
            raise InternalFault(detail=f"{count} indications for {self.room} places")
        at = self.next % self.capacity
        words = np.array(bits, np.uint64)
        until = min(count, self.capacity - at)
        self._words[at : at + until] = words[:until]
        self._words[: count - until] = words[until:]
        self.next += count

    def release(self, floor: int) -> None:
        """Everything below `floor` is handled by all."""
        if floor > self.next:
            raise InternalFault(detail=f"released to {floor}, put to {self.next}")
        self.first = max(self.first, floor)

    def runs(self, slot: int, first: int, end: int) -> Runs:
        """The runs within [first, end) that the recipient in `slot` is owed."""
        found: Runs = []
        first, end = max(first, self.first), min(end, self.next)
        while first < end:
            at = first % self.capacity
            until = min(end, first + self.capacity - at)
            owed = (self._words[at : at + until - first] >> np.uint64(slot)) & np.uint64(1)
            edges = np.flatnonzero(np.diff(owed, prepend=0, append=0).astype(np.bool_)).tolist()
            for begin, finish in zip(edges[::2], edges[1::2], strict=True):
                if found and found[-1][1] == first + begin:
                    found[-1] = (found[-1][0], first + finish)
                else:
                    found.append((first + begin, first + finish))
            first = until
        return found

    def bits(self, at: int) -> int:
        """For whom one event is."""
        return int(self._words[at % self.capacity])
