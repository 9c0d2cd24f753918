"""A producer that lost its memory resends under the same ids, cut anew: each message is stored exactly once (B-02)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from clarion import ids
from clarion.core.producers import Producers, Verdict
from clarion.wire.batch import Batch, encode

PRODUCER = 5 << ids.SEQUENCE_BITS
WINDOW = 60
RANGES = st.tuples(st.integers(1, WINDOW), st.integers(1, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))
STEPS = st.lists(st.tuples(RANGES, st.booleans(), st.booleans()), min_size=1, max_size=40)


def body_of(sequence: int) -> bytes:
    return f"{sequence}".encode() * (sequence % 4)


def batch_of(first: int, end: int) -> Batch:
    sequences = range(first, end)
    headers = [f"h{sequence}".encode() for sequence in sequences]
    deltas = [sequence * 7 for sequence in sequences]
    return Batch(
        bytes(encode(b"queue:q", PRODUCER + first, [*map(body_of, sequences)], headers, None, deltas, created_ms=9))
    )


def missing_pieces(producers: Producers, batch: Batch, floor: int) -> list[Batch]:
    """What a message manager stores of a batch."""
    first = ids.sequence_of(batch.first_id)
    end = first + batch.count
    verdict = producers.judge(PRODUCER, first, end, floor, resend=False)
    pieces = [batch.sliced(low - first, high - first) for low, high in producers.missing(PRODUCER, first, end)]
    assert (verdict is Verdict.DOUBLE) == (not pieces)
    assert (verdict is Verdict.NEW) == ([piece.count for piece in pieces] == [batch.count])
    assert verdict in (Verdict.DOUBLE, Verdict.NEW, Verdict.TORN)
    return pieces


@settings(max_examples=300)
@given(STEPS)
def test_b02_whatever_the_boundaries_every_message_is_stored_exactly_once(
    steps: list[tuple[tuple[int, int], bool, bool]],
) -> None:
    producers = Producers()
    stored: Counter[int] = Counter()
    wanted: set[int] = set()
    for (first, end), settle, restart in steps:
        # The naive model: what was ever sent is wanted once. Everything below the first gap in it is settled.
        settled = next(sequence for sequence in range(1, 2 * WINDOW + 2) if stored[sequence] == 0) if settle else 1
        floor = min(settled, first)
        wanted |= set(range(first, end))
        for piece in missing_pieces(producers, batch_of(first, end), floor):
            at = ids.sequence_of(piece.first_id)
            Batch.parse(bytes(piece.buffer))  # sound in itself, as one from outside would have to be
            for index in range(piece.count):
                headers, body = piece.record(index)
                assert (bytes(headers), bytes(body)) == (f"h{at + index}".encode(), body_of(at + index))
                assert piece.time_ms(index) == 9 + 7 * (at + index)
                stored[at + index] += 1
            producers.record(PRODUCER, at, at + piece.count, floor)
        if restart:
            spans, producers = producers.spans, Producers.load(producers.dump())
            assert producers.spans == spans
        assert set(stored.elements()) == wanted
    assert set(stored.values()) == {1}
