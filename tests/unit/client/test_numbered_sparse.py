"""Sending under ids with gaps: batches that say them, floors that are true, one answer for each (A-08)."""

from __future__ import annotations

import asyncio
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion import ids, limits
from clarion.client import sequences as sequences_module
from clarion.client.cutting import Messages
from clarion.client.sequences import Flying, Stored
from clarion.errors import BadArgument, Blocked
from clarion.wire import frames
from clarion.wire.batch import IDS, Batch
from clarion.wire.frames import Type
from tests.unit.client.test_numbered import PRODUCER, Broker, scenario, settle

NUMBERS = st.sets(st.integers(1, 40), min_size=1).map(sorted)


def start(broker: Broker, sequences: list[int], destination: str = "queue:q", body: bytes = b"x") -> asyncio.Task[None]:
    count = len(sequences)
    return broker.loop.create_task(broker.sender.send(destination, sequences, [body] * count, [b""] * count))


def ids_of(batch: Batch) -> list[int]:
    return [ids.sequence_of(batch.id_of(index)) for index in range(batch.count)]


def sent(broker: Broker) -> list[list[int]]:
    return [ids_of(batch) for _, batch in broker.sent]


def published(broker: Broker, *batches: tuple[int, int]) -> None:
    """First sequence and count of messages, as a message manager says."""
    broker.say(Type.PUBLISHED, b"".join(frames.SETTLED.pack(first, count, 0) for first, count in batches))


def test_a08_sequences_with_gaps_are_one_batch_and_one_answer() -> None:
    async def test() -> None:
        broker = Broker()
        tasks = [start(broker, [1, 4, 7], "queue:a"), start(broker, [2, 5, 8], "queue:b"), start(broker, [3, 6, 9])]
        await settle()
        assert sent(broker) == [[1, 4, 7], [2, 5, 8], [3, 6, 9]] and broker.floors == [1, 1, 1]
        published(broker, (1, 3))  # three messages from 1 on: those of that batch, not 2 and 3
        await settle()
        assert [task.done() for task in tasks] == [True, False, False] and broker.sender.floor == 2
        published(broker, (3, 3))
        assert broker.sender.floor == 2
        published(broker, (2, 3))
        await asyncio.gather(*tasks)
        assert broker.sender.floor == 10

    scenario(test)


def test_a08_sequences_that_follow_each_other_are_an_ordinary_batch() -> None:
    async def test() -> None:
        broker = Broker()
        start(broker, [5, 6, 7])
        start(broker, [9])
        await settle()
        assert sent(broker) == [[5, 6, 7], [9]]
        assert not any(batch.flags & IDS for _, batch in broker.sent)
        stepped = broker.loop.create_task(broker.sender.send("queue:r", range(20, 30, 4), [b"x"] * 3, [b""] * 3))
        await settle()
        assert sent(broker)[2:] == [[20, 24, 28]] and broker.sent[2][1].flags & IDS
        stepped.cancel()

    scenario(test)


def test_a08_what_failed_is_sent_later_between_what_is_stored() -> None:
    async def test() -> None:
        broker = Broker()
        task = start(broker, [1, 3, 5])
        other = start(broker, [2, 4, 6], "queue:other")
        await settle()
        broker.failed(1, 4, Blocked(destination="queue:q", detail="full"))  # its count is 3
        with pytest.raises(Blocked):
            await task
        published(broker, (2, 3))
        await other
        assert broker.sender.floor == 1
        again = [start(broker, [3]), start(broker, [1, 5])]
        await settle()
        assert sent(broker)[2:] == [[3]]  # one that does not ascend waits
        published(broker, (3, 1))
        assert sent(broker)[3:] == [[1, 5]] and broker.sender.floor == 1
        published(broker, (1, 2))
        await asyncio.gather(*again)
        assert broker.sender.floor == 7

    scenario(test)


def test_a08_a_gap_is_not_on_its_way_and_what_is_sent_is() -> None:
    async def test() -> None:
        broker = Broker()
        tasks = [start(broker, [1, 5, 9], "queue:a"), broker.start(2, 5, "queue:b"), start(broker, [6, 8], "queue:c")]
        await settle()
        assert sent(broker) == [[1, 5, 9], [2, 3, 4], [6, 8]]
        tasks += [broker.start(4, 6, "queue:d"), start(broker, [3, 7], "queue:e"), start(broker, [7, 8], "queue:f")]
        await settle()
        assert len(broker.sent) == 3
        published(broker, (2, 3))
        assert sent(broker)[3:] == [[3, 7]]
        published(broker, (1, 3), (6, 2))
        assert sent(broker)[4:] == [[4, 5]]  # 7 is on its way
        published(broker, (3, 2), (4, 2))
        assert sent(broker)[5:] == [[7, 8]]
        published(broker, (7, 2))
        await asyncio.gather(*tasks)
        assert broker.sender.floor == 10

    scenario(test)


def test_a08_a_refused_sparse_batch_and_a_lost_connection() -> None:
    async def test() -> None:
        broker = Broker()
        tasks = [start(broker, [1, 3]), start(broker, [5, 7]), start(broker, [2, 4], "queue:other")]
        await settle()
        said = frames.pack({"destination": "queue:q", "reason": "full"})
        broker.say(Type.REFUSED, frames.FLOOR.pack(1) + said)
        published(broker, (2, 2))
        assert len(broker.sent) == 3
        broker.say(Type.RESUME, frames.FLOOR.pack(1) + b"queue:q")
        assert sent(broker)[3:] == [[1, 3], [5, 7]]
        published(broker, (1, 2))
        broker.reconnect()
        assert sent(broker)[5:] == [[5, 7]]
        published(broker, (5, 2))
        await asyncio.gather(*tasks)
        assert broker.sender.floor == 6

    scenario(test)


def test_a08_given_up_sequences_are_refused() -> None:
    async def test() -> None:
        broker = Broker(settled_below=5)
        with pytest.raises(BadArgument, match="given up"):
            await start(broker, [4, 9])
        task = start(broker, [5, 9])
        await settle()
        with pytest.raises(BadArgument, match="no answer yet"):
            broker.sender.forget_below(9)
        published(broker, (5, 2))
        await task
        assert broker.sender.floor == 6
        broker.sender.forget_below(9)
        assert broker.sender.floor == 10

    scenario(test)


# --- the sets -------------------------------------------------------------------------------------------


def as_batch(numbers: list[int]) -> list[int] | range:
    return range(numbers[0], numbers[-1] + 1) if numbers[-1] - numbers[0] == len(numbers) - 1 else numbers


@given(st.lists(st.tuples(NUMBERS, st.booleans()), max_size=20))
def test_a08_what_is_on_its_way_matches_a_set(steps: list[tuple[list[int], bool]]) -> None:
    flying, known = Flying(), list[list[int]]()
    for numbers, back in steps:
        meets = any(not set(numbers).isdisjoint(one) for one in known)
        assert flying.meets(as_batch(numbers)) == meets
        if not meets:
            flying.add(as_batch(numbers))
            known.append(numbers)
        if back and known:
            flying.remove(as_batch(known.pop(0)))


@given(st.lists(st.tuples(NUMBERS, st.none() | st.integers(1, 45)), max_size=20), st.integers(1, 50))
def test_a08_the_floor_is_never_above_what_is_stored_or_given_up(
    steps: list[tuple[list[int], int | None]], kept_max: int
) -> None:
    """With room for all it is exactly the first gap; with less it may be lower."""
    for bound in (1_000, kept_max):
        stored, known, lowest = Stored(), set[int](), 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sequences_module, "STORED_MAX", bound)
            for numbers, given_up in steps:
                stored.add(as_batch(numbers))
                known |= set(numbers)
                stored.rise(given_up or 1)
                lowest = max(lowest, given_up or 1)
                while lowest in known:
                    lowest += 1
                assert stored.floor <= lowest
                assert bound < 1_000 or stored.floor == lowest


# --- cutting --------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 900), st.integers(0, 90)), min_size=1, max_size=60),
    st.booleans(),
    st.integers(3_000, 40_000),
)
def test_a08_lists_with_gaps_are_cut_into_batches_that_hold_them(
    steps: list[tuple[int, int, int]], timed: bool, batch_bytes_max: int
) -> None:
    sequences = list(accumulate(gap for gap, _, _ in steps))
    bodies = [bytes([number % 251]) * size for number, (_, size, _) in enumerate(steps)]
    headers = [bytes([number % 241]) * size for number, (_, _, size) in enumerate(steps)]
    times_ms = [7 * sequence for sequence in sequences] if timed else None
    messages = Messages(b"queue:q", bodies, headers, times_ms, batch_bytes_max, sequences)
    found: list[tuple[int, bytes, bytes, int]] = []
    for low, high in messages.cuts:
        batch = Batch.parse(bytes(messages.encode(low, high, PRODUCER, 5)))
        mine = list(messages.sequences(low, high))
        assert batch.size <= batch_bytes_max and mine == sequences[low:high] == ids_of(batch)
        assert bool(batch.flags & IDS) == (mine[-1] - mine[0] != len(mine) - 1)
        for index in range(batch.count):
            header, body = batch.record(index)
            found.append((mine[index], bytes(header), bytes(body), batch.time_ms(index)))
    assert found == list(zip(sequences, headers, bodies, times_ms or [5] * len(bodies), strict=True))


def test_a08_a_batch_ends_where_its_window_does() -> None:
    window = limits.PRODUCER_WINDOW_MESSAGES
    sequences = [1, 2, window, window + 1, window + 2, 1 << 40, ids.SEQUENCE_MAX]
    messages = Messages(b"q", [b""] * 7, [b""] * 7, None, limits.BATCH_BYTES_MAX, sequences)
    assert messages.cuts == [(0, 3), (3, 5), (5, 6), (6, 7)]
