"""Bodies in a known format, read into the columns that a user names.

    parse(rows, "json", schema)            # bodies are JSON objects: a column for each member
    parse(rows, "cloudevents", schema)     # events: id, source, type, time … and data

Guarantees
    1. Row by row: the result has as many rows as were given, in their order.
    2. A body that cannot be read loses nothing but its own row: its columns are null, and `_corrupt`, if the schema has
       it, is the body. With `failfast` it raises instead, and says which message it is.
    3. What a row becomes does not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from clarion.errors import BadArgument
from clarion.spark import event_columns, json_columns

FORMATS: Final = ("json", "cloudevents")
CORRUPT: Final = "_corrupt"
"""The column of bodies that cannot be read: binary or string."""


def columns_for(schema: pa.Schema, format: str) -> tuple[str, ...]:
    """The columns of messages that `parse` needs. Raises `BadArgument` for a format or a schema that cannot be."""
    fields = _fields(schema)
    if format == "json":
        json_columns.reader_of(pa.struct(fields))
        return ("sequence", "body")
    if format == "cloudevents":
        event_columns.check(fields)
        return ("sequence", *event_columns.NEEDED)
    raise BadArgument(argument="format", detail=f"{format!r} is none of {', '.join(FORMATS)}")


def parse(rows: pa.RecordBatch, format: str, schema: pa.Schema, *, failfast: bool = False) -> pa.RecordBatch:
    """Rows with the columns of `columns_for`, as a record batch of exactly this schema. Raises `BadArgument`."""
    columns_for(schema, format)
    fields = _fields(schema)
    if format == "json":
        found, malformed = _json(rows, fields)
    else:
        found, malformed = event_columns.read(rows, fields)
    if failfast and malformed:
        _fail(rows, malformed[0], format)
    columns = dict(zip((field.name for field in fields), found, strict=True))
    if len(fields) < len(schema):
        columns[CORRUPT] = _corrupt(rows, malformed, schema.field(CORRUPT).type)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _fields(schema: pa.Schema) -> list[pa.Field]:
    """What is read from bodies."""
    fields = [field for field in schema if field.name != CORRUPT]
    if not fields or len({*schema.names}) != len(schema):
        raise BadArgument(argument="schema", detail="a column is there twice" if fields else "it has no columns")
    if len(fields) < len(schema) and schema.field(CORRUPT).type not in (pa.binary(), pa.string()):
        raise BadArgument(argument="schema", detail=f"{CORRUPT} is binary or string")
    return fields


def _json(rows: pa.RecordBatch, fields: Sequence[pa.Field]) -> tuple[list[pa.Array], list[int]]:
    kind = pa.struct(fields)
    values, malformed = json_columns.reader_of(kind).read(rows.column("body").to_pylist())
    return json_columns.column(values, kind).flatten(), malformed


def _corrupt(rows: pa.RecordBatch, malformed: Sequence[int], kind: pa.DataType) -> pa.Array:
    """The bodies that are malformed, null for others."""
    if not malformed:
        return pa.nulls(rows.num_rows, kind)
    bodies = rows.column("body")
    if kind == pa.binary():
        places = np.full(rows.num_rows, -1, np.int64)
        places[list(malformed)] = malformed
        return bodies.take(pa.array(places, mask=places < 0))
    texts: list[str | None] = [None] * rows.num_rows
    for row in malformed:
        texts[row] = (bodies[row].as_py() or b"").decode("utf-8", "replace")
    return pa.array(texts, kind)


def _fail(rows: pa.RecordBatch, row: int, format: str) -> None:
    body = rows.column("body")[row].as_py()
    sequence = rows.column("sequence")[row].as_py()
    detail = f"message {sequence} is not {format} of this schema: {bytes(body or b'')[:80]!r}"
    raise BadArgument(argument="body", detail=detail, sequence=sequence)
