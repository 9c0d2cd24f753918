"""CloudEvents in both modes: ours and back, ours read by the `cloudevents` package, the package's read by us."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.bindings import http
from cloudevents.core.bindings.http import HTTPMessage
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from clarion import limits
from clarion.errors import BadEvent, EventTooLarge
from clarion.events.cloudevents import (
    CONTENT_STRUCTURED,
    EXTRA,
    decode_header,
    encode_header,
    from_binary,
    from_http,
    from_structured,
    to_binary,
    to_structured,
)
from clarion.events.event import Event, Severity
from clarion.message import Headers, PropertyValue, encode_headers
from tests.unit.events.event_strategies import events

REQUIRED = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
HEADERS = {f"ce-{name}": value for name, value in REQUIRED.items()}


def structured(**members: object) -> bytes:
    return json.dumps({**REQUIRED, **members}).encode()


# --- ours -----------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(events())
def test_a01_structured_comes_back(event: Event) -> None:
    again = from_structured(to_structured(event))
    assert again == event
    assert {name: type(value) for name, value in again.attributes.items()} == {
        name: type(value) for name, value in event.attributes.items()
    }


@settings(max_examples=300)
@given(events())
def test_a01_binary_comes_back_in_headers_that_http_allows(event: Event) -> None:
    headers, body = to_binary(event)
    assert all(value.isascii() and value.isprintable() and value == value.strip() for value in headers.values())
    assert not any(set(value) & set(' "') for name, value in headers.items() if name != "content-type")
    again = from_binary({name.title(): value for name, value in headers.items()}, body)
    assert again == event
    assert {name: type(value) for name, value in again.attributes.items()} == {
        name: type(value) for name, value in event.attributes.items()
    }


def test_a01_what_a_cloud_event_looks_like() -> None:
    event = Event(
        "0a",
        1_700_000_000_000_000_000,
        "volume/7",
        "disk.full",
        "error",
        {"free": 0},
        "",
        {"rack": 3, "subject": "sda"},
    )
    members = json.loads(to_structured(event))
    assert members == {
        "specversion": "1.0",
        "id": "0a",
        "source": "volume/7",
        "type": "disk.full",
        "time": "2023-11-14T22:13:20.000000Z",
        "severity": "error",
        "rack": 3,
        "subject": "sda",
        "datacontenttype": "application/json",
        "data": {"free": 0},
    }
    headers, body = to_binary(event)
    assert body == b'{"free":0}' and headers["content-type"] == "application/json"
    assert headers["ce-rack"] == "3" and json.loads(decode_header("x", headers[f"ce-{EXTRA}"])) == {
        "types": {"rack": "int"}
    }


def test_a01_what_cloud_events_cannot_carry_is_in_one_extension() -> None:
    attributes: dict[str, PropertyValue] = {
        "Rack_Unit": "u7",
        "ratio": 0.5,
        "blob": b"\x00",
        "big": 1 << 40,
        "none": None,
        "id": "x",
        "n": 1,
    }
    event = Event("1", 0, "my disk", "t", attributes=attributes)
    members = json.loads(to_structured(event))
    assert members["source"] == "my%20disk" and members["n"] == 1 and members["id"] == "1"
    assert json.loads(members[EXTRA]) == {
        "source": "my disk",
        "attributes": {
            "Rack_Unit": ["str", "u7"],
            "ratio": ["float", "0.5"],
            "blob": ["bytes", "AA=="],
            "big": ["int", "1099511627776"],
            "none": ["null", ""],
            "id": ["str", "x"],
        },
    }


def test_a01_what_an_intermediary_changed_wins() -> None:
    headers, body = to_binary(Event("1", 0, "my disk", "t", attributes={"n": 1, "ratio": 0.5}))
    changed = from_binary({**headers, "ce-source": "elsewhere", "ce-n": "many", "ce-ratio": "half"}, body)
    assert (changed.source, changed.attributes) == ("elsewhere", {"n": "many", "ratio": "half"})
    del headers["ce-n"]
    assert from_binary(headers, body).attributes == {"ratio": 0.5}


def test_a01_values_of_an_enumeration_are_values() -> None:
    event = Event("1", 0, "s", "t", attributes={"level": Severity.ERROR, "Level": Severity.ERROR})
    assert from_binary(*to_binary(event)).attributes == {"level": 40, "Level": 40}
    assert from_structured(to_structured(event)).attributes == {"level": 40, "Level": 40}


def test_a01_the_binding_s_example_of_percent_encoding() -> None:
    assert encode_header("Euro € 😀") == "Euro%20%E2%82%AC%20%F0%9F%98%80"
    assert decode_header("x", "Euro%20%e2%82%ac%20%F0%9F%98%80") == "Euro € 😀"
    assert decode_header("x", r'"a \"b\" %41"') == 'a "b" A'
    for wrong in ("%C0%A0", "%ff", "é", "%ED%A0%80"):
        with pytest.raises(BadEvent, match="x: "):
            decode_header("x", wrong)


@given(st.text().filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
def test_a01_header_values_come_back(text: str) -> None:
    assert decode_header("x", encode_header(text)) == text


# --- with the package -----------------------------------------------------------------------------


def _same(event: Event, theirs: Any) -> None:
    members = json.loads(to_structured(event))
    assert (theirs.get_id(), theirs.get_type(), theirs.get_source()) == (event.id, event.type, members["source"])
    assert theirs.get_specversion() == "1.0"
    assert theirs.get_extension("severity") == event.severity.text
    assert theirs.get_datacontenttype() == (event.content_type or None)
    assert theirs.get_time() == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=event.time_ns // 1000)
    assert theirs.get_subject() == members.get("subject")


@settings(max_examples=200)
@given(events())
def test_a01_the_package_reads_our_structured_mode(event: Event) -> None:
    theirs = http.from_http(HTTPMessage({"content-type": CONTENT_STRUCTURED}, to_structured(event)), JSONFormat())
    _same(event, theirs)
    members = json.loads(to_structured(event))
    standard = {*REQUIRED, "time", "data", "data_base64"}
    assert {name: value for name, value in theirs.get_attributes().items() if name not in standard} == {
        name: value for name, value in members.items() if name not in standard
    }
    data = theirs.get_data()
    assert data == (event.body if isinstance(data, bytes) else members.get("data"))


@settings(max_examples=200)
@given(events())
def test_a01_the_package_reads_our_binary_mode(event: Event) -> None:
    headers, body = to_binary(event)
    assume(not body.startswith(b"[["))  # JSON that nests too deep for the package's reader
    theirs = http.from_http(HTTPMessage(headers, body), JSONFormat())
    _same(event, theirs)


@settings(max_examples=200)
@given(events())
def test_a01_what_the_package_read_and_writes_again_is_the_same_event(event: Event) -> None:
    """Its times are cut to microseconds; its JSON is written anew; bodies of other kinds are left alone."""
    theirs = JSONFormat().read(CloudEvent, to_structured(event))
    again = from_structured(JSONFormat().write(theirs))
    fields = ("id", "source", "type", "severity", "attributes")
    assert [getattr(again, name) for name in fields] == [getattr(event, name) for name in fields]
    assert again.time_ns == event.time_ns // 1000 * 1000
    if again.content_type == event.content_type:
        assert again.data == event.data or again.body == event.body


NAMES = st.from_regex("[a-z0-9]{1,20}", fullmatch=True).filter(
    lambda name: name not in {*REQUIRED, "time", "data", "severity", "subject", "dataschema", "datacontenttype", EXTRA}
)
PRINTABLE = st.text(min_size=1, max_size=20).filter(str.isprintable)
THEIR_DATA = st.one_of(st.none(), st.binary(max_size=20), st.dictionaries(PRINTABLE, st.integers(-9, 9), max_size=3))


@settings(max_examples=200)
@given(st.dictionaries(NAMES, PRINTABLE, max_size=4), PRINTABLE, PRINTABLE, THEIR_DATA, st.sampled_from(Severity))
def test_a01_we_read_what_the_package_writes(
    extensions: dict[str, str], identity: str, source: str, data: dict[str, Any] | bytes | None, severity: Severity
) -> None:
    moment = datetime(2025, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    content = {"datacontenttype": "application/octet-stream" if isinstance(data, bytes) else "application/json"}
    attributes = {"id": identity, "source": source, "type": "a.b", "time": moment, "severity": severity.text}
    theirs = CloudEvent({**attributes, **(content if data is not None else {}), **extensions}, data)
    for message in (http.to_binary_event(theirs), http.to_structured_event(theirs)):
        event = from_http(message.headers, message.body)
        assert (event.id, event.source, event.type, event.severity) == (identity, source, "a.b", severity)
        assert event.time == "2025-01-02T03:04:05.678901Z"
        assert event.attributes == extensions
        assert event.data == data or (data == b"" and not event.body)


def test_a01_we_read_text_and_integers_that_the_package_writes() -> None:
    theirs = CloudEvent({"source": "/s", "type": "t", "datacontenttype": "text/xml", "n": 5, "on": True}, "<é/>")
    event = from_structured(http.to_structured_event(theirs).body)
    assert (event.data, event.attributes, event.severity) == ("<é/>", {"n": 5, "on": True}, Severity.INFO)
    binary = http.to_binary_event(theirs)
    assert from_binary(binary.headers, binary.body).attributes == {"n": "5", "on": "True"}  # headers have no types


# --- what others send -----------------------------------------------------------------------------


def test_a01_data_of_others() -> None:
    assert from_structured(structured(data="just text")).body == b'"just text"'
    assert from_structured(structured(data="just text")).content_type == "application/json"
    null = from_structured(structured(data=None, datacontenttype="application/json"))
    assert (null.body, null.data) == (b"null", None)
    assert from_structured(structured(data={"a": 1}, datacontenttype="application/xml")).body == b'{"a": 1}'
    assert from_structured(structured(data_base64="AAE=")).data == b"\x00\x01"
    assert from_structured(structured(data=1, data_base64=None, subject=None)).data == 1
    assert from_structured(structured()).content_type == ""
    assert from_binary(HEADERS, b"raw").content_type == "application/octet-stream"
    assert from_binary({**HEADERS, "accept": "é"}, b"").data is None


def test_a01_an_event_without_time_gets_the_caller_s() -> None:
    assert from_structured(structured(), received_ns=7).time_ns == 7
    assert from_http(HEADERS, b"", received_ns=7).time_ns == 7
    assert from_structured(structured(time="1970-01-01T00:00:01Z"), received_ns=7).time_ns == 1_000_000_000


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "CloudEvent in JSON"),
        (b"[]", "CloudEvent in JSON"),
        (b"\xff", "CloudEvent in JSON"),
        (b'{"id": "\xff"}', "CloudEvent in JSON"),
        (b'{"id":' + b"[" * 100_000, "CloudEvent in JSON"),
        (structured()[:-1] + b', "data": "\xff"}', "CloudEvent in JSON"),
        (structured()[:-1] + b', "data": 1e999}', "CloudEvent in JSON"),
        (structured(specversion="0.3"), "specversion"),
        (structured(specversion=1.0), "specversion"),
        (structured(id=None), "id"),
        (structured(id=""), "id"),
        (structured(id=5), "id"),
        (structured(source=""), "source"),
        (structured(source="a\nb"), "source"),
        (structured(type="a b"), "type"),
        (structured(time="yesterday"), "time"),
        (structured(time=5), "time"),
        (structured(severity="bad"), "severity"),
        (structured(severity=40), "severity"),
        (structured(datacontenttype=5), "datacontenttype"),
        (structured(datacontenttype="a\r\nb"), "content type"),
        (structured(data_base64="!"), "data_base64"),
        (structured(data_base64="é"), "CloudEvent in JSON"),
        (structured(data_base64=5), "CloudEvent in JSON"),
        (structured(data_base64="", data=1), "data_base64"),
        (structured(Upper=1), "Upper"),
        (structured(under_score=1), "under_score"),
        (structured(nested={"a": 1}), "nested"),
        (structured(ratio=0.5), "ratio"),
        (structured(big=1 << 64), "attributes"),
        (structured(clarionextra="{"), EXTRA),
        (structured(clarionextra=5), EXTRA),
        (structured(clarionextra='{"attributes": {"a": ["int", "x"]}}'), EXTRA),
        (structured(clarionextra='{"attributes": {"a": ["list", "x"]}}'), EXTRA),
        (structured(clarionextra='{"attributes": {"a": ["float", "nan"]}}'), "attributes"),
        (structured(clarionextra='{"attributes": {"source": ["str", "x"]}}'), "attributes"),
    ],
)
def test_a01_bad_structured_input_says_what_is_wrong(data: bytes, what: str) -> None:
    with pytest.raises(BadEvent) as refused:
        from_structured(data)
    assert refused.value.facts["what"] == what


@pytest.mark.parametrize(
    ("headers", "what"),
    [
        ({}, "specversion"),
        ({**HEADERS, "ce-id": ""}, "id"),
        ({**HEADERS, "ce-id": "%ff"}, "ce-id"),
        ({**HEADERS, "CE-ID": "2"}, "CE-ID"),
        ({**HEADERS, "ce-datacontenttype": "a/b"}, "ce-datacontenttype"),
        ({**HEADERS, "ce-a_b": "1"}, "a_b"),
        ({**HEADERS, "ce-": "1"}, ""),
        ({**HEADERS, "ce-time": "1"}, "time"),
        ({**HEADERS, "ce-type": "%0a"}, "type"),
        ({**HEADERS, "content-type": "é"}, "content type"),
        ({**HEADERS, "content-type": "application/cloudevents-batch+json"}, "content-type"),
        ({"content-type": "application/cloudevents+avro"}, "content-type"),
        ({**HEADERS, "ce-x": 5}, "ce-x"),
    ],
)
def test_a01_bad_binary_input_says_what_is_wrong(headers: dict[str, str], what: str) -> None:
    with pytest.raises(BadEvent) as refused:
        from_http(headers, b"")
    assert refused.value.facts["what"] == what


def test_a01_data_that_are_too_large_are_refused() -> None:
    with pytest.raises(EventTooLarge):
        from_binary(HEADERS, bytes(limits.EVENT_BYTES_MAX_MAX + 1))
    assert len(from_binary(HEADERS, bytes(limits.EVENT_BYTES_MAX_MAX)).body) == limits.EVENT_BYTES_MAX_MAX


MEMBER_VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.none(), max_size=1)
)
ANY_NAME = st.sampled_from([*REQUIRED, "time", "severity", "data", "data_base64", "datacontenttype", EXTRA]) | st.text(
    max_size=5
)


@settings(max_examples=400)
@given(st.dictionaries(ANY_NAME, MEMBER_VALUES, max_size=5), st.binary(max_size=3), st.integers(0, 300))
def test_a01_nothing_but_bad_event_is_ever_raised(members: dict[str, object], noise: bytes, at: int) -> None:
    data = structured(**members)
    for tried in (data, data[:at] + noise + data[at:], data[:at] + data[at + len(noise) :]):
        try:
            from_structured(tried)
        except BadEvent as error:
            str(error).encode()


@settings(max_examples=300)
@given(
    st.dictionaries(ANY_NAME.map("ce-".__add__) | st.just("content-type"), st.text(max_size=9), max_size=5), st.binary()
)
def test_a01_nothing_but_bad_event_is_raised_for_headers(headers: dict[str, str], body: bytes) -> None:
    try:
        from_http({**HEADERS, **headers}, body)
    except BadEvent as error:
        str(error).encode()


def test_a01_the_example_of_the_documents_is_true() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/formats/events.md").read_text("utf-8")
    example = page.partition("<!-- example -->\n```json\n")[2].partition("```")[0]
    event = from_structured(example.encode())
    assert event.attributes == {"rack": 3, "subject": "sda", "load_average": 0.5}
    assert json.loads(to_structured(event)) == json.loads(example)
    for each in Severity:
        assert f"`{each.text}` {each.value}" in page


def test_a05_a_record_that_nobody_checked_is_still_a_cloud_event() -> None:
    """A content type cannot end its header, and what has no source gets one."""
    headers = encode_headers(Headers(type="t", content_type="a/b\r\nx: y", properties={"odd": b""}))

    class Recorded:
        producer, sequence, time_ns, severity, body = 0, 1, 0, 40, b"x"

    recorded = Recorded()
    recorded.headers = headers  # type: ignore[attr-defined]
    event = Event.from_recorded(recorded)  # type: ignore[arg-type]
    assert to_binary(event)[0]["content-type"] == "a/b%0D%0Ax: y"
    assert from_binary(*to_binary(event)).source == "unknown"
    assert http.from_http(HTTPMessage(*to_binary(event)), JSONFormat()).get_source() == "unknown"
