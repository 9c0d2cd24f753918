"""Columns of a sink as one type each, and errors that name the row.

Whatever is wrong with a value raises `BadArgument` or `MessageTooLarge`, with the column and the row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clarion.client.options import TIME_S_MAX
from clarion.errors import BadArgument, BadName, ClarionError, MessageTooLarge
from clarion.message import parse_destination
from clarion.spark import msgpack_columns

Numbers = np.ndarray[Any, np.dtype[np.int64]]
TIME_MS_MAX: Final = 1_000 * TIME_S_MAX


class ColumnReader:
    """Rows of a record batch, of which the first is row `at` of what the caller knows."""

    def __init__(self, rows: pa.RecordBatch, at: int) -> None:
        self._rows = rows
        self._at = at
        self.count = rows.num_rows

    def column(self, name: str, wanted: pa.DataType) -> pa.Array | None:
        """A column as this type; None if it is not there."""
        if name not in self._rows.schema.names:
            return None
        return self.converted(name, self._rows.column(name), wanted)

    def converted(self, name: str, column: pa.Array, wanted: pa.DataType) -> pa.Array:
        try:
            if kind_of(column.type) not in _TAKEN[wanted]:
                raise BadArgument(argument=name, detail=f"it is a {column.type}, which cannot be a {wanted}")
            if column.type != wanted:
                column = column.cast(wanted)
            if pa.types.is_string(wanted):
                column.validate(full=True)  # Spark makes text of any bytes
        except pa.ArrowInvalid as error:
            raise BadArgument(argument=name, detail=str(error)[:200]) from None
        return column

    def text(self, name: str, default: str | None) -> pa.StringArray | None:
        """A column of text, with the default where there is none; None for a column of nothing."""
        column = self.column(name, pa.string())
        if column is None:
            if default is None:
                return None
            column = pa.repeat(pa.scalar(default, pa.string()), self.count)
        elif default is not None:
            column = column.fill_null(default)
        self.limit(name, column, msgpack_columns.TEXT_BYTES_MAX)
        return column

    def moments(self, name: str, default_ms: int = 0) -> Numbers | None:
        """A column of moments in Unix milliseconds."""
        if name not in self._rows.schema.names:
            return None
        column = self._rows.column(name)
        if pa.types.is_null(column.type):
            return np.full(self.count, default_ms, np.int64)
        if not pa.types.is_timestamp(column.type) or column.type.tz is None:
            raise BadArgument(argument=name, detail=f"it is a {column.type}, not a time with a time zone")
        milliseconds = column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        values: Numbers = milliseconds.fill_null(default_ms).to_numpy()
        wrong = column.is_valid().to_numpy(zero_copy_only=False) & ((values <= 0) | (values > TIME_MS_MAX))
        self.refuse(name, wrong, "it is not between 1970 and 9999")
        return values

    def each_name(self, name: str, column: pa.StringArray) -> None:
        for value in column.unique().to_pylist():
            try:
                if value is not None:
                    parse_destination(value, system=True)
            except BadName as error:
                raise self.error(name, int(pc.index(column, value).as_py()), str(error)) from None

    def limit(self, name: str, column: pa.Array, limit: int) -> None:
        sizes = pc.binary_length(column)
        largest = pc.max(sizes).as_py()
        if largest is not None and largest > limit:
            row = self._at + int(np.argmax(mask_of(pc.greater(sizes, limit))))
            raise too_large(largest, limit, row, name)

    def refuse(self, name: str, wrong: Any, detail: str) -> None:
        """Raises `BadArgument` for the first row that is wrong."""
        mask = mask_of(wrong)
        if mask.any():
            raise self.error(name, int(np.argmax(mask)), detail)

    def error(self, name: str, index: int, detail: str) -> ClarionError:
        row = self._at + index
        return BadArgument(argument=name, detail=f"{detail} (row {row})", row=row)


def too_large(size: int, limit: int, row: int, what: str) -> MessageTooLarge:
    """The error for a row that has too much of something."""
    error = MessageTooLarge(size=size, limit=limit, row=row, column=what)
    error.add_note(f"it is the {what} of row {row}")
    return error


def mask_of(wrong: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if isinstance(wrong, np.ndarray):
        return wrong
    found: np.ndarray[Any, np.dtype[np.bool_]] = wrong.fill_null(False).to_numpy(zero_copy_only=False)
    return found


_KINDS: Final[tuple[tuple[str, Callable[[pa.DataType], bool]], ...]] = (
    ("text", msgpack_columns.is_text),
    ("bytes", pa.types.is_binary),
    ("bytes", pa.types.is_large_binary),
    ("bytes", pa.types.is_binary_view),
    ("bytes", pa.types.is_fixed_size_binary),
    ("bool", pa.types.is_boolean),
    ("integer", pa.types.is_integer),
    ("floating", pa.types.is_floating),
    ("floating", pa.types.is_decimal),
    ("null", pa.types.is_null),
)
_TAKEN: Final = {
    pa.binary(): ("text", "bytes", "null"),
    pa.string(): ("text", "null"),
    pa.int64(): ("integer", "null"),
    pa.float64(): ("integer", "floating", "null"),
}


def kind_of(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return next((name for name, test in _KINDS if test(kind)), "")
