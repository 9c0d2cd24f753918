"""The sink as Spark calls it, call by call, against a real server: no Spark session is needed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from pyspark.sql.datasource import WriterCommitMessage

from clarion import sync
from clarion.errors import BadArgument, LimitReached
from clarion.spark import connecting, sink
from clarion.spark.options import sink_options
from clarion.spark.sink import BatchWriter, Staged, StreamWriter
from clarion.testing.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("staging") / "data") as started:
        yield started


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[sync.Connection]:
    with sync.connect(server.url) as opened:
        yield opened
        assert opened.prepared() == [], "something was left behind"
    for cached in connecting._open.values():
        cached.close()


def writer(server: ServerProcess, destination: str, **options: object) -> StreamWriter:
    said = {"url": server.url, "destination": destination, **options}
    return StreamWriter(sink_options({name: str(value) for name, value in said.items()}), ["body"])


def task(writer: StreamWriter, bodies: list[str], query: str = "q", batch: int = 0) -> WriterCommitMessage:
    """What a task of a micro-batch tells the driver."""
    batches = [pa.record_batch({"body": bodies[at : at + 2]}) for at in range(0, len(bodies), 2)]
    staged = writer.write(iter(batches))
    assert isinstance(staged, Staged) and staged.rows == len(bodies)
    staged.query, staged.batch = query, batch  # Spark's task context says it
    said: WriterCommitMessage = pickle.loads(pickle.dumps(staged))
    return said


def seen(connection: sync.Connection, destination: str) -> list[str]:
    with connection.session() as session:
        return [message.body.decode() for message in session.browse(destination)]


def test_d02_a_batch_is_seen_as_a_whole_and_once(server: ServerProcess, connection: sync.Connection) -> None:
    tasks = [writer(server, "queue:once") for _ in range(3)]
    said = [task(tasks[0], ["a", "b", "c"]), task(tasks[1], []), task(tasks[2], ["d"])]
    assert seen(connection, "queue:once") == []
    assert sorted(one.messages for one in connection.prepared()) == [1, 3]
    writer(server, "queue:once").commit(said, 0)
    assert seen(connection, "queue:once") == ["a", "b", "c", "d"]

    again = [task(writer(server, "queue:once"), ["d", "a"]), task(writer(server, "queue:once"), ["c", "b"]), None]
    writer(server, "queue:once").commit(again, 0)  # Spark has not noticed that it was done
    assert len(seen(connection, "queue:once")) == 4
    writer(server, "queue:once").commit([task(tasks[1], [], batch=1)], 1)
    writer(server, "queue:once").commit([task(tasks[1], ["zombie"], batch=1)], 1)
    writer(server, "queue:once").commit([task(tasks[1], ["e"], batch=2)], 2)
    writer(server, "queue:once").commit([task(tasks[1], ["other query"], query="other")], 0)
    assert seen(connection, "queue:once")[4:] == ["e", "other query"]


def test_d02_what_fails_is_not_seen(server: ServerProcess, connection: sync.Connection) -> None:
    failing = writer(server, "queue:fails")

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"body": ["staged"]})
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        failing.write(rows())
    failing.abort([None, task(failing, ["prepared"], query="fails")], 0)
    said = task(failing, ["committed"], query="fails")
    failing.commit([said], 0)
    failing.abort([said], 0)  # Spark aborts after a commit that it could not wait for
    assert seen(connection, "queue:fails") == ["committed"]


def test_d02_a_task_that_takes_long_prepares_what_it_has(
    server: ServerProcess, connection: sync.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "STAGE_S_MAX", -1.0)
    with pytest.raises(BadArgument, match="body: it is null"):  # and takes it back when it fails
        writer(server, "queue:long").write(iter([pa.record_batch({"body": body}) for body in (["1"], [None])]))
    assert connection.prepared() == []
    said = task(writer(server, "queue:long"), ["1", "2", "3", "4", "5"], query="long")
    assert isinstance(said, Staged) and len(said.handles) == 3
    writer(server, "queue:long").commit([said], 0)
    assert seen(connection, "queue:long") == ["1", "2", "3", "4", "5"]


def test_d02_more_transactions_than_one_commit_takes_are_rolled_back(
    server: ServerProcess, connection: sync.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clarion.limits.HANDLES_PER_COMMIT_MAX", 1)
    tasks = [task(writer(server, "queue:many"), ["x"], query="many") for _ in range(2)]
    with pytest.raises(LimitReached, match="coalesce"):
        writer(server, "queue:many").commit(tasks, 0)


def test_d02_columns_and_versions_are_checked_before_there_are_tasks(
    server: ServerProcess, connection: sync.Connection
) -> None:
    options = sink_options({"url": server.url, "destination": "queue:x", "sinkKey": "k"})
    with pytest.raises(BadArgument, match="a message has no sequence"):
        StreamWriter(options, ["body", "sequence"])
    with pytest.raises(BadArgument, match="neither a column nor an option"):
        StreamWriter(sink_options({"url": server.url}), ["body"])
    outside = BatchWriter(options, ["body"])
    said = outside.write(iter([pa.record_batch({"body": ["a"]})]))
    with pytest.raises(BadArgument, match="outside of foreachBatch a sinkKey needs a version"):
        outside.commit([said])
    outside.abort([said])
