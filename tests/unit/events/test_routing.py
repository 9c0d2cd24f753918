"""Who gets an event: bits by filters, against a naive look at each recipient."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from clarion import limits
from clarion.errors import BadArgument, BadSelector, EventError, LimitReached
from clarion.events.event import Event, Severity
from clarion.events.routing import EPOCH_MAX, Route, Routes
from clarion.message import Headers, decode_headers, encode_headers
from tests.unit.events.event_strategies import events

FILTERS: dict[str, Callable[[Event], bool]] = {
    "": lambda event: True,
    " \t": lambda event: True,
    "severity_level >= 40": lambda event: event.severity >= 40,
    "severity_level  >=  40": lambda event: event.severity >= 40,
    "severity = 'info'": lambda event: event.severity == Severity.INFO,
    "JMSType LIKE 'a%'": lambda event: event.type.startswith("a"),
    "type LIKE 'a%' AND severity_level < 40": lambda event: event.type.startswith("a") and event.severity < 40,
    "source = 'volume/7' AND severity_level < 40": lambda event: event.source == "volume/7" and event.severity < 40,
    "rack BETWEEN 1 AND 3": lambda event: event.attributes.get("rack") in (1, 2, 3),
    "rack IS NULL": lambda event: "rack" not in event.attributes,
    "JMSTimestamp > 5000": lambda event: event.time_ns // 1_000_000 > 5000,
}
SETS = st.dictionaries(st.integers(0, 63), st.sampled_from(sorted(FILTERS)), max_size=12)


def routes_of(filters: dict[int, str], epoch: int = 1) -> Routes:
    return Routes(epoch, [Route(slot, f"r{slot}", text) for slot, text in filters.items()])


@given(SETS, events(), st.none() | st.integers(0, 5))
def test_a07_the_bits_are_those_of_each_recipient_alone(
    filters: dict[int, str], event: Event, rack: int | None
) -> None:
    attributes = {name: value for name, value in event.attributes.items() if name != "rack"}
    if rack is not None:
        attributes["rack"] = rack
    event = Event(event.id, event.time_ns, event.source, event.type, event.severity, None, "", attributes)
    headers = event.message_headers()
    before = encode_headers(headers)
    routes = routes_of(filters)
    expected = sum(1 << slot for slot, text in filters.items() if FILTERS[text](event))
    assert routes.decide(headers, event.time_ns // 1_000_000) == expected
    assert routes.decide(decode_headers(before), event.time_ns // 1_000_000) == expected
    assert encode_headers(headers) == before  # what filters see in addition is not recorded
    assert routes.bits_all == sum(1 << slot for slot in filters)
    assert expected & ~routes.bits_all == 0


@given(SETS, st.integers(0, EPOCH_MAX))
def test_a07_routes_come_back_from_a_file(filters: dict[int, str], epoch: int) -> None:
    routes = routes_of(filters, epoch)
    again = Routes.load(memoryview(routes.dump()))
    assert again == routes and hash(again) == hash(routes)
    assert again.routes == routes.routes and again.bits_all == routes.bits_all


def test_a07_without_filters_nothing_is_looked_at() -> None:
    routes = routes_of({0: "", 5: "  ", 63: ""})
    assert routes.is_constant
    unused: Headers = None  # type: ignore[assignment]
    assert routes.decide(unused, 0) == routes.bits_all == 1 | 1 << 5 | 1 << 63
    assert Routes().decide(unused, 0) == 0 == Routes().bits_all


def test_a07_every_slot_can_be_used() -> None:
    routes = routes_of({slot: "severity_level >= 40" if slot % 2 else "" for slot in range(64)})
    assert routes.bits_all == (1 << 64) - 1
    mild = Event("1", 0, "s", "t", "info").message_headers()
    assert routes.decide(mild, 0) == sum(1 << slot for slot in range(0, 64, 2))
    with pytest.raises(LimitReached):
        Routes(1, [Route(slot, f"r{slot}") for slot in range(limits.EVENT_RECIPIENTS_MAX + 1)])


def test_a07_the_same_filter_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = routes_of({1: "a = 1", 2: "a  =  1", 3: "b = 1"})
    asked: list[str] = []
    selector = type(routes._filters[0][1])
    original = selector.matches_one

    def counted(self, *arguments, **named):  # type: ignore[no-untyped-def]
        asked.append(self.canonical)
        return original(self, *arguments, **named)

    monkeypatch.setattr(selector, "matches_one", counted)
    assert routes.decide(Headers(properties={"a": 1}), 0) == 0b110
    assert sorted(asked) == ["a = 1", "b = 1"]


def test_a07_an_event_is_selected_by_its_id_and_time() -> None:
    routes = routes_of({0: f"JMSMessageID = 'ID:{7:032x}'", 1: "JMSTimestamp = 9"})
    assert routes.decide(Headers(), 9, 7) == 0b11
    assert routes.decide(Headers(), 8, 8) == 0


@pytest.mark.parametrize(
    "properties",
    [
        None,
        {},
        {"severity": "odd"},
        {"severity": 40},
        {"severity": None},
        {"severity": b"error"},
        {"severity": ["error"]},
    ],
)
def test_a07_an_event_without_a_known_severity_has_no_level(properties: dict[str, object] | None) -> None:
    routes = routes_of({0: "severity_level >= 0", 1: "severity_level IS NULL"})
    assert routes.decide(Headers(properties=properties), 0) == 0b10


def test_a07_want_of_memory_is_the_caller_s_to_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not mistaken for "does not match": the caller records `bits_all` and that nobody decided."""
    routes = routes_of({0: "", 1: "a = 1"})

    def fail(*_: object, **__: object) -> bool:
        raise MemoryError

    monkeypatch.setattr(type(routes._filters[0][1]), "matches_one", fail)
    with pytest.raises(MemoryError):
        routes.decide(Headers(), 0)
    assert routes.bits_all == 0b11


def test_a07_a_bad_filter_is_refused_with_its_column() -> None:
    with pytest.raises(BadSelector) as refused:
        routes_of({0: "severity_level >= 'high'"})
    assert refused.value.facts["selector"] == "severity_level >= 'high'"


@pytest.mark.parametrize(
    ("epoch", "routes", "argument"),
    [
        (-1, [], "epoch"),
        (1 << 32, [], "epoch"),
        (0, [(64, "a", "")], "slot"),
        (0, [(-1, "a", "")], "slot"),
        (0, [(1, "a", ""), (1, "b", "")], "slot"),
        (0, [(1, "a", ""), (2, "a", "")], "name"),
        (0, [(1, "", "")], "name"),
    ],
)
def test_a07_what_cannot_be_is_refused(epoch: int, routes: list[tuple[int, str, str]], argument: str) -> None:
    with pytest.raises(BadArgument) as refused:
        Routes(epoch, routes)
    assert refused.value.facts["argument"] == argument


def test_a07_bits_have_names() -> None:
    routes = Routes(4, [Route(0, "log"), Route(9, "pager", "a = 1")])
    assert routes.names(1 << 9 | 1) == ["log", "pager"]
    assert routes.names(1 << 3) == ["#3"] and routes.names(0) == []
    assert repr(routes) == "<Routes of epoch 4: log, pager>"
    assert repr(Routes()) == "<Routes of epoch 0: nobody>"


@given(st.integers(0, 200), st.integers(1, 255))
def test_a07_a_damaged_file_is_noticed(at: int, flip: int) -> None:
    data = bytearray(routes_of({1: "a = 1", 7: ""}).dump())
    data[at % len(data)] ^= flip
    with pytest.raises(EventError):
        Routes.load(bytes(data))


@pytest.mark.parametrize(
    "content",
    [b"", b"\xc1", msgspec.msgpack.encode([2, 1]), msgspec.msgpack.encode([1, "x", []]), msgspec.msgpack.encode({})],
)
def test_a07_what_no_version_of_ours_wrote_is_refused(content: bytes) -> None:
    with pytest.raises(EventError, match="routes"):
        Routes.load(crc32c(content).to_bytes(4, "little") + content)
