"""MessagePack and JSON written in small pieces into a buffer that exists from the start.

For the moment when there is no memory: slower than `msgspec` by a factor of a hundred, and without any object that
has more than 512 bytes. What it writes is, byte for byte, what `msgspec` writes: an event that fits with memory fits
without.
"""

from __future__ import annotations

import binascii
import enum
import math
import struct
from collections.abc import Iterator
from typing import Any

from clarion.errors import BadEvent, EventTooLarge
from clarion.message import PropertyValue

_PIECE = 48
"""Characters at a time: escaped, or four bytes each, they stay below 512 bytes."""
_BASE64_PIECE_BYTES = 48
_DEPTH_MAX = 1_000
_SLACK_BYTES = 16
_ESCAPES = {code: f"\\u{code:04x}" for code in range(32)} | {
    8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\",
}  # fmt: skip
_FORMS = {size: struct.Struct(f">B{code}") for size, code in ((0, ""), (1, "B"), (2, "H"), (4, "I"), (8, "Q"))}
_SIGNED = {1: struct.Struct(">Bb"), 2: struct.Struct(">Bh"), 4: struct.Struct(">Bi"), 8: struct.Struct(">Bq")}
_DOUBLE = struct.Struct(">Bd")


class SmallPieces:
    """A buffer and how far it is written. `view[:at]` is what was written since `begin`."""

    def __init__(self, bytes_max: int) -> None:
        self._limit = bytes_max + _SLACK_BYTES
        self.view = memoryview(bytearray(self._limit))
        self.at = 0
        self._stack: list[Iterator[Any] | None] = [None] * _DEPTH_MAX
        self._closing = bytearray(_DEPTH_MAX)

    def begin(self) -> None:
        self.at = 0

    def raw(self, data: bytes | bytearray | memoryview) -> None:
        end = self.at + len(data)
        if end > self._limit:
            raise EventTooLarge(size=end, limit=self._limit - _SLACK_BYTES)
        self.view[self.at : end] = data
        self.at = end

    def text(self, text: str) -> None:
        """As UTF-8."""
        try:
            for start in range(0, len(text), _PIECE):
                self.raw(text[start : start + _PIECE].encode())
        except UnicodeEncodeError:
            raise BadEvent(what="data", detail="it is not valid Unicode") from None

    # --- MessagePack ------------------------------------------------------------------------------

    def headers(
        self,
        type_: str,
        content_type: str,
        source: str,
        severity: str,
        time: str,
        attributes: dict[str, PropertyValue] | None,
    ) -> None:
        """`clarion.message.Headers` with the properties of an event."""
        self.raw(b"\x83\xa1t" if content_type else b"\x82\xa1t")
        self.packed(type_)
        if content_type:
            self.raw(b"\xa1m")
            self.packed(content_type)
        self.raw(b"\xa1p")
        count = 3 + (len(attributes) if attributes else 0)
        if count < 16:
            self._struct(_FORMS[0], 0x80 | count)
        else:
            self._struct(_FORMS[2], 0xDE, count)
        self.packed("source")
        self.packed(source)
        self.packed("severity")
        self.packed(severity)
        self.packed("time")
        self.packed(time)
        if attributes:
            for name, value in attributes.items():
                self.packed(name)
                self.packed(value)

    def packed(self, value: PropertyValue) -> None:
        """One value of a property."""
        if value is None:
            self.raw(b"\xc0")
        elif value is True:
            self.raw(b"\xc3")
        elif value is False:
            self.raw(b"\xc2")
        elif isinstance(value, str):
            size = 0
            for start in range(0, len(value), _PIECE):
                size += len(value[start : start + _PIECE].encode())
            if size < 32:
                self._struct(_FORMS[0], 0xA0 | size)
            else:
                self._sized(0xD9, size)
            self.text(value)
        elif isinstance(value, bytes):
            self._sized(0xC4, len(value))
            self.raw(value)
        elif isinstance(value, int):
            self._integer(value)
        else:
            self._struct(_DOUBLE, 0xCB, value)

    def _integer(self, value: int) -> None:
        if -32 <= value < 128:
            self._struct(_FORMS[0], value & 0xFF)
        elif value > 0:
            for power, code in enumerate((0xCC, 0xCD, 0xCE, 0xCF)):
                if value < 1 << (8 << power):
                    return self._struct(_FORMS[1 << power], code, value)
        else:
            for power, code in enumerate((0xD0, 0xD1, 0xD2, 0xD3)):
                if value >= -(1 << ((8 << power) - 1)):
                    return self._struct(_SIGNED[1 << power], code, value)
        return None

    def _sized(self, code: int, size: int) -> None:
        """The first of three codes that follow each other, for sizes of one, two and four bytes."""
        power = 0 if size < 1 << 8 else 1 if size < 1 << 16 else 2
        self._struct(_FORMS[1 << power], code + power, size)

    def _struct(self, form: struct.Struct, *values: float) -> None:
        end = self.at + form.size
        if end > self._limit:
            raise EventTooLarge(size=end, limit=self._limit - _SLACK_BYTES)
        form.pack_into(self.view, self.at, *values)
        self.at = end

    # --- JSON -------------------------------------------------------------------------------------

    def json(self, data: Any) -> None:
        """As JSON. No recursion: every call that is deeper may need a block of memory for its frame."""
        try:
            depth = self._open(data, 0)
            while depth:
                depth = self._items(depth)
        finally:
            self._clear()

    def _items(self, depth: int) -> int:
        """Of the innermost container, until one of them is a container or it ends. The depth after that."""
        closing = self._closing
        items = self._stack[depth - 1]
        assert items is not None
        first = closing[depth - 1] & 0x80
        closing[depth - 1] &= 0x7F
        for item in items:
            if not first:
                self.raw(b",")
            first = 0
            if closing[depth - 1] == 0x7D:
                self._key(item[0])
                item = item[1]
            opened = self._open(item, depth)
            if opened > depth:
                return opened
        depth -= 1
        self._stack[depth] = None
        self.raw(b"}" if closing[depth] == 0x7D else b"]")
        return depth

    def _clear(self) -> None:
        """What was written in vain is not kept alive."""
        stack, depth = self._stack, 0
        while depth < _DEPTH_MAX and stack[depth] is not None:
            stack[depth] = None
            depth += 1

    def _open(self, value: Any, depth: int) -> int:
        """Write a value; of a container only its beginning, with its items on the stack. The depth after it."""
        if isinstance(value, dict):
            items, begins, ends = iter(value.items()), b"{", 0x7D
        elif isinstance(value, list | tuple | set | frozenset):
            items, begins, ends = iter(value), b"[", 0x5D
        else:
            self._leaf(value)
            return depth
        if depth == _DEPTH_MAX:
            raise BadEvent(what="data", detail=f"it is nested deeper than {_DEPTH_MAX}")
        self.raw(begins)
        self._stack[depth] = items
        self._closing[depth] = ends | 0x80  # the first item has no comma
        return depth + 1

    def _key(self, key: Any) -> None:
        if isinstance(key, str):
            self._string(key)
        elif isinstance(key, int | float) and not isinstance(key, bool):
            self.raw(b'"')
            self._leaf(key)
            self.raw(b'"')
        else:
            raise BadEvent(what="data", detail="it cannot be JSON: a key is neither text nor a number")
        self.raw(b":")

    def _leaf(self, value: Any) -> None:
        if isinstance(value, enum.Enum):
            value = value.value
        if value is None:
            self.raw(b"null")
        elif value is True:
            self.raw(b"true")
        elif value is False:
            self.raw(b"false")
        elif isinstance(value, str):
            self._string(value)
        elif isinstance(value, int):
            self.raw(int.__repr__(value).encode())
        elif isinstance(value, float):
            self.raw(float.__repr__(value).encode().replace(b"+", b"") if math.isfinite(value) else b"null")
        elif isinstance(value, bytes | bytearray):
            self.raw(b'"')
            for start in range(0, len(value), _BASE64_PIECE_BYTES):
                self.raw(binascii.b2a_base64(value[start : start + _BASE64_PIECE_BYTES], newline=False))
            self.raw(b'"')
        elif hasattr(value, "isoformat"):
            self._string(value.isoformat())
        else:
            raise BadEvent(what="data", detail=f"it cannot be JSON: there is a {type(value).__name__}")

    def _string(self, text: str) -> None:
        self.raw(b'"')
        for start in range(0, len(text), _PIECE):
            self.text(text[start : start + _PIECE].translate(_ESCAPES))
        self.raw(b'"')
