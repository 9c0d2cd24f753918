"""Events of another system in a section of ours: each once, until their origin says that they are settled.

Guarantees
    1. `store` returns when all its records are in the section, durable, each once: a record that is there already is
       not written again. So a sender that got no answer sends again.
    2. An event stays until its origin has released it. Space is given back in the order of the section.

Rule: one thread at a time. `store` can be called again after any error, `MemoryError` included, with the same
records: what was written before is recognised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import Protocol

from clarion import ids
from clarion.core.spans import Spans
from clarion.events.memory.layout import Recorded

from . import frames
from .frames import Held

READ_RECORDS = 1_024
READ_BYTES = 1 << 20


class ForeignSection(Protocol):
    """What a sink needs of `clarion.events.memory.ring.Section`."""

    @property
    def first_sequence(self) -> int: ...
    @property
    def next_sequence(self) -> int: ...
    def put_many(self, recorded: Sequence[Recorded], *, wait_s: float | None = 0.0) -> range: ...
    def read(self, first: int, count_max: int, bytes_max: int) -> Sequence[Recorded]: ...
    def release(self, sequence: int) -> None: ...


class Sink:
    """The section that holds one other system's events."""

    def __init__(self, section: ForeignSection) -> None:
        self.section = section
        self._held: dict[int, Spans] = {}
        self._floors: dict[int, int] = {}
        self._runs: deque[list[int]] = deque()
        """[producer, first origin sequence, first sequence here, count]: what the section holds, in its order."""
        self._indexed_to = section.first_sequence
        self._index_written()

    # --- storing ------------------------------------------------------------------------------------

    def store(self, records: list[memoryview]) -> int:
        """Make them durable here; returns the last sequence of the section."""
        if self._indexed_to < self.section.next_sequence:
            self._index_written()
        fresh: dict[tuple[int, int], Recorded] = {}
        for record in records:
            origin = frames.origin_of(record)
            if origin not in fresh and not self.holds(*origin):
                fresh[origin] = frames.recorded_of(record)
        # One call writes events of one routing epoch; nearly always there is but one.
        for _, together in groupby(fresh.values(), lambda event: (event.epoch, event.flags)):
            events = list(together)
            for at, event in zip(self.section.put_many(events), events, strict=True):
                self._index(event.producer, event.sequence, at)
                self._indexed_to = at + 1
        return self.section.next_sequence - 1

    def holds(self, producer: int, sequence: int) -> bool:
        """Whether this event is here, or was until it was settled."""
        if sequence < self._floors.get(producer, 0):
            return True
        spans = self._held.get(producer)
        return spans is not None and bool(spans.overlap(sequence, sequence + 1))

    def _index_written(self) -> None:
        """Take up what the section has and the index has not, because a call was interrupted between the two."""
        end = self.section.next_sequence
        while self._indexed_to < end:
            found = self.section.read(self._indexed_to, READ_RECORDS, READ_BYTES)
            if not found:
                self._indexed_to = end
                return
            for one in found:
                self._index(one.producer, one.sequence, one.at)
                self._indexed_to = one.at + 1

    def _index(self, producer: int, sequence: int, at: int) -> None:
        run = self._runs[-1] if self._runs else None
        if run is not None and run[0] == producer and run[1] + run[3] == sequence and run[2] + run[3] == at:
            run[3] += 1
        elif run is None or run[2] + run[3] <= at:
            self._runs.append([producer, sequence, at, 1])
        spans = self._held.get(producer)
        if spans is None:
            spans = self._held[producer] = Spans()
        spans.put(sequence, sequence + 1)

    # --- what is held -------------------------------------------------------------------------------

    def held(self, producer: int) -> Held:
        """From the floor, up to behind the last event of a section that is here: what comes next is wanted."""
        spans = self._held.get(producer)
        floor = self._floors.get(producer, 0)
        end = max((span[1] for span in spans), default=floor) if spans else floor
        return Held(producer, floor, max(end, floor, 1))

    def producers(self) -> list[int]:
        """Origins of which something is held."""
        return [producer for producer, spans in self._held.items() if spans]

    def places(self, producer: int, first: int, end: int) -> list[tuple[int, int]]:
        """Where events [first, end) of an origin lie in the section, as far as they are here. Any thread may ask."""
        found = []
        for origin, sequence, at, count in [tuple(run) for run in list(self._runs)]:
            low, high = max(first, sequence), min(end, sequence + count)
            if origin == producer and low < high:
                found.append((at + low - sequence, at + high - sequence))
        return found

    def count_of_others(self, memory: int) -> int:
        """How many events are here that come from another directory than this producer id. Any thread may ask."""
        node = ids.node_of(memory)
        return sum(count for producer, _, _, count in map(tuple, list(self._runs)) if ids.node_of(producer) != node)

    # --- letting go ---------------------------------------------------------------------------------

    def released(self, producer: int, floor: int) -> None:
        """The origin says that everything below `floor` is settled."""
        if floor <= self._floors.get(producer, 0):
            return
        self._floors[producer] = floor
        spans = self._held.get(producer)
        if spans is not None:
            spans.cut_below(floor)
        self._let_go()

    def forget(self, producer: int) -> None:
        """The origin says that this section of it is finished altogether."""
        spans = self._held.get(producer)
        if spans:
            self.released(producer, max(span[1] for span in spans))
        self._held.pop(producer, None)

    def _let_go(self) -> None:
        reached = 0
        while self._runs:
            producer, first, at, count = self._runs[0]
            settled = min(max(self._floors.get(producer, 0) - first, 0), count)
            if settled:
                reached = at + settled
            if settled < count:
                self._runs[0][1:] = [first + settled, at + settled, count - settled]
                break
            self._runs.popleft()
        if reached:
            self.section.release(reached)
