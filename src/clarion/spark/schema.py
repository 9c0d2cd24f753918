"""The columns of a message, in Arrow and in Spark: one list that source, documents and pipelines share.

`arrow_schema` and `spark_ddl` say the same for the same names, in the same order; Spark takes Arrow data from a source
only if the schemas are equal to the last field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from clarion.errors import BadArgument

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIME_MS_MAX: Final = ((1 << 63) - 1) // 1_000
"""What can be said in microseconds."""
PROPERTIES: Final = pa.map_(pa.string(), pa.string())


class Column(NamedTuple):
    """One column: every one may be null, as Spark's readers have it."""

    name: str
    arrow: pa.DataType
    ddl: str
    """Its type as Spark writes it."""
    meaning: str


COLUMNS: Final[tuple[Column, ...]] = (
    Column("destination", pa.string(), "string", "where it was read: `topic:NAME` or `queue:NAME`"),
    Column("sequence", pa.int64(), "bigint", "its number within the destination"),
    Column("id", pa.string(), "string", "unique over all brokers and time: 32 hexadecimal digits"),
    Column("time", TIMESTAMP, "timestamp", "when its sender handed it over, by the sender's clock"),
    Column("priority", pa.int32(), "int", "0 to 9"),
    Column("type", pa.string(), "string", "header; of an event its type"),
    Column("content_type", pa.string(), "string", "header"),
    Column("reply_to", pa.string(), "string", "header: the destination for answers"),
    Column("correlation_id", pa.string(), "string", "header"),
    Column("group_id", pa.string(), "string", "header: the group that it belongs to"),
    Column("expires_at", TIMESTAMP, "timestamp", "when it expires; null: never"),
    Column("properties", PROPERTIES, "map<string,string>", "its properties as text; empty if it has none"),
    Column("headers", pa.binary(), "binary", "all headers as they were sent, in MessagePack; empty if it has none"),
    Column("body", pa.binary(), "binary", "null for a large one"),
    Column("body_bytes", pa.int64(), "bigint", "size of the body, of a large one too"),
    Column("large", pa.string(), "string", "the reference of a large body; null for others"),
)
"""In the order in which a reader has them."""

BY_NAME: Final = {column.name: column for column in COLUMNS}
DEFAULT: Final = tuple(column.name for column in COLUMNS if column.name != "headers")
"""What is read unless columns are named: `headers` says again what other columns say."""
HEADER_FIELDS: Final = frozenset(
    ("type", "content_type", "reply_to", "correlation_id", "group_id", "expires_at", "properties")
)
"""Columns for which headers must be decoded."""


def checked(names: Iterable[str]) -> tuple[str, ...]:
    """The names themselves. Raises `BadArgument` for one that is no column or is said twice, and for none."""
    wanted = tuple(names)
    unknown = [name for name in wanted if name not in BY_NAME]
    if unknown:
        detail = f"there is no column {', '.join(unknown)}; there are {', '.join(BY_NAME)}"
        raise BadArgument(argument="columns", detail=detail)
    if not wanted or len(set(wanted)) != len(wanted):
        raise BadArgument(argument="columns", detail="one is named twice" if wanted else "none is named")
    return wanted


def arrow_schema(names: Sequence[str] = DEFAULT) -> pa.Schema:
    """The Arrow schema of these columns, in this order. Raises `BadArgument`."""
    return pa.schema([pa.field(name, BY_NAME[name].arrow) for name in checked(names)])


def spark_ddl(names: Sequence[str] = DEFAULT) -> str:
    """The same schema as Spark reads it from text. Raises `BadArgument`."""
    return ", ".join(f"{name} {BY_NAME[name].ddl}" for name in checked(names))
