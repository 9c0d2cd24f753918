"""Batch reads against a real server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import clarion.spark
from clarion import sync
from clarion.errors import BadArgument, NoSuchStream
from clarion.testing.server import ServerProcess
from tests.spark.queries import Broker, texts


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("batch") / "data") as started:
        yield started


@pytest.fixture
def broker(spark: SparkSession, server: ServerProcess) -> Iterator[Broker]:
    with sync.connect(server.url) as connection:
        yield Broker(spark, server.url, connection)


def test_d03_destinations_and_patterns_are_read_as_they_are(broker: Broker) -> None:
    broker.send("queue:stock", ["apple", "pear", "plum"])
    for name in "ab":
        broker.subscribe(f"topic:shop.{name}", "keep")
        broker.send(f"topic:shop.{name}", [f"{name}{n}" for n in range(3)])
    with broker.session.receive("queue:stock") as consumer:
        held = consumer.receive(timeout=5)
        assert held is not None
        assert texts(broker.batch("queue:stock").collect()) == ["apple", "pear", "plum"]
        held.confirm()
    assert texts(broker.batch("queue:stock", startingSequence=3).collect()) == ["plum"]
    shop = broker.batch("glob:shop.*", partitions=4, columns="destination,sequence,body")
    assert shop.rdd.getNumPartitions() == 3  # six rows, two each
    assert texts(shop.collect()) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert broker.unconfirmed("topic:shop.a", "keep") == 3
    assert broker.spark.read.format("clarion").options(url=broker.url).load("topic:shop.b").count() == 3
    with pytest.raises(PySparkException, match="CLN-205 there is no destination nowhere"):
        broker.batch("topic:nowhere").count()


def test_d03_a_users_schema_chooses_columns(broker: Broker) -> None:
    broker.send("queue:few", ["x"], type="t")
    reader = broker.spark.read.format("clarion").options(url=broker.url, destination="queue:few")
    assert [tuple(row) for row in reader.schema("type string, sequence bigint").load().collect()] == [("t", 1)]
    with pytest.raises(PySparkException, match="CLN-210 columns: there is no column size"):
        reader.schema("size bigint").load().collect()
    with pytest.raises(PySparkException, match="CLN-210 schema: the schema says sequence is int32"):
        reader.schema("sequence int").load().collect()


def next_millisecond() -> None:
    """Return when what is sent from now on has a later time than all before."""
    began_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == began_ms:
        pass


def test_d03_filters_are_decided_by_the_broker(broker: Broker) -> None:
    for n in range(8):
        next_millisecond()
        broker.send(f"queue:f.{n % 2}", [str(n)], type=f"t{n % 4}", priority=n)
    broker.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    middle = broker.batch("queue:f.1").agg(F.sort_array(F.collect_list("time"))[2]).head()
    assert middle is not None
    conditions = {
        "type = 't1'": ["1", "5"],
        "type in ('t1', 't2', 'it''s')": ["1", "5"],
        "type <> 't1' and priority between 3 and 6": ["3"],
        "type like 't3%' and sequence > 2": ["7"],
        "correlation_id is null and destination = 'queue:f.1' and sequence <= 2": ["1", "3"],
        "destination = 'queue:f.0'": [],
        "priority in (1, 7) and type is not null and group_id is null": ["1", "7"],
        f"time >= timestamp '{middle[0]}'": ["5", "7"],
        "priority = 1 or type = 't3'": ["1", "3", "7"],
        "length(body) = 1 and type = 't3'": ["3", "7"],
    }
    for condition, wanted in conditions.items():
        found = broker.batch("queue:f.1", filters="push", partitions=1).where(condition)
        assert texts(found.collect()) == wanted, condition
    assert not filtered_by_spark(broker, "type = 't1' and destination = 'queue:f.1'")
    assert filtered_by_spark(broker, "length(body) = 1")


def filtered_by_spark(broker: Broker, condition: str) -> bool:
    """Whether Spark has planned to look at rows itself."""
    frame = broker.batch("queue:f.1", filters="push").where(condition)
    return re.search(r"\bFilter\b", frame._jdf.queryExecution().executedPlan().toString()) is not None


def test_d03_without_the_configuration_pushing_is_refused_and_none_works(broker: Broker) -> None:
    broker.send("queue:conf", ["x"], type="a")
    broker.spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    assert texts(broker.batch("queue:conf").where("type = 'a'").collect()) == ["x"]
    with pytest.raises(PySparkException, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        broker.batch("queue:conf", filters="push").where("type = 'a'").collect()


def test_d01_bodies_of_json_and_cloudevents_become_columns(broker: Broker) -> None:
    broker.send("queue:json", [json.dumps({"region": "eu", "amount": 5}), "no json"])
    reader = broker.spark.read.format("clarion").options(url=broker.url, destination="queue:json", format="json")
    rows = reader.schema("region string, amount bigint, _corrupt binary").load().collect()
    assert [tuple(row) for row in rows] == [("eu", 5, None), (None, None, b"no json")]
    with pytest.raises(PySparkException, match="CLN-210 body: message 2 is not json of this schema"):
        reader.option("mode", "failfast").schema("region string").load().collect()
    with pytest.raises(PySparkException, match="CLN-210 format: format=json needs a schema"):
        broker.batch("queue:json", format="json")
    event = {"specversion": "1.0", "id": "7", "source": "/pump", "type": "alarm", "data": {"level": 3}}
    broker.send("queue:events", [json.dumps(event)], content_type="application/cloudevents+json")
    reader = broker.spark.read.format("clarion").options(url=broker.url, destination="queue:events")
    frame = reader.option("format", "cloudevents").schema("id string, type string, data struct<level: int>").load()
    assert [(row.id, row.type, row.data.level) for row in frame.collect()] == [("7", "alarm", 3)]


def test_d01_a_large_body_is_a_reference_that_can_be_opened(broker: Broker) -> None:
    body = bytes(range(256)) * 4096
    broker.session.send_stream("queue:films", [body], size=len(body))
    [row] = broker.batch("queue:films").collect()
    assert (row.body, row.body_bytes) == (None, len(body))
    with clarion.spark.open_body(broker.url, row.large) as file:
        assert file.size == len(body)
        assert file.read(3) == body[:3] and file.tell() == 3
        assert file.read() == body[3:]
    with broker.session.receive("queue:films") as consumer:
        message = consumer.receive(timeout=5)
        assert message is not None
        message.confirm()
    with pytest.raises(NoSuchStream):
        clarion.spark.open_body(broker.url, row.large)
    with pytest.raises(BadArgument):
        clarion.spark.open_body(broker.url, "films")
