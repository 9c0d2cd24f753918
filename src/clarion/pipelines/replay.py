"""Replay: an archive back into destinations, filtered, at a rate, in order, each message exactly once (D-09).

Theory of operation
    A job has a name. When it begins it is pinned in the log of the archive: with the number of the entry that it reads
    the archive at, and with its settings. So what it reads cannot change, whatever is written, compacted or removed
    meanwhile. Rows are sent in chunks; each is one transaction, committed on condition that its place is newer than
    the last one under the key `replay:<job>`. That register, at the broker, is the only progress there is: whoever runs
    the job again, after whatever end, goes on from there. When all is sent the job is unpinned.

Guarantees
    1. No gap, no double: a message is sent if and only if the place after it is committed.
    2. Order: within a destination that of the archive; destinations come one after the other.
    3. A job that was begun with other settings is refused, and one that is done sends nothing again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import pyarrow.fs as pafs

from clarion import limits, sync
from clarion.errors import BadArgument, TransactionRolledBack
from clarion.pipelines.archive import layout, steps
from clarion.pipelines.archive.entries import DataFile, Entry, Pin
from clarion.pipelines.archive.files import Files, files_of
from clarion.pipelines.archive.log import Log
from clarion.pipelines.archive.reading import Wanted, frame_of, micros
from clarion.pipelines.archive.state import State
from clarion.pipelines.registry import Context, Pipeline, Report, Stopping
from clarion.pipelines.replay_sending import Sender, Terms
from clarion.pipelines.replaying import Ordered, Selection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIN_MS = 30 * 86_400_000
"""So long a job that is not run keeps the files that it needs."""
CHUNK_BYTES = 16 * limits.MIB
LOOK_S = 0.2


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`replay`."""

    path: str
    """The folder of the archive."""
    job: str
    """Its name: run again under this name it goes on."""
    destinations: tuple[str, ...] = ()
    """Only these: `topic:NAME`, `queue:NAME`, `glob:…`, `regex:…`."""
    since: datetime | None = None
    """Only messages handed over at this time or later …"""
    until: datetime | None = None
    """… and before this one."""
    where: str | None = None
    """Only rows for which this is true: SQL over the columns of messages, as Spark understands it."""
    to: str | None = None
    """Another destination for all; `{name}` in it is the name of the archived one. None: where they were."""
    rate: float | None = None
    """At most so many messages a second; None: as fast as the broker takes them."""
    expiry: Literal["keep", "strip"] = "keep"
    """Whether messages expire when they would have: then those whose time is over die at once."""
    times: Literal["keep", "now"] = "keep"
    """Whether messages say that they were handed over when they were, or now."""
    chunk_rows: int = 10_000
    """Of one transaction."""

    def wanted(self) -> Wanted:
        """What is read of the archive."""
        return Wanted(self.destinations, micros(self.since, "since"), micros(self.until, "until"))

    def purpose(self) -> dict[str, Any]:
        """What a job cannot change once it is begun."""
        fixed: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return {key: value for key, value in fixed.items() if key not in ("path", "job", "rate", "chunk_rows")}


def replay(
    url: str,
    settings: Settings,
    *,
    spark: SparkSession | None = None,
    report: Report = lambda _: None,
    stopping: Stopping = lambda: False,
) -> dict[str, Any]:
    """Run a job to its end, or until it should stop; the last report. Needs Spark only for `where`.

    A report has `rows` of the archive that are behind it, of `total`; messages `sent` by this run; and `done`.
    """
    if settings.chunk_rows < 1 or (settings.rate is not None and not settings.rate > 0):
        raise BadArgument(argument="rate", detail="rate and chunk_rows are more than 0")
    if settings.where is not None and spark is None:
        raise BadArgument(argument="where", detail="this needs Spark")
    files = files_of(spark, settings.path)
    with sync.connect(url, name=f"replay {settings.job}") as connection:
        job = _Job(connection, files, settings, report, stopping)
        return job.run(spark)


class _Job:
    """One run of a job."""

    def __init__(
        self, connection: sync.Connection, files: Files, settings: Settings, report: Report, stopping: Stopping
    ) -> None:
        self._connection = connection
        self._files = files
        self._log = Log(files)
        self._settings = settings
        self._report = report
        self._stopping = stopping
        self._sent = 0
        self._key = f"replay:{settings.job}"
        self._pace = Pace(settings.rate)

    def run(self, spark: SparkSession | None) -> dict[str, Any]:
        settings = self._settings
        pin = self._pinned()
        if pin is None:
            return self._told(0, 0, done=True)
        steps.at("replay.pinned")
        wanted = settings.wanted()
        chosen = wanted.chosen(self._log.at(pin.number).files.values())
        selection = None
        if settings.where is not None:
            assert spark is not None
            selection = selected(spark, self._files, chosen, settings.where)
        rows = Ordered(chosen, wanted, self._opener(), selection)
        bodies = {layout.body_owner(path): path for file in chosen for path in file.bodies}
        opener = self._opener()
        terms = Terms(to=settings.to, expiry=settings.expiry, times=settings.times)
        sender = Sender(self._connection, self._key, terms, lambda identity: opener(bodies[identity]))
        try:
            done = self._send_all(sender, rows)
        finally:
            sender.close()
        if done:
            steps.at("replay.done")
            self._log.commit(lambda _: Entry("unpin", self._log.now_ms(), unpin=settings.job))
        return self._told(sender.place() or 0, rows.end, done)

    def _send_all(self, sender: Sender, rows: Ordered) -> bool:
        """Whether everything is sent; False: it should stop."""
        most = self._settings.chunk_rows
        if self._settings.rate is not None:
            most = max(1, min(most, int(self._settings.rate)))
        while (place := sender.place() or 0) < rows.end:
            for chunk in rows.chunks(place, most, CHUNK_BYTES):
                if not self._pace.wait(chunk.rows.num_rows, self._stopping):
                    return False
                try:
                    if not sender.send(chunk.rows, chunk.end):
                        break  # another process runs this job too: look where it is
                except TransactionRolledBack:
                    break  # the connection was lost: look what was done
                steps.at("replay.committed")
                self._sent += chunk.rows.num_rows
                self._told(chunk.end, rows.end, done=False)
        return True

    def _pinned(self) -> Pin | None:
        """Where the job reads the archive: as when it was begun. None: it is done."""
        settings, now_ms = self._settings, self._log.now_ms()
        if settings.job not in self._log.latest().pins and self._connection.committed_version(self._key) is not None:
            return None

        def decide(state: State) -> Entry:
            pin = state.pins.get(settings.job)
            if pin is not None and pin.purpose != settings.purpose():
                detail = f"the job was begun with other settings: {msgspec.json.encode(pin.purpose).decode()}"
                raise BadArgument(argument="job", detail=detail)
            number = state.number if pin is None else pin.number
            return Entry("pin", now_ms, pin=Pin(settings.job, number, now_ms + PIN_MS, settings.purpose()))

        entry = self._log.commit(decide)
        assert entry is not None
        return entry.pin

    def _opener(self) -> Callable[[str], Any]:
        uri = self._files.uri
        if ":/" in uri:
            system, base = pafs.FileSystem.from_uri(uri)
        else:
            system, base = pafs.LocalFileSystem(), uri
        return lambda path: system.open_input_file(f"{base}/{path}")

    def _told(self, place: int, total: int, done: bool) -> dict[str, Any]:
        told = {"rows": place, "total": total, "sent": self._sent, "done": done}
        self._report(told)
        return told


class Pace:
    """At most so many messages a second."""

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._due_s = clock()
        self._sleep = sleep

    def wait(self, rows: int, stopping: Stopping) -> bool:
        """Until so many rows may be sent; False: it should stop."""
        while not stopping():
            left_s = self._due_s - self._clock()
            if self._rate is None or left_s <= 0:
                if self._rate is not None:
                    self._due_s = max(self._due_s, self._clock()) + rows / self._rate
                return True
            self._sleep(min(left_s, LOOK_S))
        return False


def selected(spark: SparkSession, files: Files, chosen: list[DataFile], where: str) -> Selection:
    """The rows of each file for which `where` is true, found by Spark."""
    found = frame_of(spark, files, chosen, places=True).where(where).select("_file", "_row").toArrow()
    paths = {file.path.rpartition("/")[2]: file.path for file in chosen}
    coded = found["_file"].combine_chunks().dictionary_encode()
    codes, rows = coded.indices.to_numpy(), found["_row"].to_numpy()
    return {paths[name]: np.sort(rows[codes == code]) for code, name in enumerate(coded.dictionary.to_pylist())}


def _run(context: Context, settings: Settings, report: Report, stopping: Stopping) -> dict[str, Any]:
    return replay(context.url, settings, spark=context.spark, report=report, stopping=stopping)


PIPELINE = Pipeline(
    name="replay",
    summary="An archive back into destinations: filtered, at a rate, in order, exactly once, resumable.",
    settings=Settings,
    run=_run,
)
