"""`format=json`: bodies into columns, beside Python's own reader of JSON."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from clarion.errors import BadArgument
from clarion.spark.formats import columns_for, parse

SCHEMA = pa.schema([("n", pa.int32()), ("s", pa.string()), ("x", pa.float64()), ("b", pa.bool_())])
CORRUPT = pa.field("_corrupt", pa.binary())


def given_rows(bodies: list[bytes | None]) -> Any:
    sequences = pa.array(range(10, 10 + len(bodies)), pa.int64())
    return pa.RecordBatch.from_arrays([sequences, pa.array(bodies, pa.binary())], ["sequence", "body"])


def read(bodies: list[bytes | None], schema: Any = SCHEMA, **options: bool) -> list[dict[str, Any]]:
    found = parse(given_rows(bodies), "json", schema, **options)
    assert found.schema.equals(schema)
    found.validate(full=True)
    assert found.num_rows == len(bodies)
    listed: list[dict[str, Any]] = found.to_pylist()
    return listed


def one(kind: Any, value: bytes) -> Any:
    """What a member of this type is read as; `...` if it makes its text malformed."""
    (row,) = read([b'{"v":%s}' % value], pa.schema([("v", kind), CORRUPT]))
    return ... if row["_corrupt"] is not None else row["v"]


member = {
    "n": st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
    "s": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "b": st.none() | st.booleans(),
    "other": st.lists(st.integers(0, 9) | st.none() | st.just("}{"), max_size=3),
}
sound = st.fixed_dictionaries({}, optional=member)
spaces = st.sampled_from(["", " ", "\n", "\t \r\n"])
NOT_JSON = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"7",
    b'{"n":1}{"n":2}',
    b'{"n":1},{"n":2}',
    b"\xff",
    b'{"n":"1"}',
    b'{"n":1e99}',
]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(st.tuples(sound, spaces, st.booleans()), st.sampled_from(NOT_JSON)), max_size=12),
)
def test_d01_good_bodies_are_read_whatever_lies_beside_them(rows: list[Any]) -> None:
    bodies: list[bytes | None] = []
    expected = []
    for row in rows:
        if isinstance(row, bytes):
            bodies.append(row)
            expected.append({**dict.fromkeys(SCHEMA.names), "_corrupt": row})
        else:
            values, space, is_ascii = row
            bodies.append(f"{space}{json.dumps(values, ensure_ascii=is_ascii)}{space}".encode())
            expected.append({**{name: values.get(name) for name in SCHEMA.names}, "_corrupt": None})
    assert read(bodies, pa.schema([*SCHEMA, CORRUPT])) == expected


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.string(), b'{"a": [1]}', '{"a": [1]}'),
        (pa.string(), b"1.50", "1.50"),
        (pa.string(), b"null", None),
        (pa.string(), b'"\\u00fc"', "ü"),
        (pa.string(), b'"\\ud800"', ...),
        (pa.string(), b'"\xff"', ...),
        (pa.string(), b'["\xff"]', ...),
        (pa.string(), b"[1,]", ...),
        (pa.string(), b"[" * 100_000, ...),
        (pa.int64(), b"9223372036854775807", 9223372036854775807),
        (pa.int64(), b"9223372036854775808", ...),
        (pa.int8(), b"128", ...),
        (pa.int64(), b"1.5", ...),
        (pa.int64(), b"true", ...),
        (pa.float32(), b"1", 1.0),
        (pa.float64(), b'"1"', ...),
        (pa.bool_(), b"1", ...),
        (pa.binary(), b'"AP8="', b"\x00\xff"),
        (pa.binary(), b'"?"', ...),
        (pa.date32(), b'"2025-02-28"', date(2025, 2, 28)),
        (pa.date32(), b'"2025-02-30"', ...),
        (pa.decimal128(5, 2), b"1.005", Decimal("1.01")),
        (pa.decimal128(5, 2), b'"-1"', Decimal("-1.00")),
        (pa.decimal128(5, 2), b"1000", None),
        (pa.list_(pa.int64()), b"[1,null]", [1, None]),
        (pa.list_(pa.int64()), b'[1,"2"]', ...),
        (pa.list_(pa.string()), b'["a",{"b":1}]', ["a", '{"b":1}']),
        (pa.map_(pa.string(), pa.int64()), b'{"a":1,"b":null}', [("a", 1), ("b", None)]),
        (
            pa.struct([("a b", pa.int64()), ("c", pa.struct([("d", pa.string())]))]),
            b'{"a b":1,"z":2}',
            {"a b": 1, "c": None},
        ),
        (pa.struct([("c", pa.struct([("d", pa.string())]))]), b'{"c":{"d":[]}}', {"c": {"d": "[]"}}),
        (
            pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.bool_()))])),
            b'[{"a":{"t":true}},null]',
            [{"a": [("t", True)]}, None],
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_d01_members_of_every_type(kind: Any, value: bytes, expected: Any) -> None:
    assert one(kind, value) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-01-31T12:00:00.123456Z", datetime(2025, 1, 31, 12, 0, 0, 123456, UTC)),
        ("2025-01-31T12:00:00+02:00", datetime(2025, 1, 31, 10, tzinfo=UTC)),
        ("2025-01-31T12:00:00", datetime(2025, 1, 31, 12, tzinfo=UTC)),
        ("yesterday", ...),
    ],
)
def test_d01_times(text: str, expected: Any) -> None:
    assert one(pa.timestamp("us", tz="UTC"), json.dumps(text).encode()) == expected


def test_d01_bytes_are_those_of_base64() -> None:
    assert one(pa.binary(), json.dumps(base64.b64encode(bytes(range(256))).decode()).encode()) == bytes(range(256))


def test_d01_a_large_body_is_not_there_and_not_malformed() -> None:
    found = read([None, b'{"n":1}'], pa.schema([("n", pa.int32()), CORRUPT]))
    assert found == [{"n": None, "_corrupt": None}, {"n": 1, "_corrupt": None}]


def test_d01_corrupt_bodies_as_text() -> None:
    schema = pa.schema([("_corrupt", pa.string()), ("n", pa.int32())])
    assert read([b"{\xff", b'{"n":1}'], schema) == [{"_corrupt": "{\ufffd", "n": None}, {"_corrupt": None, "n": 1}]


def test_d01_failfast_says_which_message() -> None:
    with pytest.raises(BadArgument, match="message 11 is not json of this schema: b'zzz'") as caught:
        read([b"{}", b"zzz", b"{"], failfast=True)
    assert caught.value.facts["sequence"] == 11
    assert read([b"{}"], failfast=True) == [dict.fromkeys(SCHEMA.names)]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([CORRUPT]),
        pa.schema([("a", pa.int64()), ("a", pa.string())]),
        pa.schema([("a", pa.int64()), ("_corrupt", pa.int64())]),
        pa.schema([("a", pa.map_(pa.int64(), pa.string()))]),
        pa.schema([("a", pa.struct([]))]),
        pa.schema([("a", pa.duration("us"))]),
    ],
    ids=str,
)
def test_d01_schemas_that_cannot_be_read_are_refused_before_anything_is(schema: Any) -> None:
    with pytest.raises(BadArgument, match="schema"):
        columns_for(schema, "json")


def test_d01_unknown_formats_are_refused() -> None:
    with pytest.raises(BadArgument, match="json, cloudevents"):
        columns_for(SCHEMA, "avro")
    assert columns_for(SCHEMA, "json") == ("sequence", "body")
