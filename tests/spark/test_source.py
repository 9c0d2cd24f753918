"""The streaming source against a real server."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import clarion.spark
from clarion import sync
from clarion.errors import SubscriptionInUse
from clarion.testing.server import ServerProcess
from tests.spark.queries import Broker, patiently, running, texts

WITHIN_S = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("source") / "data") as started:
        yield started


@pytest.fixture
def broker(spark: SparkSession, server: ServerProcess) -> Iterator[Broker]:
    with sync.connect(server.url) as connection:
        yield Broker(spark, server.url, connection)


def test_d01_a_topic_is_read_by_its_subscription_and_confirmed_afterwards(broker: Broker, tmp_path: Path) -> None:
    broker.subscribe("topic:orders", "report")
    broker.send("topic:orders", [f"order {n}" for n in range(10)], type="order", properties={"region": "eu"})
    stream = broker.stream("topic:orders", subscription="report", maxRowsPerBatch=4, partitions=3)
    batches, progress = broker.collected(stream, tmp_path / "c"), broker.progress
    assert [texts(rows) for rows in batches] == [
        [f"order {n}" for n in range(4)],
        [f"order {n}" for n in range(4, 8)],
        ["order 8", "order 9"],
    ]
    first = batches[0][0]
    assert (first.destination, first.type, first.properties) == ("topic:orders", "order", {"region": "eu"})
    assert "headers" not in first
    assert broker.unconfirmed("topic:orders", "report") == 0
    source = progress[0].sources[0]  # hence the lag: it had read up to 5, and there is up to 11
    assert source.endOffset.endswith(", 5]}") and source.latestOffset.endswith(", 11]}")

    broker.send("topic:orders", ["one more"])
    assert [texts(rows) for rows in broker.collected(stream, tmp_path / "c")] == [["one more"]]


def test_d01_selector_columns_and_starting_sequence(broker: Broker, tmp_path: Path) -> None:
    broker.subscribe("topic:chosen", "keeps")
    for n in range(6):
        broker.send("topic:chosen", [str(n)], type="odd" if n % 2 else "even")
    stream = broker.stream(
        "topic:chosen",
        subscription="odd",
        selector="JMSType = 'odd'",
        startingSequence=3,
        columns="body,sequence,destination",
    )
    assert stream.columns == ["body", "sequence", "destination"]
    [rows] = broker.collected(stream, tmp_path / "c")
    assert texts(rows) == ["3", "5"]
    assert sorted(row.sequence for row in rows) == [4, 6]


def test_d01_a_lost_checkpoint_is_refused_and_a_first_batch_is_not(broker: Broker, tmp_path: Path) -> None:
    broker.subscribe("topic:guarded", "report")
    broker.send("topic:guarded", ["a", "b"])
    stream = broker.stream("topic:guarded", subscription="report")
    with pytest.raises(PySparkException, match="no luck"):
        broker.available(stream, tmp_path / "c", _unlucky)
    assert broker.unconfirmed("topic:guarded", "report") == 2
    assert [texts(rows) for rows in broker.collected(stream, tmp_path / "c")] == [["a", "b"]]  # planned before

    broker.send("topic:guarded", ["c"])
    shutil.rmtree(tmp_path / "c")
    with pytest.raises(
        PySparkException, match=r"CLN-223 subscription report of topic:guarded .*newCheckpoint=continue"
    ):
        broker.collected(stream, tmp_path / "c")


def _unlucky(_rows: DataFrame, _batch: int) -> None:
    raise RuntimeError("no luck")


def test_d01_a_topic_that_is_made_later_joins_a_running_query(broker: Broker, tmp_path: Path) -> None:
    broker.subscribe("glob:plant.*", "all")
    broker.send("topic:plant.a", ["a1", "a2"])
    seen: list[str] = []
    query = running(
        broker.stream("glob:plant.*", subscription="all")
        .writeStream.foreachBatch(lambda rows, _: seen.extend(texts(rows.collect())))
        .option("checkpointLocation", str(tmp_path / "c"))
    )
    try:
        _wait(lambda: len(seen) == 2)
        broker.send("topic:plant.b", ["b1"])
        broker.send("topic:elsewhere", ["x"])
        _wait(lambda: len(seen) == 3)
        _wait(lambda: broker.unconfirmed("glob:plant.*", "all") == 0)
        with pytest.raises(SubscriptionInUse):
            broker.session.reader("glob:plant.*", subscription="all").open()
    finally:
        query.stop()
    assert seen == ["a1", "a2", "b1"]


def test_d01_a_queue_is_consumed_and_refused_while_it_has_a_consumer(broker: Broker, tmp_path: Path) -> None:
    broker.send("queue:jobs", ["1", "2", "3"])
    stream = broker.stream("queue:jobs", maxRowsPerBatch=2, reconnectTimeout=0.5)
    with broker.session.receive("queue:jobs", prefetch_messages=1), pytest.raises(PySparkException, match="CLN-207"):
        broker.collected(stream, tmp_path / "c")
    shutil.rmtree(tmp_path / "c", ignore_errors=True)
    assert [texts(rows) for rows in broker.collected(stream, tmp_path / "c")] == [["1", "2"], ["3"]]
    assert broker.bodies("queue:jobs") == []


def test_d01_a_query_survives_a_restart_of_the_broker(spark: SparkSession, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, sync.connect(server.url) as connection:
        broker = Broker(spark, server.url, connection)
        broker.subscribe("topic:t", "s")
        broker.send("topic:t", ["before"])
        seen: list[str] = []
        query = running(
            broker.stream("topic:t", subscription="s")
            .writeStream.foreachBatch(lambda rows, _: seen.extend(texts(rows.collect())))
            .option("checkpointLocation", str(tmp_path / "c"))
        )
        try:
            _wait(lambda: seen == ["before"])
            server.kill()
            server.start()
            broker.send("topic:t", ["after"])
            _wait(lambda: seen == ["before", "after"])
        finally:
            query.stop()
        server.kill()
        with pytest.raises(PySparkException, match=r"CLN-500 .*reconnectTimeout"):
            broker.batch("topic:t", reconnectTimeout=0.5).count()


def test_d01_attached_a_batch_is_confirmed_whatever_the_trigger(broker: Broker, tmp_path: Path) -> None:
    broker.subscribe("topic:slow", "s")
    broker.send("topic:slow", ["1", "2"])
    attached = clarion.spark.attach(broker.spark)
    try:
        writer = broker.stream("topic:slow", subscription="s").writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(processingTime="1 hour")

        def confirmed() -> StreamingQuery:
            query = writer.start()
            while broker.unconfirmed("topic:slow", "s") and not query.awaitTermination(1):
                pass
            return query

        query = patiently(confirmed)
        query.stop()
        attached.confirm(query, 10.0)
        assert attached.failure is None
    finally:
        attached.close()


def test_d01_bad_options_say_what_is_wrong(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="CLN-210 subscription: a stream of topic:x needs the name"):
        broker.collected(broker.stream("topic:x"), tmp_path / "c")
    with pytest.raises(PySparkException, match="CLN-210 partition: there is no such option here; did you mean"):
        broker.stream("topic:x", partition=3)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
