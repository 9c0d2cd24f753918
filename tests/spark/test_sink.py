"""The sink against a real server: exactly once, whatever is tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import clarion.spark
from clarion import sync
from clarion.testing.server import ServerProcess
from tests.spark.queries import Broker, ended


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("sink") / "data") as started:
        yield started


@pytest.fixture
def broker(spark: SparkSession, server: ServerProcess) -> Iterator[Broker]:
    with sync.connect(server.url) as connection:
        yield Broker(spark, server.url, connection)


def test_d02_from_topic_to_queue_exactly_once_though_a_task_fails(broker: Broker, tmp_path: Path) -> None:
    broker.subscribe("topic:in", "copy")
    broker.send("topic:in", [str(n) for n in range(40)], type="number")
    failed = str(tmp_path / "failed")

    def doubled(body: bytes) -> bytes:
        if int(body) == 33 and not Path(failed).exists():
            Path(failed).touch()
            raise RuntimeError("the first time it fails")
        return str(2 * int(body)).encode()

    doubled.__annotations__.clear()  # Spark would take them for those of another kind of function
    double = F.udf(doubled, "binary")
    stream = broker.stream("topic:in", subscription="copy", maxRowsPerBatch=20, partitions=2)
    rows = stream.select(double("body").alias("body"), "type", F.lit(7).alias("priority"))
    broker.sent(rows, tmp_path / "c", destination="queue:out")
    found = list(broker.session.browse("queue:out"))
    assert Path(failed).exists()
    assert Counter(int(message.body) for message in found) == Counter(2 * n for n in range(40))
    assert {(message.type, message.priority) for message in found} == {("number", 7)}
    assert broker.unconfirmed("topic:in", "copy") == 0
    assert broker.connection.prepared() == []

    # A driver that died before Spark's commit log was written: the batch is sent once more, and dropped.
    query = next(iter((tmp_path / "c" / "commits").glob("1")))
    query.unlink()
    broker.sent(rows, tmp_path / "c", destination="queue:out")
    assert len(broker.bodies("queue:out")) == 40
    assert broker.connection.prepared() == []


def test_d02_a_replayed_batch_with_rows_is_dropped(broker: Broker, tmp_path: Path) -> None:
    source = str(tmp_path / "numbers")
    broker.spark.range(0, 6, numPartitions=2).selectExpr("cast(id as string) value").write.text(source)
    stream = broker.spark.readStream.schema("value string").text(source)
    rows = stream.selectExpr("value", "concat('queue:to-', cast(value % 2 as int)) as destination")
    broker.sent(rows, tmp_path / "c")
    (tmp_path / "c" / "commits" / "0").unlink()
    broker.sent(rows, tmp_path / "c")
    assert sorted(broker.bodies("queue:to-0")) == ["0", "2", "4"]
    assert sorted(broker.bodies("queue:to-1")) == ["1", "3", "5"]
    assert broker.connection.prepared() == []


def test_d02_of_a_failing_query_nothing_is_seen(broker: Broker, tmp_path: Path) -> None:
    broker.subscribe("topic:bad", "s")
    broker.send("topic:bad", ["1", "x", "3"])
    broker.send("queue:never", ["before"])
    stream = broker.stream("topic:bad", subscription="s", partitions=2)
    rows = stream.select(F.col("body").cast("string").cast("int").cast("string").alias("body"))
    with pytest.raises(PySparkException, match="CAST_INVALID_INPUT"):
        broker.sent(rows, tmp_path / "c", destination="queue:never", expires=0.2)  # of a task that Spark gave up
    assert broker.unconfirmed("topic:bad", "s") == 3
    assert broker.bodies("queue:never") == ["before"]


def test_d02_update_mode_in_foreach_batch_is_exactly_once(broker: Broker, tmp_path: Path) -> None:
    broker.subscribe("topic:words", "counts")
    broker.send("topic:words", ["a", "b", "a"])
    stream = broker.stream("topic:words", subscription="counts")
    counts = stream.groupBy("body").count().selectExpr("concat(cast(body as string), '=', count) as body")
    send = clarion.spark.each_batch(url=broker.url, destination="queue:counts", sinkKey="counts")

    def sent() -> None:
        writer = counts.writeStream.outputMode("update").foreachBatch(send)
        ended(writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True))

    sent()
    broker.send("topic:words", ["a"])
    sent()
    assert sorted(broker.bodies("queue:counts")) == ["a=2", "a=3", "b=1"]
    (tmp_path / "c" / "commits" / "1").unlink()
    sent()
    assert sorted(broker.bodies("queue:counts")) == ["a=2", "a=3", "b=1"]


def test_d02_modes_and_options_that_cannot_be(broker: Broker, tmp_path: Path) -> None:
    broker.subscribe("topic:modes", "s")
    broker.send("topic:modes", ["a"])
    counted = broker.stream("topic:modes", subscription="s").groupBy().count().selectExpr("cast(count as string) body")
    with pytest.raises(PySparkException, match="CLN-210 outputMode: complete would send all results again"):
        broker.sent(counted, tmp_path / "c", mode="complete", destination="queue:x")
    frame: DataFrame = broker.spark.createDataFrame([("a", 1)], "body string, sequence long")
    with pytest.raises(PySparkException, match="CLN-210 columns: a message has no sequence"):
        frame.write.format("clarion").options(url=broker.url, destination="x").mode("append").save()
    with pytest.raises(PySparkException, match="CLN-210 mode: messages cannot be overwritten"):
        frame.write.format("clarion").options(url=broker.url, destination="x").mode("overwrite").save()
    with pytest.raises(PySparkException, match="CLN-210 sinkVersion: outside of foreachBatch"):
        frame = frame.drop("sequence")
        frame.write.format("clarion").options(url=broker.url, destination="x", sinkKey="k").mode("append").save()
    with pytest.raises(clarion.errors.BadArgument, match="sinkKey: foreachBatch needs one"):
        clarion.spark.each_batch(url=broker.url, destination="x")
    assert broker.connection.prepared() == []


def test_d03_a_batch_write_is_one_transaction_and_once_by_its_version(broker: Broker) -> None:
    rows = [("one", "first", 9, {"n": "1"}), ("two", None, None, None)]
    frame = broker.spark.createDataFrame(rows, "body string, type string, priority int, properties map<string,string>")
    writer = frame.coalesce(1).write.format("clarion").mode("append")
    writer = writer.options(url=broker.url, destination="queue:nightly", sinkKey="nightly", contentType="text/plain")
    for _ in range(2):
        writer.option("sinkVersion", "20260131").save()
    found = sorted(broker.session.browse("queue:nightly"), key=lambda message: bytes(message.body))
    assert [(m.body, m.type, m.priority, m.properties, m.content_type) for m in found] == [
        (b"one", "first", 9, {"n": "1"}, "text/plain"),
        (b"two", None, 4, {}, "text/plain"),
    ]
    writer.option("sinkVersion", "20260201").save()
    assert len(broker.bodies("queue:nightly")) == 4
