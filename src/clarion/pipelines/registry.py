"""What a pipeline is, and where the pipelines are.

Theory of operation
    A pipeline is a name, a type of settings, and one of two callables.

    `start` begins streaming queries and returns at once. Whoever runs it (`running.py`) waits, shows progress, stops
    the queries and confirms at the broker what they committed.

    `run` is a job: it works until it is done, says how far it is by `report`, asks `stopping` often (at least once a
    second) whether it should end early, and returns its last report. A job that ended early goes on where it was when
    it is run again.

    A pipeline may have jobs that belong to it, such as the compaction of an archive. They are pipelines too, under the
    name `archive.compact`.

Rules
    1. Importing this module imports no Spark; a pipeline's module is imported when somebody asks for the pipeline.
    2. A pipeline keeps its durable state below `Context.checkpoint`, in its destinations, or where its settings say.
    3. A pipeline started again with the same checkpoint goes on where it was.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from clarion.errors import BadArgument, MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_MODULES = {
    "alerts": "clarion.pipelines.alerts",
    "archive": "clarion.pipelines.archive",
    "copy": "clarion.pipelines.copy",
    "deadletters": "clarion.pipelines.deadletters",
    "replay": "clarion.pipelines.replay",
    "statistics": "clarion.pipelines.statistics",
}

Report = Callable[[dict[str, Any]], None]
"""How far a job is: `rows` done, `total` if it is known, and facts of its own. Values are JSON."""
Stopping = Callable[[], bool]
"""Whether a job should end early."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a pipeline is started with."""

    spark: SparkSession
    url: str
    """Of the Clarion server."""
    checkpoint: str
    """Folder of this pipeline, local or of a file system that Spark knows. Queries have folders below it."""
    name: str
    """Under which it runs: that of the pipeline, or another one if several of a kind run."""
    once: bool = False
    """Do what there is now, and end."""
    trigger_ms: int = 0
    """Least time from the begin of a micro-batch to that of the next one."""
    new_checkpoint: bool = False
    """The checkpoint is lost for good: begin behind what is confirmed, instead of refusing to begin."""

    def source(self, destination: str, **options: object) -> DataFrame:
        """A stream of messages. Without `subscription` it is the durable one of this pipeline, `pipeline.<name>`."""
        chosen = {"subscription": f"pipeline.{self.name}", **_texts(options)}
        if self.new_checkpoint:
            chosen.setdefault("newCheckpoint", "continue")
        return self.spark.readStream.format("clarion").options(url=self.url, destination=destination, **chosen).load()

    def messages(self, destination: str, **options: object) -> DataFrame:
        """A batch: the messages that a destination has now."""
        chosen = _texts(options)
        return self.spark.read.format("clarion").options(url=self.url, destination=destination, **chosen).load()

    def begin(self, writer: DataStreamWriter, query: str, **options: object) -> StreamingQuery:
        """Start a query under `query`, with its own checkpoint and the trigger that was asked for."""
        if self.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self.trigger_ms} milliseconds")
        return writer.queryName(f"{self.name}.{query}").start(
            checkpointLocation=self.below("queries", query), **_texts(options)
        )

    def send(self, frame: DataFrame, query: str, destination: str | None = None, **options: object) -> StreamingQuery:
        """Start a query that sends its rows to Clarion, exactly once. Without `destination` each row names its own.

        `mode` is `append` (default) or `update`; all other options are those of the sink.
        """
        mode = str(options.pop("mode", "append"))
        where = {} if destination is None else {"destination": destination}
        writer = frame.writeStream.outputMode(mode)
        if mode == "append":
            return self.begin(writer.format("clarion"), query, url=self.url, **where, **options)
        from clarion.spark import each_batch  # sinks in Python know no other mode

        return self.begin(writer.foreachBatch(each_batch(url=self.url, sinkKey=query, **where, **options)), query)

    def below(self, *parts: str) -> str:
        """A folder below the checkpoint."""
        return "/".join((self.checkpoint.rstrip("/"), *parts))


@dataclass(frozen=True, slots=True)
class Started:
    """Streaming queries that run. `close` is called when all of them have ended, however they ended."""

    queries: list[StreamingQuery]
    close: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One pipeline. Exactly one of `start` and `run` is given."""

    name: str
    summary: str
    settings: type[msgspec.Struct]
    """Frozen, unknown fields forbidden, a default for all that can have one."""
    start: Callable[[Context, Any], Started] | None = None
    run: Callable[[Context, Any, Report, Stopping], dict[str, Any]] | None = None
    jobs: tuple[Pipeline, ...] = ()
    """Those that belong to it; each is named `<name>.<job>`."""

    def __post_init__(self) -> None:
        if (self.start is None) == (self.run is None):
            raise TypeError(f"pipeline {self.name}: it has either start or run")
        for job in self.jobs:
            if job.name.rpartition(".")[0] != self.name:
                raise TypeError(f"pipeline {self.name}: a job of it is named {self.name}.…, not {job.name}")

    @property
    def is_streaming(self) -> bool:
        return self.start is not None


def names() -> list[str]:
    """Of the pipelines that come with Clarion, without their jobs."""
    return sorted(_MODULES)


def find(name: str) -> Pipeline:
    """The pipeline of that name, or `module:attribute` for one's own.

    Raises `BadArgument` if there is none, `MissingExtra` without Spark.
    """
    if ":" in name:
        return _own(name)
    family, dot, _ = name.partition(".")
    if family not in _MODULES:
        raise BadArgument(argument="pipeline", detail=f"there is no {name}; there are {', '.join(names())}")
    pipeline = _load(_MODULES[family], "PIPELINE")
    if not dot:
        return pipeline
    for job in pipeline.jobs:
        if job.name == name:
            return job
    known = ", ".join(job.name for job in pipeline.jobs) or "no jobs"
    raise BadArgument(argument="pipeline", detail=f"there is no {name}; {family} has {known}")


def family(name: str) -> Pipeline:
    """The pipeline that a job belongs to; any other is its own."""
    return find(name if ":" in name else name.partition(".")[0])


def _own(name: str) -> Pipeline:
    module, _, attribute = name.partition(":")
    try:
        return _load(module, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadArgument(argument="pipeline", detail=f"{name} cannot be loaded: {error}") from None


def _load(module: str, attribute: str) -> Pipeline:
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in ("pyspark", "py4j", "pandas", "pyarrow"):
            raise MissingExtra(extra="spark") from None
        raise
    if not isinstance(found, Pipeline):
        raise BadArgument(argument="pipeline", detail=f"{module}:{attribute} is no Pipeline")
    return found


def _texts(options: dict[str, object]) -> dict[str, str]:
    """Options of Spark are texts; what is None is not given."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in options.items()
        if value is not None
    }
