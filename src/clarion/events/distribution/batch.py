"""What a pipeline gives out: a batch to deliver, and instructions for the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pyroaring import BitMap64

from clarion.events.distribution.lane import Lane, Range, runs_of


class Confirm(NamedTuple):
    """Record durably that these are settled for the recipient, then tell the pipeline (`recorded`).

    A range also covers what lies between and is not owed to this recipient, so that a ledger that merges ranges
    never holds more of them than there are gaps of events that are still owed.
    """

    section: int
    ranges: list[Range]
    events: int = 0
    """How many events were delivered by that: less than the ranges cover."""


class GiveUp(NamedTuple):
    """Record the event durably as dead, then tell the pipeline: `buried`; or `kept` if there was no room."""

    section: int
    at: int
    reason: str
    attempts: int


Instruction = Confirm | GiveUp


@dataclass(slots=True)
class Batch:
    """Events in flight. Index i of a result means the i-th of `events()`: parts in order, sequences ascending."""

    picks: list[tuple[Lane, BitMap64]]
    count: int

    @property
    def parts(self) -> list[tuple[int, list[Range]]]:
        """(section, runs of sequences) in the order of delivery; no section comes twice."""
        return [(lane.section, runs_of(picked)) for lane, picked in self.picks]

    def cut(self, indexes: Iterable[Range]) -> Iterator[tuple[Lane, BitMap64]]:
        """The parts that these ranges of indexes mean."""
        for first, end in indexes:
            start = 0
            for lane, picked in self.picks:
                low, high = max(first - start, 0), min(end - start, len(picked))
                if low < high:
                    yield lane, picked[low:high]
                start += len(picked)

    def events(self) -> list[tuple[int, int]]:
        """Every event as (section, at)."""
        return [(lane.section, at) for lane, picked in self.picks for at in picked]
