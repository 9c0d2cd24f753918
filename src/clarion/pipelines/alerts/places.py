"""Where the keys and values of a TOML text stand, so that an error about a value can point at it.

Theory of operation
    `tomllib` says what a text means and keeps no positions. `scan` reads a text that `tomllib` has accepted a second
    time, only for positions: of each key, each value and each element of an array, by its path. The path of `within`
    in the second `[[rule]]` is `("rule", 1, "within")`.

Rules
    1. Only for texts that are TOML: nothing is checked here.
    2. Lines and columns count from 1, columns in characters.
    3. A path that is not in the text is answered by the nearest path above it that is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

Path = tuple[str | int, ...]

_BLANK = " \t\r"
_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_SCALAR = re.compile(r"[^,\]}#\r\n]+")
_ESCAPE = re.compile(r"\\(?:u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[ \t]*\r?\n[ \t\r\n]*|.)", re.DOTALL)


class Place(NamedTuple):
    """A place in a file."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


@dataclass(slots=True)
class Places:
    """The positions in one text."""

    text: str
    keys: dict[Path, int] = field(default_factory=dict)
    values: dict[Path, int] = field(default_factory=dict)

    def key(self, *path: str | int) -> Place:
        """Where a key stands, or the header of a table."""
        return self._nearest(path, self.keys)

    def value(self, *path: str | int) -> Place:
        """Where a value begins."""
        return self._nearest(path, self.values)

    def inside(self, index: int, *path: str | int) -> Place:
        """Where character `index` of a text value stands, counted from 0; its escapes are taken into account."""
        start = self.values.get(path)
        if start is None or self.text[start] not in "\"'":
            return self.value(*path)
        quote = self.text[start]
        size = 3 if self.text.startswith(quote * 3, start) else 1
        at = start + size
        if size == 3 and self.text[at : at + 2] == "\r\n":
            at += 2
        elif size == 3 and self.text[at : at + 1] == "\n":
            at += 1
        while index > 0:
            escape = _ESCAPE.match(self.text, at) if quote == '"' else None
            at = escape.end() if escape else at + 1
            index -= 0 if escape and escape[0].endswith(("\n", " ", "\t")) and "\n" in escape[0] else 1
        return self.at(at)

    def at(self, position: int) -> Place:
        """Line and column of a position in the text."""
        return Place(self.text.count("\n", 0, position) + 1, position - self.text.rfind("\n", 0, position))

    def _nearest(self, path: Path, positions: dict[Path, int]) -> Place:
        while path:
            for found in (positions, self.keys):
                if path in found:
                    return self.at(found[path])
            path = path[:-1]
        return Place(1, 1)


def scan(text: str) -> Places:
    """The positions in a text that is TOML."""
    scanner = _Scanner(text, Places(text))
    scanner.document()
    return scanner.places


class _Scanner:
    def __init__(self, text: str, places: Places) -> None:
        self.text = text
        self.places = places
        self.position = 0
        self.counts: dict[Path, int] = {}
        """How many tables each array of tables has so far."""

    def document(self) -> None:
        table: Path = ()
        while self._skip("\n"):
            if self.text[self.position] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        start = self.position
        is_array = self.text.startswith("[[", start)
        self.position += 2 if is_array else 1
        names = self._dotted()
        self.position += 2 if is_array else 1
        path: Path = ()
        for name in names[:-1]:
            path = self._current((*path, name))
        path = (*path, names[-1])
        if is_array:
            self.counts[path] = self.counts.get(path, 0) + 1
        path = self._current(path)
        self.places.keys.setdefault(path, start)
        return path

    def _current(self, path: Path) -> Path:
        """A path into an array of tables goes into its last table."""
        return (*path, self.counts[path] - 1) if path in self.counts else path

    def _pair(self, table: Path) -> None:
        start = self.position
        path = (*table, *self._dotted())
        self.position += 1  # the equals sign
        self._skip("")
        self.places.keys[path] = start
        self._value(path)

    def _dotted(self) -> list[str]:
        names = []
        while True:
            self._skip("")
            if self.text[self.position] in "\"'":
                names.append(self._string()[1:-1])
            else:
                found = _KEY.match(self.text, self.position)
                assert found is not None
                names.append(found[0])
                self.position = found.end()
            self._skip("")
            if self.text[self.position] != ".":
                return names
            self.position += 1

    def _value(self, path: Path) -> None:
        self.places.values[path] = self.position
        match self.text[self.position]:
            case '"' | "'":
                self._string()
            case "[":
                self._members("]", path)
            case "{":
                self._members("}", path)
            case _:
                found = _SCALAR.match(self.text, self.position)
                assert found is not None
                self.position = found.end()

    def _members(self, closing: str, path: Path) -> None:
        """Of an array or an inline table."""
        self.position += 1
        number = 0
        while self._skip("\n,") and self.text[self.position] != closing:
            if closing == "]":
                self._value((*path, number))
                number += 1
            else:
                self._pair(path)
        self.position += 1

    def _string(self) -> str:
        start = self.position
        quote = self.text[start]
        closing = quote * 3 if self.text.startswith(quote * 3, start) else quote
        at = start + len(closing)
        while not self.text.startswith(closing, at):
            at += 2 if quote == '"' and self.text[at] == "\\" else 1
        if len(closing) == 3:  # up to two quotes may stand before the closing ones
            while self.text.startswith(quote, at + 3):
                at += 1
        self.position = at + len(closing)
        return self.text[start : self.position]

    def _skip(self, more: str) -> bool:
        """Past blanks, `more`, and with a line's end also comments. Whether there is anything left."""
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == "#" and more:
                end = self.text.find("\n", self.position)
                self.position = len(self.text) if end < 0 else end
            elif character in _BLANK or character in more:
                self.position += 1
            else:
                return True
        return False
