"""Filters that a broker decides, against what Spark would decide itself."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from clarion import limits
from clarion.ids import format_id
from clarion.message import Headers, encode_headers
from clarion.selector import compile_selector
from clarion.spark.filters import Pushed
from clarion.spark.offsets import Range
from clarion.wire.batch import Batch, encode

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WORDS = ["", "a", "ab", "it's", "100%", "a_b", "\\", "_"]
words = st.sampled_from(WORDS)


class Row(NamedTuple):
    """A message as Spark sees it."""

    destination: str
    sequence: int
    id: str
    time: datetime
    priority: int
    type: str | None
    correlation_id: str | None
    reply_to: str | None
    group_id: str | None


@st.composite
def rows(draw: st.DrawFn) -> Row:
    text = st.none() | words
    sequence = draw(st.integers(1, 6))
    return Row(
        destination=draw(st.sampled_from(["topic:a", "topic:ab", "queue:a"])),
        sequence=sequence,
        id=format_id(1000 + sequence),
        time=EPOCH + timedelta(milliseconds=draw(st.integers(1000, 1004))),
        priority=draw(st.integers(0, 9)),
        type=draw(text),
        correlation_id=draw(text),
        reply_to=draw(text),
        group_id=draw(text.filter(lambda value: value != "")),
    )


def values(column: str) -> st.SearchStrategy[Any]:
    if column == "sequence":
        return st.integers(-1, 8)
    if column == "priority":
        return st.integers(-1, 11)
    if column == "time":
        moments = st.integers(999_500, 1_004_500).map(lambda us: EPOCH + timedelta(microseconds=us))
        return moments | moments.map(lambda moment: moment.astimezone(timezone(timedelta(hours=2))))
    if column == "id":
        return st.integers(1000, 1007).map(format_id)
    if column == "destination":
        return st.sampled_from(["topic:a", "topic:", "queue:a", "x"])
    return words


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(Row._fields))
    path, value = (column,), values(column)
    kinds = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
    choices: list[st.SearchStrategy[Filter]] = [st.builds(kind, attribute=st.just(path), value=value) for kind in kinds]
    choices.append(st.builds(In, attribute=st.just(path), value=st.lists(value | st.none(), min_size=1).map(tuple)))
    choices.append(st.sampled_from([IsNull(path), IsNotNull(path)]))
    if column not in ("sequence", "priority", "time"):
        likes = [StringStartsWith, StringEndsWith, StringContains]
        choices += [st.builds(kind, attribute=st.just(path), value=value) for kind in likes]
    found = draw(st.one_of(choices))
    return Not(found) if draw(st.booleans()) else found


def decided(found: Filter, row: Row) -> bool | None:
    """As Spark has it: None is unknown."""
    if isinstance(found, Not):
        inner = decided(found.child, row)
        return None if inner is None else not inner
    path, wanted = found.attribute, getattr(found, "value", None)  # type: ignore[attr-defined]
    have = getattr(row, path[0])
    if isinstance(found, IsNull | IsNotNull):
        return (have is None) == isinstance(found, IsNull)
    if isinstance(found, EqualNullSafe):
        return bool(have == wanted)
    if have is None:
        return None
    if isinstance(found, In):
        return True if have in found.value else None if None in found.value else False
    tests: dict[type[Filter], Callable[[Any, Any], Any]] = {
        EqualTo: operator.eq,
        GreaterThan: operator.gt,
        GreaterThanOrEqual: operator.ge,
        LessThan: operator.lt,
        LessThanOrEqual: operator.le,
        StringStartsWith: str.startswith,
        StringEndsWith: str.endswith,
        StringContains: operator.contains,
    }
    return bool(tests[type(found)](have, wanted))


def kept(pushed: Pushed, row: Row) -> bool:
    """Whether a broker gives this message to a reader that has pushed so."""
    if not pushed.cut([Range(row.destination, 1, row.sequence, row.sequence + 1)]):
        return False
    if pushed.selector is None:
        return True
    headers = Headers(type=row.type, correlation_id=row.correlation_id, reply_to=row.reply_to, group=row.group_id)
    time_ms = (row.time - EPOCH) // timedelta(milliseconds=1)
    batch = Batch.parse(
        encode(
            row.destination.encode(),
            1000 + row.sequence,
            [b"body"],
            [encode_headers(headers)],
            priority=row.priority,
            created_ms=time_ms,
        )
    )
    return bool(compile_selector(pushed.selector).matches(batch, 0, 1)[0])


@settings(deadline=None)
@given(st.lists(filters(), max_size=4), st.lists(rows(), min_size=1, max_size=5))
def test_d03_what_is_pushed_is_decided_as_spark_would(wanted: list[Filter], found: list[Row]) -> None:
    pushed = Pushed([])
    taken = [one for one in wanted if pushed.take(one)]
    for row in found:
        assert kept(pushed, row) == all(decided(one, row) is True for one in taken), (pushed, taken)


def test_d03_the_usual_filters_are_taken_over() -> None:
    pushed = Pushed(["region = 'eu' OR region = 'us'"])
    for one in (
        EqualTo(("type",), "order"),
        In(("group_id",), ("a", "b")),
        Not(EqualTo(("correlation_id",), "c")),
        GreaterThanOrEqual(("priority",), 4),
        GreaterThan(("time",), EPOCH + timedelta(seconds=1)),
        IsNotNull(("type",)),
        StringStartsWith(("destination",), "topic:"),
        LessThan(("sequence",), 9),
        IsNotNull(("sequence",)),
    ):
        assert pushed.take(one), one
    for one in (
        EqualTo(("properties", "region"), "eu"),
        EqualTo(("body",), b"x"),
        GreaterThan(("type",), "a"),
        GreaterThan(("time",), datetime(2026, 1, 1)),
    ):
        assert not pushed.take(one), one
    assert pushed.selector is not None
    assert pushed.selector.startswith("(region = 'eu' OR region = 'us') AND (JMSType = 'order')")
    assert (pushed.prefixes, pushed.first, pushed.end) == (["topic:"], 1, 9)


def test_d03_a_selector_that_grows_too_large_is_left_to_spark() -> None:
    pushed = Pushed([])
    many = tuple(f"value {n}" for n in range(1000))
    assert not pushed.take(In(("type",), many))
    assert not pushed.conditions
    for n in range(300):
        pushed.take(Not(EqualTo(("type",), f"{n}" * 20)))
    assert pushed.selector is not None and len(pushed.selector) <= limits.SELECTOR_BYTES_MAX
    assert 10 < len(pushed.conditions) < 300
    compile_selector(pushed.selector)
