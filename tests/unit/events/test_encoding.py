"""An event encoded with memory and without is the same event (A-01, A-03)."""

from __future__ import annotations

import math
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.errors import BadEvent, EventTooLarge
from clarion.events.encoding import Encoder
from clarion.events.event import Event, Severity, format_time
from clarion.events.memory import Recorded
from clarion.message import decode_headers

ENCODER = Encoder(64 << 10)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
LEAVES = st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | TEXT
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5), max_leaves=30
)
PROPERTIES = st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | TEXT | st.binary(max_size=400)
NAMES = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=30).map(lambda name: f"x{name}")


@given(
    data=JSON | st.binary(max_size=1000) | st.text(st.characters(exclude_categories=["Cs"]), max_size=2000),
    attributes=st.dictionaries(NAMES, PROPERTIES, max_size=20),
    source=st.sampled_from(["volume/7", "é" * 100, "x"]),
    severity=st.sampled_from(list(Severity)),
    time_ns=st.integers(0, (1 << 63) - 1),
)
def test_a01_both_ways_of_encoding_make_the_same_bytes(
    data: Any, attributes: dict[str, Any], source: str, severity: Severity, time_ns: int
) -> None:
    with_memory = ENCODER.encode("disk.full", source, severity, time_ns, data, attributes)
    without = ENCODER.encode_without_memory("disk.full", source, severity, time_ns, data, attributes)
    assert bytes(without.headers) == bytes(with_memory.headers)
    assert bytes(without.body) == bytes(with_memory.body) or big_number_in(data)
    headers = decode_headers(bytes(without.headers))
    assert headers.type == "disk.full"
    expected = {"source": source, "severity": severity.text, "time": format_time(time_ns), **attributes}
    assert headers.properties == expected
    recorded = Recorded(7 << 64, 1, time_ns, severity, 0, 0, 0, bytes(without.headers), bytes(without.body))
    event = Event.from_recorded(recorded)
    assert (event.source, event.severity, event.time_ns) == (source, severity, time_ns)
    if isinstance(data, str | bytes) or data is None:
        assert event.data == data


@pytest.mark.parametrize("data", [None, {"a": 1}, [1], "text", b"bytes", memoryview(b"view")])
@pytest.mark.parametrize("content_type", ["", "text/plain", "application/json"])
def test_a01_headers_that_were_made_before_are_made_again_with_another_time(data: Any, content_type: str) -> None:
    encoder, times = Encoder(), (0, 1_700_000_000_123_456_789, (1 << 63) - 1)
    for severity in (Severity.INFO, Severity.ERROR):
        for time_ns in times:
            found = encoder.encode("disk.full", "volume/7", severity, time_ns, data, None, content_type)
            fresh = Encoder().encode("disk.full", "volume/7", severity, time_ns, data, None, content_type)
            assert (found.headers, found.body) == (fresh.headers, fresh.body)
            properties = decode_headers(bytes(found.headers)).properties
            assert properties == {"source": "volume/7", "severity": severity.text, "time": format_time(time_ns)}


def test_a01_what_was_good_before_does_not_make_the_next_good() -> None:
    encoder = Encoder()
    encoder.encode("disk.full", "volume/7", 40, 1, None)
    for type_, source, time_ns in (("", "volume/7", 1), ("disk.full", "", 1), ("disk.full", "volume/7", -1)):
        with pytest.raises(BadEvent):
            encoder.encode(type_, source, 40, time_ns, None)
    with pytest.raises(BadEvent):
        encoder.encode(["disk.full"], "volume/7", 40, 1, None)  # type: ignore[arg-type]
    with pytest.raises(BadEvent):
        encoder.encode("disk.full", "volume/7", 40, 1, "\ud800")


def test_a03_an_encoder_that_has_seen_many_sources_does_not_grow() -> None:
    encoder = Encoder()
    for number in range(2_000):
        encoder.encode("disk.full", f"volume/{number}", 40, 1, None)
    assert len(encoder._starts) <= 256


def big_number_in(data: Any) -> bool:
    """Floats may be written with other digits or exponents, and are the same numbers."""
    if isinstance(data, dict):
        return any(big_number_in(each) for each in data.values())
    if isinstance(data, list):
        return any(big_number_in(each) for each in data)
    return isinstance(data, float) and math.isfinite(data)


@given(data=JSON)
def test_a01_json_without_memory_decodes_to_the_same_values(data: Any) -> None:
    import msgspec

    encoded = ENCODER.encode_without_memory("a", "b", 40, 1, [data])
    assert msgspec.json.decode(bytes(encoded.body)) == msgspec.json.decode(msgspec.json.encode([data]))


@pytest.mark.parametrize("encode", [ENCODER.encode, ENCODER.encode_without_memory])
def test_a03_wrong_and_too_large_events_are_refused(encode: Any) -> None:
    for wrong in ({"type_": "no spaces"}, {"source": ""}, {"severity": 41}, {"time_ns": -1}, {"data": "\ud800"},
                  {"data": {"x": object()}}, {"data": ["\ud800"]}, {"attributes": {"source": 1}}):  # fmt: skip
        with pytest.raises(BadEvent):
            encode(**{"type_": "a", "source": "b", "severity": 40, "time_ns": 1, **wrong})
    for large in ("x" * (64 << 10), bytes(64 << 10), ["y" * (64 << 10)], {"z" * (64 << 10): 1}):
        with pytest.raises(EventTooLarge):
            encode("a", "b", 40, 1, large)
    deep: Any = None
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(BadEvent):
        encode("a", "b", 40, 1, deep)


def test_a03_an_event_of_exactly_the_limit_fits_both_ways() -> None:
    encoder = Encoder(1000)
    room = 1000 - len(encoder.encode("a", "b", 40, 1, b"").headers)
    for encode in (encoder.encode, encoder.encode_without_memory):
        assert len(encode("a", "b", 40, 1, bytes(room)).body) == room
        with pytest.raises(EventTooLarge):
            encode("a", "b", 40, 1, bytes(room + 1))


@given(seconds=st.integers(0, 253_402_300_799))
def test_a03_the_time_of_an_event_is_made_of_small_pieces(seconds: int) -> None:
    """What is in one piece and large cannot come from the ballast: to try again would use it up."""
    encoder = Encoder(1_024)
    encoder.time_text(0)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        text = encoder.time_text(seconds * 10**9 + 123_456_789)
        assert tracemalloc.get_traced_memory()[1] - before < 1_024
    finally:
        tracemalloc.stop()
    assert text == datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.123456Z")
