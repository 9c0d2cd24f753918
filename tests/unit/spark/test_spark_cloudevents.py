"""`format=cloudevents`: events into columns, beside the events themselves, in both modes."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from clarion.errors import BadArgument
from clarion.events.cloudevents import CONTENT_STRUCTURED, to_structured
from clarion.events.event import Event, Severity, event_id
from clarion.message import Headers, PropertyValue, encode_headers
from clarion.spark.decoding import record_batch
from clarion.spark.event_columns import DEFAULT
from clarion.spark.formats import columns_for, parse
from clarion.wire.batch import Batch, encode
from tests.unit.spark.references import EPOCH, moment

PRODUCER = 5 << 64
SENT_MS = 1_700_000_000_000
SCHEMA = pa.schema([*DEFAULT, ("region", pa.string()), ("_corrupt", pa.binary())])
NOTHING = dict.fromkeys(SCHEMA.names)

printable = st.text(st.characters(categories=["L", "Nd", "Pd"]), min_size=1, max_size=8)
data = st.one_of(
    st.none(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    st.binary(max_size=9),
    st.dictionaries(printable, st.integers(0, 99) | st.booleans() | st.none(), max_size=3),
)


@st.composite
def events(draw: st.DrawFn) -> Event:
    attributes: dict[str, PropertyValue] = {}
    for name in draw(st.sets(st.sampled_from(["region", "subject", "n"]), max_size=2)):
        attributes[name] = draw(st.integers(0, 9) | printable)
    return Event(
        "replaced",
        draw(st.integers(0, 4_000_000_000)) * 1_000_000_000 + draw(st.integers(0, 999_999)) * 1_000,
        draw(printable | st.sampled_from(["volume/7", "a b", "ü%20"])),
        draw(st.sampled_from(["disk.full", "net-up", "x"])),
        draw(st.sampled_from(list(Severity))),
        draw(data),
        attributes=attributes,
    )


def numbered(event: Event, index: int) -> Event:
    """With the id that the message has, which an event's message has at a broker."""
    return Event(
        event_id(PRODUCER, index + 1),
        event.time_ns,
        event.source,
        event.type,
        event.severity,
        event.body if event.content_type else None,
        event.content_type,
        event.attributes,
    )


def batch_of(messages: list[tuple[Headers, bytes]]) -> Batch:
    raw = [encode_headers(headers) for headers, _body in messages]
    return Batch.parse(encode(b"topic:e", PRODUCER + 1, [body for _headers, body in messages], raw, created_ms=SENT_MS))


def read(messages: list[tuple[Headers, bytes]], schema: Any = SCHEMA, **options: bool) -> list[dict[str, Any]]:
    names = columns_for(schema, "cloudevents")
    found = parse(record_batch(batch_of(messages), 1, "topic:e", names), "cloudevents", schema, **options)
    assert found.schema.equals(schema)
    found.validate(full=True)
    assert found.num_rows == len(messages)
    listed: list[dict[str, Any]] = found.to_pylist()
    return listed


def text_of(value: Any) -> str | None:
    return None if value is None else str(value)


def told(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "time": EPOCH + timedelta(microseconds=event.time_ns // 1_000),
        "subject": text_of(event.attributes.get("subject")),
        "datacontenttype": event.content_type or None,
        "severity": event.severity.text,
        "data": data_of(event),
        "region": text_of(event.attributes.get("region")),
        "_corrupt": None,
    }


def data_of(event: Event) -> Any:
    """As JSON text, compared as what it means."""
    return b64encode(event.data).decode() if isinstance(event.data, bytes) else event.data


def meant(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "data": None if row["data"] is None else json.loads(row["data"])}


def structured(event: Event) -> tuple[Headers, bytes]:
    return Headers(content_type=f"{CONTENT_STRUCTURED}; charset=UTF-8"), to_structured(event)


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(events(), st.sampled_from(["own", "structured", "junk"])), min_size=1, max_size=8))
def test_d01_events_are_read_in_both_modes(given_events: list[tuple[Event, str]]) -> None:
    messages: list[tuple[Headers, bytes]] = []
    expected = []
    for index, (event, mode) in enumerate(given_events):
        event = numbered(event, index)
        if mode == "own":
            messages.append((event.message_headers(), event.body))
        elif mode == "structured":
            messages.append(structured(event))
        else:
            messages.append((Headers(), b"junk"))
        expected.append({**NOTHING, "_corrupt": b"junk"} if mode == "junk" else told(event))
    assert [meant(row) for row in read(messages)] == expected


def cloud_event(**changed: Any) -> tuple[Headers, bytes]:
    members = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", **changed}
    body = json.dumps({name: value for name, value in members.items() if value is not ...}).encode()
    return Headers(content_type=CONTENT_STRUCTURED), body


def test_d01_a_cloud_event_of_others_with_little_in_it() -> None:
    (row,) = read([cloud_event(type="any/type at all", region=7)])
    assert row == {
        **NOTHING,
        "id": "1",
        "source": "/s",
        "type": "any/type at all",
        "time": moment(SENT_MS),
        "severity": "info",
        "region": "7",
    }


@pytest.mark.parametrize(
    ("members", "content_type", "text"),
    [
        ({"data": {"a": 1}}, None, '{"a": 1}'),
        ({"data": "x", "datacontenttype": "text/plain"}, "text/plain", '"x"'),
        ({"data": "x", "datacontenttype": "application/json"}, "application/json", '"x"'),
        ({"data_base64": "AP8="}, None, '"AP8="'),
        ({"data": None}, None, "null"),
        ({}, None, None),
    ],
    ids=str,
)
def test_d01_data_of_a_cloud_event(members: dict[str, Any], content_type: str | None, text: str | None) -> None:
    (row,) = read([cloud_event(**members)])
    assert (row["datacontenttype"], row["data"]) == (content_type, text)


@pytest.mark.parametrize(
    "message",
    [
        cloud_event(specversion="0.3"),
        cloud_event(id=...),
        cloud_event(source=""),
        cloud_event(type=None),
        cloud_event(time="yesterday"),
        cloud_event(severity="loud"),
        cloud_event(data_base64="?"),
        cloud_event(data_base64="AP8=", clarionextra="["),
        (Headers(content_type=CONTENT_STRUCTURED), b"[]"),
        (Headers(content_type=CONTENT_STRUCTURED), b""),
        (Headers(type="t"), b""),
        (Headers(properties={"source": "s"}), b""),
        (Headers(type="t", properties={"source": ""}), b""),
        (Headers(type="t", properties={"source": "s", "severity": "loud"}), b""),
        (Headers(type="t", properties={"source": "s", "time": "yesterday"}), b""),
        (Headers(type="t", properties={"source": "s", "time": "1969-12-31T23:59:59.000000Z"}), b""),
        (Headers(type="t", properties={"source": "s"}, content_type="application/json"), b"{"),
        (Headers(type="t", properties={"source": "s"}, content_type="text/plain"), b"\xff"),
    ],
    ids=lambda message: f"{message[0].type} {message[0].properties} {message[1][:60]!r}",
)
def test_d01_what_is_no_event_is_malformed_and_alone(message: tuple[Headers, bytes]) -> None:
    good = (Headers(type="t", properties={"source": "s"}), b"")
    found = read([good, message, cloud_event()])
    assert found[1] == {**NOTHING, "_corrupt": message[1]}
    assert [row["type"] for row in found] == ["t", None, "t"]
    with pytest.raises(BadArgument, match="message 2 is not cloudevents"):
        read([good, message], failfast=True)


@pytest.mark.parametrize(
    "text", ["2025-01-31T12:00:00Z", "2025-01-31T14:00:00.000+02:00", "2025-01-31 12:00:00.000000000Z"]
)
def test_d01_times_of_every_form(text: str) -> None:
    own = (Headers(type="t", properties={"source": "s", "time": text}), b"")
    usual = (Headers(type="t", properties={"source": "s", "time": "2025-01-31T12:00:00.000000Z"}), b"")
    found = read([own, cloud_event(time=text), usual])
    assert {row["time"] for row in found} == {datetime(2025, 1, 31, 12, tzinfo=UTC)}


def test_d01_data_of_a_schema_of_their_own() -> None:
    schema = pa.schema([("data", pa.struct([("free", pa.int64())])), ("type", pa.string()), ("_corrupt", pa.binary())])
    own = (Headers(type="a", properties={"source": "s"}, content_type="application/json"), b'{"free":1,"x":[]}')
    wrong = (Headers(type="b", properties={"source": "s"}, content_type="application/json"), b'{"free":"1"}')
    none = (Headers(type="c", properties={"source": "s"}), b"")
    assert read([own, cloud_event(data={"free": 2}), wrong, none], schema) == [
        {"data": {"free": 1}, "type": "a", "_corrupt": None},
        {"data": {"free": 2}, "type": "t", "_corrupt": None},
        {"data": None, "type": None, "_corrupt": wrong[1]},
        {"data": None, "type": "c", "_corrupt": None},
    ]


@pytest.mark.parametrize("field", [("time", pa.string()), ("id", pa.int64()), ("data", pa.duration("us"))], ids=str)
def test_d01_a_column_that_an_event_cannot_have_is_refused(field: Any) -> None:
    with pytest.raises(BadArgument, match="schema"):
        columns_for(pa.schema([field]), "cloudevents")
