"""What tests of the data source share: streams and sinks of one server, and queries that end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from clarion import sync
from clarion.client.reading import Readable


class Broker:
    """A server as a test talks to it."""

    def __init__(self, spark: SparkSession, url: str, connection: sync.Connection) -> None:
        self.spark = spark
        self.url = url
        self.connection = connection
        self.session = connection.session()
        self.progress: list[StreamingQueryProgress] = []
        """Of the last query that has ended."""

    def stream(self, destination: str, **options: object) -> DataFrame:
        return self.spark.readStream.format("clarion").options(**self._texts(destination, options)).load()

    def batch(self, destination: str, **options: object) -> DataFrame:
        return self.spark.read.format("clarion").options(**self._texts(destination, options)).load()

    def _texts(self, destination: str, options: dict[str, object]) -> dict[str, str]:
        return {name: str(value) for name, value in {"url": self.url, "destination": destination, **options}.items()}

    def send(self, destination: str, bodies: list[str], **options: object) -> None:
        self.session.send_many(destination, bodies, **options)  # type: ignore[arg-type]

    def subscribe(self, destination: str, subscription: str) -> None:
        """Make a durable subscription, so that what comes is kept for it."""
        reader = self.session.reader(destination, subscription=subscription)
        reader.open()
        reader.close()

    def state(self, destination: str, subscription: str | None = None) -> dict[str, Readable]:
        return {one.destination: one for one in self.session.reader(destination, subscription=subscription).look()}

    def unconfirmed(self, destination: str, subscription: str | None = None) -> int:
        """Messages that are not confirmed, over all destinations that it is for."""
        return sum(one.end - one.floor for one in self.state(destination, subscription).values())

    def bodies(self, destination: str) -> list[str]:
        return [message.body.decode() for message in self.session.browse(destination)]

    def available(self, frame: DataFrame, checkpoint: Path, work: Callable[[DataFrame, int], None]) -> None:
        """Run a query over what there is now; `work` gets each micro-batch."""
        writer = frame.writeStream.foreachBatch(work).option("checkpointLocation", str(checkpoint))
        self.progress = ended(writer.trigger(availableNow=True)).recentProgress

    def collected(self, frame: DataFrame, checkpoint: Path) -> list[list[Row]]:
        """The micro-batches of a query over what there is now."""
        batches: list[list[Row]] = []
        self.available(frame, checkpoint, lambda rows, _: batches.append(rows.collect()))
        return batches

    def sent(self, frame: DataFrame, checkpoint: Path, mode: str = "append", **options: object) -> None:
        """Run a query over what there is now into the sink."""
        chosen = {name: str(value) for name, value in {"url": self.url, **options}.items()}
        writer = frame.writeStream.format("clarion").outputMode(mode).options(**chosen)
        ended(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True))


def ended(writer: DataStreamWriter) -> StreamingQuery:
    """A query that has ended. Raises what it failed with."""

    def run() -> StreamingQuery:
        query = writer.start()
        query.awaitTermination()
        return query

    return patiently(run)


def running(writer: DataStreamWriter) -> StreamingQuery:
    """A query that has done what there was when it was started, and goes on."""

    def run() -> StreamingQuery:
        query = writer.start()
        query.processAllAvailable()
        return query

    return patiently(run)


def patiently(run: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Spark gives a source's process ten seconds to start. A busy machine may need more: then nothing was done yet."""
    for _ in range(3):
        try:
            return run()
        except PySparkException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
    return run()


def texts(rows: list[Row]) -> list[str]:
    """The bodies of rows, in the order of their sequences."""
    return [bytes(row.body).decode() for row in sorted(rows, key=lambda row: (row.destination, row.sequence))]
