"""Confirming promptly: a listener that tells the broker what Spark has committed.

Theory of operation
    The source confirms by itself when Spark asks it for the next micro-batch. That is late where the next one is far
    away (a long trigger) or does not come (the query was stopped). Spark tells listeners of a micro-batch after it has
    written its commit log; an offset names its source (`offsets.SOURCE`), so the listener needs nothing else.

Guarantees
    1. Only what Spark has committed is confirmed. Twice does no harm.
    2. A broker that cannot be reached delays nothing: it is tried again with the next micro-batch, by `confirm`, and
       by the source itself in its next run.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from clarion import sync
from clarion.client import address
from clarion.errors import ClarionError, Timeout
from clarion.spark import offsets
from clarion.spark.steps import at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

CONNECT_S = 10.0


class Attached(StreamingQueryListener):
    """Made by `clarion.spark.attach`. A thread of its own talks to brokers, so Spark's listeners never wait for it."""

    def __init__(self, spark: SparkSession, url: str | None = None) -> None:
        self._spark = spark
        self._url = url
        self._connections: dict[str, sync.Connection] = {}
        self._lock = threading.Lock()
        self._todo: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.failure: ClarionError | None = None
        """Why the last confirmation failed; None: it did not."""
        self._thread = threading.Thread(target=self._work, name="clarion attach", daemon=True)
        self._thread.start()
        spark.streams.addListener(self)

    # --- for Spark --------------------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            self._todo.put(source.endOffset)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass

    # --- for applications ---------------------------------------------------------------------------------

    def confirm(self, query: StreamingQuery, timeout: float = 60.0) -> None:
        """Return when everything that `query` has committed is confirmed; if it has ended, also the last of it.

        Raises `Timeout` if that takes longer than `timeout` seconds, or what the broker refuses it with.
        """
        deadline = time.monotonic() + timeout
        progress = query.lastProgress
        for source in progress.sources if progress is not None else ():
            while True:
                try:
                    self._confirm(source.endOffset, max(0.1, min(CONNECT_S, deadline - time.monotonic())))
                    break
                except ClarionError as error:
                    if time.monotonic() >= deadline:
                        raise Timeout(limit_ms=round(timeout * 1000), detail=f"confirming: {error}") from error

    def close(self) -> None:
        """Remove the listener and close its connections; what was told before is confirmed first."""
        self._spark.streams.removeListener(self)
        self._todo.put(None)
        self._thread.join(CONNECT_S)
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    # --- the thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (text := self._todo.get()) is not None:
            try:
                self._confirm(text, CONNECT_S)
                self.failure = None
            except ClarionError as error:
                self.failure = error

    def _confirm(self, text: str | None, connect_s: float) -> None:
        """Confirm what lies below an offset, if it is one of ours."""
        source, found = _ours(text)
        if source is None or not found:
            return
        with self._lock:
            connection = self._connection(str(source["url"]), connect_s)
            with connection.session() as session:
                reader = session.reader(source["destination"], subscription=source["subscription"])
                identities = {name: position.identity for name, position in found.items()}
                at("confirming")
                reader.confirm({name: [(1, one.next)] for name, one in found.items()}, identities=identities)

    def _connection(self, url: str, connect_s: float) -> sync.Connection:
        if self._url is not None and str(address.parse(self._url)) == url:
            url = self._url  # the same, with a password
        known = self._connections.get(url)
        if known is None or known.closed:
            known = sync.connect(url, name="spark listener", connect_timeout=connect_s, reconnect_timeout=connect_s)
            self._connections[url] = known
        return known


def _ours(text: str | None) -> tuple[Mapping[str, Any] | None, offsets.Offsets]:
    """The source and positions of an offset of this format; None for any other."""
    try:
        value = json.loads(text or "")
        source = value[offsets.SOURCE]
        if {"url", "destination", "subscription"} <= source.keys():
            return source, offsets.decode(value)
    except (ValueError, LookupError, TypeError, AttributeError, ClarionError):
        pass
    return None, {}
