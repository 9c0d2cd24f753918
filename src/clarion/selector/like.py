"""LIKE: `%` is any text, `_` any one character, and no pattern is expensive.

Theory of operation
    A pattern is cut at each `%` into segments. The first begins the text, the last ends it, and each of the others
    is taken where it is found first: if any way to match exists, this one does, so nothing is ever tried
    again. A segment without `_` is found by `str.find`. One with `_` is found by `re` (a row of characters and
    dots, which cannot backtrack) while text times segment is small, and else by bit masks: one integer for
    each character of the segment has a bit for each place of the text where that character stands; shifted and
    joined they leave the places where all of it stands, 64 places per machine operation.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

_STEPS_MAX = 4_096
"""Characters of text times characters of a segment up to which `re` is at least as fast as masks."""

_ANY = None
"""`_` in a parsed pattern."""


class BadEscape(ValueError):
    """The escape character stands before something that needs none. `at` counts from 0 in the pattern."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


class _Places:
    """Where in one text each character stands, worked out for the characters that are asked for."""

    __slots__ = ("_codes", "_masks")

    def __init__(self, text: str) -> None:
        self._codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))
        self._masks: dict[str, int] = {}

    def of(self, character: str) -> int:
        mask = self._masks.get(character)
        if mask is None:
            bits = np.packbits(self._codes == ord(character), bitorder="little")
            mask = self._masks[character] = int.from_bytes(bits.tobytes(), "little")
        return mask


class _Plain:
    """A part of a pattern between two `%`, without `_`."""

    __slots__ = ("_text", "size")

    def __init__(self, text: str) -> None:
        self.size = len(text)
        self._text = text

    def stands_at(self, text: str, at: int) -> bool:
        return text.startswith(self._text, at)

    def find(self, text: str, start: int, stop: int, places: list[_Places]) -> int:
        return text.find(self._text, start, stop)


class _Gapped:
    """A part of a pattern between two `%`, with `_`."""

    __slots__ = ("_characters", "_expression", "size")

    def __init__(self, characters: list[str | None]) -> None:
        self.size = len(characters)
        self._characters = [(n, character) for n, character in enumerate(characters) if character is not _ANY]
        self._expression = re.compile("".join("." if c is _ANY else re.escape(c) for c in characters), re.DOTALL)

    def stands_at(self, text: str, at: int) -> bool:
        return self._expression.match(text, at) is not None

    def find(self, text: str, start: int, stop: int, places: list[_Places]) -> int:
        """Where it stands first in text[start:stop], or -1. `places` is empty until somebody needs them."""
        room = stop - start - self.size
        if room < 0:
            return -1
        if (stop - start) * self.size <= _STEPS_MAX:
            found = self._expression.search(text, start, stop)
            return -1 if found is None else found.start()
        if not places:
            places.append(_Places(text))
        possible = (1 << (room + 1)) - 1
        for offset, character in self._characters:
            possible &= places[0].of(character) >> (start + offset)
            if not possible:
                return -1
        return start + (possible & -possible).bit_length() - 1


def compile_like(pattern: str, escape: str | None = None) -> Callable[[str], bool]:
    """A function that says whether a text matches. Raises `BadEscape`."""
    segments = [_segment(characters) for characters in _cut(pattern, escape)]
    if len(segments) == 1:
        whole = segments[0]
        return lambda text: len(text) == whole.size and whole.stands_at(text, 0)
    head, *middle, tail = segments
    middle = [segment for segment in middle if segment.size]
    size_min = head.size + tail.size

    def matches(text: str) -> bool:
        stop = len(text) - tail.size
        if len(text) < size_min or not head.stands_at(text, 0) or not tail.stands_at(text, stop):
            return False
        at = head.size
        places: list[_Places] = []
        for segment in middle:
            at = segment.find(text, at, stop, places)
            if at < 0:
                return False
            at += segment.size
        return True

    return matches


def _segment(characters: list[str | None]) -> _Plain | _Gapped:
    plain = [character for character in characters if character is not _ANY]
    return _Plain("".join(plain)) if len(plain) == len(characters) else _Gapped(characters)


def _cut(pattern: str, escape: str | None) -> list[list[str | None]]:
    """The segments of a pattern, with its escapes resolved."""
    segments: list[list[str | None]] = [[]]
    characters = iter(enumerate(pattern))
    for at, character in characters:
        if character == escape:
            _, escaped = next(characters, (at, ""))
            if escaped not in ("%", "_", escape):
                raise BadEscape(at)
            segments[-1].append(escaped)
        elif character == "%":
            segments.append([])
        else:
            segments[-1].append(_ANY if character == "_" else character)
    return segments
