"""Encoded headers as columns: those that are equal are decoded once, and those of one shape as a table.

Guarantees
    1. A value is what `Message` says for the same headers.
    2. Headers that cannot be decoded make nulls, in their own row only.

Theory of operation
    Headers of neighbouring messages are mostly equal, so they are made into a dictionary first; where the first few
    show that they are not, this is left out, as it would cost more than it saves. Those that differ only in what their
    texts say are read by `header_shapes`. What is left is decoded, one call into C each, and turned into columns.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from clarion.message import Headers
from clarion.spark.header_shapes import alike
from clarion.spark.schema import PROPERTIES, TIME_MS_MAX, TIMESTAMP

_SAMPLE: Final = 512
_SHAPED_MIN: Final = 64
"""Fewer headers that differ are decoded sooner than their shapes are found."""
_EMPTY: Final = b"\x80"
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)

Decoded = list["Headers | _Fields | None"]


_SHORT: Final = dict(zip(Headers.__struct_fields__, Headers.__struct_encode_fields__, strict=True))


class _Fields(msgspec.Struct, gc=False, rename=_SHORT):
    """`Headers` without properties and story: they are skipped, and not looked at, which saves most of the time."""

    reply_to: str | None = None
    correlation_id: str | None = None
    group: str | None = None
    type: str | None = None
    content_type: str | None = None
    expires_at_ms: int = 0
    large: tuple[bytes, int, int] | None = None


_decode_fields = msgspec.msgpack.Decoder(_Fields).decode
_decode_all = msgspec.msgpack.Decoder(Headers).decode


class HeaderColumns:
    """The fields of many headers."""

    __slots__ = ("_alike", "_decoded", "_indices", "_order")

    def __init__(self, headers: pa.BinaryArray, *, properties: bool) -> None:
        """`properties`: they will be asked for. If not they are skipped, and not looked at."""
        self._indices: pa.Array | None = None
        """Which of the headers that differ each row has; None: each its own."""
        self._order: pa.Array | None = None
        """Where each of those is found, if some are of one shape: these come first."""
        if len(headers) <= _SAMPLE or len(headers[:_SAMPLE].unique()) <= _SAMPLE // 2:
            encoded = headers.dictionary_encode()
            self._indices, headers = encoded.indices, encoded.dictionary
        self._alike = list(alike(headers)) if len(headers) >= _SHAPED_MIN else []
        if self._alike:
            left = np.ones(len(headers), bool)
            rows = np.concatenate([each.rows for each in self._alike])
            left[rows] = False
            rest = np.flatnonzero(left)
            order = np.empty(len(headers), np.int64)
            order[np.concatenate((rows, rest))] = np.arange(len(headers))
            self._order = pa.array(order)
            headers = headers.take(pa.array(rest))
        self._decoded = decoded(headers, properties=properties)

    def text(self, field: str) -> pa.StringArray:
        """A field that is text: null where there is none."""
        values = [None if each is None else getattr(each, field) for each in self._decoded]
        return self._rows([each.text(field) for each in self._alike], pa.array(values, pa.string()))

    def expires_at(self) -> pa.TimestampArray:
        """Null where a message never expires; so it is beyond what can be written as microseconds."""
        shaped = [
            pa.repeat(pa.scalar(_expires_us(each.shape.headers), pa.int64()), len(each.rows)) for each in self._alike
        ]
        return self._rows(shaped, pa.array(map(_expires_us, self._decoded), pa.int64())).cast(TIMESTAMP)

    def properties(self) -> pa.MapArray:
        """All as text; null only where the headers cannot be decoded."""
        shaped = [
            each.properties(list(map(property_text, (each.shape.headers.properties or {}).values())))
            for each in self._alike
        ]
        maps: list[dict[str, Any] | None] = [
            None if each is None else (each.properties or {}) if isinstance(each, Headers) else {}
            for each in self._decoded
        ]
        return self._rows(shaped, _map(maps))

    def _rows(self, shaped: list[pa.Array], others: pa.Array) -> pa.Array:
        """The values of each row, put together."""
        values = pa.concat_arrays([*shaped, others]).take(self._order) if shaped else others
        return values if self._indices is None else values.take(self._indices)


def _expires_us(headers: Headers | _Fields | None) -> int | None:
    at_ms = 0 if headers is None else headers.expires_at_ms
    return at_ms * 1_000 if 0 < at_ms <= TIME_MS_MAX else None


def decoded(headers: pa.BinaryArray, *, properties: bool) -> Decoded:
    """Each of these headers; None for one that cannot be decoded."""
    decode: Callable[[bytes], Headers | _Fields] = _decode_all if properties else _decode_fields
    encoded = [each or _EMPTY for each in headers.to_pylist()]
    try:
        return list(map(decode, encoded))
    except _UNREADABLE:
        return [_or_none(decode, each) for each in encoded]


def _or_none(decode: Callable[[bytes], Headers | _Fields], data: bytes) -> Headers | _Fields | None:
    try:
        return decode(data)
    except _UNREADABLE:
        return None


# --- properties -----------------------------------------------------------------------------------


def _map(maps: Sequence[dict[str, Any] | None]) -> pa.MapArray:
    present = [each or {} for each in maps]
    names = list(chain.from_iterable(present))
    values: list[Any] = list(chain.from_iterable(map(dict.values, present)))
    if not {*map(type, values)} <= {str}:
        values = list(map(property_text, values))
    offsets = np.zeros(len(maps) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, present), np.int32, len(present)), out=offsets[1:])
    absent = np.fromiter((each is None for each in maps), bool, len(maps))
    return pa.MapArray.from_arrays(
        pa.array(offsets),
        pa.array(names, pa.string()),
        pa.array(values, pa.string()),
        type=PROPERTIES,
        mask=pa.array(absent) if absent.any() else None,
    )


def property_text(value: Any) -> str | None:
    """A property's value as text: `true`, `false`, numbers as in JSON, bytes in base64; None stays None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else "NaN" if value != value else f"{'-' * (value < 0)}Infinity"
    if isinstance(value, bytes):
        return b64encode(value).decode()
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()  # of a sender that is none of ours
    except (TypeError, ValueError, RecursionError):
        return str(value)
