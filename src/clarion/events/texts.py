"""Texts and values of an application as an event can carry them: bounded, valid Unicode, and never an exception."""

from __future__ import annotations

import math
from typing import Any

_LEFT_OUT = "\n… {count} bytes left out …\n"


def bounded(text: str, bytes_max: int) -> str:
    """`text` in about so many bytes of UTF-8: three quarters of them its beginning, then its end."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= bytes_max:
        return data.decode()
    end_bytes = bytes_max // 4
    begin, end = data[: bytes_max - end_bytes], data[len(data) - end_bytes :]
    left_out = _LEFT_OUT.format(count=len(data) - bytes_max)
    return begin.decode(errors="ignore") + left_out + end.decode(errors="ignore")


def printable(text: str, bytes_max: int) -> str:
    """`text` as the source of an event: printable, not empty, cut."""
    clean = "".join(character if character.isprintable() else "?" for character in text)
    return clean.encode()[:bytes_max].decode(errors="ignore") or "?"


def plain(value: object, bytes_max: int) -> Any:
    """A value that JSON has, or else a bounded text of it."""
    try:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        return bounded(value if isinstance(value, str) else repr(value), bytes_max)
    except Exception:  # a repr may do anything
        return f"<{type(value).__name__}>"
