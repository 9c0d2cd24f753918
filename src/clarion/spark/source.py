"""The streaming source: what Spark asks for, in the order in which it asks.

Theory of operation
    Spark runs one Python process for each query, and asks it (PySpark 4.3):

        first run     prepareForTriggerAvailableNow, initialOffset, latestOffset, initialOffset, partitions, …
        each batch    latestOffset(start), commit(start), partitions(start, end)
        restart       partitions(start, end) of a batch that was planned and not committed, else latestOffset(start);
                      before the first commit of all, initialOffset comes before partitions
        end           nothing: the process is killed

    Tasks read in other processes, by ranges (`rows`). The Spark checkpoint is the truth: what it has
    committed is confirmed to the broker, nothing else.

Guarantees
    1. A message is confirmed only when the micro-batch that has it is in Spark's commit log. Spark asks
       `latestOffset(start)` and `commit(start)` only then; both confirm, so the last batch of a run
       with AvailableNow is confirmed as well.
    2. A batch that is planned once more has the same messages: none of them is confirmed yet.
    3. A subscription that a query has read is not read by one that lost its checkpoint, unless it is told to. A durable
       register at the broker says that a batch was planned. Spark plans before it asks for more, except
       when it has no checkpoint.
    4. A lost broker is waited for, `reconnectTimeout` seconds; then the query fails and says so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from clarion import limits
from clarion.errors import CheckpointLost, SubscriptionInUse
from clarion.spark import connecting, offsets
from clarion.spark.offsets import Offsets
from clarion.spark.options import SourceOptions
from clarion.spark.rows import Rows, Share
from clarion.spark.steps import at

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from clarion.client.reading import Readable

LOOK_S = 0.05
"""How often a broker is asked at most what it has: Spark asks us a hundred times a second."""
IN_USE_S = 10.0
"""How long a subscription that somebody else has is waited for …"""
IN_USE_PAUSE_S = 0.2
"""… and how often it is tried."""
PLANNED = 1
"""The version of the register once a batch was planned."""
HINT = "restore it, or begin anew behind what is confirmed, by option newCheckpoint=continue"


def register_key(options: SourceOptions) -> str:
    """The name of the register of a subscription."""
    key = f"spark-source:{options.destination}:{options.subscription or ''}"
    if len(key) > limits.NAME_BYTES_MAX:
        key = f"spark-source:{sha256(key.encode()).hexdigest()}"
    return key


class Planner:
    """A query's connection and reader, in the process that plans it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._connection = connecting.connect(options.url, options.reconnect_s, "spark source")
        self._session = self._connection.session()
        self._reader = self._session.reader(
            options.destination,
            subscription=options.subscription,
            selector=options.selector,
            start=options.starting_sequence,
            start_time=options.starting_time,
        )
        self._key = register_key(options)
        self._found: list[Readable] = self._opened()
        self._looked_at = time.monotonic()
        self._frozen: list[Readable] | None = None
        self._initial: dict[str, Any] | None = None
        self._newest: dict[str, Any] | None = None
        """Both are made once: there may be thousands of destinations, and Spark asks a hundred times a second."""
        self._idle_at: dict[str, Any] | None = None
        """After which offset there was nothing."""
        self._checked = self._planned = self._registered = False
        self._confirmed: Offsets | None = None

    def _opened(self) -> list[Readable]:
        """Have the subscription. A run before this one may still be ending, so it is not refused at once."""
        deadline = time.monotonic() + min(IN_USE_S, self._options.reconnect_s)
        while True:
            try:
                return self._reader.open()
            except SubscriptionInUse:
                if time.monotonic() > deadline:
                    raise
            time.sleep(IN_USE_PAUSE_S)

    def initial(self) -> dict[str, Any]:
        """Where the first batch begins: always the same, as nothing is confirmed before it is committed."""
        if self._initial is None:
            self._initial = offsets.encode(offsets.initial(self._found), self._options.described())
        return self._initial

    def freeze(self) -> None:
        """What comes later is not for this run."""
        self._frozen = self._look(0.0)

    def latest(self, start: dict[str, Any], rows_max: int | None) -> dict[str, Any]:
        """How far the next batch goes; `start` itself if there is nothing."""
        if start == self._idle_at and self._frozen is None and not self._is_due(LOOK_S):
            return start  # there was nothing a moment ago
        self._check_checkpoint()
        begin = offsets.decode(start)
        self.confirm(begin)
        end = offsets.admit(begin, self._look(LOOK_S) if self._frozen is None else self._frozen, rows_max)
        self._idle_at = start if end == begin else None
        return start if end == begin else offsets.encode(end, self._options.described())

    def _check_checkpoint(self) -> None:
        """A query without a checkpoint is asked where it begins, and for more before it has planned anything."""
        options = self._options
        if self._planned or self._checked or self._initial is None or options.continue_without_checkpoint:
            return
        self._checked = True  # from now on nobody but this query can set it
        if self._session.committed_version(self._key) is not None:
            name = options.subscription or "of the queue"
            raise CheckpointLost(destination=options.destination, subscription=name, hint=HINT)

    def newest(self) -> dict[str, Any]:
        """What the broker had when it was asked last: for Spark's progress, hence the lag."""
        if self._newest is None:
            ends = {one.destination: offsets.Position(one.identity, one.end) for one in self._found}
            self._newest = offsets.encode(ends, self._options.described())
        return self._newest

    def plan(self, start: dict[str, Any], end: dict[str, Any]) -> list[Share]:
        """The tasks of a batch."""
        self._planned = True
        floors = {(one.destination, one.identity): one.floor for one in self._found}
        ranges = offsets.between(offsets.decode(start), offsets.decode(end), floors)
        if ranges and not self._registered:
            self._session.commit([], key=self._key, version=PLANNED)
            self._registered = True
        at("planned")
        return [Share(part) for part in offsets.split(ranges, self._options.partitions)]

    def confirm(self, end: Offsets) -> None:
        """Spark has committed everything below; durable when it returns, and as good twice as once."""
        if end != self._confirmed:
            ranges = offsets.below(end, self._found)
            if ranges:
                at("confirming")
                self._reader.confirm(ranges, identities={name: end[name].identity for name in ranges})
            self._confirmed = end

    def _look(self, age_s: float) -> list[Readable]:
        """What the broker has, or had so long ago."""
        if self._is_due(age_s):
            self._newest = None
            try:
                self._found = self._reader.look()
            except SubscriptionInUse:  # the broker has not noticed yet that an earlier connection is lost
                self._found = self._opened()
            self._looked_at = time.monotonic()
        return self._found

    def _is_due(self, age_s: float) -> bool:
        """What was found is older than this."""
        return time.monotonic() - self._looked_at >= age_s


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A query's source. It also goes to the tasks, which only call `read`."""

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        self._options = options
        self._rows = Rows(options, wanted, streaming=True)
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    @property
    def planner(self) -> Planner:
        """Connected when it is first needed, and not in tasks."""
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner

    def prepareForTriggerAvailableNow(self) -> None:
        self.planner.freeze()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.rows_max)

    def initialOffset(self) -> dict[str, Any]:
        return self.planner.initial()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if isinstance(limit, ReadMaxRows):
            return self.planner.latest(start, limit.max_rows)
        return self.planner.latest(start, None if isinstance(limit, ReadAllAvailable) else self._options.rows_max)

    def reportLatestOffset(self) -> dict[str, Any]:
        return self.planner.newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self.planner.plan(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return self._rows.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self.planner.confirm(offsets.decode(end))
