"""Rows that cannot be sent: refused with their column and number, before anything is given out."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from clarion import limits
from clarion.errors import BadArgument, BadName, ClarionError, MessageTooLarge
from clarion.message import Headers, encode_headers
from clarion.spark.encoding import SinkDefaults, packed
from clarion.spark.sink_columns import NAMES

ORDERS = SinkDefaults(destination="topic:orders")
INVALID_TEXT = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
)
"""Spark makes such text of bytes, unasked."""


def refused(kind: type[ClarionError], defaults: SinkDefaults = ORDERS, **columns: Any) -> ClarionError:
    with pytest.raises(kind) as caught:
        packed(pa.RecordBatch.from_pydict(columns), defaults)
    return caught.value


def maps(*values: Any, kind: Any = None) -> Any:
    return pa.array(values, pa.map_(pa.string(), kind or pa.string()))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("body", [b"a", None]),
        ("destination", ["topic:a", None]),
        ("priority", [0, 10]),
        ("priority", [0, -1]),
        ("group_id", ["a", ""]),
        ("reply_to", ["q", "no such kind:q"]),
        ("ttl", [1.0, 0.0]),
        ("ttl", [1.0, -1.0]),
        ("ttl", [1.0, float("nan")]),
        ("ttl", [1.0, 1e300]),
        ("expires_at", pa.array([10_000, -1]).cast(pa.timestamp("us", tz="UTC"))),
        ("deliver_at", pa.array([10_000, 1 << 60]).cast(pa.timestamp("us", tz="UTC"))),
        ("time", pa.array([10_000, 0]).cast(pa.timestamp("us", tz="UTC"))),
        ("properties", maps([("a", "b")], [("", "b")])),
        ("properties", maps([], [("a", 1.0), ("b", float("nan"))], kind=pa.float64())),
        ("properties", maps([], [(str(index), "") for index in range(limits.PROPERTIES_MAX + 1)])),
        ("properties", maps([("a", "b")], [("a", "b" * 65_536)])),
        ("properties", maps([("a", "b")], [("a" * 65_536, "b")])),
        ("headers", [b"", b"\x81\xa1t"]),
        ("headers", [b"\x80", b"\x80\x80"]),
        ("headers", [b"", encode_headers(Headers(large=(bytes(24), 1, 1)))]),
        ("headers", [b"", encode_headers(Headers(dead={"reason": "worn"}))]),
        ("headers", [b"", encode_headers(Headers(expires_at_ms=-1))]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_d02_a_wrong_value_is_refused_with_its_row(column: str, values: Any) -> None:
    defaults = SinkDefaults() if column == "destination" else ORDERS
    error = refused(BadArgument, defaults, **{"body": [b"a", b"b"], column: values})
    assert error.facts["argument"] == column
    assert error.facts["row"] == 1
    assert "(row 1)" in str(error)


def test_d02_the_row_is_that_of_the_record_batch_in_later_chunks_too() -> None:
    priorities = [4] * 40_000
    priorities[33_333] = 11
    assert refused(BadArgument, body=[b""] * 40_000, priority=priorities).facts["row"] == 33_333


@pytest.mark.parametrize("name", ["a b", "", "pipe:x", "_LOG", "x" * 256])
def test_d02_a_wrong_name_is_refused_with_its_row(name: str) -> None:
    error = refused(BadName, body=[b"", b"", b""], destination=["q", "topic:t", name])
    assert error.facts["row"] == 2
    refused(BadName, SinkDefaults(destination=name), body=[b""])


@pytest.mark.parametrize(
    ("column", "values", "limit"),
    [
        ("body", [b"", bytes(limits.BATCH_BYTES_MAX)], None),
        ("type", ["", "x" * 65_536], 65_535),
        ("properties", maps([], [("a", "b" * 40_000), ("c", "d" * 40_000)]), limits.HEADERS_BYTES_MAX),
        ("headers", [b"", b"\xc4" * (limits.HEADERS_BYTES_MAX + 1)], limits.HEADERS_BYTES_MAX),
    ],
    ids=["body", "type", "properties", "headers"],
)
def test_d02_what_is_too_large_is_refused_with_its_row(column: str, values: Any, limit: int | None) -> None:
    error = refused(MessageTooLarge, **{"body": [b"", b""], column: values})
    assert error.facts["row"] == 1
    assert limit is None or error.facts["limit"] == limit
    assert any("row 1" in note for note in error.__notes__)


def test_d02_the_largest_message_that_fits_is_the_limit_that_is_told() -> None:
    error = refused(MessageTooLarge, destination=["q", "topic:a", "q"], body=[b"", b"", bytes(limits.BATCH_BYTES_MAX)])
    limit = error.facts["limit"]
    assert isinstance(limit, int)
    assert error.facts["row"] == 2
    ((_destination, found),) = packed(
        pa.RecordBatch.from_pydict({"body": [bytes(limit)]}), SinkDefaults(destination="q")
    )
    found.check()
    assert len(found.encode(b"q", 1, 1)) <= limits.BATCH_BYTES_MAX
    refused(MessageTooLarge, SinkDefaults(destination="q"), body=[bytes(limit + 1)])


def test_d02_a_smaller_limit_of_the_broker_holds() -> None:
    defaults = SinkDefaults(destination="q", batch_bytes_max=1_000)
    assert refused(MessageTooLarge, defaults, body=[b"", bytes(990)]).facts["row"] == 1


@pytest.mark.parametrize("column", ["type", "properties", "destination"])
def test_d02_text_that_is_not_utf_8_is_refused(column: str) -> None:
    values = INVALID_TEXT
    if column == "properties":
        values = pa.MapArray.from_arrays(pa.array([0, 1, 2]), pa.array(["a", "b"]), INVALID_TEXT)
    assert refused(BadArgument, body=[b"", b""], **{column: values}).facts["argument"] == column


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("body", [1, 2]),
        ("type", [1, 2]),
        ("type", [b"a", b"b"]),
        ("priority", ["1", "2"]),
        ("priority", [1.5, 2.0]),
        ("ttl", ["1", "2"]),
        ("expires_at", [1, 2]),
        ("expires_at", pa.array([1, 2]).cast(pa.timestamp("us"))),
        ("properties", ["a", "b"]),
        ("properties", maps([("a", [1])], None, kind=pa.list_(pa.int64()))),
    ],
    ids=str,
)
def test_d02_a_column_of_another_type_is_refused(column: str, values: Any) -> None:
    assert refused(BadArgument, **{"body": ["", ""], column: values}).facts["argument"] == column


def test_d02_unknown_columns_are_named() -> None:
    error = str(refused(BadArgument, body=[b""], colour=[1], sequence=[1]))
    assert "colour, sequence" in error
    assert "sequence: the broker gives them" in error
    assert all(name in error for name in NAMES)


@pytest.mark.parametrize(
    "columns",
    [
        {"type": ["t"]},
        {"body": [b""], "value": [b""]},
        {"body": [b""], "ttl": [1.0], "expires_at": pa.array([1]).cast(pa.timestamp("us", tz="UTC"))},
        {"body": [b""], "headers": [b""], "type": ["t"]},
        {"body": [b""], "headers": [b""], "properties": maps([])},
    ],
    ids=lambda columns: "-".join(columns),
)
def test_d02_columns_that_contradict_each_other_are_refused(columns: dict[str, Any]) -> None:
    assert refused(BadArgument, **columns).facts["argument"] == "columns"


def test_d02_defaults_that_contradict_raw_headers_are_refused() -> None:
    refused(BadArgument, SinkDefaults(destination="q", type="t"), body=[b""], headers=[b""])


def test_d02_without_a_destination_nothing_is_sent() -> None:
    assert refused(BadArgument, SinkDefaults(), body=[b""]).facts["argument"] == "destination"


def test_d02_defaults_that_cannot_be_are_refused() -> None:
    assert refused(BadArgument, SinkDefaults(destination="q", priority=10), body=[b""]).facts["argument"] == "priority"
    assert refused(BadArgument, SinkDefaults(destination="q", ttl=0), body=[b""]).facts["argument"] == "ttl"
    assert refused(BadArgument, SinkDefaults(destination="q", group_id=""), body=[b""]).facts["argument"] == "group_id"
    assert (
        refused(MessageTooLarge, SinkDefaults(destination="q", type="x" * 65_536), body=[b""]).facts["column"] == "type"
    )
