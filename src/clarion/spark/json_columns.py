"""JSON texts as Arrow columns of a given schema.

Theory of operation
    A schema becomes a type of `msgspec`, which reads each text in one call into C and checks it on the way. The values
    are then turned into columns, field by field, at every depth. (Arrow's own reader of JSON takes many texts at once,
    but ended the process at a text that was only `null`, with pyarrow 26, and cannot say which text is wrong.)

Rules, which are those of Spark's `from_json` as far as they go
    1. A text is one object; members that the schema does not have are passed over; those that are not there are null.
    2. A member of another type makes the whole text malformed. But a field of type string takes any value as its JSON.
    3. Times are RFC 3339, those without a zone are UTC; bytes are base64; decimals are rounded half up to their scale,
       and null where they have too many digits.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from clarion.errors import BadArgument

UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What a decoder raises for a text that is not what it should be."""

Decode = Callable[[bytes], Any]
_FIELDS: Final = "c{}"


class Reader(NamedTuple):
    """How texts of one type are read: most by `strict`; those that it does not take by `lenient`."""

    strict: Decode
    lenient: Decode

    def read(self, texts: Sequence[bytes | None]) -> tuple[list[Any], list[int]]:
        """The values, None for what is not there or malformed; and which are malformed."""
        try:
            if None not in texts:
                return list(map(self.strict, texts)), []  # type: ignore[arg-type]
        except UNREADABLE:
            pass
        values: list[Any] = []
        malformed: list[int] = []
        for index, text in enumerate(texts):
            value = None
            if text is not None:
                try:
                    value = self._read(text)
                except UNREADABLE:
                    malformed.append(index)
            values.append(value)
        return values, malformed

    def _read(self, text: bytes) -> Any:
        try:
            return self.strict(text)
        except UNREADABLE:
            msgspec.json.decode(text)  # what is kept as it is would not be checked to the last byte
            return self.lenient(text)


@lru_cache(maxsize=64)
def reader_of(kind: pa.DataType) -> Reader:
    """The reader for texts of this type. Raises `BadArgument` for a type that JSON cannot be read as."""
    return Reader(*(msgspec.json.Decoder(_type(kind, strict)).decode for strict in (True, False)))


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values that a reader of this type gave, or None."""
    if pa.types.is_struct(kind):
        return _struct(values, kind)
    if pa.types.is_map(kind):
        present = [each or {} for each in values]
        keys = column(list(chain.from_iterable(present)), kind.key_type)
        items = column(list(chain.from_iterable(map(dict.values, present))), kind.item_type)
        offsets, mask = _offsets(values, present)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    if pa.types.is_list(kind):
        present = [each or [] for each in values]
        offsets, mask = _offsets(values, present)
        items = column(list(chain.from_iterable(present)), kind.value_type)
        return pa.ListArray.from_arrays(offsets, items, type=kind, mask=mask)
    if pa.types.is_string(kind):
        if msgspec.Raw in {*map(type, values)}:
            values = [_text(each) if isinstance(each, msgspec.Raw) else each for each in values]
    elif pa.types.is_timestamp(kind):
        values = [_moment(each) for each in values]
    elif pa.types.is_decimal(kind):
        values = [_rounded(each, kind) for each in values]
    return pa.array(values, kind)


def _struct(values: Sequence[Any], kind: pa.StructType) -> pa.StructArray:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    mask = _mask(values)
    children = []
    for index, field in enumerate(fields):
        get = attrgetter(_FIELDS.format(index))
        child = list(map(get, values)) if mask is None else [None if each is None else get(each) for each in values]
        children.append(column(child, field.type))
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _offsets(values: Sequence[Any], present: Sequence[Any]) -> tuple[pa.Array, pa.Array | None]:
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, present), np.int32, len(present)), out=offsets[1:])
    return pa.array(offsets), _mask(values)


def _mask(values: Sequence[Any]) -> pa.Array | None:
    absent = np.fromiter((each is None for each in values), bool, len(values))
    return pa.array(absent) if absent.any() else None


# --- types ----------------------------------------------------------------------------------------


def _type(kind: pa.DataType, strict: bool) -> Any:
    """The type of `msgspec` for values of this type."""
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        if not fields:
            raise BadArgument(argument="schema", detail="a struct has no fields")
        return msgspec.defstruct(
            "Row",
            [(_FIELDS.format(index), _optional(field.type, strict), None) for index, field in enumerate(fields)],
            rename={_FIELDS.format(index): field.name for index, field in enumerate(fields)},
            gc=False,
        )
    if pa.types.is_list(kind):
        return list[_optional(kind.value_type, strict)]  # type: ignore[misc]
    if pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            raise BadArgument(argument="schema", detail=f"names of a map are strings, not {kind.key_type}")
        return dict[str, _optional(kind.item_type, strict)]  # type: ignore[misc]
    if pa.types.is_string(kind):
        return str if strict else msgspec.Raw
    if pa.types.is_signed_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return datetime.datetime
    for known, wanted in _SIMPLE:
        if known(kind):
            return wanted
    raise BadArgument(argument="schema", detail=f"JSON cannot be read as {kind}")


_SIMPLE: Final[tuple[tuple[Callable[[pa.DataType], bool], Any], ...]] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_floating, float),
    (pa.types.is_binary, bytes),
    (pa.types.is_date32, datetime.date),
    (pa.types.is_decimal128, decimal.Decimal),
)


def _optional(kind: pa.DataType, strict: bool) -> Any:
    wanted = _type(kind, strict)
    return wanted if wanted is msgspec.Raw else wanted | None


# --- values ---------------------------------------------------------------------------------------


def _text(raw: msgspec.Raw) -> str | None:
    """A value of any type as text: a string as it is, others as their JSON."""
    data = bytes(raw)
    if data == b"null":
        return None
    return msgspec.json.decode(data, type=str) if data.startswith(b'"') else data.decode()


def _moment(value: datetime.datetime | None) -> datetime.datetime | None:
    return value if value is None or value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)


def _rounded(value: decimal.Decimal | None, kind: pa.Decimal128Type) -> decimal.Decimal | None:
    if value is None or not value.is_finite():
        return None
    context = decimal.Context(prec=kind.precision, rounding=decimal.ROUND_HALF_UP)
    try:
        return value.quantize(decimal.Decimal(1).scaleb(-kind.scale), context=context)
    except decimal.InvalidOperation:
        return None
