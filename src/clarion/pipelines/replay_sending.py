"""Chunks of archived rows, sent each in one transaction that counts.

Guarantees
    1. A chunk and the place that it ends at are committed in one step: whoever asks the broker for the place (a version
       under the key of the job) knows exactly what was sent.
    2. Headers, body and priority are those of the archived message, byte for byte; except the story of a dead message
       and the reference of a large body, which the broker writes, and the time of expiry if that is to be stripped.
    3. Rows of one destination keep their order, of whatever priority they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, BinaryIO, Literal

import msgspec
import numpy as np
import pyarrow as pa

from clarion import sync
from clarion.client.options import SendOptions
from clarion.errors import BadArgument, Blocked, NoSuchHandle
from clarion.message import decode_headers
from clarion.pipelines.archive import steps
from clarion.spark import encoding

PREPARED_S = 3_600.0
"""A chunk of a process that died between preparing and committing is forgotten after that."""

Body = Callable[[str], BinaryIO]
"""The large body of a message, by its id."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How rows become messages."""

    to: str | None = None
    """Another destination for all; `{name}` in it is the name of the archived one. None: the archived one."""
    expiry: Literal["keep", "strip"] = "keep"
    times: Literal["keep", "now"] = "keep"


class Sender:
    """Sends for one job."""

    def __init__(self, connection: sync.Connection, key: str, terms: Terms, body: Body) -> None:
        self._connection = connection
        self._key = key
        self._terms = terms
        self._body = body
        self._session = connection.session(transacted=True)

    def place(self) -> int | None:
        """Up to where everything was sent; None if nothing was."""
        return self._connection.committed_version(self._key)

    def send(self, rows: pa.Table, end: int) -> bool:
        """Send rows, and that the place is `end` now. False: nothing was done, somebody was there before.

        Raises `TransactionRolledBack` if the connection was lost: nothing was done either.
        """
        if not rows.num_rows:
            return self._connection.commit([], key=self._key, version=end)
        try:
            for low, high in pieces(rows):
                piece = rows.slice(low, high - low)
                if piece["large"][0].is_valid:
                    self._send_large(piece)
                else:
                    self._send_packed(piece)
            steps.at("replay.sent")
            handle = self._session.prepare(PREPARED_S)
        except BaseException:
            self._session.rollback()
            raise
        steps.at("replay.prepared")
        committed = self._connection.commit([handle], key=self._key, version=end)
        if not committed:
            with suppress(NoSuchHandle):
                self._connection.resolve(handle, commit=False)
        return committed

    def close(self) -> None:
        """What is not committed is rolled back."""
        self._session.close()

    def _send_packed(self, piece: pa.Table) -> None:
        destination = target(piece["destination"][0].as_py(), self._terms.to)
        defaults = encoding.SinkDefaults(destination=destination, batch_bytes_max=self._connection.batch_bytes_max)
        columns = {name: piece[name] for name in ("priority", "body")}
        columns["headers"] = self._headers(piece)
        if self._terms.times == "keep":
            columns["time"] = piece["time"]
        for batch in pa.table(columns).combine_chunks().to_batches():
            for name, packed in encoding.packed(batch, defaults):
                while True:
                    try:
                        self._session.send_packed(name, packed)
                        break
                    except Blocked:
                        self._session.writable()

    def _headers(self, piece: pa.Table) -> Any:
        """The archived headers, without what must not be sent."""
        column = piece["headers"]
        keys = ["d"] if _is_system(piece["destination"][0].as_py()) else []
        if self._terms.expiry == "strip" and piece["expires_at"].null_count < piece.num_rows:
            keys.append("x")
        if not keys:
            return column
        return pa.chunked_array([pa.array([without(raw, keys) for raw in column.to_pylist()], pa.binary())])

    def _send_large(self, piece: pa.Table) -> None:
        for row in piece.to_pylist():
            headers = decode_headers(row["headers"] or b"")
            options = SendOptions(
                properties=headers.properties,
                reply_to=headers.reply_to,
                correlation_id=headers.correlation_id,
                group=headers.group,
                type=headers.type,
                content_type=headers.content_type,
                priority=row["priority"],
            )
            if headers.expires_at_ms and self._terms.expiry == "keep":
                left_s = headers.expires_at_ms / 1000 - row["time"].timestamp()
                options["ttl"] = max(left_s, 0.001)
            with self._body(row["id"]) as body:
                self._session.send_stream(target(row["destination"], self._terms.to), body, **options)


def pieces(rows: pa.Table) -> Iterator[tuple[int, int]]:
    """Ranges of rows that follow each other with the same destination, priority and kind of body. Pure."""
    codes = rows["destination"].combine_chunks().dictionary_encode().indices.to_numpy()
    priorities = rows["priority"].fill_null(0).to_numpy()
    large = rows["large"].is_valid().to_numpy()
    changes = (np.diff(codes) != 0) | (np.diff(priorities) != 0) | (large[1:] != large[:-1])
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), rows.num_rows]
    yield from pairwise(edges)


def target(destination: str, to: str | None) -> str:
    """Where a message goes. Raises `BadArgument` for a destination of the system that was not replaced. Pure."""
    if to is not None:
        return to.replace("{name}", destination.partition(":")[2].lstrip("_"))
    if _is_system(destination):
        raise BadArgument(argument="to", detail=f"{destination} belongs to the system: say where its messages go")
    return destination


def without(raw: bytes | None, keys: list[str]) -> bytes | None:
    """Headers without some fields; the same bytes if they have none of them. Pure."""
    if not raw:
        return raw
    fields = msgspec.msgpack.decode(raw)
    if not isinstance(fields, dict) or not fields.keys() & set(keys):
        return raw
    left = {key: value for key, value in fields.items() if key not in keys}
    return msgspec.msgpack.encode(left) if left else b""


def _is_system(destination: str) -> bool:
    return destination.partition(":")[2].startswith("_")
