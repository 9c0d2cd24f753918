"""Headers that differ only in what their texts say, read as a table: as those of events, which differ in their time.

Theory of operation
    Headers of the same length, of which all bytes are equal but those of texts, are of the same *shape*: every text
    lies at the same place. So one of them is decoded, and the others are rows of a matrix of bytes. What is of no
    shape that others have, or has texts that are not ASCII, is left to the caller.

Guarantees
    1. A value is what `decode_headers` gives for the same headers.
    2. What is done for each message is done by numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clarion.errors import BadBatch
from clarion.message import Headers, decode_headers
from clarion.spark.schema import PROPERTIES

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Rows = np.ndarray[Any, np.dtype[np.int64]]

_ALIKE_MIN: Final = 32
"""Fewer headers of a shape are decoded one by one sooner."""
_SHAPES_MAX: Final = 4
"""Shapes that are looked for among headers of one length."""
_SIZED: Final = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, **{tag: 1 << (tag & 3) for tag in range(0xCC, 0xD4)}}
"""Tags of MessagePack with the bytes of the value behind them …"""
_COUNTED: Final = {0xD9: 1, 0xDA: 2, 0xC4: 1, 0xC5: 2}
"""… and with the bytes of its length: text, bytes."""
_FIELDS: Final = {"r": "reply_to", "c": "correlation_id", "g": "group", "t": "type", "m": "content_type"}
_OTHERS: Final = ("x", "p")

_TEXT: Final = 0x80
"""The bit of a byte of text that is fixed: it is ASCII."""

Span = tuple[int, int]


class Shape(NamedTuple):
    """One of the headers, decoded, and where its texts are."""

    headers: Headers
    texts: dict[str, Span]
    """Of fields."""
    properties: dict[str, Span]

    def fixed(self, size: int) -> Bytes:
        """The bits that all headers of this shape have in common: all but the lower seven of each byte of a text."""
        mask = np.full(size, 0xFF, np.uint8)
        for first, end in (*self.texts.values(), *self.properties.values()):
            mask[first:end] = _TEXT
        return mask


class Alike(NamedTuple):
    """Headers of one shape: a row of bytes each."""

    rows: Rows
    """Which of all headers they are."""
    shape: Shape
    cells: Bytes

    def text(self, field: str) -> pa.StringArray:
        """A field that is text."""
        span = self.shape.texts.get(field)
        if span is None:
            return pa.repeat(pa.scalar(getattr(self.shape.headers, field), pa.string()), len(self.rows))
        return _texts(self.cells[:, span[0] : span[1]], [span[1] - span[0]])

    def properties(self, texts: list[str | None]) -> pa.MapArray:
        """`texts`: the properties of the shape as text; those that vary are put in their place."""
        count, each = len(self.rows), len(texts)
        spans = [self.shape.properties.get(name) for name in self.shape.headers.properties or {}]
        pieces = []
        for span, text in zip(spans, texts, strict=True):
            constant = np.frombuffer((text or "").encode(), np.uint8)
            shared = np.broadcast_to(constant, (count, len(constant)))
            pieces.append(shared if span is None else self.cells[:, span[0] : span[1]])
        names = pa.array([*(self.shape.headers.properties or {})], pa.string())
        values = _texts(np.hstack(pieces) if pieces else np.empty((count, 0), np.uint8), [p.shape[1] for p in pieces])
        if None in texts:
            present = np.tile(np.array([text is not None for text in texts]), count)
            validity = pa.py_buffer(np.packbits(present, bitorder="little"))
            values = pa.Array.from_buffers(pa.string(), len(values), [validity, *values.buffers()[1:]])
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * np.int32(each))
        keys = names.take(pa.array(np.tile(np.arange(each), count)))
        return pa.MapArray.from_arrays(offsets, keys, values, type=PROPERTIES)


def alike(headers: pa.BinaryArray) -> Iterator[Alike]:
    """Groups of headers of one shape, each large enough to be worth it; no header is in two of them."""
    sizes = pc.binary_length(headers).to_numpy()
    for size in np.flatnonzero(np.bincount(sizes) >= _ALIKE_MIN).tolist():
        rows = np.flatnonzero(sizes == size)
        if not size or len(rows) < _ALIKE_MIN:
            continue
        cells = np.frombuffer(headers.take(pa.array(rows)).buffers()[2], np.uint8).reshape(-1, size)
        for _ in range(_SHAPES_MAX):
            if len(rows) < _ALIKE_MIN:
                break
            shape = shape_of(cells[0].tobytes())
            if shape is None:
                break
            fixed = shape.fixed(size)
            different = ((cells ^ cells[0]) & fixed).any(axis=1)
            different[1:] |= bool((cells[0, fixed == _TEXT] & 0x80).any())  # else the others' texts might be no UTF-8
            same = ~different
            if np.count_nonzero(same) == len(rows):
                yield Alike(rows, shape, cells)
                break
            if np.count_nonzero(same) >= _ALIKE_MIN:
                yield Alike(rows[same], shape, cells[same])
            rows, cells = rows[different], cells[different]


def shape_of(data: bytes) -> Shape | None:
    """The shape of headers; None if they are of a kind that is not read in this way."""
    try:
        headers = decode_headers(data)
        fields = dict(_members(data, 0))
        texts = {_FIELDS[name]: span for name, (span, is_text) in fields.items() if name in _FIELDS and is_text}
        if not set(fields) <= {*_FIELDS, *_OTHERS}:
            return None
        properties = dict(_members(data, fields["p"][0][0])) if headers.properties else {}
    except (BadBatch, LookupError, ValueError):
        return None
    if len(properties) != len(headers.properties or ()):
        return None
    return Shape(headers, texts, {name: span for name, (span, is_text) in properties.items() if is_text})


def _members(data: bytes, at: int) -> Iterator[tuple[str, tuple[Span, bool]]]:
    """The members of the map at a place: where the bytes of the value are, and whether they are text.

    Raises `ValueError` for a type that is not known here, and for a name that is there twice.
    """
    count, at = _map_at(data, at)
    seen = set()
    for _ in range(count):
        (first, at), is_text = _value(data, at)
        name = data[first:at].decode()
        if not is_text or name in seen:
            raise ValueError(name)
        seen.add(name)
        span, is_text = _value(data, at)
        yield name, (span, is_text)
        at = _end(data, at) if span[1] < 0 else span[1]


def _map_at(data: bytes, at: int) -> tuple[int, int]:
    """How many members the map at a place has, and where they begin."""
    if data[at] >> 4 == 0x8:
        return data[at] & 0xF, at + 1
    if data[at] == 0xDE:
        return int.from_bytes(data[at + 1 : at + 3], "big"), at + 3
    raise ValueError("no map")


def _value(data: bytes, at: int) -> tuple[Span, bool]:
    """Where the bytes of a value are, and whether it is text; of a map where it begins, and -1."""
    tag = data[at]
    if tag >> 5 == 0b101:
        return (at + 1, at + 1 + (tag & 0x1F)), True
    if tag in _COUNTED:
        width = _COUNTED[tag]
        first = at + 1 + width
        return (first, first + int.from_bytes(data[at + 1 : first], "big")), tag in (0xD9, 0xDA)
    if tag < 0x80 or tag >= 0xE0:
        return (at + 1, at + 1), False
    if tag in _SIZED:
        return (at + 1, at + 1 + _SIZED[tag]), False
    _map_at(data, at)
    return (at, -1), False


def _end(data: bytes, at: int) -> int:
    """Where a map ends."""
    count, at = _map_at(data, at)
    for _ in range(2 * count):
        span, _is_text = _value(data, at)
        at = _end(data, at) if span[1] < 0 else span[1]
    return at


def _texts(cells: Bytes, widths: list[int]) -> pa.StringArray:
    """Rows of texts of these widths, one after the other."""
    count = len(cells)
    ends = np.cumsum([0, *widths])
    offsets = np.empty(count * len(widths) + 1, np.int32)
    offsets[:-1] = (np.arange(count)[:, None] * ends[-1] + ends[:-1]).ravel()
    offsets[-1] = count * ends[-1]
    data = pa.py_buffer(np.ascontiguousarray(cells))
    return pa.Array.from_buffers(pa.string(), count * len(widths), [None, pa.py_buffer(offsets), data])
