"""What a pipeline does in situations that have a name (A-07, A-08, A-09)."""

from __future__ import annotations

import time

import pytest

from clarion.errors import BadArgument, InternalFault
from clarion.events.distribution import Batch, Confirm, GiveUp, Pipeline, RetryPolicy

HALF = 0.5
"""The chance that makes no jitter."""


def made(policy: RetryPolicy | None = None, *, sources: str = "a", window: int = 4_096) -> Pipeline:
    """Section 7, whose event n is of source sources[n % len] and was recognised at n ms."""

    def facts_of(_section: int, at: int) -> tuple[str, int]:
        return sources[at % len(sources)], at

    pipeline = Pipeline(0, "log", policy or RetryPolicy(), facts_of, window)
    pipeline.add_section(7, 3, 1)
    return pipeline


def events(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [at for _, at in batch.events()]


def fail(pipeline: Pipeline, now_ms: int, events_max: int = 256, done: int = 0) -> list[object]:
    batch = pipeline.next_batch(now_ms, events_max)
    assert batch is not None
    return list(pipeline.failed(batch, done, now_ms, "away", HALF))


def succeed(pipeline: Pipeline, now_ms: int, events_max: int = 256) -> list[int]:
    batch = pipeline.next_batch(now_ms, events_max)
    at = events(batch)
    assert batch is not None
    for confirm in pipeline.delivered(batch):
        assert isinstance(confirm, Confirm)
        pipeline.recorded(confirm)
    return at


def test_a08_a_confirmation_covers_what_is_not_owed_beside_it() -> None:
    pipeline = made()
    pipeline.offer_runs(7, [(5, 6), (8, 9), (20, 22)], 100)
    batch = pipeline.next_batch(0, 2)
    assert batch is not None and batch.parts == [(7, [(5, 6), (8, 9)])]
    assert pipeline.delivered(batch) == [Confirm(7, [(1, 20)], 2)]
    assert pipeline.settled_floor(7) == 5  # nothing of it is durable yet
    pipeline.recorded(Confirm(7, [(1, 20)]))
    assert pipeline.settled_floor(7) == 20
    batch = pipeline.next_batch(0, 9)
    assert batch is not None
    assert pipeline.failed(batch, {1}, 0, "no", HALF) == [Confirm(7, [(21, 100)], 1)]


def test_a08_one_batch_in_flight_and_answered_once() -> None:
    pipeline = made()
    pipeline.offer_runs(7, [(1, 9)], 9)
    batch = pipeline.next_batch(0, 4)
    assert batch is not None and pipeline.in_flight == 4
    assert pipeline.next_batch(0, 4) is None and pipeline.due_ms() is None
    pipeline.delivered(batch)
    with pytest.raises(InternalFault):
        pipeline.delivered(batch)


def test_a07_the_window_bounds_what_is_unrecorded() -> None:
    pipeline = made(window=10)
    assert pipeline.offer_runs(7, [(1, 100)], 100) == 10
    assert pipeline.room(7) == 0 and pipeline.cursor(7) == 11
    batch = pipeline.next_batch(0, 4)
    assert batch is not None
    (confirm,) = pipeline.delivered(batch)
    assert isinstance(confirm, Confirm) and pipeline.room(7) == 0
    pipeline.recorded(confirm)
    assert pipeline.room(7) == 4 and pipeline.offer_runs(7, [(1, 100)], 100) == 4


def test_a07_a_poisonous_event_delays_only_its_own_source() -> None:
    """A recipient that fails as a whole because of one event: it is found, and others go on."""
    pipeline = made(sources="abcd")
    pipeline.offer_runs(7, [(1, 257)], 257)
    poison, now_ms, delivered = 77, 0, list[int]()
    found_ms = 0
    for _ in range(200):
        due_ms = pipeline.due_ms()
        if due_ms is None:
            break
        now_ms = max(now_ms, due_ms)
        batch = pipeline.next_batch(now_ms, 256)
        if batch is None:
            continue
        if poison in events(batch):
            pipeline.failed(batch, 0, now_ms, "bad event", HALF)
        else:
            delivered += events(batch)
            pipeline.delivered(batch)
        if not found_ms and len(delivered) == 256 - 46:
            found_ms = now_ms
    own = [at for at in range(77, 257) if at % 4 == 77 % 4]
    assert sorted(delivered) == [at for at in range(1, 257) if at not in own]
    assert found_ms < 6_000
    assert pipeline.held_sources == 1 and pipeline.owed == len(own)


def test_a07_a_recipient_that_is_away_is_asked_less_and_less_often() -> None:
    pipeline = made(sources="abcdefghijklmnop")
    pipeline.offer_runs(7, [(1, 1_001)], 1_001)
    now_ms, asked = 0, list[int]()
    while now_ms < 600_000:
        due_ms = pipeline.due_ms()
        assert due_ms is not None
        now_ms = max(now_ms, due_ms)
        batch = pipeline.next_batch(now_ms, 256)
        if batch is not None:
            asked.append(now_ms)
            pipeline.failed(batch, 0, now_ms, "away", HALF)
    assert len([one for one in asked if one > 300_000]) <= 6  # a minute between any two
    assert len(asked) < 40
    pipeline.retry_now()
    now_ms += 1
    delivered = list[int]()
    while pipeline.owed:
        delivered += succeed(pipeline, now_ms)
    assert sorted(delivered) == list(range(1, 1_001))


def test_a07_an_event_that_fails_alone_takes_turns_with_the_rest() -> None:
    pipeline = made(RetryPolicy(first_ms=1, max_ms=1, jitter=0.0), sources="ab")
    pipeline.offer_runs(7, [(1, 20)], 20)
    fail(pipeline, 0, events_max=1)
    assert [succeed(pipeline, 10 + n, events_max=1)[0] if n % 2 else fail(pipeline, 10 + n, 1) for n in range(4)] == [
        [], 2, [], 4,
    ]  # fmt: skip


def test_a07_who_is_to_blame_when_some_were_done() -> None:
    pipeline = made(RetryPolicy(give_up_attempts=1), sources="abcdefgh")
    pipeline.offer_runs(7, [(1, 7)], 7)
    batch = pipeline.next_batch(0, 6)
    assert batch is not None
    instructions = pipeline.failed(batch, {0, 2}, 0, "no", HALF)
    assert instructions == [
        Confirm(7, [(1, 2), (3, 4)], 2),
        GiveUp(7, 2, "failed 1 times: no", 1),
        GiveUp(7, 4, "failed 1 times: no", 1),
    ]
    assert succeed(pipeline, 0) == [5, 6]  # perhaps they were not even tried


def test_a05_what_cannot_be_read_any_more_is_settled_and_nobody_is_blamed() -> None:
    pipeline = made()
    pipeline.offer_runs(7, [(1, 5)], 5)
    batch = pipeline.next_batch(0, 4)
    assert batch is not None
    assert pipeline.unreadable(batch, {1, 2}) == [Confirm(7, [(2, 4)], 2)]
    assert pipeline.due_ms() == 0 and pipeline.held_sources == 0
    assert succeed(pipeline, 0) == [1, 4]


def test_a07_giving_up_waits_for_room_among_the_dead() -> None:
    pipeline = made(RetryPolicy(give_up_attempts=2, jitter=0.0))
    pipeline.offer_runs(7, [(1, 4)], 4)
    assert fail(pipeline, 0, events_max=1) == []
    assert pipeline.next_batch(0, 1) is None and pipeline.due_ms() == 200
    assert fail(pipeline, 200, events_max=1) == [GiveUp(7, 1, "failed 2 times: away", 2)]
    assert pipeline.next_batch(10_000, 9) is None and pipeline.due_ms() is None  # its source waits for it
    pipeline.kept(7, 1, 1_000, HALF)
    assert pipeline.due_ms() == 1_400
    assert fail(pipeline, 1_400, events_max=1) == [GiveUp(7, 1, "failed 3 times: away", 3)]
    pipeline.buried(7, 1)
    assert pipeline.settled_floor(7) == 2 and pipeline.owed == 2
    assert succeed(pipeline, 100_000) == [2, 3]


def test_a07_what_is_too_old_is_given_up_when_the_recipient_stays_away() -> None:
    pipeline = made(RetryPolicy(give_up_age_ms=60_000), sources="abc")
    pipeline.offer_runs(7, [(1, 101)], 101)
    now_ms, given_up = 0, list[object]()
    while now_ms < 300_000 and len(given_up) < 100:
        now_ms = max(now_ms, pipeline.due_ms() or now_ms)
        for instruction in fail(pipeline, now_ms):
            assert isinstance(instruction, GiveUp) and instruction.reason.endswith("60000 ms: away")
            assert now_ms - instruction.at >= 60_000
            given_up.append(instruction)
            pipeline.buried(instruction.section, instruction.at)
    assert len(given_up) == 100 and pipeline.owed == 0 and pipeline.settled_floor(7) == 101


def test_a07_several_sources_that_failed_are_tried_together_and_none_twice() -> None:
    pipeline = made(RetryPolicy(first_ms=10, jitter=0.0), sources="abcdefgh")
    pipeline.offer_runs(7, [(1, 6)], 6)
    batch = pipeline.next_batch(0, 5)
    assert batch is not None
    pipeline.failed(batch, {4}, 0, "no", HALF)  # 1 to 4 are to blame
    assert pipeline.held_sources == 4
    batch = pipeline.next_batch(10, 5)
    assert events(batch) == [1, 2, 3, 4] and batch is not None
    pipeline.failed(batch, 1, 10, "no", HALF)  # 2 is to blame again; 3 and 4 were perhaps not tried
    assert succeed(pipeline, 10) == [3, 4]
    assert pipeline.next_batch(10, 5) is None and pipeline.due_ms() == 30
    assert succeed(pipeline, 30) == [2]
    assert pipeline.owed == 0 and pipeline.due_ms() is None and pipeline.settled_floor(7) == 6


def test_a07_what_is_old_is_not_given_up_before_what_comes_before_it() -> None:
    """Clocks differ: the second event says that it is older than the first of its source."""
    times = {1: 1_000, 2: 0}
    pipeline = Pipeline(
        0, "log", RetryPolicy(give_up_age_ms=5_000, first_ms=1, max_ms=1), lambda _s, at: ("a", times[at])
    )
    pipeline.add_section(7, 3, 1)
    pipeline.offer_runs(7, [(1, 2)], 2)
    assert [fail(pipeline, 5_010 + 10 * n) for n in range(2)] == [[], []]
    batch = pipeline.next_batch(5_030, 9)
    assert batch is not None
    pipeline.offer_runs(7, [(2, 3)], 3)
    assert pipeline.failed(batch, 0, 5_030, "away", HALF) == []
    assert fail(pipeline, 6_000) == [
        GiveUp(7, 1, "not delivered within 5000 ms: away", 4),
        GiveUp(7, 2, "not delivered within 5000 ms: away", 0),
    ]


@pytest.mark.parametrize("in_flight", [False, True])
def test_a08_what_a_recipient_lost_goes_before_what_failed_after_it(in_flight: bool) -> None:
    pipeline = Pipeline(0, "mux", RetryPolicy(jitter=0.0), lambda _section, _at: ("a", 0))
    pipeline.add_section(7, 3, 1, 2)  # from before the start
    pipeline.add_section(7, 3, 2)
    pipeline.offer_runs(7, [(1, 4)], 4)
    first = pipeline.next_batch(0, 1)
    assert events(first) == [1] and first is not None
    pipeline.stored(first)
    second = pipeline.next_batch(0, 1)
    assert events(second) == [2] and second is not None
    if in_flight:
        pipeline.again(first, [(0, 1)])
        pipeline.failed(second, 0, 0, "no", HALF)
    else:
        pipeline.failed(second, 0, 0, "no", HALF)
        assert pipeline.next_batch(0, 9) is None
        pipeline.again(first, [(0, 1)])
    assert pipeline.due_ms() == 0
    assert [succeed(pipeline, 1_000, events_max=9) for _ in range(2)] == [[1], [2, 3]]
    assert pipeline.owed == 0


def test_a09_nothing_new_before_everything_replayed() -> None:
    pipeline = made()
    pipeline.add_section(1, 0, 1, 3)
    pipeline.add_section(2, 1, 1, 3)
    assert pipeline.room(7) == 0  # what must go first is not even read
    pipeline.offer_runs(1, [(1, 3)], 3)
    assert pipeline.room(7) == 0 and pipeline.room(2) > 0
    pipeline.offer_runs(2, [(1, 3)], 3)
    pipeline.offer_runs(7, [(1, 3)], 3)
    order = []
    for _ in range(3):
        batch = pipeline.next_batch(0, 100)
        assert batch is not None
        order += [section for section, _ in batch.parts]
        pipeline.delivered(batch)
    assert order == [1, 2, 7]


def test_a09_old_and_new_events_of_one_rank_keep_the_order_of_their_section() -> None:
    pipeline = made()
    pipeline.add_section(1, 0, 1, 3)
    pipeline.add_section(1, 0, 3)
    pipeline.offer_runs(1, [(1, 6)], 6)
    assert succeed(pipeline, 0, 1) == [1]
    fail(pipeline, 0)
    assert pipeline.next_batch(100, 100) is None
    assert [succeed(pipeline, 1_000) for _ in range(2)] == [[2], [3, 4, 5]]


def test_a08_what_the_ledger_knows_is_not_offered_again() -> None:
    pipeline = made()
    pipeline.load(7, 4, [(6, 8)])
    assert pipeline.offer_runs(7, [(1, 10)], 10) == 4
    assert events(pipeline.next_batch(0, 100)) == [4, 5, 8, 9]


def test_a07_policies_are_checked_and_pauses_bounded() -> None:
    policy = RetryPolicy()
    assert [policy.pause_ms(n, HALF) for n in (1, 2, 3, 100_000)] == [200, 400, 800, 60_000]
    assert (policy.pause_ms(1, 0.0), policy.pause_ms(1, 1.0)) == (160, 240)
    for wrong in ({"first_ms": 0}, {"factor": 0.5}, {"jitter": 2.0}, {"give_up_attempts": 0}, {"give_up_age_ms": 0}):
        with pytest.raises(BadArgument):
            RetryPolicy(**wrong)


@pytest.mark.parametrize(("step", "us_max"), [(1, 1.0), (2, 8.0)])
def test_a07_runs_cost_little_per_event(step: int, us_max: float) -> None:
    """0.1 us an event in runs, 0.7 us an event for every second one; the bounds leave room for a busy machine."""
    pipeline = made()
    count, best_us = 0, 1e9
    for _ in range(5):
        began, before = time.perf_counter(), count
        for _ in range(40):
            cursor = pipeline.cursor(7)
            until = cursor + 512 * step
            runs = [(cursor, until)] if step == 1 else [(at, at + 1) for at in range(cursor, until, step)]
            pipeline.offer_runs(7, runs, until)
            for _ in range(2):
                count += len(succeed_quickly(pipeline))
        best_us = min(best_us, (time.perf_counter() - began) * 1e6 / (count - before))
    assert count == 5 * 40 * 512
    assert best_us < us_max


def succeed_quickly(pipeline: Pipeline) -> range:
    batch = pipeline.next_batch(0, 256)
    assert batch is not None and batch.parts
    for confirm in pipeline.delivered(batch):
        assert isinstance(confirm, Confirm)
        pipeline.recorded(confirm)
    return range(batch.count)
