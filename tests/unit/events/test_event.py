"""What an event is, what is refused, and that nothing recorded is ever unreadable."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion import ids, limits
from clarion.errors import BadEvent, ClarionError, EventError, EventTooLarge
from clarion.events.event import (
    TIME_NS_MAX,
    TYPE_UNREADABLE,
    Event,
    Severity,
    check_source,
    check_type,
    event_id,
    format_time,
    parse_event_id,
    parse_time,
)
from clarion.message import check_name, decode_headers, encode_headers
from tests.unit.events.event_strategies import JSON, events

PRODUCER = ids.IdGenerator.begin(1, 2, ids.EPOCH_MS + 5).next_producer()


class Recorded(NamedTuple):
    """A record of persistent memory, as far as an event needs it."""

    producer: int
    sequence: int
    time_ns: int
    severity: int
    headers: memoryview | bytes
    body: memoryview | bytes


def event(**fields: Any) -> Event:
    given_: dict[str, Any] = {"id": "1", "time_ns": 0, "source": "s", "type": "t", **fields}
    return Event(**given_)


@given(events(), st.integers(1, ids.SEQUENCE_MAX))
def test_a01_an_event_comes_back_from_what_is_recorded(one: Event, sequence: int) -> None:
    headers = encode_headers(one.message_headers())
    recorded = Recorded(PRODUCER, sequence, one.time_ns, one.severity, memoryview(headers), memoryview(one.body))
    again = Event.from_recorded(recorded)
    fields = ("time_ns", "source", "type", "severity", "content_type", "attributes", "body", "time")
    assert [getattr(again, name) for name in fields] == [getattr(one, name) for name in fields]
    assert parse_event_id(again.id) == (PRODUCER, sequence)
    assert repr(again.data) == repr(one.data)  # NaN is not equal to itself


def test_a01_an_event_reads_as_a_message() -> None:
    one = Event(
        event_id(PRODUCER, 7),
        1_700_000_000_123_456_789,
        "volume/7",
        "disk.full",
        "error",
        {"free": 0},
        attributes={"rack": 3},
    )
    headers = decode_headers(encode_headers(one.message_headers()))
    assert (headers.type, headers.content_type, headers.group) == ("disk.full", "application/json", None)
    assert headers.properties == {
        "source": "volume/7",
        "severity": "error",
        "time": "2023-11-14T22:13:20.123456Z",
        "rack": 3,
    }
    assert one.body == b'{"free":0}'
    assert ids.parse_id(one.id) == PRODUCER + 7
    assert "disk.full" in repr(one) and "error" in repr(one)


@given(st.binary(max_size=200), st.binary(max_size=50), st.integers(0, 255), st.integers(0, (1 << 64) - 1))
def test_a05_whatever_a_record_holds_becomes_an_event(headers: bytes, body: bytes, severity: int, time_ns: int) -> None:
    one = Event.from_recorded(Recorded(PRODUCER, 9, time_ns, severity, headers, body))
    assert one.id == event_id(PRODUCER, 9) and one.time.endswith("Z")
    assert one.severity in Severity and isinstance(one.source, str)
    if one.type == TYPE_UNREADABLE:
        assert one.body in (headers + body, body)
    _ = one.data


@given(JSON)
def test_a01_data_are_decoded_once_to_what_they_were(data: Any) -> None:
    one = event(data=data)
    assert one.data == data
    assert one.data is one.data


@pytest.mark.parametrize(
    ("data", "content_type", "body", "kept"),
    [
        (None, "", b"", ""),
        (None, "application/json", b"null", "application/json"),
        ("né", "", "né".encode(), "text/plain;charset=utf-8"),
        ("né", "application/json", '"né"'.encode(), "application/json"),
        ("<a/>", "application/xml", b"<a/>", "application/xml"),
        (b"\x00", "", b"\x00", "application/octet-stream"),
        (bytearray(b"1"), " application/json ", b"1", "application/json"),
        ([1, {"a": None}], "", b'[1,{"a":null}]', "application/json"),
        (1 << 70, "", b"1180591620717411303424", "application/json"),
    ],
)
def test_a01_data_and_content_type(data: Any, content_type: str, body: bytes, kept: str) -> None:
    one = event(data=data, content_type=content_type)
    assert (one.body, one.content_type) == (body, kept)


@pytest.mark.parametrize(
    ("body", "content_type", "data"),
    [
        (b"{", "application/json", b"{"),
        (b"", "application/json", None),
        (b"[" * 100_000, "application/json", b"[" * 100_000),
        (b"\xff", "text/plain;charset=utf-8", b"\xff"),
        (b"\xe9", "text/plain;charset=iso-8859-1", b"\xe9"),
        (b"a", 'text/plain; charset="UTF-8"', "a"),
        (b"1", "application/vnd.x+json; v=1", 1),
        (b"1", "application/cbor", b"1"),
    ],
)
def test_a01_what_does_not_decode_stays_bytes(body: bytes, content_type: str, data: Any) -> None:
    assert event(data=body, content_type=content_type).data == data


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"type": ""}, "type"),
        ({"type": "a b"}, "type"),
        ({"type": "é"}, "type"),
        ({"type": "a/b"}, "type"),
        ({"type": "a\n"}, "type"),
        ({"type": None}, "type"),
        ({"type": "x" * 201}, "type"),
        ({"source": ""}, "source"),
        ({"source": "a\nb"}, "source"),
        ({"source": "\ud800"}, "source"),
        ({"source": 7}, "source"),
        ({"source": "é" * 128}, "source"),
        ({"severity": "worse"}, "severity"),
        ({"severity": 41}, "severity"),
        ({"severity": None}, "severity"),
        ({"time_ns": -1}, "time"),
        ({"time_ns": 1.5}, "time"),
        ({"id": ""}, "id"),
        ({"id": "a\r\n"}, "id"),
        ({"content_type": "text/plain\r\nx: y"}, "content type"),
        ({"data": object()}, "data"),
        ({"data": {"a": "\ud800"}}, "data"),
        ({"data": "\ud800"}, "data"),
        ({"attributes": {"source": "x"}}, "attributes"),
        ({"attributes": {"severity_level": 1}}, "attributes"),
        ({"attributes": {"": 1}}, "attributes"),
        ({"attributes": {"a": [1]}}, "attributes"),
        ({"attributes": {"a": 1 << 63}}, "attributes"),
        ({"attributes": {"a": float("nan")}}, "attributes"),
        ({"attributes": {"a": "\ud800"}}, "attributes"),
        ({"attributes": {"\ud800": 1}}, "attributes"),
        ({"attributes": {f"a{n}": n for n in range(253)}}, "attributes"),
    ],
)
def test_a01_what_is_no_event_is_refused_with_what_is_wrong(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(BadEvent) as refused:
        event(**fields)
    assert refused.value.facts["what"] == what and refused.value.code == "CLN-601"
    str(refused.value).encode()
    assert len(str(refused.value)) < 300


def test_a01_data_that_contain_themselves_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(BadEvent, match="data"):
        event(data=loop)


def test_a01_limits_are_reached_and_every_type_has_a_topic() -> None:
    longest = "x" * limits.EVENT_TYPE_BYTES_MAX
    assert check_type(longest) == longest
    check_name(f"events.{longest}")
    assert check_source("é" * 127) == "é" * 127


def test_a01_severities_compare_and_have_names() -> None:
    assert Severity.of("Error") is Severity.of(40) is Severity.of(Severity.ERROR) is Severity.ERROR
    assert Severity.ALERT > Severity.CRITICAL and Severity.NOTICE.text == "notice"
    assert [Severity.at_most(level) for level in (0, 10, 24, 25, 45, 255)] == [
        Severity.DEBUG,
        Severity.DEBUG,
        Severity.INFO,
        Severity.NOTICE,
        Severity.ERROR,
        Severity.EMERGENCY,
    ]


def test_a01_an_event_cannot_be_changed_and_can_be_copied() -> None:
    one = event(data={"a": 1}, attributes={"n": 1})
    with pytest.raises(AttributeError):
        one.type = "other"
    with pytest.raises(AttributeError):
        del one.body
    again = pickle.loads(pickle.dumps(one))
    assert again == one and hash(again) == hash(one) and again.data == {"a": 1}
    assert copy.copy(one) == one
    assert one != event(data={"a": 2}, attributes={"n": 1}) and one != 1


@given(st.integers(0, TIME_NS_MAX))
def test_a01_times_come_back(time_ns: int) -> None:
    assert parse_time(format_time(time_ns, 9)) == time_ns
    assert parse_time(format_time(time_ns)) == time_ns // 1000 * 1000
    assert datetime.fromisoformat(format_time(time_ns)).tzinfo == UTC


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t01:00:00.5+01:00", 500_000_000),
        ("1969-12-31T23:00:01-01:00", 1_000_000_000),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000_000_000),
        ("1970-01-01T00:00:00.1234567899Z", 123_456_789),
    ],
)
def test_a01_times_of_others_are_read(text: str, expected: int) -> None:
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2025-01-01",
        "2025-01-01T00:00:00",
        "2025-02-30T00:00:00Z",
        "2025-01-01T00:00:61Z",
        "2025-01-01T00:00:00+24:00",
        "2025-01-01T00:00:00+01:60",
        "1969-12-31T23:59:59Z",
        "2263-01-01T00:00:00Z",
        "٢٠٢٥-01-01T00:00:00Z",
    ],
)
def test_a01_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadEvent, match="time"):
        parse_time(text)


@pytest.mark.parametrize("text", ["", "7", "G" * 32, "A" * 32, "0x" + "0" * 30, "\u0660" * 32])
def test_a01_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(BadEvent, match="id"):
        parse_event_id(text)


def test_the_errors_of_events_are_a_family() -> None:
    kinds = [kind for code, kind in ClarionError.by_code.items() if code.startswith("CLN-6")]
    assert len(kinds) >= 4 and all(issubclass(kind, EventError) for kind in kinds)
    assert issubclass(EventTooLarge, BadEvent)
