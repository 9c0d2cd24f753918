"""What is said of a pipeline is what Spark said of its micro-batches."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.pipelines.progress import QueryStatus, Status, lag_of, rows_of
from clarion.pipelines.screen import line


def progress(batch: int, rows: int, *, run: str = "r", took_ms: int = 500, idle: bool = False, **source: Any) -> Any:
    durations = {"latestOffset": 1} if idle else {"addBatch": 1, "triggerExecution": took_ms}
    own = {"endOffset": None, "latestOffset": None, "numInputRows": rows, **source}
    return {"id": "q", "runId": run, "batchId": batch, "durationMs": durations, "sources": [own]}


def offsets(**sequences: int) -> str:
    positions = {f"topic:{name}": [1, next_] for name, next_ in sequences.items()}
    return msgspec.json.encode({"source": {"url": "x"}, **positions}).decode()


def test_d11_lag_is_what_the_broker_has_and_no_batch() -> None:
    assert lag_of(progress(1, 0)) is None
    assert lag_of(progress(1, 0, endOffset=offsets(a=5), latestOffset=offsets(a=5))) == 0
    assert lag_of(progress(1, 0, endOffset=offsets(a=5, b=2), latestOffset=offsets(a=9, b=4, c=3))) == 4 + 2 + 2
    assert lag_of(progress(1, 0, endOffset=None, latestOffset=offsets(a=9))) == 8
    assert lag_of(progress(1, 0, endOffset="7", latestOffset="9")) is None  # of another kind of source
    assert lag_of(progress(1, 0, endOffset='{"rules": "12"}', latestOffset='{"rules": "34"}')) is None
    again = msgspec.json.encode({"topic:a": [2, 4]}).decode()  # dropped, and made again
    assert lag_of(progress(1, 0, endOffset=offsets(a=9), latestOffset=again)) == 3


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=20), st.data())
def test_d11_every_batch_is_counted_once_however_often_one_looks(
    batches: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """Spark keeps the recent ones; a look takes the last one, or all if it has missed some."""
    status = QueryStatus(name="q")
    recent: list[Any] = []
    for number, (rows, idle_after) in enumerate(batches):
        recent.append(progress(number, rows))
        if idle_after:
            recent.append(progress(number + 1, 0, idle=True))
        if data.draw(st.booleans()):
            continue
        for _ in range(data.draw(st.integers(1, 2))):
            for each in [recent[-1]] if status.is_next(recent[-1]) else recent:
                status.take(each)
    for each in recent:
        status.take(each)
    assert status.rows == sum(rows for rows, _ in batches)
    assert status.batches == len(batches)


def test_d11_rows_are_those_of_messages_where_there_are_any() -> None:
    both = progress(1, 10, endOffset=offsets(a=5))
    both["sources"].append({"endOffset": '{"rules": "12"}', "latestOffset": None, "numInputRows": 32})
    assert rows_of(both) == 10
    assert rows_of({"sources": both["sources"][1:]}) == 32


def test_d11_a_second_life_counts_on() -> None:
    status = QueryStatus(name="q")
    assert status.take(progress(3, 10)) and not status.take(progress(3, 10))
    assert status.take(progress(3, 10, run="again"))
    assert (status.rows, status.batches, status.batch) == (20, 2, 3)


def test_d11_the_whole_is_the_sum_of_its_queries() -> None:
    status = Status(name="n", pipeline="p", pid=1, host="h", url="u", master="m", since="2026-01-01T00:00:00.000Z")
    first, second = QueryStatus(name="a"), QueryStatus(name="b")
    first.take(progress(0, 100, took_ms=500, endOffset=offsets(a=1), latestOffset=offsets(a=4)))
    second.take(progress(0, 10, took_ms=1000))
    status.queries = {"a": first, "b": second}
    facts = status.facts("now")
    assert (facts["rows"], facts["rows_per_s"], facts["lag"], facts["batch_s"], facts["batches"]) == (
        110, 210.0, 3, 1.0, 2,
    )  # fmt: skip
    assert [query["name"] for query in facts["queries"]] == ["a", "b"]
    assert msgspec.json.decode(msgspec.json.encode(facts)) == facts
    assert line(facts) == "n: starting, 110 rows, 210 rows/s, lag 3, batch 1.00 s"


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"rows": 10, "total": 40, "groups": 3}, "n: running, 10 rows, 5 rows/s, lag 30, groups 3"),
        ({"rows": 50, "total": 40}, "n: running, 50 rows, 25 rows/s, lag 0"),
        ({}, "n: running"),
    ],
)
def test_d11_a_job_says_how_far_it_is(report: dict[str, Any], expected: str) -> None:
    status = Status(
        name="n", pipeline="p", pid=1, host="h", url="u", master="m", since="s", state="running", report=report,
        elapsed_s=2.0,
    )  # fmt: skip
    assert line(status.facts("now")) == expected
