"""Running one pipeline: start, watch, stop, and say how it goes.

Guarantees
    1. A pipeline runs once for its folder (see `folder.py`), and goes on from its checkpoint.
    2. A stop waits for the micro-batch under way, up to `stop_ms`, and then ends the queries.
    3. When `run` returns, everything that the queries have committed is confirmed at the broker; so after a run with
       `once` that finished, the subscription owes nothing that was there when it began.
    4. A query that fails is started again from its checkpoint, `retries` times in a row at most, with pauses that
       grow. A micro-batch that succeeds ends the row.
    5. Whatever happens, the last status says it: finished, stopped or failed with the reason.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from clarion.errors import CheckpointLost, ClarionError, PipelineFailed
from clarion.pipelines.failures import reason
from clarion.pipelines.folder import Folder
from clarion.pipelines.progress import QueryStatus, Status
from clarion.pipelines.publishing import Publisher
from clarion.pipelines.registry import Context, Started
from clarion.pipelines.screen import Screen
from clarion.pipelines.session import open_session
from clarion.pipelines.settings import Run
from clarion.pipelines.signals import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from clarion.spark import Attached

POLL_S = 0.1
CONFIRM_S = 30.0
_PAUSE_S = (1.0, 2.0, 4.0, 8.0, 15.0)
SAY_S = 0.25
"""Least time between two statuses."""


def run_pipeline(run: Run, screen: Screen, *, once: bool = False, new_checkpoint: bool = False) -> dict[str, Any]:
    """Run it until it ends, fails or is asked to stop. Returns the last status, with `stopped_by`.

    Raises `PipelineRuns`, `PipelineFailed`, and what says that it cannot begin: `JavaMissing`, `BadArgument` …
    """
    folder = Folder(run.folder)
    lock = folder.take(run.name)
    try:
        return _Running(run, folder, screen, once, new_checkpoint).run(lock)
    finally:
        folder.release()


class _Running:
    def __init__(self, run: Run, folder: Folder, screen: Screen, once: bool, new_checkpoint: bool) -> None:
        self._run = run
        self._folder = folder
        self._screen = screen
        self._once = once
        self._new_checkpoint = new_checkpoint
        self._began = time.monotonic()
        self._said = 0.0
        self._publisher: Publisher | None = None
        if run.common.publish_ms:
            self._publisher = Publisher(run.common.url, run.name, run.common.publish_ms / 1000)
        self._status = Status(
            name=run.name,
            pipeline=run.pipeline.name,
            pid=os.getpid(),
            host=socket.gethostname(),
            url=_without_password(run.common.url),
            master=run.common.master or "local[*]",
            since=_now(),
            queries={},
        )

    # --- the whole --------------------------------------------------------------------------------

    def run(self, lock: int) -> dict[str, Any]:
        spark: SparkSession | None = None
        with Stop(self._folder) as stop:
            try:
                self._say(force=True)
                spark = open_session(self._run, lock)
                stop.listen()
                self._status.master = str(spark.sparkContext.master)
                context = Context(
                    spark=spark,
                    url=self._run.common.url,
                    checkpoint=self._run.checkpoint,
                    name=self._run.name,
                    once=self._once,
                    trigger_ms=self._run.common.trigger_ms,
                    new_checkpoint=self._new_checkpoint,
                )
                if self._run.pipeline.start is not None:
                    self._stream(context, stop)
                else:
                    self._work(context, stop)
                self._status.state = "stopped" if stop.cause is not None else "finished"
            except BaseException as error:
                self._status.state = "failed"
                self._status.error = _why(error)
                raise self._failure(error) from None
            finally:
                self._say(force=True)
                if self._publisher is not None:
                    self._publisher.close()
                self._screen.close()
                if spark is not None:
                    _quietly(spark.stop)
        return {**self._status.facts(_now()), "stopped_by": stop.cause, "signal": stop.signal}

    def _failure(self, error: BaseException) -> BaseException:
        """What the caller gets: errors of Clarion and interrupts as they are, all else in one line."""
        if isinstance(error, ClarionError) or not isinstance(error, Exception):
            return error
        detail = f"{_why(error)} (see {self._folder.path / 'spark.log'})"
        return PipelineFailed(name=self._run.name, detail=detail)

    def _say(self, force: bool = False) -> None:
        """To everybody who wants to know, now and then."""
        now = time.monotonic()
        if not force and now - self._said < SAY_S:
            return
        self._said = now
        self._status.elapsed_s = now - self._began
        facts = self._status.facts(_now())
        self._folder.write(facts)
        self._screen.show(facts)
        if self._publisher is not None:
            self._publisher.send(facts)

    # --- jobs ---------------------------------------------------------------------------------------

    def _work(self, context: Context, stop: Stop) -> None:
        assert self._run.pipeline.run is not None
        self._status.state = "running"
        self._status.report = {}
        self._began = time.monotonic()
        self._say(force=True)

        def report(facts: dict[str, Any]) -> None:
            self._status.report = facts
            if stop.is_wanted():
                self._status.state = "stopping"
            self._say()

        self._status.report = self._run.pipeline.run(context, self._run.settings, report, stop.is_wanted)

    # --- queries --------------------------------------------------------------------------------------

    def _stream(self, context: Context, stop: Stop) -> None:
        import clarion.spark

        attached = clarion.spark.attach(context.spark, context.url)
        failures = 0
        try:
            while not stop.is_wanted():
                before = self._batches()
                try:
                    error = self._life(context, stop, attached)
                except Exception as unstartable:
                    if not failures:  # what cannot begin is told at once; what cannot begin again may be able to later
                        raise
                    error = unstartable
                if error is None:
                    return
                failures = failures + 1 if self._batches() == before else 1
                self._status.error = _why(error)
                if failures > self._run.common.retries or CheckpointLost.code in self._status.error:
                    raise error
                pause_s = _PAUSE_S[min(failures, len(_PAUSE_S)) - 1]
                self._screen.note(f"{self._run.name}: {self._status.error}; started again in {pause_s:.0f} s")
                self._status.state = "starting"
                self._say(force=True)
                _wait(pause_s, stop.is_wanted)
        finally:
            _quietly(attached.close)

    def _life(self, context: Context, stop: Stop, attached: Attached) -> Exception | None:
        """From start to end of the queries. Returns why one failed."""
        assert self._run.pipeline.start is not None
        started: Started = self._run.pipeline.start(context, self._run.settings)
        try:
            self._status.state = "running"
            self._say(force=True)
            error = self._watch(started.queries, stop)
            if stop.is_wanted():
                self._status.state = "stopping"
                self._say(force=True)
            for query in started.queries:
                if query.isActive and error is None:
                    self._settle(query)
                _quietly(query.stop)
                self._look(query)
            for query in started.queries:
                self._confirm(query, attached, error)
            return error
        finally:
            for query in started.queries:
                _quietly(query.stop)
            if started.close is not None:
                started.close()

    def _watch(self, queries: list[StreamingQuery], stop: Stop) -> Exception | None:
        """Until all have ended, one has failed, or a stop is wanted."""
        while not stop.is_wanted():
            active = [query.isActive for query in queries]
            for query in queries:
                self._look(query)
                error = query.exception()
                if error is not None:
                    return error
            self._say()
            if not any(active):
                return None
            time.sleep(POLL_S)
        return None

    def _settle(self, query: StreamingQuery) -> None:
        """Wait until the micro-batch under way is committed."""
        deadline = time.monotonic() + self._run.common.stop_ms / 1000
        first = _batch(query)
        while query.isActive and time.monotonic() < deadline:
            if not query.status["isTriggerActive"] or _batch(query) != first:
                return
            self._say()
            time.sleep(POLL_S / 5)

    def _confirm(self, query: StreamingQuery, attached: Attached, error: Exception | None) -> None:
        """What is committed, to the broker. After a failure the next life does it if this cannot."""
        try:
            attached.confirm(query, CONFIRM_S)
        except ClarionError:
            if error is None:
                raise

    def _look(self, query: StreamingQuery) -> None:
        """Count the micro-batches since the last look."""
        progress = query.lastProgress
        if progress is None:
            return
        name = str(query.name)
        status = self._status.queries.setdefault(name, QueryStatus(name=name))
        if status.is_next(progress):
            status.take(progress)
        else:
            for each in query.recentProgress:
                status.take(each)

    def _batches(self) -> int:
        return sum(query.batches for query in self._status.queries.values())


def _batch(query: StreamingQuery) -> object:
    progress = query.lastProgress
    return None if progress is None else (progress["runId"], progress["batchId"], progress["timestamp"])


def _why(error: BaseException) -> str:
    return str(error) if isinstance(error, ClarionError) else reason(f"{type(error).__name__}: {error}")


def _wait(limit_s: float, is_over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + limit_s
    while not is_over() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _quietly(action: Callable[[], object]) -> None:
    """At the end, where what fails has failed before."""
    try:
        action()
    except Exception:
        pass


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
