"""Batches made of rows: parsed as a broker does it, and read message by message."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from clarion import limits
from clarion.client.options import chosen
from clarion.message import Headers, Message, encode_headers, group_hash
from clarion.spark.encoding import SinkDefaults, packed
from clarion.spark.headers import property_text
from clarion.wire.batch import GROUPS, HEADERS, TIMES, Batch
from tests.unit.spark.references import moment

NOW_MS = 1_700_000_000_000
ORDERS = SinkDefaults(destination="topic:orders")
TIMESTAMP = pa.timestamp("us", tz="UTC")
TEXT = ("type", "content_type", "reply_to", "correlation_id", "group_id")


def sent(rows: Any, defaults: SinkDefaults = ORDERS) -> dict[str, list[Batch]]:
    """What a broker gets, by destination."""
    found = defaultdict(list)
    number = 1
    for destination, each in packed(rows, defaults, now_ms=NOW_MS):
        each.check()
        found[destination].append(Batch.parse(bytes(each.encode(destination.encode(), number, NOW_MS))))
        number += each.count
    return dict(found)


def messages(batches: list[Batch]) -> list[Message]:
    return [Message(batch, index, 0) for batch in batches for index in range(batch.count)]


def bodies(batches: list[Batch]) -> list[bytes]:
    return [message.body for message in messages(batches)]


def table(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


# --- everything that a row can say --------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
row = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=40),
        "destination": st.sampled_from([None, "topic:a", "queue:b", "ü"]),
        "priority": st.none() | st.integers(0, 9),
        "type": st.none() | text,
        "content_type": st.none() | text,
        "reply_to": st.sampled_from([None, "queue:answers", "_temp.x", "n"]),
        "correlation_id": st.none() | st.integers(0, 300).map("x".__mul__),
        "group_id": st.none() | text.filter(bool),
        "ttl": st.none() | st.floats(0.001, 1e6),
        "properties": st.none()
        | st.dictionaries(text.filter(bool), st.none() | text, max_size=20).map(dict.items).map(list),
        "deliver_at": st.sampled_from([None, moment(NOW_MS - 5), moment(NOW_MS + 1_001), moment(NOW_MS + 99_999)]),
        "time": st.none() | st.integers(1, NOW_MS).map(moment),
    }
)
SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        ("destination", pa.string()),
        ("priority", pa.int32()),
        *((name, pa.string()) for name in TEXT),
        ("ttl", pa.float64()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("deliver_at", TIMESTAMP),
        ("time", TIMESTAMP),
    ]
)


def told(message: Message) -> dict[str, Any]:
    """A message, as `expected` says it."""
    return {
        "body": message.body,
        "type": message.type,
        "content_type": message.content_type,
        "reply_to": message.reply_to,
        "correlation_id": message.correlation_id,
        "group_id": message.group,
        "expires_at_ms": message.expires_at_ms,
        "properties": message.properties,
        "time": message.timestamp_ms,
    }


def expected(each: dict[str, Any], absent: set[str]) -> dict[str, Any]:
    """What becomes of a row, by the rules of every sender (`chosen`)."""
    said = {name: None if name in absent else value for name, value in each.items()}
    choice = chosen(NOW_MS, ttl=said["ttl"])
    return {
        "body": said["body"],
        **{name: said[name] for name in TEXT},
        "expires_at_ms": choice.expires_at_ms,
        "properties": dict(said["properties"] or ()),
        "time": NOW_MS if said["time"] is None else round(said["time"].timestamp() * 1_000),
    }


@settings(deadline=None, max_examples=80)
@given(st.lists(row, max_size=12), st.sets(st.sampled_from(SCHEMA.names[1:])), st.integers(0, 3))
def test_d02_every_row_arrives_as_it_was_in_order(rows: list[dict[str, Any]], absent: set[str], skipped: int) -> None:
    names = [name for name in SCHEMA.names if name not in absent]
    schema = pa.schema([SCHEMA.field(name) for name in names])
    found = sent(pa.RecordBatch.from_pylist([{n: each[n] for n in names} for each in rows], schema=schema)[skipped:])
    wanted = defaultdict(list)
    for each in rows[skipped:]:
        said = {name: None if name in absent else value for name, value in each.items()}
        terms = chosen(
            NOW_MS,
            priority=limits.PRIORITY_DEFAULT if said["priority"] is None else said["priority"],
            deliver_at=said["deliver_at"],
        ).terms
        key = (said["destination"] or "topic:orders", terms.priority, terms.deliver_at_ms)
        wanted[key].append(expected(each, absent))
    arrived: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for destination, batches in found.items():
        for batch in batches:
            assert batch.destination.decode() == destination
            arrived[destination, batch.priority, batch.deliver_at_ms] += map(told, messages([batch]))
            check_summary(batch)
    assert arrived == wanted


def check_summary(batch: Batch) -> None:
    """What the batch says of all its messages is what they say."""
    every = messages([batch])
    times = [each.expires_at_ms for each in every]
    some = [each for each in times if each]
    assert batch.expiry_first_ms == min(some, default=0)
    assert batch.expiry_last_ms == (max(times) if all(times) else 0)
    hashes = [0 if each.group is None else group_hash(each.group) for each in every]
    assert hashes == (batch.groups().tolist() if batch.flags & GROUPS else [0] * batch.count)
    assert bool(batch.flags & HEADERS) == any(batch.record(index)[0] for index in range(batch.count))
    assert not batch.flags & TIMES or len({each.timestamp_ms for each in every}) > 1


# --- columns of every type ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.binary()),
    ],
    ids=str,
)
def test_d02_bodies_and_texts_of_every_type_of_arrow(kind: Any) -> None:
    values = ["a", "", "üü", "a"]
    is_text = "string" in str(kind)
    column = pa.array(values if is_text else [value.encode() for value in values])
    column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)
    rows = {"body": column, "type": column} if is_text else {"body": column}
    found = messages(sent(table(**rows)[1:])["topic:orders"])
    assert [message.body for message in found] == [value.encode() for value in values[1:]]
    assert [message.type for message in found] == (values[1:] if is_text else [None] * 3)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, -(1 << 63), None], pa.int64()),
        ([1, -7, None], pa.int16()),
        ([1.5, float("-inf"), None], pa.float64()),
        ([True, False, None], pa.bool_()),
        ([b"\xff", b"x" * 300, None], pa.binary()),
        (["x" * 31, "x" * 32, "x" * 255, "x" * 256, None], pa.string()),
        (["a", "b", None], pa.large_string()),
        ([None], pa.null()),
    ],
    ids=str,
)
def test_d02_properties_of_every_type(values: list[Any], kind: Any) -> None:
    properties = [(f"n{index}", value) for index, value in enumerate(values)]
    column = pa.array([None, properties, [], properties[:1]], pa.map_(pa.string(), kind))
    found = messages(sent(table(body=[b"a", b"b", b"c", b"d"], properties=column)[1:])["topic:orders"])
    assert [message.properties for message in found] == [dict(properties), {}, dict(properties[:1])]


def test_d02_a_map_that_is_null_is_not_read_though_it_has_entries() -> None:
    entries = pa.MapArray.from_arrays(pa.array([0, 1, 2, 3]), pa.array(["a", "b", "c"]), pa.array(["1", "2", "3"]))
    masked = pa.MapArray.from_arrays(
        entries.offsets, entries.keys, entries.items, mask=pa.array([False, True, False]), type=entries.type
    )
    found = messages(sent(table(body=[b"", b"", b""], properties=masked))["topic:orders"])
    assert [message.properties for message in found] == [{"a": "1"}, {}, {"c": "3"}]


def test_d02_as_many_properties_as_a_message_may_have() -> None:
    properties = [(f"n{index}", str(index)) for index in range(limits.PROPERTIES_MAX)]
    column = pa.array([properties], pa.map_(pa.string(), pa.string()))
    (message,) = messages(sent(table(body=[b""], properties=column))["topic:orders"])
    assert message.properties == dict(properties)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_d02_times_of_every_unit(unit: str) -> None:
    column = pa.array([NOW_MS + 60_000, None], pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    column = column.cast(pa.timestamp(unit, tz="Europe/Berlin"))
    found = messages(sent(table(body=[b"a", b"b"], expires_at=column))["topic:orders"])
    assert [message.expires_at_ms for message in found] == [NOW_MS + 60_000, 0]


def test_d02_defaults_are_for_rows_that_do_not_say_it() -> None:
    defaults = SinkDefaults(
        destination="q", priority=7, type="t", content_type="c", reply_to="r", correlation_id="i", group_id="g", ttl=1.5
    )
    rows = table(body=["a", "b"], type=pa.array([None, "own"]), priority=pa.array([None, 1]), ttl=pa.array([None, 2]))
    found = messages(sent(rows, defaults)["q"])
    said = [(m.body, m.type, m.priority, m.content_type, m.reply_to, m.correlation_id, m.group) for m in found]
    assert sorted(said) == [(b"a", "t", 7, "c", "r", "i", "g"), (b"b", "own", 1, "c", "r", "i", "g")]
    assert {m.body: m.expires_at_ms - NOW_MS for m in found} == {b"a": 1_500, b"b": 2_000}


def test_d02_a_default_ttl_holds_where_no_time_of_expiry_is_said() -> None:
    column = pa.array([NOW_MS + 60_000, None], pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    defaults = SinkDefaults(destination="q", ttl=5)
    found = messages(sent(table(body=[b"a", b"b"], expires_at=column), defaults)["q"])
    assert [message.expires_at_ms - NOW_MS for message in found] == [60_000, 5_000]
    (message,) = messages(sent(table(body=[b"a"]), defaults)["q"])
    assert message.expires_at_ms - NOW_MS == 5_000


def test_d02_value_is_another_name_of_body() -> None:
    assert bodies(sent(table(value=["a", "b"]))["topic:orders"]) == [b"a", b"b"]


# --- raw headers --------------------------------------------------------------------------------------

raw = st.builds(
    Headers,
    type=st.none() | text,
    group=st.none() | text.filter(bool),
    expires_at_ms=st.integers(0, 1 << 42),
    properties=st.none() | st.dictionaries(text.filter(bool), st.integers(0, 9) | text, max_size=3),
).map(encode_headers)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.none() | raw, st.binary(max_size=9)), min_size=1, max_size=8))
def test_d09_raw_headers_are_sent_byte_for_byte(rows: list[tuple[bytes | None, bytes]]) -> None:
    headers = pa.array([each for each, _body in rows], pa.binary())
    batches = sent(table(headers=headers, body=pa.array([body for _headers, body in rows], pa.binary())))[
        "topic:orders"
    ]
    found = [tuple(map(bytes, batch.record(index))) for batch in batches for index in range(batch.count)]
    assert found == [(each or b"", body) for each, body in rows]
    for batch in batches:
        check_summary(batch)


# --- cutting ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([0, 1, 100, 40_000, 200_000]), min_size=1, max_size=40),
    st.sampled_from([300_000, limits.BATCH_BYTES_MAX]),
)
def test_d02_batches_are_as_large_as_they_should_be(sizes: list[int], bytes_max: int) -> None:
    rows = table(body=[bytes([index]) * size for index, size in enumerate(sizes)])
    batches = sent(rows, SinkDefaults(destination="topic:orders", batch_bytes_max=bytes_max))["topic:orders"]
    assert bodies(batches) == rows.column("body").to_pylist()
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        assert batch.size <= bytes_max
        assert batch.count == 1 or len(batch.data) <= limits.BATCH_BYTES_TARGET
        if following is not None:  # the next message had no room
            weight = len(batch.data) + len(following.record(0)[1]) + 32 * (batch.count + 1)
            assert weight > min(limits.BATCH_BYTES_TARGET, bytes_max // 2 - 100)


def test_d02_more_rows_than_are_looked_at_together() -> None:
    count = 40_000
    rows = table(body=[b"%d" % number for number in range(count)], type=["t"] * count)
    batches = sent(rows)["topic:orders"]
    assert bodies(batches) == rows.column("body").to_pylist()
    assert max(batch.count for batch in batches) <= limits.BATCH_MESSAGES_TARGET


def test_d02_no_rows_are_no_batches() -> None:
    assert list(packed(table(body=pa.array([], pa.binary())), ORDERS)) == []


def test_d02_rows_without_headers_are_not_copied() -> None:
    column = pa.array([b"abc", b"", b"defg"], pa.binary())
    ((_destination, found),) = packed(table(body=column)[1:], ORDERS, now_ms=NOW_MS)
    view = memoryview(found.data)
    assert bytes(view) == b"defg"
    assert pa.py_buffer(view).address == column.buffers()[2].address + 3


@pytest.mark.parametrize(("apart_ms", "batches"), [((1 << 32) - 1, 1), (1 << 32, 2), (1 << 40, 2)])
def test_d09_times_that_lie_far_apart_are_in_batches_of_their_own(apart_ms: int, batches: int) -> None:
    times = pa.array([NOW_MS, NOW_MS - apart_ms], pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    found = sent(table(body=["a", "b"], time=times))["topic:orders"]
    assert len(found) == batches
    said = [(message.body, message.timestamp_ms) for message in messages(found)]
    assert said == [(b"a", NOW_MS), (b"b", NOW_MS - apart_ms)]


def test_d02_many_rows_of_many_destinations_keep_their_order() -> None:
    count = 6_000
    names = [f"topic:t{number * 7_919 % 13}" for number in range(count)]
    found = sent(table(body=[b"%d" % number for number in range(count)], destination=names, type=names))
    for name, batches in found.items():
        assert bodies(batches) == [b"%d" % number for number in range(count) if names[number] == name]
        assert {message.type for message in messages(batches)} == {name}


def test_d02_property_text_is_what_comes_back() -> None:
    column = pa.array([[("n", 7)]], pa.map_(pa.string(), pa.int64()))
    (message,) = messages(sent(table(body=[b""], properties=column))["topic:orders"])
    assert [property_text(value) for value in message.properties.values()] == ["7"]
