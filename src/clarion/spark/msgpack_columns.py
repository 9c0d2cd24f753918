"""MessagePack by columns: the headers of many messages put together by Arrow, without a step of Python for each.

Guarantees
    1. `headers` gives for each row what `decode_headers` reads as the same fields; empty where a row has none.
    2. Nothing is checked but what would make other bytes: lengths are the caller's.

Theory of operation
    A value is a prefix that says its type and length, taken from a table, and its bytes. Each column becomes an array
    of such pieces, null where there is no value; the pieces of a row are joined. The entries of a map lie one after
    the other, so those of one row are a slice of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clarion.wire.columns import binary

TEXT_BYTES_MAX: Final = (1 << 16) - 1
"""The longest text or bytes that the tables have a prefix for; headers end before."""
MAP_ENTRIES_MAX: Final = 1 << 10
_NIL: Final = b"\xc0"
_BOOLEANS: Final = pa.array([b"\xc2", b"\xc3"], pa.binary())
_BEGINS: Final = pa.array([b"", *(bytes((0x80 | size,)) for size in range(1, 16))], pa.binary())
"""How headers of so many fields begin."""
_UNSIGNED: Final = 0xCF
_SIGNED: Final = 0xD3
_DOUBLE: Final = 0xCB


def headers(fields: Sequence[tuple[str, pa.Array]], count: int) -> pa.BinaryArray:
    """`count` headers of these pieces: (name of one character, encoded values, null where there is none)."""
    if not fields:
        return binary(np.zeros(count + 1, np.int32), b"")
    present = np.zeros(count, np.int64)
    for _name, piece in fields:
        present += piece.is_valid().to_numpy(zero_copy_only=False)
    # Never null: a row of nothing but nulls would be left out of the result (seen with pyarrow 26).
    begins = _BEGINS.take(pa.array(present))
    named = [joined(_text_constant(name), piece) for name, piece in fields]
    return pc.binary_join_element_wise(begins, *named, b"", null_handling="skip")


def joined(*pieces: pa.Array | bytes) -> pa.BinaryArray:
    """One piece after the other, row by row; null where one of them is."""
    return pc.binary_join_element_wise(*pieces, b"")


def text(values: pa.StringArray) -> pa.BinaryArray:
    """Text of at most `TEXT_BYTES_MAX` bytes each."""
    return joined(_text_prefixes().take(pc.binary_length(values)), values.cast(pa.binary()))


def unsigned(values: np.ndarray[Any, np.dtype[np.int64]], absent: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
    """Numbers that are not negative; null where they are absent."""
    pieces = _words(_UNSIGNED, values.astype(np.dtype(">u8")))
    return pc.if_else(pa.array(absent), pa.scalar(None, pa.binary()), pieces) if absent.any() else pieces


def properties(maps: pa.MapArray) -> pa.BinaryArray:
    """Maps of text to text, bytes, integers, floats or booleans; null where one is null or empty.

    A value that is null is nil.
    """
    edges = maps.offsets.to_numpy()
    first, end = int(edges[0]), int(edges[-1])
    names = maps.keys[first:end]
    entries = joined(text(names.cast(pa.string())), _values(maps.items[first:end]))
    ends = np.frombuffer(entries.buffers()[1], np.int32, len(entries) + 1, 4 * entries.offset)
    counts = np.diff(edges)
    data = entries.buffers()[2]
    slices = binary(ends[edges - first], b"" if data is None else data)
    absent = (counts == 0) | maps.is_null().to_numpy(zero_copy_only=False)
    return joined(_map_prefixes().take(pa.array(counts, mask=absent)), slices)


def _values(values: pa.Array) -> pa.BinaryArray:
    kind = values.type
    if pa.types.is_dictionary(kind):
        values = values.cast(kind.value_type)
        kind = values.type
    if pa.types.is_boolean(kind):
        pieces = _BOOLEANS.take(values.cast(pa.int8()))
    elif pa.types.is_integer(kind):
        words = values.cast(pa.int64()).fill_null(0).to_numpy().astype(np.dtype(">i8"))
        pieces = _words(_SIGNED, words)
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = values.cast(pa.float64()).fill_null(0.0).to_numpy().astype(np.dtype(">f8"))
        pieces = _words(_DOUBLE, numbers)
    elif is_text(kind):
        pieces = text(values.cast(pa.string()))
    else:
        values = values.cast(pa.binary())
        pieces = joined(_bytes_prefixes().take(pc.binary_length(values)), values)
    return pc.if_else(values.is_null(), _NIL, pieces) if values.null_count else pieces


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _words(tag: int, words: np.ndarray[Any, Any]) -> pa.BinaryArray:
    """A tag and eight bytes each."""
    cells = np.empty((len(words), 9), np.uint8)
    cells[:, 0] = tag
    cells[:, 1:] = words.view(np.uint8).reshape(-1, 8)
    return binary(np.arange(0, 9 * len(words) + 1, 9, dtype=np.int32), pa.py_buffer(cells))


def _text_constant(text: str) -> bytes:
    return bytes((0xA0 | len(text),)) + text.encode()


@cache
def _text_prefixes() -> pa.BinaryArray:
    short = [bytes((0xA0 | size,)) for size in range(32)]
    middle = [bytes((0xD9, size)) for size in range(32, 256)]
    return pa.array(short + middle + [b"\xda" + size.to_bytes(2, "big") for size in range(256, 1 << 16)], pa.binary())


@cache
def _bytes_prefixes() -> pa.BinaryArray:
    short = [bytes((0xC4, size)) for size in range(256)]
    return pa.array(short + [b"\xc5" + size.to_bytes(2, "big") for size in range(256, 1 << 16)], pa.binary())


@cache
def _map_prefixes() -> pa.BinaryArray:
    short = [bytes((0x80 | size,)) for size in range(16)]
    return pa.array(short + [b"\xde" + size.to_bytes(2, "big") for size in range(16, MAP_ENTRIES_MAX)], pa.binary())
