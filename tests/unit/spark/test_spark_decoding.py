"""Record batches made of batches, beside the same messages read one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from clarion.errors import BadArgument
from clarion.message import Headers, encode_headers
from clarion.spark.decoding import joined, record_batch
from clarion.spark.headers import HeaderColumns, decoded, property_text
from clarion.spark.schema import COLUMNS, arrow_schema
from clarion.wire.batch import Batch, encode
from tests.unit.spark.references import rows_of

NAMES = [column.name for column in COLUMNS]
FIRST_ID = (7 << 104) + (5 << 48) + 1

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    text,
    st.binary(max_size=9),
)
large = st.tuples(st.binary(min_size=24, max_size=24), st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 32) - 1))
headers = st.builds(
    Headers,
    *[st.none() | text] * 5,
    expires_at_ms=st.integers(0, 253_402_300_799_000),
    properties=st.none() | st.dictionaries(text.filter(bool), values, max_size=4),
    large=st.none() | large,
).map(encode_headers)
broken = st.binary(min_size=1, max_size=12)
"""Also what is read across the border to the next headers, if nobody looks."""
records = st.lists(
    st.tuples(st.one_of(st.just(b""), headers, headers, broken), st.sampled_from([b"", b"a", b"body", bytes(300)])),
    min_size=1,
    max_size=12,
)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Whole ones and slices, with every choice of columns."""
    messages = draw(records)
    count = len(messages)
    deltas = st.lists(st.integers(0, (1 << 32) - 1), min_size=count, max_size=count)
    gaps = st.lists(st.integers(1, 1 << 20), min_size=count - 1, max_size=count - 1)
    ids = [0]
    for gap in draw(gaps):
        ids.append(ids[-1] + gap)
    with_headers = draw(st.booleans())
    batch = Batch.parse(
        encode(
            b"topic:t",
            draw(st.integers(1, 1 << 40)) + (FIRST_ID & ~((1 << 48) - 1)),
            [body for _headers, body in messages],
            [each for each, _body in messages] if with_headers else None,
            draw(st.none() | deltas),
            draw(st.none() | deltas),
            id_deltas=draw(st.sampled_from([None, ids])),
            priority=draw(st.integers(0, 9)),
            created_ms=draw(st.integers(0, 1 << 41)),
        )
    )
    first = draw(st.integers(0, count - 1))
    return batch.sliced(first, draw(st.integers(first + 1, count)))


def rows(found: Any) -> list[dict[str, Any]]:
    found.validate(full=True)
    listed: list[dict[str, Any]] = found.to_pylist()
    return listed


@settings(deadline=None, max_examples=60)
@given(batches(), st.integers(1, 1 << 60), st.permutations(NAMES))
def test_d01_every_column_is_what_the_message_says(batch: Batch, first: int, names: list[str]) -> None:
    found = record_batch(batch, first, "topic:t", names)
    assert found.schema.equals(arrow_schema(names))
    assert rows(found) == rows_of(batch, first, "topic:t")


@settings(deadline=None, max_examples=60)
@given(batches(), st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
def test_d01_a_column_is_the_same_whichever_others_are_asked_for(batch: Batch, names: list[str]) -> None:
    expected = [{name: row[name] for name in names} for row in rows_of(batch, 3, "queue:q")]
    if "properties" not in names:
        # They are skipped, so headers of which only they are wrong are read.
        sound = rows(record_batch(batch, 3, "queue:q", ["properties"]))
        kept = [index for index, row in enumerate(sound) if row["properties"] is not None]
    else:
        kept = list(range(batch.count))
    found = rows(record_batch(batch, 3, "queue:q", names))
    assert [found[index] for index in kept] == [expected[index] for index in kept]


@settings(deadline=None, max_examples=60)
@given(st.lists(batches(), max_size=6), st.integers(1, 9), st.integers(1, 2_000))
def test_d01_joined_batches_are_the_same_rows_in_the_same_order(
    parts: list[Batch], rows_max: int, bytes_max: int
) -> None:
    numbered = [(100 * index, batch) for index, batch in enumerate(parts, 1)]
    found = list(joined(iter(numbered), "topic:t", NAMES, rows_max, bytes_max))
    assert all(0 < each.num_rows <= rows_max and each.schema.equals(arrow_schema(NAMES)) for each in found)
    assert [row for each in found for row in rows(each)] == [
        row for first, batch in numbered for row in rows_of(batch, first, "topic:t")
    ]


def test_d01_lone_messages_become_one_record_batch() -> None:
    parts = [(number, Batch(encode(b"t", FIRST_ID + number, [b"%d" % number]))) for number in range(2_500)]
    found = list(joined(parts, "topic:t", ["sequence", "id", "body"], 1_000))
    assert [each.num_rows for each in found] == [1_000, 1_000, 500]
    assert found[2].to_pylist()[-1] == {"sequence": 2_499, "id": f"{FIRST_ID + 2_499:032x}", "body": b"2499"}


def test_d01_joining_reads_no_further_than_it_must() -> None:
    batch = Batch(encode(b"t", FIRST_ID, [b"a", b"b"]))
    taken = []

    def parts() -> Any:
        for number in range(100):
            taken.append(number)
            yield 10 * number, batch

    found = joined(parts(), "topic:t", ["sequence"], 4)
    assert next(found).num_rows == 4
    assert len(taken) == 3


def test_d01_no_batches_make_no_record_batch() -> None:
    assert list(joined([], "topic:t", NAMES)) == []


def test_d01_an_unknown_column_is_refused() -> None:
    batch = Batch(encode(b"t", FIRST_ID, [b"a"]))
    with pytest.raises(BadArgument, match="there is no column colour"):
        record_batch(batch, 1, "topic:t", ["body", "colour"])
    with pytest.raises(BadArgument):
        next(joined([(1, batch)], "topic:t", ["colour"]))


# --- headers ----------------------------------------------------------------------------------------


def encoded(count: int, *, distinct: int) -> list[bytes]:
    return [
        encode_headers(Headers(type=f"t{index % distinct}", properties={"n": index % distinct}))
        for index in range(count)
    ]


@pytest.mark.parametrize("distinct", [1, 3, 2_000])
def test_d01_headers_that_repeat_and_headers_that_differ_are_read_the_same(distinct: int) -> None:
    raw = encoded(2_000, distinct=distinct)
    columns = HeaderColumns(pa.array(raw, pa.binary()), properties=True)
    assert columns.text("type").to_pylist() == [f"t{index % distinct}" for index in range(2_000)]
    assert columns.properties().to_pylist() == [[("n", str(index % distinct))] for index in range(2_000)]


@pytest.mark.parametrize("distinct", [3, 2_000])
def test_d01_broken_headers_cost_their_own_row_only(distinct: int) -> None:
    raw = encoded(2_000, distinct=distinct)
    raw[700], raw[701] = b"\x81\xa1t", b"\xa1x\x80"  # together they are two sound ones
    columns = HeaderColumns(pa.array(raw, pa.binary()), properties=True)
    assert [index for index, each in enumerate(columns.text("type").to_pylist()) if each is None] == [700, 701]
    assert [index for index, each in enumerate(columns.properties().to_pylist()) if each is None] == [700, 701]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(headers, broken, st.just(b"")), max_size=8), st.booleans())
@example([b"\x81\xa1t", b"\xa1x\x80"], True)
@example([b"\xdd\xff\xff\xff\xff", b"\x80"], True)
def test_d01_each_of_many_headers_is_read_as_if_it_were_alone(raw: Sequence[bytes], properties: bool) -> None:
    together = decoded(pa.array(raw, pa.binary()), properties=properties)
    alone = [decoded(pa.array([each], pa.binary()), properties=properties)[0] for each in raw]
    assert together == alone


def test_d01_a_slice_of_headers_is_read_from_where_it_begins() -> None:
    raw = pa.array(encoded(10, distinct=10), pa.binary())[4:7]
    assert HeaderColumns(raw, properties=False).text("type").to_pylist() == ["t4", "t5", "t6"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, "true"),
        (False, "false"),
        (-7, "-7"),
        (1.5, "1.5"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (b"\xff\x00", "/wA="),
        ("text", "text"),
        ([1, "a"], '[1,"a"]'),
    ],
)
def test_d01_properties_as_text(value: Any, expected: str | None) -> None:
    assert property_text(value) == expected


def test_d01_times_beyond_what_can_be_said_do_not_fail_the_batch() -> None:
    raw = encode_headers(Headers(expires_at_ms=(1 << 63) - 1))
    batch = Batch.parse(encode(b"t", FIRST_ID, [b"a"], [raw], created_ms=(1 << 63) - 1))
    found = record_batch(batch, 1, "topic:t", ["time", "expires_at"])
    found.validate(full=True)
    assert found.column("time").cast(pa.int64())[0].as_py() == ((1 << 63) - 1) // 1_000 * 1_000
    assert found.column("expires_at")[0].as_py() is None


def test_d01_headers_that_cannot_be_those_of_a_large_body_are_not() -> None:
    wrong = [(b"short", 1, 1), (bytes(24), -1, 1), (bytes(24), 1 << 63, 1), (bytes(24), 1, 1 << 32)]
    raw = [encode_headers(Headers(large=each)) for each in wrong]
    batch = Batch.parse(encode(b"t", FIRST_ID, [b""] * len(raw), raw))
    found = record_batch(batch, 1, "topic:t", ["body", "body_bytes", "large"])
    assert rows(found) == [{"body": b"", "body_bytes": 0, "large": None}] * len(raw)
