"""What an instrument is, apart from what it shows: name, kind, unit, meaning, range, type (C-01, C-03).

Guarantees
    1. A declaration never changes and refers to no value and no code, so it can be listed, compared,
       written to a catalogue or sent to a watcher without touching the process's state.
    2. A declaration that exists is valid: its name, range and type were checked when it was made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from clarion import limits
from clarion.errors import BadName, RequestError

Value = bool | int | float | str
"""What a control holds and what every indicator but a histogram shows."""

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*", re.ASCII)


class Kind(StrEnum):
    INDICATOR = "indicator"
    CONTROL = "control"
    TEST_POINT = "test point"


class ValueType(StrEnum):
    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    SUMMARY = "summary"

    @classmethod
    def of(cls, *values: Value | None) -> ValueType:
        """The type that holds all of `values`: integers and floats together are numbers."""
        found = {_TYPES[type(value)] for value in values if value is not None}
        if found == {cls.INTEGER, cls.NUMBER}:
            return cls.NUMBER
        if len(found) != 1:
            raise RequestError(detail=f"{' and '.join(sorted(found)) or 'nothing'} is not one type of value")
        return found.pop()


_TYPES: dict[type, ValueType] = {
    bool: ValueType.BOOLEAN,
    int: ValueType.INTEGER,
    float: ValueType.NUMBER,
    str: ValueType.TEXT,
}


@dataclass(frozen=True, slots=True)
class Declaration:
    """One instrument, as its source declares it."""

    name: str
    kind: Kind
    value_type: ValueType
    unit: str
    meaning: str
    minimum: int | float | None = None
    maximum: int | float | None = None
    dynamic: bool = False
    """The value is derived by a procedure on request, not kept in memory."""
    cumulative: bool = False
    """The value only grows while the process lives: watchers may show its rate."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.meaning:
            raise RequestError(detail=f"{self.name} is declared without a meaning")
        ranged = self.minimum is not None or self.maximum is not None
        if ranged and self.value_type not in (ValueType.INTEGER, ValueType.NUMBER):
            raise RequestError(detail=f"{self.name} is {self.value_type}, which has no minimum or maximum")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise RequestError(
                detail=f"{self.name} has a minimum of {self.minimum} above its maximum of {self.maximum}"
            )

    def accept(self, value: object) -> Value:
        """`value` as this instrument holds it. Raises `RequestError` if it has another type or is out of range."""
        accepted = self.typed(value)
        if self.value_type is ValueType.NUMBER:
            accepted = float(accepted)
        if isinstance(accepted, float) and accepted != accepted:
            raise RequestError(detail=f"{self.name} cannot be not-a-number")
        if self.minimum is not None and not isinstance(accepted, str) and accepted < self.minimum:
            raise RequestError(detail=f"{self.name} is at least {self._with_unit(self.minimum)}, not {accepted}")
        if self.maximum is not None and not isinstance(accepted, str) and accepted > self.maximum:
            raise RequestError(detail=f"{self.name} is at most {self._with_unit(self.maximum)}, not {accepted}")
        return accepted

    def typed(self, value: object) -> Value:
        """`value`, if it is of the declared type (an integer is a number too); its range is not looked at."""
        if isinstance(value, bool | int | float | str):
            found = _TYPES.get(type(value))
            if found is self.value_type or (found, self.value_type) == (ValueType.INTEGER, ValueType.NUMBER):
                return value
        raise RequestError(detail=f"{self.name} is {self.value_type}, not {value!r} ({type(value).__name__})")

    def _with_unit(self, value: float) -> str:
        return f"{value} {self.unit}".rstrip()


def check_name(name: str) -> None:
    """Raises `BadName` unless `name` is dotted lower-case words, such as `journal.before_sync`."""
    if len(name) > limits.NAME_BYTES_MAX:
        raise BadName(name=name[:32] + "…", detail=f"longer than {limits.NAME_BYTES_MAX} bytes")
    if not _NAME.fullmatch(name):
        raise BadName(name=name, detail="an instrument is named by dotted words of a-z, 0-9 and _")
