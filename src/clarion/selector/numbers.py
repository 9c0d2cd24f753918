"""Numbers as a selector writes them: Java's integer and floating-point literals.

An exact number has no point and no exponent: decimal, hexadecimal (`0x`), octal (`0`) or binary (`0b`). An
approximate one has a point, an exponent, or the suffix `F` or `D`. Every exact number is a long, with or without
the suffix `L`, and every approximate one a double. `_` may stand between digits.
"""

from __future__ import annotations

import math
import re

from clarion.selector.values import LONG_MAX

LONG_MIN_SIZE = LONG_MAX + 1
"""This decimal number is legal behind a minus and nowhere else."""

_DIGITS = "[0-9](?:[0-9_]*[0-9])?"
_HEX = "[0-9a-fA-F](?:[0-9a-fA-F_]*[0-9a-fA-F])?"
_EXACT = re.compile(
    f"(?:0[xX](?P<hex>{_HEX})|0[bB](?P<binary>[01](?:[01_]*[01])?)|0(?P<octal>[0-7_]*[0-7])|(?P<decimal>0|[1-9](?:[0-9_]*[0-9])?))"
    "[lL]?",
    re.ASCII,
)
_APPROXIMATE = re.compile(
    rf"((?:{_DIGITS}\.(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?|{_DIGITS}[eE][+-]?{_DIGITS}|{_DIGITS}(?=[fFdD]))[fFdD]?",
    re.ASCII,
)
_APPROXIMATE_HEX = re.compile(rf"(0[xX](?:{_HEX}\.?|(?:{_HEX})?\.{_HEX})[pP][+-]?{_DIGITS})[fFdD]?", re.ASCII)
_RADIX = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}
_DECIMAL_DIGITS_MAX = 19


def parse_number(text: str) -> int | float:
    """The value. Raises `ValueError`, with a text for the user, for what is not a number or out of range."""
    if exact := _EXACT.fullmatch(text):
        radix = str(exact.lastgroup)
        return _exact(exact[radix].replace("_", ""), _RADIX[radix], text)
    if approximate := _APPROXIMATE.fullmatch(text):
        value = float(approximate[1].replace("_", ""))
    elif approximate := _APPROXIMATE_HEX.fullmatch(text):
        try:
            value = float.fromhex(approximate[1].replace("_", ""))
        except OverflowError:
            value = math.inf
    else:
        raise ValueError(f"{shortened(text)} is not a number")
    if math.isinf(value):
        raise ValueError(f"{shortened(text)} is larger than any double")
    return value


def _exact(digits: str, radix: int, text: str) -> int:
    """Other than decimal numbers name the 64 bits of a long, so the upper half of them is negative."""
    if radix == 10:
        value = int(digits) if len(digits) <= _DECIMAL_DIGITS_MAX else LONG_MIN_SIZE + 1
        if value <= LONG_MIN_SIZE:
            return value
    else:
        value = int(digits, radix)
        if value <= LONG_MAX:
            return value
        if value < 1 << 64:
            return value - (1 << 64)
    raise ValueError(f"{shortened(text)} does not fit into 64 bits")


def shortened(text: str) -> str:
    """A part of a selector, short enough for a message about it."""
    return text if len(text) <= 40 else text[:40] + "…"
