"""Entries of the log read back as they were written, and those of the first logs still do (A-05)."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion import limits
from clarion.core import entries
from clarion.core.entries import Kind
from clarion.core.sparse import pack_runs
from clarion.core.state import State
from clarion.wire.batch import Batch, encode

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
TIMES = st.integers(0, (1 << 63) - 1)
SEQUENCES = st.integers(1, (1 << 62) - 1)
RANGES = st.lists(
    st.tuples(SEQUENCES, st.integers(1, 1 << 40)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=20
)
NAMES = st.text(max_size=40)
MAYBE = st.none() | st.booleans()
IDS = st.integers(0, (1 << 128) - 1)
TRANSACTIONS = st.binary(min_size=24, max_size=24).filter(any)

RUNS = st.lists(st.tuples(st.integers(1, 70_000), st.integers(1, 300)), min_size=1, max_size=9).map(
    lambda steps: [
        (end - length, end) for end, (_, length) in zip(itertools.accumulate(map(sum, steps)), steps, strict=True)
    ]
)
PUBLISH_FIELDS = (U32, U32, U64, U64, IDS, TIMES, TIMES, TIMES, st.integers(0, 9), st.integers(0, 2))
PUBLISHES = st.builds(entries.Publish, *PUBLISH_FIELDS, st.just(b"") | RUNS.map(pack_runs))
STAGES = st.builds(
    entries.Stage, st.builds(entries.Publish, *PUBLISH_FIELDS, st.just(b"")), U64, TIMES, TRANSACTIONS | st.just(b"")
)
CONSUMED = st.lists(st.tuples(U32, RANGES), max_size=5)
CHANGES = st.builds(entries.Change, U32, RANGES, SEQUENCES, RANGES, RANGES, CONSUMED, CONSUMED)

ENTRIES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.PUBLISH: PUBLISHES,
    Kind.CONFIRM: st.builds(entries.Ranges, U32, U32, RANGES),
    Kind.RETURN: st.builds(entries.Ranges, U32, U32, RANGES),
    Kind.DISCARD: st.builds(entries.Ranges, U32, st.just(0), RANGES),
    Kind.MARK: st.builds(entries.Mark, U32, U32, U64),
    Kind.CREATE: st.builds(
        entries.Create, U32, st.sampled_from(["queue", "topic"]), NAMES, TIMES, st.lists(U32, max_size=5)
    ),
    Kind.DROP: st.builds(entries.Drop, U32),
    Kind.SUBSCRIBE: st.builds(entries.Subscribe, U32, U32, NAMES, st.booleans(), SEQUENCES, NAMES, U32, MAYBE),
    Kind.UNSUBSCRIBE: st.builds(entries.Unsubscribe, U32, U32),
    Kind.PRODUCERS_CLOSED: st.builds(
        entries.ProducersClosed, st.binary(min_size=16, max_size=16), st.lists(U32, max_size=9)
    ),
    Kind.STAGE: STAGES,
    Kind.OUTCOME: st.builds(
        entries.Outcome,
        st.lists(TRANSACTIONS, min_size=1, max_size=5),
        st.booleans(),
        TIMES,
        st.lists(CHANGES, max_size=4),
        NAMES,
        TIMES,
        NAMES,
    ),
    Kind.DUE: st.builds(entries.Due, TIMES, CHANGES),
    Kind.PREPARED: st.builds(
        entries.Prepared, TRANSACTIONS, TIMES, TIMES, st.lists(st.tuples(U32, U32, RANGES), max_size=5)
    ),
    Kind.TRANSFER: st.builds(
        entries.Transfer, U32, SEQUENCES, U32, TIMES, st.integers(0, 9), TIMES, TIMES, U32, U32, U32, RANGES,
        st.lists(st.tuples(SEQUENCES, U32), max_size=3),
    ),
    Kind.POLICY: st.builds(
        entries.SetPolicy, NAMES, st.none() | st.dictionaries(NAMES, st.booleans() | TIMES | NAMES, max_size=4)
    ),
    Kind.PATTERN: st.builds(entries.SetPattern, U32, NAMES, NAMES, st.booleans(), NAMES, MAYBE),
    Kind.RETURNED: st.builds(entries.Returned, U32, U32, RANGES, TIMES, NAMES),
    Kind.RETAIN: st.builds(entries.Retain, U32, U64),
    Kind.FRAGMENT: st.builds(
        entries.Fragment, U32, U64, st.binary(min_size=24, max_size=24), U64, U32, U32, TIMES
    ),
    Kind.LARGE: st.builds(entries.Large, STAGES, U64, U64),
    Kind.STREAM_DROPPED: st.builds(entries.StreamDropped, st.lists(U32, max_size=9)),
    Kind.LEASE: st.builds(entries.SetLease, NAMES, NAMES, TIMES, TIMES, TIMES),
}  # fmt: skip


def test_a05_every_kind_of_entry_is_here() -> None:
    assert ENTRIES.keys() == set(Kind)


@pytest.mark.parametrize("kind", list(ENTRIES), ids=lambda kind: kind.name.lower())
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a05_an_entry_reads_back_as_it_was_written(kind: Kind, data: st.DataObject) -> None:
    entry = data.draw(ENTRIES[kind])
    head = entry.encode()
    again = type(entry).decode(head)
    assert again == entry
    assert again.encode() == head
    assert type(entry).decode(bytes(memoryview(head))) == entry


@pytest.mark.parametrize("kind", list(ENTRIES), ids=lambda kind: kind.name.lower())
def test_a05_an_entry_of_a_destination_that_is_gone_changes_nothing(kind: Kind) -> None:
    """Of those that name one; the others change tables that belong to no destination."""

    @settings(max_examples=3, deadline=None)
    @given(ENTRIES[kind])
    def applied(entry: Any) -> None:
        state = State(1 << 20)
        state.apply(5, kind, entry.encode(), 4_096, 100)
        assert state.applied == 5
        assert not state.destinations

    if kind not in (Kind.CREATE, Kind.POLICY):
        applied()


def test_a05_an_unknown_kind_stops_a_replay() -> None:
    with pytest.raises(AssertionError, match="unknown kind 99"):
        State(1 << 20).apply(1, 99, b"")


# --- what the first logs have -------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(U32, U32, U64, U64, IDS)
def test_a05_the_head_of_40_bytes_of_the_first_logs_has_the_usual_priority_and_no_times(
    destination: int, messages: int, first: int, floor: int, first_id: int
) -> None:
    head = struct.pack("<IIQQ16s", destination, messages, first, floor, first_id.to_bytes(16, "big"))
    assert len(head) == 40
    entry = entries.Publish.decode(head)
    assert entry == entries.Publish(destination, messages, first, floor, first_id, 0, 0, 0, limits.PRIORITY_DEFAULT, 0)
    assert entries.Publish.decode(entry.encode()) == entry


def test_a05_the_entries_of_the_first_logs_have_fewer_fields() -> None:
    pack = msgspec.msgpack.encode
    assert entries.Create.decode(pack([3, "topic", "t", 7])) == entries.Create(3, "topic", "t", 7, [])
    made = entries.Subscribe.decode(pack([3, 1, "s", True, 9]))
    assert made == entries.Subscribe(3, 1, "s", True, 9, "", 0, None)
    assert entries.Drop.decode(pack([3])) == entries.Drop(3)
    assert entries.Unsubscribe.decode(pack([3, 1])) == entries.Unsubscribe(3, 1)
    closed = entries.ProducersClosed.decode(pack([b"p" * 16, [3]]))
    assert (closed.producer, list(closed.destinations)) == (b"p" * 16, [3])


def test_a05_entries_may_get_more_fields_later() -> None:
    """A newer log is not refused by an older reader for want of a field that it does not know."""
    pack = msgspec.msgpack.encode
    assert entries.Retain.decode(pack([3, 9, "more"])) == entries.Retain(3, 9)
    assert entries.Drop.decode(pack([3, 1, 2, 3])) == entries.Drop(3)


# --- what compaction writes ---------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(U32, SEQUENCES, st.lists(st.tuples(SEQUENCES, st.lists(st.binary(max_size=20), min_size=1)), min_size=1))
def test_a05_a_moved_page_reads_back_as_it_was_written(
    destination: int, page_first: int, batches: list[tuple[int, list[bytes]]]
) -> None:
    encoded = [(first, Batch(bytes(encode(b"queue:q", 1 << 48, bodies)))) for first, bodies in batches]
    head, body = entries.encode_moved(destination, page_first, encoded)
    again, again_first, parts = entries.decode_moved(head, memoryview(body))
    assert (again, again_first) == (destination, page_first)
    assert [first for first, _ in parts] == [first for first, _ in batches]
    for (_, bodies), (_, part) in zip(batches, parts, strict=True):
        batch = Batch.parse(bytes(part))
        assert [bytes(batch.record(index)[1]) for index in range(batch.count)] == bodies


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 300)))
def test_a05_runs_hold_what_was_put_in_and_are_as_few_as_possible(numbers: set[int]) -> None:
    runs = entries.runs_of(sorted(numbers))
    assert [n for first, end in runs for n in range(first, end)] == sorted(numbers)
    assert all(one[1] < following[0] for one, following in itertools.pairwise(runs))
