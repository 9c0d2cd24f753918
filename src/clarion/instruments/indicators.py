"""Indicators: instruments that show a value (C-01).

Guarantees
    1. Updating a static indicator costs well under a microsecond whether or not anybody watches, never
       blocks and never raises; it may be done from any thread (a tally: from one), and no update is lost.
    2. Reading one never disturbs its writers.
    3. A dynamic indicator costs nothing until it is read. Its procedure runs in the reader's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident

from .declaration import Declaration, Value

HISTOGRAM_SAMPLES = 1_024
"""A histogram looks at no more than its last so many samples …"""
HISTOGRAM_SECONDS = 60.0
"""… and at none older than this, so that a silent one does not show its past as its present."""


class Counter:
    """Static: a sum that only grows. Each thread adds in a cell of its own, so adding needs no lock."""

    __slots__ = ("_cells", "declaration")

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self._cells: dict[int, int] = {}

    def add(self, amount: int = 1) -> None:
        cells = self._cells
        thread = get_ident()
        try:
            cells[thread] += amount
        except KeyError:
            cells[thread] = amount

    def read(self) -> int:
        return sum(self._cells.copy().values())


class Tally:
    """Static: a sum that only grows, and that only one thread adds to: by `tally.total += amount`, without a call."""

    __slots__ = ("declaration", "total")

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.total = 0

    def read(self) -> int:
        return self.total


class Gauge:
    """Static: the last value that its owner set."""

    __slots__ = ("_value", "declaration")

    def __init__(self, declaration: Declaration, initial: Value) -> None:
        self.declaration = declaration
        self._value = initial

    def set(self, value: Value) -> None:
        self._value = value

    def read(self) -> Value:
        return self.declaration.typed(self._value)


class Indicator:
    """Dynamic: what a procedure says when asked. The procedure may raise; the registry reports that."""

    __slots__ = ("_procedure", "declaration")

    def __init__(self, declaration: Declaration, procedure: Callable[[], Value]) -> None:
        self.declaration = declaration
        self._procedure = procedure

    def read(self) -> Value:
        return self.declaration.typed(self._procedure())


@dataclass(frozen=True, slots=True)
class Summary:
    """What a histogram shows. Percentiles are samples that were recorded (nearest rank); 0 if there are none."""

    count: int
    p50: float
    p99: float
    max: float


class Histogram:
    """Static: the distribution of the recent samples."""

    __slots__ = ("_clock", "_samples", "_seconds", "declaration")

    def __init__(
        self,
        declaration: Declaration,
        clock: Callable[[], float],
        samples: int = HISTOGRAM_SAMPLES,
        seconds: float = HISTOGRAM_SECONDS,
    ) -> None:
        self.declaration = declaration
        self._clock = clock
        self._samples: deque[tuple[float, float]] = deque(maxlen=samples)
        self._seconds = seconds

    def record(self, value: float) -> None:
        self._samples.append((self._clock(), value))

    def read(self) -> Summary:
        oldest = self._clock() - self._seconds
        recent = sorted(value for at, value in self._samples.copy() if at >= oldest)
        if not recent:
            return Summary(0, 0, 0, 0)
        return Summary(len(recent), _nearest_rank(recent, 50), _nearest_rank(recent, 99), recent[-1])


def _nearest_rank(ordered: list[float], percent: int) -> float:
    return ordered[-(-len(ordered) * percent // 100) - 1]
