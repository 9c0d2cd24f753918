"""One `[[rule]]` while it is read: its values by key, each checked, and what is wrong said with its place."""

from __future__ import annotations

import difflib
import math
from typing import Any, NoReturn

from clarion.errors import BadSelector, BadSetting
from clarion.pipelines.alerts.places import Place, Places
from clarion.selector import compile_selector
from clarion.units import parse_duration, shown


class Table:
    """Reads one rule. Each method takes a key; without it in the table the default is the answer.

    A key without default that is missing, and every value that is wrong, raises `BadSetting`.
    """

    def __init__(self, values: dict[str, Any], number: int, places: Places, file: str) -> None:
        self.values = values
        self._number = number
        self._places = places
        self._file = file
        self._known: list[str] = []

    def has(self, key: str) -> bool:
        self._known.append(key)
        return key in self.values

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            self.fail(key, f"it is a text, not {shown(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"it is true or false, not {shown(value)}")
        return value

    def whole(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.fail(key, f"it is a whole number from {low} to {high}, not {shown(value)}")
        return value

    def number(self, key: str) -> float:
        value = self._get(key, None)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            self.fail(key, f"it is a number, not {shown(value)}")
        return float(value)

    def duration(self, key: str, low_ms: int, high_ms: int, default_ms: int | None = None) -> int:
        value = self._get(key, default_ms)
        try:
            duration_ms = parse_duration(value)
        except ValueError as error:
            self.fail(key, str(error))
        if not low_ms <= duration_ms <= high_ms:
            self.fail(key, f"{duration_ms} ms is not within {low_ms} ms to {high_ms} ms")
        return duration_ms

    def texts(self, key: str, default: list[str] | None = None) -> list[str]:
        values = self.list(key, default)
        for number, value in enumerate(values):
            if not isinstance(value, str):
                self.fail(key, f"it is a text, not {shown(value)}", number)
        return values

    def list(self, key: str, default: list[Any] | None = None) -> list[Any]:
        values = self._get(key, default)
        if not isinstance(values, list):
            self.fail(key, f"it is a list, not {shown(values)}")
        return values

    def selector(self, key: str, default: str | None = None) -> str:
        text = self.text(key, default)
        self._compile(text, key)
        return text

    def selectors(self, key: str) -> tuple[str, ...]:
        texts = self.texts(key)
        for number, text in enumerate(texts):
            self._compile(text, key, number)
        return tuple(texts)

    def _compile(self, text: str, key: str, *number: int) -> None:
        try:
            compile_selector(text)
        except BadSelector as error:
            column = int(error.facts["column"] or 1)
            place = self._places.inside(column - 1, "rule", self._number, key, *number)
            self.refuse(place, key, f"this is no selector: {error.facts['detail']}")

    def finish(self, kind: str) -> None:
        """Refuse the first key that nobody asked for."""
        for key in self.values:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, 1)
                hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(set(self._known)))}"
                place = self._places.key("rule", self._number, key)
                self.refuse(place, key, f"a rule of kind {kind} has no such key{hint}")

    def fail(self, key: str, detail: str, *number: int) -> NoReturn:
        """Refuse a value, or an element of it."""
        self.refuse(self._places.value("rule", self._number, key, *number), key, detail)

    def fail_inside(self, key: str, index: int, detail: str) -> NoReturn:
        """Refuse a character of a text."""
        self.refuse(self._places.inside(index, "rule", self._number, key), key, detail)

    def refuse(self, place: Place, key: str, detail: str) -> NoReturn:
        name = self.values.get("name")
        called = f"rule {name}" if isinstance(name, str) and name else f"rule number {self._number + 1}"
        raise at(self._file, place, f"{called}: {key}: {detail}")

    def _get(self, key: str, default: Any) -> Any:
        self._known.append(key)
        value = self.values.get(key, default)
        if value is None:
            for near in difflib.get_close_matches(key, self.values, 1):
                if near not in self._known:
                    self.refuse(self._places.key("rule", self._number, near), near, f"did you mean {key}?")
            self.refuse(self._places.key("rule", self._number), key, "it is missing")
        return value


def at(file: str, place: Place, detail: str) -> BadSetting:
    """The error about a place in a file."""
    return BadSetting(file=file, detail=f"{place}: {detail}", line=place.line, column=place.column)
