"""Which messages of each producer a destination has already stored, so that a resend is dropped.

Per producer a floor (everything below is settled at the client) and the spans stored above it. A
producer that has been silent longest is forgotten when there are too many; afterwards an unknown
producer that *resends* gets an error, because nobody can tell whether its messages were stored.

A resend need not be cut as the first time: `missing` says which messages of it are to be stored. Of a sparse batch
(`clarion.core.sparse`) exactly its sequences count: what is in its gaps is not stored by it, and may come later.

Changed only while log entries are applied, in log order: the same log gives the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from clarion import limits
from clarion.core.spans import Spans

Range = tuple[int, int]


class Verdict(Enum):
    """What is to be done with a batch."""

    NEW = "store it"
    DOUBLE = "it is stored: confirm again"
    FORGOTTEN = "nobody knows: refuse"
    TORN = "part of it is stored: the rest is missing"
    TOO_FAR = "it runs too far ahead of the oldest unsettled one"
    TOO_MANY = "with it there are too many gaps above the oldest unsettled one"


class _Producer:
    __slots__ = ("floor", "stored")

    def __init__(self, floor: int, stored: Spans) -> None:
        self.floor = floor
        self.stored = stored


class Producers:
    """The producers of one destination, the longest silent one first."""

    __slots__ = ("_known", "_maximum", "forgotten", "spans")

    def __init__(self, maximum: int = limits.PRODUCERS_PER_DESTINATION_MAX) -> None:
        self._known: dict[int, _Producer] = {}
        self._maximum = maximum
        self.forgotten = 0
        """How many producers were dropped for want of room, ever."""
        self.spans = 0
        """Spans that are remembered, of all producers: what a checkpoint has to hold."""

    def __len__(self) -> int:
        return len(self._known)

    def judge(self, producer: int, first: int, end: int, floor: int, resend: bool) -> Verdict:
        """What a batch [first, end) of this producer is; nothing changes."""
        known = self._known.get(producer)
        if known is None:
            if end - floor > limits.PRODUCER_WINDOW_MESSAGES:
                return Verdict.TOO_FAR
            return Verdict.FORGOTTEN if resend and self.forgotten else Verdict.NEW
        if end <= known.floor:
            return Verdict.DOUBLE
        # A producer that lost its memory says a floor that is too low; what it said before still holds.
        if end - max(floor, known.floor) > limits.PRODUCER_WINDOW_MESSAGES:
            return Verdict.TOO_FAR
        low = max(first, known.floor)
        overlap = known.stored.overlap(low, end)
        if not overlap and low == first:
            return Verdict.NEW
        return Verdict.DOUBLE if sum(e - f for f, e, _ in overlap) == end - low else Verdict.TORN

    def judge_runs(self, producer: int, runs: Sequence[Range], floor: int, resend: bool) -> Verdict:
        """What a sparse batch with these sequences is; nothing changes."""
        first, end = runs[0][0], runs[-1][1]
        # The span that covers it has the verdict of its bounds, and of it if nothing within is known.
        verdict = self.judge(producer, first, end, floor, resend)
        missing = runs
        if verdict is Verdict.TORN:
            missing = self.missing_runs(producer, runs)
            left = sum(missing_end - missing_first for missing_first, missing_end in missing)
            if not left:
                return Verdict.DOUBLE
            if left == sum(run_end - run_first for run_first, run_end in runs):
                verdict = Verdict.NEW
        if verdict is Verdict.NEW or verdict is Verdict.TORN:
            known = self._known.get(producer)
            if known is not None and len(known.stored) + len(missing) > limits.PRODUCER_SPANS_MAX:
                # What fills a gap joins its neighbours, and is always welcome.
                growth = sum(1 - len(known.stored.overlap(low - 1, high + 1)) for low, high in missing)
                if growth > 0 and len(known.stored) + growth > limits.PRODUCER_SPANS_MAX:
                    return Verdict.TOO_MANY
        return verdict

    def missing_runs(self, producer: int, runs: Sequence[Range]) -> list[Range]:
        """Which of the sequences of these runs are not stored, in order; nothing changes."""
        return [missing for first, end in runs for missing in self.missing(producer, first, end)]

    def missing(self, producer: int, first: int, end: int) -> list[Range]:
        """Which of [first, end) are not stored, in order; nothing changes."""
        known = self._known.get(producer)
        if known is None:
            return [(first, end)]
        missing: list[Range] = []
        at = max(first, known.floor)
        for stored_first, stored_end, _ in known.stored.overlap(at, end):
            if at < stored_first:
                missing.append((at, stored_first))
            at = stored_end
        if at < end:
            missing.append((at, end))
        return missing

    def record(self, producer: int, first: int, end: int, floor: int) -> None:
        """A batch was stored."""
        known = self._known.pop(producer, None)
        if known is None:
            known = _Producer(floor, Spans())
            if len(self._known) >= self._maximum:
                self.close(next(iter(self._known)))
                self.forgotten += 1
        self._known[producer] = known
        if floor >= known.floor and known.stored.go_on(first, end, floor):  # one message at a time
            known.floor = floor
            return
        before = len(known.stored)
        known.stored.put(first, end)
        if floor > known.floor:
            known.floor = floor
            known.stored.cut_below(floor)
        self.spans += len(known.stored) - before

    def record_runs(self, producer: int, runs: Sequence[Range], floor: int) -> None:
        """A sparse batch was stored; the floor is not above its first sequence."""
        self.record(producer, *runs[0], floor)
        if len(runs) > 1:
            stored = self._known[producer].stored
            before = len(stored)
            stored.put_all(runs[1:])
            self.spans += len(stored) - before

    def close(self, producer: int) -> None:
        """The producer said that nothing more will come."""
        known = self._known.pop(producer, None)
        if known is not None:
            self.spans -= len(known.stored)

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
            producers.spans += len(spans)
        return producers
