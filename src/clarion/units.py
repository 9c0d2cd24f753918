"""Sizes and durations as people write them.

Numbers are whole, units are those of the names of settings: bytes and milliseconds. A text that is not understood is
refused, never guessed at: "5 m" could be minutes or months, "1 MB" could be a million.
"""

from __future__ import annotations

import re

from clarion import limits

_SIZES = {"": 1, "B": 1, "KIB": limits.KIB, "MIB": limits.MIB, "GIB": limits.GIB, "TIB": 1024 * limits.GIB}
_DURATIONS_MS = {"": 1, "MS": 1, "S": 1_000, "MIN": 60_000, "H": 3_600_000, "D": 86_400_000}
_TEXT = re.compile(r"(\d+)\s*([A-Za-z]*)", re.ASCII)
_TEXT_MAX = 100
"""Longer texts are nobody's size, and would cost time."""


def parse_size(value: object) -> int:
    """Bytes: an integer, or text such as "64 MiB". Raises `ValueError`."""
    if (size := _parse(value, _SIZES)) is not None:
        return size
    raise ValueError(f"a size is a number of bytes or text like '64 MiB', not {shown(value)}")


def parse_duration(value: object) -> int:
    """Milliseconds: an integer, or text such as "250 ms", "10 s", "5 min", "12 h", "7 d". Raises `ValueError`."""
    if (duration_ms := _parse(value, _DURATIONS_MS)) is not None:
        return duration_ms
    raise ValueError(f"a duration is a number of milliseconds or text like '10 s' or '5 min', not {shown(value)}")


def parse_unit(key: str, value: object) -> object:
    """The value of a setting whose name says its unit (`…_bytes…`, `…_ms…`); of any other as it is.

    Raises `ValueError`.
    """
    words = key.split("_")
    if "bytes" in words:
        return parse_size(value)
    return parse_duration(value) if "ms" in words else value


def shown(value: object) -> str:
    """A value for the text of an error: short, whatever somebody sent."""
    text = repr(value[: _TEXT_MAX + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


def _parse(value: object, units: dict[str, int]) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str) or len(value) > _TEXT_MAX:
        return None
    match = _TEXT.fullmatch(value.strip())
    unit = units.get(match[2].upper()) if match else None
    return int(match[1]) * unit if match and unit else None
