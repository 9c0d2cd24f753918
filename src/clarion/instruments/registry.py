"""All instruments of one node or process: declared by one line each, read by pattern (C-01, C-02).

Guarantees
    1. A name is declared once; a second declaration is refused.
    2. `sense` never raises: an instrument whose procedure fails is reported unavailable, with the error.
    3. Arming is by name and may come before or after the declaration; a name that nobody declared until
       the end of start-up is found by `check_all_armed`. So no fault test passes because of a typing error.
    4. Any thread may declare, sense, arm.

A registry belongs to one node, so that several nodes can live in one process. Nothing here knows of networks:
exporters are built on `declarations`, `sense` and `modify`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from threading import Lock
from typing import Protocol, TypeVar

from clarion.errors import BadName, BadSetting, RequestError

from .arming import Arming, parse, parse_environment
from .controls import Control, DynamicControl, V
from .declaration import Declaration, Kind, Value, ValueType
from .indicators import HISTOGRAM_SAMPLES, HISTOGRAM_SECONDS, Counter, Gauge, Histogram, Indicator, Summary, Tally
from .points import TestPoint


class Instrument(Protocol):
    """What all instruments have in common. `read` of a dynamic one may raise."""

    @property
    def declaration(self) -> Declaration: ...

    def read(self) -> Value | Summary: ...


AnyInstrument = TypeVar("AnyInstrument", bound=Instrument)


@dataclass(frozen=True, slots=True)
class Reading:
    """One instrument's value at one moment, or why there is none."""

    name: str
    value: Value | Summary | None
    error: str | None = None

    @property
    def available(self) -> bool:
        return self.error is None


class Registry:
    """The instruments of one node. `clock` (monotonic seconds) ages the samples of histograms."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._instruments: dict[str, Instrument] = {}
        self._undeclared: list[Arming] = []

    # --- declaring --------------------------------------------------------------------------------

    def counter(self, name: str, *, unit: str, meaning: str) -> Counter:
        """A static indicator that only grows: `add(n)`."""
        declaration = Declaration(name, Kind.INDICATOR, ValueType.INTEGER, unit, meaning, 0, cumulative=True)
        return self._add(Counter(declaration))

    def tally(self, name: str, *, unit: str, meaning: str) -> Tally:
        """A counter for one thread and for hot paths: `total += n`."""
        declaration = Declaration(name, Kind.INDICATOR, ValueType.INTEGER, unit, meaning, 0, cumulative=True)
        return self._add(Tally(declaration))

    def gauge(self, name: str, *, initial: Value = 0, unit: str, meaning: str) -> Gauge:
        """A static indicator of the last value: `set(value)`, of the type of `initial`."""
        return self._add(Gauge(Declaration(name, Kind.INDICATOR, ValueType.of(initial), unit, meaning), initial))

    def indicator(
        self,
        name: str,
        *,
        read: Callable[[], Value],
        unit: str,
        meaning: str,
        value_type: ValueType = ValueType.NUMBER,
    ) -> Indicator:
        """A dynamic indicator: `read` is called, in the watcher's thread, when somebody asks."""
        return self._add(Indicator(Declaration(name, Kind.INDICATOR, value_type, unit, meaning, dynamic=True), read))

    def histogram(
        self,
        name: str,
        *,
        unit: str,
        meaning: str,
        samples: int = HISTOGRAM_SAMPLES,
        seconds: float = HISTOGRAM_SECONDS,
    ) -> Histogram:
        """A static indicator of the distribution of what was recorded lately: `record(value)`."""
        declaration = Declaration(name, Kind.INDICATOR, ValueType.SUMMARY, unit, meaning)
        return self._add(Histogram(declaration, self._clock, samples, seconds))

    def control(
        self,
        name: str,
        *,
        default: V,
        minimum: V | None = None,
        maximum: V | None = None,
        unit: str,
        meaning: str,
    ) -> Control[V]:
        """A static control: read `.value`, change by `.set(value)`."""
        value_type = ValueType.of(default, minimum, maximum)
        low, high = _bound(name, minimum), _bound(name, maximum)
        declaration = Declaration(name, Kind.CONTROL, value_type, unit, meaning, low, high)
        return self._add(Control(declaration, default))

    def dynamic_control(
        self,
        name: str,
        *,
        read: Callable[[], Value],
        write: Callable[[Value], None],
        value_type: ValueType = ValueType.NUMBER,
        minimum: int | float | None = None,
        maximum: int | float | None = None,
        unit: str,
        meaning: str,
    ) -> DynamicControl:
        """A control whose value lives elsewhere: `write` gets values that were checked."""
        declaration = Declaration(name, Kind.CONTROL, value_type, unit, meaning, minimum, maximum, dynamic=True)
        return self._add(DynamicControl(declaration, read, write))

    def test_point(self, name: str, *, meaning: str) -> TestPoint:
        """A place that does nothing until it is armed: `point()`."""
        declaration = Declaration(name, Kind.TEST_POINT, ValueType.INTEGER, "firings", meaning, 0, cumulative=True)
        point = self._add(TestPoint(declaration))
        with self._lock:
            waiting = [arming for arming in self._undeclared if arming.name == name]
            self._undeclared = [arming for arming in self._undeclared if arming.name != name]
        for arming in waiting:
            point.arm(arming)
        return point

    def _add(self, instrument: AnyInstrument) -> AnyInstrument:
        name = instrument.declaration.name
        with self._lock:
            if name in self._instruments:
                raise BadName(name=name, detail="an instrument of this name is declared already")
            _check_points(instrument.declaration, [arming for arming in self._undeclared if arming.name == name])
            self._instruments[name] = instrument
        return instrument

    # --- watching and steering --------------------------------------------------------------------

    def declarations(self, pattern: str = "*") -> list[Declaration]:
        """What is declared, by name; `pattern` is a glob over names."""
        return [instrument.declaration for instrument in self._matching(pattern)]

    def sense(self, pattern: str = "*") -> dict[str, Reading]:
        """The values of all instruments whose name matches the glob, by name."""
        return {instrument.declaration.name: _read(instrument) for instrument in self._matching(pattern)}

    def modify(self, name: str, value: Value) -> None:
        """Set the control `name`."""
        instrument = self.instrument(name)
        if not isinstance(instrument, Control | DynamicControl):
            raise RequestError(detail=f"{name} is {_article(instrument.declaration.kind)}, not a control")
        instrument.set(value)

    def instrument(self, name: str) -> Instrument:
        found = self._instruments.get(name)
        if found is None:
            raise RequestError(detail=f"there is no instrument {name}")
        return found

    def point(self, name: str) -> TestPoint:
        """The test point `name`."""
        found = self.instrument(name)
        if not isinstance(found, TestPoint):
            raise RequestError(detail=f"{name} is {_article(found.declaration.kind)}, not a test point")
        return found

    def _matching(self, pattern: str) -> list[Instrument]:
        with self._lock:
            names = sorted(name for name in self._instruments if fnmatchcase(name, pattern))
            return [self._instruments[name] for name in names]

    # --- arming -----------------------------------------------------------------------------------

    def arm(self, arming: Arming | str, *, file: str = "code") -> None:
        """Arm a point, by text or by `Arming`; `file` is where the text was written.

        If the point is not declared yet, it is armed when it is."""
        if isinstance(arming, str):
            arming = parse(arming, file)
        with self._lock:
            found = self._instruments.get(arming.name)
            if found is None:
                self._undeclared.append(arming)
                return
            _check_points(found.declaration, [arming])
        self.point(arming.name).arm(arming)

    def arm_all(self, texts: Iterable[str], *, file: str) -> None:
        """The setting `[instruments] arm`. All texts are understood before the first is armed."""
        for arming in [parse(text, file) for text in texts]:
            self.arm(arming)

    def arm_from(self, environment: Mapping[str, str]) -> None:
        """The variable CLARION_ARM of `environment`, if it is set."""
        for arming in parse_environment(environment):
            self.arm(arming)

    def check_all_armed(self) -> None:
        """At the end of start-up: raises `BadSetting` that names every armed point that nobody declared."""
        with self._lock:
            undeclared = list(self._undeclared)
        if undeclared:
            names = ", ".join(sorted({arming.name for arming in undeclared}))
            files = ", ".join(sorted({arming.file for arming in undeclared}))
            raise BadSetting(file=files, detail=f"there is no test point {names}")


def _read(instrument: Instrument) -> Reading:
    name = instrument.declaration.name
    try:
        return Reading(name, instrument.read())
    except Exception as error:  # whatever a procedure does, its watcher goes on
        return Reading(name, None, _describe(error))


def _describe(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _bound(name: str, bound: Value | None) -> int | float | None:
    if isinstance(bound, str):
        raise RequestError(detail=f"{name} is text, which has no minimum or maximum")
    return bound


def _check_points(declaration: Declaration, armings: Iterable[Arming]) -> None:
    if declaration.kind is not Kind.TEST_POINT:
        for arming in armings:
            raise BadSetting(
                file=arming.file,
                detail=f"cannot arm {arming.name}: it is {_article(declaration.kind)}, not a test point",
            )


def _article(kind: Kind) -> str:
    return f"an {kind}" if kind is Kind.INDICATOR else f"a {kind}"
