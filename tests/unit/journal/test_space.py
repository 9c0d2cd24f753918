"""Full, freed, recycled, compacted (A-03, A-05, A-08)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion import limits
from clarion.errors import InternalFault, JournalFull, MessageTooLarge
from clarion.journal import MemoryStore
from clarion.journal.space import Space
from clarion.testing.faulty_disk import Crashed, FaultyDisk

from .journal_harness import SEGMENT_BYTES, Owner, fill, open_owner
from .toy_broker import ToyBroker


def body_of(number: int) -> bytes:
    return Random(number).randbytes(200 + number * 37 % 900)


def test_a03_a_full_journal_refuses_producers_and_nobody_else() -> None:
    broker = ToyBroker(MemoryStore(SEGMENT_BYTES, files_max=10))
    count = 0
    while broker.publish(count, body_of(count)):
        count += 1
        broker.upkeep()
        broker.committer.run()
    assert broker.journal.room() < 1_200 and broker.journal.status().growth_blocked
    assert not broker.publish(count, bytes(5_000))
    # Confirmations go on, checkpoints go on, and room comes back.
    checkpoints = broker.checkpoints
    for number in range(count):
        assert broker.read(number) == body_of(number)
        broker.confirm(number)
        broker.upkeep()
        broker.committer.run()
    assert broker.checkpoints > checkpoints
    assert broker.journal.room() > SEGMENT_BYTES
    assert broker.publish(count, body_of(count))


def test_a03_confirmations_that_free_nothing_go_on_for_ever() -> None:
    broker = ToyBroker(MemoryStore(SEGMENT_BYTES, files_max=10))
    count = 0
    while broker.publish(count, body_of(count)):
        count += 1
        broker.upkeep()
        broker.committer.run()
    for _ in range(3_000):  # ten times the journal
        broker.journal.append(41, b"-1", bytes(400), reserve=True)
        broker.upkeep()
        broker.committer.run()
    assert all(broker.read(number) == body_of(number) for number in range(count))


def test_a03_the_reserve_keeps_space_for_checkpoints_and_compaction() -> None:
    owner = open_owner(MemoryStore(SEGMENT_BYTES, files_max=10))
    fill(owner)
    fill(owner, reserve=True)
    owner.checkpoint([bytes(8_000)])
    owner.committer.run()
    assert owner.checkpoints == 1


def test_a03_the_estimate_enlarges_the_reserve() -> None:
    owner = open_owner(MemoryStore(SEGMENT_BYTES, files_max=10))
    room = owner.journal.room()
    owner.journal.checkpoint_estimate_bytes = 10_000
    assert owner.journal.room() == room - 20_000
    assert owner.journal.status().bytes_reserve > 20_000


def log_until_due(owner: Owner) -> int:
    """How much log is written before the next checkpoint is due."""
    owner.committer.run()  # room for the checkpoint that is expected
    began = owner.journal.tail
    while not owner.journal.checkpoint_due:
        placed = owner.append(bytes(4_000))
        owner.journal.retain(placed.position, placed.span)  # what dies would make one due before its time
        owner.committer.run()
    written = owner.journal.tail - began
    owner.checkpoint([b"state"])
    owner.committer.run()
    return written


def test_a05_a_small_state_is_checkpointed_soon_and_a_large_one_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_LOG_BYTES_MIN", 50_000)
    owner = open_owner(
        MemoryStore(SEGMENT_BYTES), bytes_max=1_000 * SEGMENT_BYTES, checkpoint_log_bytes=20 * SEGMENT_BYTES
    )
    small = log_until_due(owner)
    owner.journal.checkpoint_estimate_bytes = 10_000
    larger = log_until_due(owner)
    owner.journal.checkpoint_estimate_bytes = 1_000_000
    largest = log_until_due(owner)
    step = 2 * SEGMENT_BYTES  # one append, the rest of a segment, and what surrounds them
    assert 50_000 <= small < 50_000 + step
    assert limits.CHECKPOINT_LOG_FACTOR * 10_000 <= larger < limits.CHECKPOINT_LOG_FACTOR * 10_000 + step
    assert 20 * SEGMENT_BYTES <= largest < 20 * SEGMENT_BYTES + step


def test_a03_a_record_that_fits_no_segment_is_refused() -> None:
    owner = open_owner(MemoryStore(SEGMENT_BYTES))
    largest = owner.journal.record_bytes_max
    owner.append(bytes(largest))
    with pytest.raises(MessageTooLarge):
        owner.append(bytes(largest + 1_024))
    owner.committer.run()
    assert owner.durable_count == 1


def test_a03_the_journal_grows_ahead_of_need() -> None:
    owner = open_owner(MemoryStore(SEGMENT_BYTES), bytes_max=30 * SEGMENT_BYTES)
    rooms = []
    owner.journal.on_room = lambda: rooms.append(owner.journal.room())
    for _ in range(100):
        owner.append(bytes(1_500))
        owner.committer.run()
        assert owner.journal.room() > SEGMENT_BYTES
    assert rooms
    count = fill(owner)
    assert owner.journal.status().segments == 30 and count > 50


def test_b13_new_segments_are_prepared_gently_only_beside_others_and_while_there_is_room() -> None:
    asked: list[bool] = []

    class Asking(MemoryStore):
        def create(self, pace: Callable[[float], bool] | None = None) -> int:
            if pace is not None:
                asked.append(pace(0.0))
            return super().create()

    owner = open_owner(Asking(SEGMENT_BYTES), bytes_max=100 * SEGMENT_BYTES)

    for shared in (False, True):
        owner.journal.growing.is_shared = lambda shared=shared: shared  # type: ignore[misc]
        asked.clear()
        while not asked:
            owner.append(bytes(1_500))
            owner.committer.run()
        assert asked == [shared]
    asked.clear()
    with pytest.raises(JournalFull):
        while True:  # faster than it can grow
            owner.append(bytes(1_500))
    owner.committer.run()
    assert not asked[0] and asked[-1], "first the room that producers wait for"


def test_a05_a_segment_waits_until_what_freed_it_is_durable() -> None:
    space = Space(SEGMENT_BYTES, 10 * SEGMENT_BYTES)
    space.free.extend(range(10))
    space.begin(1, 0)
    space.retain(SEGMENT_BYTES + 4096, 100)
    space.begin(2, 2 * SEGMENT_BYTES)
    space.checkpoint_completed(5 * SEGMENT_BYTES)
    space.checkpoint_completed(6 * SEGMENT_BYTES)
    tail = 6 * SEGMENT_BYTES + 5_000
    space.release(SEGMENT_BYTES + 4096, 100, tail)
    assert space.recycle(tail - 8) == []
    assert [segment.ordinal for segment in space.recycle(tail)] == [1]


def test_a05_releasing_what_does_not_live_is_a_fault() -> None:
    space = Space(SEGMENT_BYTES, 10 * SEGMENT_BYTES)
    space.free.append(0)
    space.begin(1, 0)
    with pytest.raises(InternalFault):
        space.release(SEGMENT_BYTES + 4096, 8, 0)
    space.release(99 * SEGMENT_BYTES, 8, 0)  # recycled long ago


def test_a08_compaction_keeps_the_journal_bounded_under_constant_load() -> None:
    """One message in ten stays for ever: without compaction every segment would hold some."""
    broker = ToyBroker(MemoryStore(SEGMENT_BYTES, files_max=16))
    kept: list[int] = []
    refused = 0
    for number in range(6_000):
        if not broker.publish(number, body_of(number)):
            refused += 1
        elif number % 10 == 0 and len(kept) < 60:
            kept.append(number)
        else:
            broker.confirm(number)
        broker.upkeep()
        broker.committer.run()
    assert broker.moved > 0 and refused == 0
    assert {number: broker.read(number) for number in kept} == {number: body_of(number) for number in kept}


def test_a05_checkpoints_do_not_feed_on_themselves() -> None:
    broker = ToyBroker(MemoryStore(SEGMENT_BYTES, files_max=10))
    count = 0
    while broker.publish(count, body_of(count)):
        count += 1
        broker.upkeep()
        broker.committer.run()
    before = broker.checkpoints
    for _ in range(50):  # no traffic
        broker.upkeep()
        broker.committer.run()
    assert broker.checkpoints - before <= 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a08_what_is_owed_survives_crashes_recycling_and_compaction(seed: int) -> None:
    rng = Random(seed)
    disk = FaultyDisk(SEGMENT_BYTES, files_max=12)
    bodies: dict[int, bytes] = {}
    asked: set[int] = set()
    published: set[int] = set()
    confirmed: set[int] = set()
    number = 0
    for _ in range(4):
        broker = ToyBroker(disk)
        assert broker.lost == []
        assert published - asked <= set(broker.live) <= set(bodies) - confirmed
        assert all(broker.read(n) == bodies[n] for n in broker.live)
        asked = set(bodies) - set(broker.live)
        if rng.random() < 0.5:
            disk.fail_sync(disk.syncs + rng.randrange(1, 150), "crash")
        else:
            disk.fail_write(disk.writes + rng.randrange(1, 150), rng.choice(("torn", "crash")))
        try:
            for _ in range(250):
                number += 1
                bodies[number] = body_of(number)
                if not broker.publish(number, bodies[number]):
                    del bodies[number]
                while broker.live and rng.random() < (0.5 if len(broker.live) < 40 else 0.6):
                    chosen = rng.choice(list(broker.live)[:50])
                    asked.add(chosen)
                    broker.confirm(chosen)
                broker.upkeep()
                for _ in range(rng.randrange(8)):
                    broker.committer.step()
        except Crashed:
            pass
        except JournalFull:
            # Hundreds of confirmations without one commit: the reserve has an end, too.
            asked.discard(chosen) if chosen in broker.live else None
        published = broker.published | (set(broker.live) & published)
        confirmed |= broker.confirmed
        if rng.random() < 0.3:
            disk.kill()
        else:
            disk.crash(rng)


def test_limits_allow_the_smallest_journal_some_data() -> None:
    space = Space(limits.SEGMENT_BYTES_MIN, 0)
    assert space.segments_max == limits.SEGMENTS_MIN
    assert space.reserve_bytes <= (limits.SEGMENTS_MIN - 3) * limits.SEGMENT_BYTES_MIN
