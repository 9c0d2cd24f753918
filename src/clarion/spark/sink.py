"""The sink: rows become messages, all of a micro-batch or none, each exactly once.

Theory of operation
    A task stages its rows in a transaction, prepares it, and sends the handle to the driver in its commit message. A
    prepared transaction belongs to nobody's connection: it waits until it is decided, or expires. The driver commits
    all handles of a micro-batch by one conditional commit, under the id of the query, with the number of the batch
    as version. The broker does that once for each version.

    who dies                            what is left                what happens
    a task before it has prepared       an open transaction         it is rolled back; Spark tries the task again
    a task after that                   a handle nobody knows       it expires; Spark tries the task again
    the driver before it commits        handles nobody knows        they expire; Spark does the batch again
    the driver before Spark's log       messages, and the version   Spark does the batch again: commit says False,
                                                                    and the new handles are rolled back
    a driver thought dead that is not   handles of an old batch     likewise

Guarantees
    1. A row is in exactly one message, whatever dies, as long as the checkpoint lives.
    2. Nobody sees a message before all of its micro-batch are to be seen.
    3. Rows of one task to one destination keep their order (among those of one priority).

A batch write (`df.write`) is one transaction likewise. Within `foreachBatch` it is exactly once if it is given a
`sinkKey`; anywhere with `sinkKey` and `sinkVersion`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from clarion import limits
from clarion.errors import BadArgument, Blocked, ClarionError, LimitReached, NoSuchHandle
from clarion.spark import connecting, encoding
from clarion.spark.options import SinkOptions
from clarion.spark.sink_columns import SinkDefaults, check_names
from clarion.spark.steps import at

if TYPE_CHECKING:
    import pyarrow as pa

    from clarion import sync
    from clarion.client.prepacked import Packed

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
STAGE_S_MAX = 60.0
"""A task that takes longer prepares what it has and begins another transaction: one that is left open for
`limits.TRANSACTION_MS_DEFAULT` is rolled back."""


@dataclass
class Staged(WriterCommitMessage):
    """What a task tells the driver."""

    handles: list[str]
    """Empty if it had no rows; several if it took long."""
    rows: int
    query: str | None
    """The id of the streaming query that it belongs to; it outlives restarts."""
    batch: int | None


def stage(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> Staged:
    """Send rows into transactions, and prepare them. Whatever goes wrong, nothing of it will be seen."""
    query, batch = _where()
    connection = connecting.connection(options.url, options.reconnect_s)
    defaults = _defaults(options, connection.batch_bytes_max)
    handles: list[str] = []
    try:
        rows = _prepared(options, defaults, connection, batches, handles)
    except BaseException:
        with suppress(ClarionError):  # else they expire
            roll_back(options, handles)
        raise
    at("prepared")
    return Staged(handles, rows, query, batch)


def _prepared(
    options: SinkOptions,
    defaults: SinkDefaults,
    connection: sync.Connection,
    batches: Iterable[pa.RecordBatch],
    handles: list[str],
) -> int:
    """The number of rows, which the handles have then."""
    rows, unprepared, began = 0, 0, 0.0
    with connection.session(transacted=True) as session:
        for found in batches:
            if not unprepared:
                began = time.monotonic()
            for destination, packed in encoding.packed(found, defaults):
                _send(session, destination, packed)
            rows += found.num_rows
            unprepared += found.num_rows
            if unprepared and time.monotonic() - began > STAGE_S_MAX:
                handles.append(str(session.prepare(options.expires_s)))
                unprepared = 0
        at("staged")
        if unprepared:
            handles.append(str(session.prepare(options.expires_s)))
    return rows


def _defaults(options: SinkOptions, batch_bytes_max: int = limits.BATCH_BYTES_MAX) -> SinkDefaults:
    return SinkDefaults(destination=options.destination, batch_bytes_max=batch_bytes_max, **options.headers)


def check(options: SinkOptions, columns: list[str]) -> None:
    """Raises `BadArgument` for columns that a sink does not take: once, before there are tasks."""
    check_names(columns, _defaults(options))


def _send(session: sync.Session, destination: str, packed: Packed) -> None:
    """Wait while the buffer is full: rows come faster than a disk takes them."""
    while True:
        try:
            session.send_packed(destination, packed)
            return
        except Blocked:
            session.writable()


def _where() -> tuple[str | None, int | None]:
    """The streaming query and batch that a task works for; those of `foreachBatch`, too."""
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context is not None else None
    batch = context.getLocalProperty(BATCH_ID) if context is not None else None
    return query, int(batch) if batch is not None else None


def commit(options: SinkOptions, handles: list[str], key: str | None, version: int | None) -> bool:
    """Make all visible in one step; False: this version was committed before, and these are rolled back."""
    if len(handles) > limits.HANDLES_PER_COMMIT_MAX:
        what = "transactions of one write (coalesce it to fewer partitions)"
        roll_back(options, handles)
        raise LimitReached(what=what, limit=limits.HANDLES_PER_COMMIT_MAX)
    if not handles and key is None:
        return True
    connection = connecting.connection(options.url, options.reconnect_s)
    at("committing")
    done = connection.commit(handles, key=key, version=version)
    at("committed")
    if not done:
        roll_back(options, handles)
    return done


def roll_back(options: SinkOptions, handles: Iterable[str]) -> None:
    """Forget prepared rows; those that are decided already are passed over."""
    connection = connecting.connection(options.url, options.reconnect_s)
    for handle in handles:
        with suppress(NoSuchHandle):
            connection.resolve(handle, commit=False)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _handles(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    return [handle for message in _staged(messages) for handle in message.handles]


def stream_key(query: str, key: str | None) -> str:
    """Under which name a query's batches are counted."""
    return f"spark-sink:{query}" if key is None else f"spark-sink:{query}:{key}"


class StreamWriter(DataSourceStreamArrowWriter):
    """`writeStream.format("clarion")`."""

    def __init__(self, options: SinkOptions, columns: list[str]) -> None:
        check(options, columns)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        query = next((message.query for message in _staged(messages) if message.query), None)
        if query is not None:
            commit(self._options, _handles(messages), stream_key(query, self._options.key), batchId + 1)
        elif _handles(messages):
            raise BadArgument(argument="query", detail="Spark did not tell the tasks the id of the query")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        roll_back(self._options, _handles(messages))


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("clarion")`."""

    def __init__(self, options: SinkOptions, columns: list[str]) -> None:
        check(options, columns)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit(self._options, _handles(messages), *self._condition(_staged(messages)))

    def _condition(self, staged: list[Staged]) -> tuple[str | None, int | None]:
        """The key and version that make a write happen once."""
        key, version = self._options.key, self._options.version
        if key is None:
            return None, None
        if version is not None:
            return f"spark-write:{key}", version
        for message in staged:
            if message.query is not None and message.batch is not None:
                return stream_key(message.query, key), message.batch + 1
        if not staged:
            return None, None
        raise BadArgument(argument="sinkVersion", detail="outside of foreachBatch a sinkKey needs a version")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        roll_back(self._options, _handles(messages))
