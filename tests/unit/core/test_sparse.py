"""Sparse batches in the log: exactly their messages are stored, each once, whatever is lost or cut anew (A-08)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion import ids, limits
from clarion.core import spans as spans_module
from clarion.core.entries import Create, Kind, Publish, runs_of
from clarion.core.producers import Producers, Verdict
from clarion.core.spans import Spans
from clarion.core.sparse import pack_runs, places, sequence_runs, unpack_runs
from clarion.core.state import State
from clarion.wire.batch import IDS, Batch, encode

PRODUCER = 5 << ids.SEQUENCE_BITS
WINDOW = 60
NUMBERS = st.sets(st.integers(1, WINDOW), min_size=1, max_size=25).map(sorted)


def body_of(sequence: int) -> bytes:
    return f"{sequence}".encode() * (sequence % 4)


def batch_of(sequences: list[int], *, column: bool = False) -> Batch:
    """Ordinary if they follow each other, unless the column is wanted."""
    first = sequences[0]
    deltas = [sequence - first for sequence in sequences]
    is_sparse = column or deltas[-1] != len(deltas) - 1
    headers = [f"h{sequence}".encode() for sequence in sequences]
    encoded = encode(
        b"queue:q",
        PRODUCER + first,
        [*map(body_of, sequences)],
        headers,
        None,
        [7 * sequence for sequence in sequences],
        created_ms=9,
        id_deltas=deltas if is_sparse else None,
    )
    return Batch.parse(encoded)


def sequences_of(batch: Batch) -> list[int]:
    """Of a batch that must be sound in itself, with every message what its id says."""
    Batch.parse(bytes(batch.buffer))
    found = [ids.sequence_of(batch.id_of(index)) for index in range(batch.count)]
    for index, sequence in enumerate(found):
        headers, body = batch.record(index)
        assert (bytes(headers), bytes(body)) == (f"h{sequence}".encode(), body_of(sequence))
        assert batch.time_ms(index) == 9 + 7 * sequence
    return found


# --- runs ---------------------------------------------------------------------------------------------


@given(NUMBERS, st.booleans())
def test_a08_the_runs_of_a_batch_are_exactly_its_sequences(sequences: list[int], column: bool) -> None:
    runs = sequence_runs(batch_of(sequences, column=column))
    assert runs == runs_of(sequences)
    assert unpack_runs(runs[0][0], pack_runs(runs)) == runs


@pytest.mark.parametrize(
    ("runs", "number_bytes"),
    [
        ([(5, 6), (15, 16)], 1),
        ([(5, 260), (515, 516)], 1),
        ([(5, 261), (270, 271)], 2),
        ([(1, 2), (65_537, 65_538)], 2),
        ([(1, 2), (65_538, 65_539)], 4),
        ([(7, 8), (7 + (1 << 32) - 1, 8 + (1 << 32) - 1)], 4),
        ([(ids.SEQUENCE_MAX - 300, ids.SEQUENCE_MAX - 299), (ids.SEQUENCE_MAX, ids.SEQUENCE_MAX + 1)], 2),
    ],
)
def test_a08_runs_are_packed_as_small_as_they_can_be(runs: list[tuple[int, int]], number_bytes: int) -> None:
    packed = pack_runs(runs)
    assert len(packed) == 8 + 2 * len(runs) * number_bytes
    assert unpack_runs(runs[0][0], packed) == runs


@given(NUMBERS, st.booleans(), st.data())
def test_a08_places_are_where_the_messages_stand(sequences: list[int], column: bool, data: st.DataObject) -> None:
    wanted = sorted(data.draw(st.sets(st.sampled_from(sequences), min_size=1)))
    ranges = places(batch_of(sequences, column=column), runs_of(wanted))
    assert [sequences[index] for low, high in ranges for index in range(low, high)] == wanted
    assert all(before[1] < after[0] for before, after in pairwise(ranges))


@given(st.lists(NUMBERS, max_size=6), st.sampled_from([0, 1, 64]))
def test_a08_many_ranges_are_put_as_one_by_one(many: list[list[int]], merged_max: int) -> None:
    together, single = Spans(), Spans()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans_module, "_MERGED_MAX", merged_max)
        for numbers in many:
            together.put_all(runs_of(numbers))
            for first, end in runs_of(numbers):
                single.put(first, end)
            assert list(together) == list(single)


# --- what is stored -------------------------------------------------------------------------------------


def test_a08_what_is_in_a_gap_is_not_stored() -> None:
    producers = Producers()
    producers.record_runs(1, [(1, 2), (5, 7), (9, 10)], floor=1)
    judge = producers.judge_runs
    assert judge(1, [(1, 2), (5, 7), (9, 10)], 1, resend=True) is Verdict.DOUBLE
    assert judge(1, [(1, 2), (9, 10)], 1, resend=True) is Verdict.DOUBLE
    assert judge(1, [(2, 3), (8, 9), (20, 21)], 1, resend=False) is Verdict.NEW
    assert judge(1, [(2, 3), (6, 7)], 1, resend=False) is Verdict.TORN
    assert producers.judge(1, 2, 5, 1, resend=False) is Verdict.NEW
    assert producers.missing_runs(1, [(2, 3), (4, 6), (9, 12)]) == [(2, 3), (4, 5), (10, 12)]
    assert judge(1, [(2, 3), (limits.PRODUCER_WINDOW_MESSAGES + 1, limits.PRODUCER_WINDOW_MESSAGES + 2)], 1, False) is (
        Verdict.TOO_FAR
    )
    producers.record(1, 30, 31, floor=9)
    assert judge(1, [(2, 3), (8, 9)], 1, resend=False) is Verdict.DOUBLE  # below the floor everything is settled
    assert judge(1, [(2, 3), (9, 10)], 1, resend=False) is Verdict.DOUBLE
    assert judge(1, [(2, 3), (10, 11)], 1, resend=False) is Verdict.TORN


@given(st.lists(NUMBERS, max_size=12), st.integers(1, 8))
def test_b13_sparse_batches_never_leave_more_gaps_than_the_limit(steps: list[list[int]], spans_max: int) -> None:
    """And what leaves no more of them than there were is taken."""
    producers = Producers()
    producers.record(PRODUCER, 1, 2, floor=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "PRODUCER_SPANS_MAX", spans_max)
        for numbers in steps:
            runs, before = runs_of(numbers), producers.spans
            verdict = producers.judge_runs(PRODUCER, runs, 1, resend=False)
            trial = Producers.load(producers.dump())
            trial.record_runs(PRODUCER, runs, floor=1)
            assert (verdict is Verdict.TOO_MANY) == (trial.spans > max(before, spans_max))
            if verdict in (Verdict.NEW, Verdict.TORN):
                producers = trial


class Broker:
    """The state of a log, and what a message manager does with batches for its one queue."""

    def __init__(self) -> None:
        self.state = State(1 << 20)
        self.log: list[tuple[int, int, bytes, int, int]] = []
        self.stored: list[int] = []
        """Sequences of the messages in the order of the queue."""
        self._write(Kind.CREATE, Create(1, "queue", "q", 0).encode(), 100)

    def _write(self, kind: int, head: bytes, span: int) -> None:
        self.log.append((len(self.log) + 1, kind, head, 4_096 + 100 * len(self.log), span))
        self.state.apply(*self.log[-1])

    @property
    def producers(self) -> Producers:
        return self.state.destinations[1].producers

    def take(self, batch: Batch, floor: int, *, picks: bool) -> None:
        runs = sequence_runs(batch)
        verdict = self.producers.judge_runs(PRODUCER, runs, floor, resend=False)
        if not batch.flags & IDS:
            assert verdict is self.producers.judge(PRODUCER, *runs[0], floor, resend=False)
        missing = self.producers.missing_runs(PRODUCER, runs)
        count = sum(end - first for first, end in missing)
        expected = Verdict.NEW if count == batch.count else Verdict.TORN if count else Verdict.DOUBLE
        assert verdict is expected
        ranges = places(batch, missing) if missing else []
        pieces = [batch.picked(ranges)] if picks and len(ranges) > 1 else [batch.sliced(*one) for one in ranges]
        for piece in pieces:
            packed = pack_runs(sequence_runs(piece)) if piece.flags & IDS else b""
            entry = Publish(1, piece.count, self.state.destinations[1].tail, floor, piece.first_id, 5, runs=packed)
            self._write(Kind.PUBLISH, entry.encode(), 100)
            self.stored += sequences_of(piece)

    def recover(self, lost: int) -> None:
        """Begin again from the heads, with the body of one record lost."""
        before, spans = self.producers.dump(), self.producers.spans
        self.state = State(1 << 20)
        for number, (index, kind, head, position, span) in enumerate(self.log):
            self.state.apply(index, kind, head, position, 0 if kind == Kind.PUBLISH and number == lost else span)
        self.state.recovered()
        assert self.producers.dump() == before and self.producers.spans == spans
        assert self.state.destinations[1].tail == len(self.stored) + 1

    def reload(self) -> None:
        """Begin again from a checkpoint."""
        parts, applied = list(self.state.dump()), self.state.applied
        self.state = State(1 << 20)
        self.state.load(parts)
        self.state.applied = applied


STEPS = st.lists(
    st.tuples(NUMBERS, st.booleans(), st.booleans(), st.booleans(), st.integers(-2, 8)), min_size=1, max_size=25
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_a08_with_any_gaps_and_boundaries_every_message_is_stored_exactly_once(
    steps: list[tuple[list[int], bool, bool, bool, int]],
) -> None:
    """Against a set: what was ever sent is there once, and nothing else, whatever the log lost of bodies."""
    broker, wanted = Broker(), set[int]()
    for sequences, column, picks, settle, lost in steps:
        settled = next(number for number in range(1, WINDOW + 2) if number not in wanted) if settle else 1
        wanted |= set(sequences)
        broker.take(batch_of(sequences, column=column), min(settled, sequences[0]), picks=picks)
        if lost >= 0:
            broker.recover(min(lost, len(broker.log) - 1))
        elif lost == -1:
            broker.reload()
        assert set(broker.stored) == wanted
    assert set(Counter(broker.stored).values()) == {1}


def test_a08_an_ordinary_entry_has_no_runs() -> None:
    entry = Publish(1, 3, 1, 1, PRODUCER + 1, 5)
    assert len(entry.encode()) == 72 and Publish.decode(entry.encode()).runs == b""
