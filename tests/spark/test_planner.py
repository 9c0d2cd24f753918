"""The streaming source as Spark asks it, call by call, against a real server: no Spark session is needed."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from clarion import sync
from clarion.errors import BadArgument, CheckpointLost, SubscriptionInUse
from clarion.spark import offsets
from clarion.spark.options import source_options
from clarion.spark.source import StreamReader
from clarion.testing.server import ServerProcess

WANTED = StructType().add("body", "binary").add("sequence", "long").add("destination", "string")
Offset = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("planner") / "data") as started:
        yield started


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[sync.Connection]:
    with sync.connect(server.url) as opened:
        yield opened


class Run:
    """One run of a query: one process of Spark's, which is killed in the end."""

    def __init__(self, server: ServerProcess, destination: str, **options: object) -> None:
        said = {"url": server.url, "destination": destination, "reconnectTimeout": 0.5, **options}
        self.reader = StreamReader(source_options({k: str(v) for k, v in said.items()}, streaming=True), WANTED)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self.reader._planner is not None:
            self.reader._planner._connection.close()

    def initial(self) -> Offset:
        return logged(self.reader.initialOffset())

    def latest(self, start: Offset, rows_max: int | None = None) -> Offset:
        self.reader.planner._looked_at = 0.0  # as if some time had passed
        limit = ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)
        return logged(self.reader.latestOffset(start, limit))

    def read(self, start: Offset, end: Offset) -> list[str]:
        """What the tasks of a batch read, each of which gets a copy of the reader."""
        rows: list[str] = []
        for share in self.reader.partitions(start, end):
            task = pickle.loads(pickle.dumps(self.reader))
            for batch in task.read(pickle.loads(pickle.dumps(share))):
                rows += [body.decode() for body in batch.column("body").to_pylist()]
        return rows


def logged(offset: Offset) -> Offset:
    """As it comes back from Spark's checkpoint."""
    found: Offset = json.loads(json.dumps(offset))
    return found


def unconfirmed(connection: sync.Connection, destination: str, subscription: str | None) -> int:
    with connection.session() as session:
        found = session.reader(destination, subscription=subscription).look()
        return sum(one.end - one.floor for one in found)


def subscribed(connection: sync.Connection, destination: str, subscription: str) -> sync.Session:
    session = connection.session()
    with session.reader(destination, subscription=subscription):
        return session


def test_d01_the_calls_of_two_runs_read_all_once_and_confirm_what_is_committed(
    server: ServerProcess, connection: sync.Connection
) -> None:
    session = subscribed(connection, "topic:a", "s")
    session.send_many("topic:a", [str(n) for n in range(5)])
    with Run(server, "topic:a", subscription="s", partitions=2) as run:
        zero = run.initial()
        one = run.latest(zero, 3)
        assert run.initial() == zero
        assert run.read(zero, one) == ["0", "1", "2"]
        assert unconfirmed(connection, "topic:a", "s") == 5  # Spark has committed nothing
        two = run.latest(one, 3)
        assert unconfirmed(connection, "topic:a", "s") == 2
        run.reader.commit(one)
        assert run.read(one, two) == ["3", "4"]
        assert offsets.lag(offsets.decode(one), run.reader.planner._found) == 2
        assert offsets.decode(run.reader.reportLatestOffset()) == offsets.decode(two)
    with Run(server, "topic:a", subscription="s") as run:  # it died before it had committed: the same again
        assert run.read(one, two) == ["3", "4"]
        assert run.latest(two) == two
        assert unconfirmed(connection, "topic:a", "s") == 0
        session.send("topic:a", "5")
        three = run.latest(two)
        assert run.read(two, three) == ["5"]


def test_d01_a_checkpoint_that_is_lost_is_told_from_one_that_has_only_its_first_batch(
    server: ServerProcess, connection: sync.Connection
) -> None:
    session = subscribed(connection, "topic:g", "s")
    with Run(server, "topic:g", subscription="s") as run:  # nothing there: nothing that could be lost
        zero = run.initial()
        assert run.latest(zero) == zero
        assert run.reader.partitions(zero, zero) == []
    with Run(server, "topic:g", subscription="s") as run:
        assert run.latest(run.initial()) == zero
    session.send_many("topic:g", ["x", "y"])
    with Run(server, "topic:g", subscription="s") as run:  # it dies before it has planned anything
        zero = run.initial()
        run.latest(zero)
    with Run(server, "topic:g", subscription="s") as run:
        zero = run.initial()
        one = run.latest(zero)
        assert run.read(zero, one) == ["x", "y"]
    with Run(server, "topic:g", subscription="s") as run:  # the first batch once more
        zero = run.initial()
        assert run.read(zero, one) == ["x", "y"]
        assert run.latest(one) == one
    session.send("topic:g", "z")
    with Run(server, "topic:g", subscription="s") as run:
        zero = run.initial()
        with pytest.raises(CheckpointLost, match=r"CLN-223 subscription s of topic:g .*newCheckpoint=continue"):
            run.latest(zero)
    with Run(server, "topic:g", subscription="s", newCheckpoint="continue") as run:
        zero = run.initial()
        assert run.read(zero, run.latest(zero)) == ["z"]


def test_d01_available_now_ends_where_it_began_to_look(server: ServerProcess, connection: sync.Connection) -> None:
    session = subscribed(connection, "glob:now.*", "s")
    session.send_many("topic:now.a", ["1", "2"])
    with Run(server, "glob:now.*", subscription="s") as run:
        run.reader.prepareForTriggerAvailableNow()
        session.send("topic:now.a", "3")
        session.send("topic:now.b", "4")
        zero = run.initial()
        one = run.latest(zero)
        assert run.read(zero, one) == ["1", "2"]
        assert run.latest(one) == one
    with Run(server, "glob:now.*", subscription="s") as run:
        two = run.latest(one)
        assert sorted(run.read(one, two)) == ["3", "4"]


def test_d01_a_destination_that_is_made_again_begins_anew_and_loses_nothing(
    server: ServerProcess, connection: sync.Connection
) -> None:
    session = subscribed(connection, "glob:life.*", "lives")
    session.send_many("topic:life.a", ["old 1", "old 2", "old 3"])
    with Run(server, "glob:life.*", subscription="lives") as run:
        zero = run.initial()
        one = run.latest(zero)
        assert run.read(zero, one) == ["old 1", "old 2", "old 3"]
    connection.command("drop", {"destination": "topic:life.a"})
    with Run(server, "glob:life.*", subscription="lives") as run:
        assert run.read(zero, one) == []  # it is gone, and its messages with it
    session.send("topic:life.a", "new 1")
    with Run(server, "glob:life.*", subscription="lives") as run:
        assert run.read(zero, one) == []
        two = run.latest(one)  # everything before is committed: that is nothing of the new one
        assert unconfirmed(connection, "glob:life.*", "lives") == 1
        assert run.read(one, two) == ["new 1"]
        run.latest(two)
        assert unconfirmed(connection, "glob:life.*", "lives") == 0


def test_d01_a_queue_is_the_querys_alone_and_has_no_selector(
    server: ServerProcess, connection: sync.Connection
) -> None:
    with connection.session() as session:
        session.send_many("queue:q", ["1", "2"])
        with Run(server, "queue:q") as run:
            zero = run.initial()
            one = run.latest(zero)
            assert run.read(zero, one) == ["1", "2"]
            with Run(server, "queue:q") as other, pytest.raises(SubscriptionInUse):
                other.initial()
            run.latest(one)
            assert list(session.browse("queue:q")) == []
        with Run(server, "queue:q", selector="a = 1") as run, pytest.raises(BadArgument, match="selector"):
            run.initial()
