"""From destinations of a real broker into an archive and back: byte for byte, in order, filtered (D-04, D-09)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import clarion.spark
from clarion import sync
from clarion.message import decode_headers
from clarion.pipelines import archive, registry, replay
from clarion.pipelines.archive.files import LocalFiles
from clarion.pipelines.archive.log import Log
from clarion.testing.server import ServerProcess

MESSAGES = 20_000
WAIT_S = 120
TOPICS = ("topic:orders.eu", "topic:orders.us")
LARGE = bytes(range(256)) * 4_000
Sent = tuple[bytes, bytes, int, int]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


def stored(session: sync.Session, destination: str) -> list[Sent]:
    """Headers, body, priority and time of what a destination holds, in order; not of large ones."""
    found: list[Sent] = []
    (readable,) = session.reader(destination).open()
    for _, batch in session.read(destination, readable.floor, readable.end):
        for index in range(batch.count):
            headers, body = batch.record(index)
            if b"\xa1l\x93" not in bytes(headers):
                found.append((bytes(headers), bytes(body), batch.priority, batch.time_ms(index)))
    return found


def send(session: sync.Session, chance: random.Random) -> None:
    for number in range(MESSAGES):
        options: dict[str, Any] = {}
        if number % 3 == 0:
            options = {"type": "order", "properties": {"n": number, "eu": number % 2 == 0, "price": number / 7}}
        if number % 500 == 0:
            options |= {"priority": 9, "group": "g", "ttl": 86_400.0, "correlation_id": "é"}
        session.send_nowait(TOPICS[number % 2], chance.randbytes(number % 200), **options)
    session.send_stream(TOPICS[0], LARGE, type="film", properties={"n": -1})
    session.flush()


def test_d09_an_archive_of_a_broker_is_replayed_byte_for_byte(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    clarion.spark.register(spark)
    path = str(tmp_path / "archive")
    context = registry.Context(
        spark=spark, url=server.url, checkpoint=str(tmp_path / "checkpoint"), name="archive", once=True
    )
    settings = archive.Settings(path=path, destination="glob:orders.*", rows_per_batch=7_000, files_min=2)
    attached = clarion.spark.attach(spark, server.url)
    try:
        with sync.connect(server.url) as connection, connection.session() as session:
            for topic in TOPICS:
                with session.reader(topic, subscription="kept") as reader:
                    reader.open()
            assert archived(context, settings, attached) == 0, "from now on it is subscribed"
            send(session, random.Random(1))
            sent = {topic: stored(session, topic) for topic in TOPICS}
            assert archived(context, settings, attached) == MESSAGES + 1
            with session.reader("glob:orders.*", subscription="pipeline.archive") as reader:
                assert all(one.floor == one.end for one in reader.open()), "the broker has its word that they are kept"
            is_archived(spark, path)
            is_replayed(context, session, path, sent)
            is_filtered(context, session, path, sent)
    finally:
        attached.close()


def archived(context: registry.Context, settings: archive.Settings, attached: Any) -> int:
    """Run the pipeline over all there is; how many rows the archive has."""
    assert archive.PIPELINE.start is not None
    started = archive.PIPELINE.start(context, settings)
    (query,) = started.queries
    assert query.awaitTermination(WAIT_S)
    attached.confirm(query)
    assert started.close is not None
    started.close()
    return int(archive.describe(LocalFiles(settings.path))["rows"])


def is_archived(spark: SparkSession, path: str) -> None:
    found = archive.read(spark, path)
    assert found.selectExpr("count(distinct destination, sequence)").first()[0] == MESSAGES + 1  # type: ignore[index]
    assert found.where("type = 'order'").count() == len(range(0, MESSAGES, 3))
    files = Log(LocalFiles(path)).latest().files.values()
    assert len(files) == 2, "compacted when it ended"
    (large,) = [body for file in files for body in file.bodies]
    assert LocalFiles(path).read(large) == LARGE


def is_replayed(context: registry.Context, session: sync.Session, path: str, sent: dict[str, list[Sent]]) -> None:
    """All of it, to other destinations."""
    for topic in TOPICS:
        with session.reader(topic.replace("orders", "again.orders"), subscription="kept") as reader:
            reader.open()
    settings = replay.Settings(path=path, job="again", to="topic:again.{name}", chunk_rows=3_000)
    reports: list[dict[str, Any]] = []
    assert replay.PIPELINE.run is not None
    told = replay.PIPELINE.run(context, settings, reports.append, lambda: len(reports) >= 3)
    assert not told["done"]
    told = replay.PIPELINE.run(context, settings, reports.append, lambda: False)
    assert told["done"] and told["rows"] == MESSAGES + 1
    for topic in TOPICS:
        assert stored(session, topic.replace("orders", "again.orders")) == sent[topic]
    (film,) = session.browse("topic:again.orders.eu", selector="JMSType = 'film'")
    again = session.open_body(film).read()
    assert (again, film.properties) == (LARGE, {"n": -1})


def is_filtered(context: registry.Context, session: sync.Session, path: str, sent: dict[str, list[Sent]]) -> None:
    """Some of it, chosen by SQL."""
    settings = replay.Settings(
        path=path,
        job="some",
        to="queue:some",
        where="type = 'order' and cast(properties['price'] as double) > 1000 and body_bytes > 50",
        until=datetime(2999, 1, 1, tzinfo=UTC),
        expiry="strip",
    )
    assert replay.PIPELINE.run is not None
    told = replay.PIPELINE.run(context, settings, lambda _: None, lambda: False)
    chosen = [number for number in range(0, MESSAGES, 3) if number / 7 > 1000 and number % 200 > 50]
    assert told["sent"] == len(chosen) > 0
    found = stored(session, "queue:some")
    assert [row[1] for row in found] == [
        sent[TOPICS[side]][number // 2][1] for side in (0, 1) for number in chosen if number % 2 == side
    ]
    headers = [decode_headers(row[0]) for row in found]
    assert not any(one.expires_at_ms for one in headers)
    assert sum(one.group == "g" for one in headers) == sum(number % 500 == 0 for number in chosen) > 0


def test_d09_a_filter_needs_spark_and_settings_are_checked(server: ServerProcess, tmp_path: Path) -> None:
    for settings, detail in (
        (replay.Settings(path=str(tmp_path), job="j", where="true"), "this needs Spark"),
        (replay.Settings(path=str(tmp_path), job="j", rate=0.0), "more than 0"),
        (replay.Settings(path=str(tmp_path), job="j", since=datetime(2026, 1, 1)), "needs its zone"),
    ):
        with pytest.raises(clarion.errors.BadArgument, match=detail):
            replay.replay(server.url, settings)
    nothing = replay.replay(server.url, replay.Settings(path=str(tmp_path / "new"), job="j"))
    assert nothing == {"rows": 0, "total": 0, "sent": 0, "done": True}
