"""What a task reads: ranges of sequences, as record batches, straight from the batches of the broker.

Guarantees
    1. Rows of a range come in the order of their sequences, each once, over any number of lost connections.
    2. What is no longer there is left out: expired, purged, or gone with its destination.
    3. Columns are exactly those that Spark was told (`shape`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from clarion.errors import BadArgument, NoSuchDestination
from clarion.spark import connecting, decoding, formats, schema
from clarion.spark.offsets import Range
from clarion.spark.options import SourceOptions
from clarion.spark.steps import at

if TYPE_CHECKING:
    from clarion import sync
    from clarion.wire.batch import Batch

SMALL_ROWS = 1_000
"""A record batch with fewer rows waits for others …"""
MERGED_ROWS = 10_000
"""… until there are so many."""


class Share(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.ranges = list(ranges)


def shape(options: SourceOptions) -> str:
    """The schema of a source whose user gives none. Raises `BadArgument` where one is needed."""
    if options.format != "messages":
        detail = f"format={options.format} needs a schema of what is in the bodies: .schema('…')"
        raise BadArgument(argument="format", detail=detail)
    return schema.spark_ddl(options.columns)


class Rows:
    """How a task makes rows; goes to the tasks, so it holds nothing that is open."""

    def __init__(self, options: SourceOptions, wanted: StructType, *, streaming: bool) -> None:
        self._options = options
        self._streaming = streaming
        self._arrow = to_arrow_schema(wanted, timezone="UTC")
        if options.format == "messages":
            self._names = schema.checked(wanted.fieldNames())
            for field in schema.arrow_schema(self._names):
                found = self._arrow.field(field.name).type
                if found != field.type:
                    detail = f"the schema says {field.name} is {found}, it is {field.type}"
                    raise BadArgument(argument="schema", detail=detail)
        else:
            self._names = tuple(formats.columns_for(self._arrow, options.format))

    def read(self, share: Share) -> Iterator[pa.RecordBatch]:
        """The record batches of a share."""
        options = self._options
        connection = connecting.connection(options.url, options.reconnect_s)
        with connection.session() as session:
            for found in _merged(self._found(session, share)):
                at("read")
                yield self._formed(found)

    def _found(self, session: sync.Session, share: Share) -> Iterator[pa.RecordBatch]:
        for one in share.ranges:
            yield from decoding.joined(self._parts(session, one), one.destination, self._names)

    def _formed(self, found: pa.RecordBatch) -> pa.RecordBatch:
        options = self._options
        if options.format == "messages":
            return found if found.schema.equals(self._arrow) else found.cast(self._arrow)
        return formats.parse(found, options.format, self._arrow, failfast=options.failfast)

    def _parts(self, session: sync.Session, one: Range) -> Iterator[tuple[int, Batch]]:
        subscription = self._options.subscription
        if self._streaming and one.destination.startswith("queue:"):
            subscription = ""  # its own: what is confirmed may still be retained, and is not read again
        try:
            yield from session.read(
                one.destination,
                one.first,
                one.end,
                selector=self._options.selector,
                subscription=subscription,
                identity=one.identity,
            )
        except NoSuchDestination:
            return  # it was dropped, and its messages with it
        except BadArgument as error:
            if error.facts.get("argument") != "identity":
                raise


def _merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small ones together: a pattern may have a thousand topics with a few messages each."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for found in batches:
        if found.num_rows < SMALL_ROWS:
            waiting.append(found)
            rows += found.num_rows
            if rows < MERGED_ROWS:
                continue
        else:
            yield from _one(waiting)
            waiting, rows = [found], found.num_rows
        yield from _one(waiting)
        waiting, rows = [], 0
    yield from _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    merged: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return merged
