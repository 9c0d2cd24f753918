"""Headers, properties and names: typed, bounded, refused with a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.errors import BadArgument, BadBatch, BadName
from clarion.message import Headers, Message, check_name, decode_headers, encode_headers, parse_destination
from clarion.wire.batch import Batch, encode

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
)


@given(st.dictionaries(st.text(min_size=1, max_size=10), VALUES, max_size=6), st.none() | st.text(max_size=10))
def test_b04_headers_and_typed_properties_survive_the_wire(properties: dict[str, object], reply_to: str | None) -> None:
    headers = Headers(reply_to=reply_to, correlation_id="c", properties=properties or None)
    again = decode_headers(encode_headers(headers))
    assert again == headers
    for name, value in (again.properties or {}).items():
        assert type(value) is type(properties[name])


@pytest.mark.parametrize(
    "properties",
    [{"a": 2**63}, {"a": [1]}, {"": 1}, {"a": float("nan")}, {"a": object()}, {f"p{n}": n for n in range(300)}],
)
def test_b04_a_property_without_a_type_here_is_refused(properties: dict[str, object]) -> None:
    with pytest.raises(BadArgument):
        encode_headers(Headers(properties=properties))


@pytest.mark.parametrize("data", [b"\xc1", b"\x81\xa1x\xa1y", b"\x90", b"\xff" * 10])
def test_b04_headers_that_nobody_encoded_are_refused_and_the_body_stays_readable(data: bytes) -> None:
    message = Message(Batch(encode(b"q", 1, [b"body"], [data])), 0, 5)
    with pytest.raises(BadBatch):
        _ = message.properties
    assert message.body == b"body"


@pytest.mark.parametrize(
    "name", ["", "a b", "a\n", "x" * 256, "ä" * 128, "a:b", "a*", "a/b", "\ud800", "_DMQ", "queue:", "bag:x"]
)
def test_b16_names_that_are_not_valid_are_refused(name: str) -> None:
    with pytest.raises(BadName):
        parse_destination(name)


@pytest.mark.parametrize(
    ("text", "kind"), [("orders.eu", None), ("queue:orders.eu", "queue"), ("topic:größe", "topic")]
)
def test_b04_names_say_their_kind_or_leave_it_open(text: str, kind: str | None) -> None:
    assert parse_destination(text).kind == kind
    assert str(parse_destination(text)) == text
    check_name("x" * 255)
    assert parse_destination("_DMQ", system=True).name == "_DMQ"
