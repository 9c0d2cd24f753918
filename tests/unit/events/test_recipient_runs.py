"""How events are grouped for a broker: each at its destination, in order, under its own number (A-08)."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.errors import BadArgument, BadUrl
from clarion.events.event import Event
from clarion.events.memory.layout import Recorded
from clarion.events.recipients import ClarionServer
from clarion.message import Headers, encode_headers

from .event_strategies import TYPES
from .recipient_events import PRODUCER, TIME_NS, event

URL = "clarion://localhost"


def recorded(one: Event, sequence: int, producer: int = PRODUCER) -> Recorded:
    headers = encode_headers(one.message_headers())
    return Recorded(producer, sequence, one.time_ns, int(one.severity), 0, 0, 0, headers, one.body, sequence)


@given(st.lists(st.tuples(st.sampled_from([PRODUCER, PRODUCER + (1 << 48)]), st.integers(1, 6), st.sampled_from("ab"))))
def test_a08_every_event_is_in_one_run_in_order(plan: list[tuple[int, int, str]]) -> None:
    records = [recorded(event(number, type=kind), number, producer) for producer, number, kind in plan]
    grouped = ClarionServer(URL).runs(records)
    for kind in "ab":
        mine = [index for index, (_, _, each) in enumerate(plan) if each == kind]
        runs = grouped.get(f"topic:events.{kind}", [])
        assert [index for run in runs for index in run.indexes] == mine
        for run in runs:
            there = [records[index] for index in run.indexes]
            assert [(one.producer, one.sequence) for one in there] == [
                (run.producer, sequence) for sequence in run.sequences
            ]
            assert all(low < high for low, high in pairwise(run.sequences)) and run.last == run.sequences[-1]
            half = len(run.indexes) // 2
            for part, (low, high) in (
                (run.part(0, half + 1), (0, half + 1)),
                (run.part(half, half + 1), (half, half + 1)),
            ):
                assert (part.producer, part.last) == (run.producer, run.sequences[high - 1])
                for column in ("sequences", "indexes", "bodies", "headers", "times_ms"):
                    assert getattr(part, column) == getattr(run, column)[low:high]
            assert run.bodies == [one.body for one in there] and run.headers == [one.headers for one in there]
            assert run.times_ms == [one.time_ns // 1_000_000 for one in there]
        # As few runs as there can be: gaps make none.
        for before, after in pairwise(runs):
            assert before.producer != after.producer or before.last >= after.sequences[0]


@given(st.lists(TYPES, min_size=1, max_size=5))
def test_a08_the_type_is_read_where_it_stands(types: list[str]) -> None:
    server = ClarionServer(URL)
    records = [recorded(event(number, type=type_), number) for number, type_ in enumerate(types, 1)]
    views = [
        Recorded(one.producer, one.sequence, one.time_ns, 0, 0, 0, 0, memoryview(bytes(one.headers)), b"", 0)
        for one in records
    ]
    for each in (records, views, records):  # the second time from memory
        assert set(server.runs(each)) == {f"topic:events.{type_}" for type_ in types}


def test_a08_what_cannot_be_read_has_a_place_too() -> None:
    strange = [
        b"",
        b"\x81",
        b"\x81\xa1t",
        b"\x81\xa1t\xd9\x05a",
        b"\x81\xa1t\xbf" + b"a" * 31 + b"rest",
        encode_headers(Headers(type="not a type")),
        encode_headers(Headers(content_type="text/plain")),
        encode_headers(Headers(group="g", type="grouped")),
    ]
    server = ClarionServer(URL)
    for _ in range(2):
        for headers in strange[:-1]:
            record = Recorded(PRODUCER, 1, TIME_NS, 20, 0, 0, 0, headers, b"x", 1)
            assert list(server.runs([record])) == ["topic:events.event.unreadable"], headers
        assert list(server.runs([Recorded(PRODUCER, 1, TIME_NS, 20, 0, 0, 0, strange[-1], b"x", 1)])) == [
            "topic:events.grouped"
        ]


def test_a12_destinations_by_template() -> None:
    records = [recorded(event(1), 1), recorded(event(2, severity="info"), 2)]
    assert list(ClarionServer(URL, destination="queue:all").runs(records)) == ["queue:all"]
    assert list(ClarionServer(URL, destination="topic:{severity}.{type}").runs(records)) == [
        "topic:error.disk.full",
        "topic:info.disk.full",
    ]


@pytest.mark.parametrize("types", [1, 10])
def test_an_event_costs_about_a_microsecond_whatever_the_types(types: int) -> None:
    """So that 100,000 a second are possible; the bound is loose because others use the machine."""
    records = [recorded(event(number, type=f"disk.{number % types}"), number) for number in range(1, 4_097)]
    server = ClarionServer(URL)
    assert [len(runs) for runs in server.runs(records).values()] == [1] * types
    best_s = min(_timed(server, records) for _ in range(7))
    assert best_s / len(records) < 5e-6, f"{best_s / len(records) * 1e6:.2f} us"


def _timed(server: ClarionServer, records: list[Recorded]) -> float:
    started = time.perf_counter()
    server.runs(records)
    return time.perf_counter() - started


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(BadUrl):
        ClarionServer("http://localhost")
    for wrong in ("topic:{", "topic:{source}", "topic:{0}", "topic:a b", "topic:" + "x" * 60 + "{type}", "_own.{type}"):
        with pytest.raises(BadArgument, match="destination"):
            ClarionServer(URL, destination=wrong)
    with pytest.raises(BadArgument, match="timeout_s"):
        ClarionServer(URL, timeout_s=0)
