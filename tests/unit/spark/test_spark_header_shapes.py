"""Headers of one shape, read as a table, beside the same headers decoded one by one."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from clarion.errors import BadBatch
from clarion.message import Headers, decode_headers, encode_headers
from clarion.spark.header_shapes import alike, shape_of
from clarion.spark.headers import HeaderColumns, property_text
from clarion.spark.schema import TIME_MS_MAX

FIELDS = ("type", "content_type", "reply_to", "correlation_id", "group")


def compare(raw: list[bytes]) -> None:
    """Every field of every one of them."""
    columns = HeaderColumns(pa.array(raw, pa.binary()), properties=True)
    found: dict[str, Any] = {field: columns.text(field) for field in FIELDS}
    found["expires_at"], found["properties"] = columns.expires_at().cast(pa.int64()), columns.properties()
    for each in found.values():
        each.validate(full=True)
    listed = {name: each.to_pylist() for name, each in found.items()}
    for index, data in enumerate(raw):
        try:
            headers = decode_headers(data)
        except BadBatch:
            assert {listed[name][index] for name in FIELDS} == {listed["properties"][index]} == {None}
            continue
        assert [listed[name][index] for name in FIELDS] == [getattr(headers, name) for name in FIELDS]
        expires_ms = headers.expires_at_ms if 0 < headers.expires_at_ms <= TIME_MS_MAX else 0  # a flipped bit of it
        assert listed["expires_at"][index] == (expires_ms * 1_000 or None)
        assert dict(listed["properties"][index]) == {
            name: property_text(value) for name, value in (headers.properties or {}).items()
        }


words = st.sampled_from(["", "a", "b", "ü", "é", "x" * 31, "y" * 31, "x" * 40, "€", "z" * 300])
values = st.one_of(
    words, st.none(), st.booleans(), st.integers(-2, 1 << 33), st.just(1.5), st.just(b"\xff"), st.just([1])
)


@st.composite
def families(draw: st.DrawFn) -> list[bytes]:
    """Many headers of few shapes, with everything that can be wrong strewn in."""
    shapes = draw(
        st.lists(
            st.tuples(
                st.sets(st.sampled_from(FIELDS)),
                st.sampled_from([0, 0, 5, 1 << 41]),
                st.dictionaries(st.sampled_from(["source", "time", "ü", "", "n"]), values, max_size=3),
            ),
            min_size=1,
            max_size=4,
        )
    )
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    texts = draw(st.lists(words, min_size=1, max_size=4))
    found = []
    for _ in range(chance.choice([70, 200])):
        fields, expires_at_ms, properties = chance.choice(shapes)
        changed = {n: chance.choice(texts) if isinstance(v, str) else v for n, v in properties.items()}
        said: dict[str, Any] = {name: chance.choice(texts) for name in sorted(fields)}
        found.append(msgspec.msgpack.encode(Headers(**said, expires_at_ms=expires_at_ms, properties=changed)))
        found[-1] += chance.randbytes(8).hex().encode() if chance.random() < 0.02 else b""
    for place in draw(st.lists(st.integers(0, len(found) - 1), max_size=3)):
        broken = bytearray(found[place])
        broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        found[place] = bytes(broken)
    return found


@settings(deadline=None, max_examples=60)
@given(families())
def test_d01_headers_of_a_shape_are_read_as_if_each_were_decoded(raw: list[bytes]) -> None:
    compare(raw)


def events(count: int, source: str = "volume/7") -> list[bytes]:
    return [
        encode_headers(
            Headers(
                type="disk.full",
                content_type="application/json",
                properties={"source": source, "n": 7, "none": None, "time": f"2026-01-01T00:00:00.{index:06d}Z"},
            )
        )
        for index in range(count)
    ]


def test_d01_events_that_differ_in_their_time_are_of_one_shape() -> None:
    raw = events(1_000)
    (found,) = alike(pa.array(raw, pa.binary()))
    assert found.rows.tolist() == list(range(1_000))
    compare(raw)


def test_d01_every_shape_is_found_and_what_is_left_is_decoded() -> None:
    raw = events(500) + events(500, "volume/12") + events(40, "größe") + events(5, "x") + [b"", b"\x80", b"\xff" * 9]
    random.Random(7).shuffle(raw)
    found = list(alike(pa.array(raw, pa.binary())))
    assert sorted(len(each.rows) for each in found) == [500, 500]
    compare(raw)


def test_d01_texts_of_a_shape_that_are_no_utf_8_stay_unread() -> None:
    raw = events(200)
    raw[50] = raw[50].replace(b"volume/7", b"volume/\xff")
    raw[0] = raw[0].replace(b"volume/7", b"volum\xc3\xbc7")
    raw[1] = raw[1].replace(b"volume/7", b"volum\xfc\xbc7")
    compare(raw)
    properties = HeaderColumns(pa.array(raw, pa.binary()), properties=True).properties()
    assert [index for index, each in enumerate(properties.to_pylist()) if each is None] == [1, 50]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x81\xa1t",
        encode_headers(Headers(large=(bytes(24), 1, 1))),
        encode_headers(Headers(dead={"reason": "worn"})),
        msgspec.msgpack.encode({"t": "a", "other": 1}),
        msgspec.msgpack.encode({"p": {"a": [1]}}),
        b"\x82\xa1t\xa1a\xa1t\xa1b",
        b"\x81\xa1p\x82\xa1a\xa1b\xa1a\xa1c",
    ],
    ids=repr,
)
def test_d01_headers_that_have_no_shape(data: bytes) -> None:
    assert shape_of(data) is None
