"""Which messages of each producer a destination has already stored, so that a resend is dropped.

Per producer a floor (everything below is settled at the client) and the spans stored above it. A
producer that has been silent longest is forgotten when there are too many; afterwards an unknown
producer that *resends* gets an error, because nobody can tell whether its messages were stored.

Changed only while log entries are applied, in log order: the same log gives the same memory.
"""

from __future__ import annotations

from enum import Enum

from clarion import limits
from clarion.core.spans import Spans


class Verdict(Enum):
    """What is to be done with a batch."""

    NEW = "store it"
    DOUBLE = "it is stored: confirm again"
    FORGOTTEN = "nobody knows: refuse"
    TORN = "part of it is stored: no honest client does that"
    TOO_FAR = "it runs too far ahead of the oldest unsettled one"


class _Producer:
    __slots__ = ("floor", "stored")

    def __init__(self, floor: int, stored: Spans) -> None:
        self.floor = floor
        self.stored = stored


class Producers:
    """The producers of one destination, the longest silent one first."""

    __slots__ = ("_known", "_maximum", "forgotten")

    def __init__(self, maximum: int = limits.PRODUCERS_PER_DESTINATION_MAX) -> None:
        self._known: dict[int, _Producer] = {}
        self._maximum = maximum
        self.forgotten = 0
        """How many producers were dropped for want of room, ever."""

    def __len__(self) -> int:
        return len(self._known)

    def judge(self, producer: int, first: int, end: int, floor: int, resend: bool) -> Verdict:
        """What a batch [first, end) of this producer is; nothing changes."""
        known = self._known.get(producer)
        if end - floor > limits.PRODUCER_WINDOW_MESSAGES:
            return Verdict.TOO_FAR
        if known is None:
            return Verdict.FORGOTTEN if resend and self.forgotten else Verdict.NEW
        if end <= known.floor:
            return Verdict.DOUBLE
        if first < known.floor:
            return Verdict.TORN
        overlap = known.stored.overlap(first, end)
        if not overlap:
            return Verdict.NEW
        return Verdict.DOUBLE if sum(e - f for f, e, _ in overlap) == end - first else Verdict.TORN

    def record(self, producer: int, first: int, end: int, floor: int) -> None:
        """A batch was stored."""
        known = self._known.pop(producer, None)
        if known is None:
            known = _Producer(floor, Spans())
            if len(self._known) >= self._maximum:
                del self._known[next(iter(self._known))]
                self.forgotten += 1
        self._known[producer] = known
        known.stored.put(first, end)
        if floor > known.floor:
            known.floor = floor
            known.stored.cut_below(floor)

    def close(self, producer: int) -> None:
        """The producer said that nothing more will come."""
        self._known.pop(producer, None)

    def dump(self) -> list[object]:
        """For a checkpoint: in order, so that forgetting goes on the same way."""
        return [
            self.forgotten,
            [
                (producer.to_bytes(16, "big"), known.floor, list(known.stored))
                for producer, known in self._known.items()
            ],
        ]

    @classmethod
    def load(cls, dumped: list[object]) -> Producers:
        """The inverse of `dump`."""
        producers = cls()
        forgotten, known = dumped
        assert isinstance(forgotten, int)
        assert isinstance(known, list)
        producers.forgotten = forgotten
        for identity, floor, stored in known:
            spans = Spans([(first, end, value) for first, end, value in stored])
            producers._known[int.from_bytes(identity, "big")] = _Producer(floor, spans)
        return producers
