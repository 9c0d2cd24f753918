"""Checkpoints: what is dumped, at whatever moment, and the entries after it make the state that was (A-05)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from clarion import limits
from clarion.core import state as state_module
from clarion.core.entries import (
    Change,
    Create,
    Drop,
    Kind,
    Mark,
    Outcome,
    Prepared,
    Publish,
    Ranges,
    Retain,
    Returned,
    SetPattern,
    SetPolicy,
    Stage,
    Subscribe,
    Unsubscribe,
)
from clarion.core.pages import Page
from clarion.core.state import State
from clarion.core.subscription import RESERVED, Subscription
from tests.unit.core.model_world import World

SEGMENT_BYTES = 1 << 20
PRODUCER = 9 << 48
TRANSACTION = b"t" * 24

FIRST_VERSION = [
    "9300c3c40392030e",
    "9301c3c48e9b01a57175657565a171000b10020095c4080100000000000000c4081000000000000000c4080011000000000000c404f4010000"
    "c404f401000092009193c41000000000000000000009000000000000019193011000919701a0c303c4220100000000000000000000003a3000"
    "0001000000000002001000000005000800090014939303040193040502930c0e01",
    "9302c3c46d9b02a5746f706963a174ce400000000e05030095c4080100000000000000c4080500000000000000c408f412000000000000c404"
    "96000000c4049600000092009193c41000000000000000000009000000000000109193101400919702a162c201c40800000000000000000990",
]
"""Parts of the first version: 2 tables; 11 fields of a destination, 5 columns of pages, 7 fields of a subscription."""


class Log:
    """A state and the entries that made it."""

    def __init__(self) -> None:
        self.state = State(SEGMENT_BYTES)
        self.entries: list[tuple[int, int, bytes, int, int]] = []
        self.position = 4_096

    def write(self, kind: int, entry: Any, span: int = 100) -> None:
        self.entries.append((len(self.entries) + 1, kind, entry.encode(), self.position, span))
        self.position += span
        self.state.apply(*self.entries[-1])

    def publish(self, destination: int, count: int, **more: Any) -> None:
        tail = self.state.destinations[destination].tail
        self.write(Kind.PUBLISH, Publish(destination, count, tail, 1, PRODUCER + tail, **more))

    def rebuilt(self, parts: list[bytes], since: int) -> State:
        """From a checkpoint that began after `since` entries."""
        again = State(SEGMENT_BYTES)
        again.load(parts)
        for entry in self.entries[since:]:
            again.apply(*entry)
        return again


def facts(state: State) -> list[bytes]:
    """All that a dump has, as of no special moment: equal for equal states."""
    state.applied = 0
    return list(state.dump())


def rich() -> Log:
    """A little of everything."""
    log = Log()
    log.write(Kind.PATTERN, SetPattern(1, "glob:t*", "p", True, "color = 'red'"))
    log.write(Kind.POLICY, SetPolicy("glob:t*", {"quota_bytes": 1_000_000}))
    log.write(Kind.CREATE, Create(1, "queue", "q", 0))
    log.write(Kind.CREATE, Create(2, "topic", "t", 1 << 30, [1]))
    log.write(Kind.SUBSCRIBE, Subscribe(2, 2, "s", False, 1, "number > 3", 0, True))
    log.publish(1, 10, priority=9, stored_ms=5, until=2)
    log.publish(1, 10, expiry_first_ms=70_000, stored_ms=6)
    log.publish(2, 5)
    log.write(Kind.STAGE, Stage(Publish(1, 3, 0, 1, PRODUCER + 100), 1, 90_000, b""))
    log.write(Kind.STAGE, Stage(Publish(2, 2, 0, 1, PRODUCER + 103), 1, 0, TRANSACTION))
    log.write(Kind.MARK, Mark(1, 1, 30))
    log.write(Kind.CONFIRM, Ranges(1, 1, [(1, 3), (5, 6)]))
    log.write(Kind.RETURN, Ranges(1, 1, [(3, 5)]))
    log.write(Kind.RETURNED, Returned(1, 1, [(4, 5)], 8, "no"))
    log.write(Kind.PREPARED, Prepared(TRANSACTION, 9, 99, [(1, 1, [(7, 9)])]))
    log.write(Kind.RETAIN, Retain(2, 1))
    return log


# --- versions -----------------------------------------------------------------------------------------


def test_a05_dumps_of_the_first_version_load_and_go_on() -> None:
    state = State(SEGMENT_BYTES)
    state.load([bytes.fromhex(part) for part in FIRST_VERSION])
    assert (state.next_destination, state.applied) == (3, 14)
    queue, topic = state.destinations[1], state.destinations[2]
    assert (queue.kind, queue.name, queue.bytes_quota, queue.tail, queue.applied) == ("queue", "q", 0, 16, 11)
    assert list(queue.pages) == [Page(1, 16, 4_352, 500, 500, 0)]
    subscription = queue.subscriptions[1]
    assert subscription.confirmed.gaps(1, 16) == [(3, 5), (6, 8), (10, 16)]
    assert list(subscription.counts) == [(3, 4, 1), (4, 5, 2), (12, 14, 1)]
    assert (subscription.mark, subscription.selector, subscription.pattern) == (20, "", 0)
    assert subscription.no_local is None
    assert not subscription.reserved
    assert not subscription.history
    assert (topic.bytes_quota, topic.tail, list(topic.subscriptions), topic.next_subscription) == (1 << 30, 5, [2], 3)
    assert not topic.priorities
    assert not topic.expiring
    assert (topic.retained_from, topic.awaited, len(topic.stages)) == (0, {}, 0)
    state.recovered()
    state.apply(15, Kind.PUBLISH, Publish(1, 2, 16, 16, PRODUCER + 20, 7, 0, 0, 9).encode(), 9_000, 100)
    assert state.destinations[1].tail == 18
    again = State(SEGMENT_BYTES)
    again.load(list(state.dump()))
    assert facts(again) == facts(state)


def test_a05_a_dump_holds_everything() -> None:
    log = rich()
    again = log.rebuilt(list(log.state.dump()), len(log.entries))
    assert facts(again) == facts(log.state)
    queue, topic = again.destinations[1], again.destinations[2]
    assert list(queue.priorities) == [(1, 11, 9)]
    assert queue.expiry_next_ms == 70_000
    assert queue.awaited == {PRODUCER + 1: (1, 10, 2)}
    assert queue.subscriptions[1].history == {4: [(8, "no")]}
    assert list(queue.subscriptions[1].reserved) == [(7, 9, 0)]
    assert [(one.number, one.due_ms, one.transaction) for one in queue.stages] == [(1, 90_000, b"")]
    assert [(one.name, one.selector, one.pattern, one.no_local) for one in topic.subscriptions.values()] == [
        ("p", "color = 'red'", 1, None),
        ("s", "number > 3", 0, True),
    ]
    assert topic.retained_from == 1
    assert again.transactions.stages == {TRANSACTION: {2: [1]}}
    assert list(again.transactions.prepared) == [TRANSACTION]
    assert again.policies.effective("t").quota_bytes == 1_000_000
    assert again.patterns[1].name == "p"
    again.recovered()
    assert list(queue.subscriptions[1].away) == [(7, 9, RESERVED)]


def test_a05_a_subscription_that_was_dumped_without_no_local_is_open_to_both() -> None:
    dumped = rich().state.destinations[2].subscriptions[2].dump()
    assert dumped[-1] is True
    assert Subscription.load(dumped).no_local is True
    assert Subscription.load(dumped[:-1]).no_local is None


@pytest.mark.parametrize("seed", range(4))
def test_a05_a_dump_of_a_random_life_holds_everything(seed: int) -> None:
    world = World(seed)
    world.run(300)
    again = State(world.segment_bytes)
    again.load(list(world.state.dump()))
    assert facts(again) == facts(world.state)


# --- moments ------------------------------------------------------------------------------------------


def test_a05_a_checkpoint_may_be_made_at_any_moments_while_entries_go_on() -> None:
    """Parts at every pair of moments; the replay begins where the checkpoint began."""
    whole = rich()
    for begin in range(len(whole.entries)):
        for middle in range(begin, len(whole.entries) + 1):
            log, parts = Log(), list[bytes]()
            dump: Iterator[bytes] = iter(())
            for number, entry in enumerate([*whole.entries, None]):
                if number == begin:
                    dump = log.state.dump()
                if number == middle:
                    parts.append(next(dump))
                if entry is not None:
                    log.state.apply(*entry)
            parts += list(dump)
            assert facts(whole.rebuilt(parts, begin)) == facts(log.state), (begin, middle)


def test_a05_a_destination_is_cut_into_pieces_that_are_joined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_PIECE_BYTES", 50)
    log = rich()
    dump = log.state.dump()
    parts, began = [next(dump)], len(log.entries)
    while (part := next(dump, None)) is not None:
        parts.append(part)
        log.publish(1, 1)
        log.publish(2, 1)
    assert len(parts) > 10
    assert max(map(len, parts)) < 80
    assert facts(log.rebuilt(parts, began)) == facts(log.state)


def test_a05_no_part_is_larger_than_a_record_may_be() -> None:
    log = Log()
    log.write(Kind.CREATE, Create(1, "queue", "q", 0))
    for _ in range(10_000):
        log.position += SEGMENT_BYTES
        log.publish(1, 1)
    parts = list(log.state.dump())
    assert len(parts) > 2
    assert max(map(len, parts)) <= limits.CHECKPOINT_PART_BYTES_MAX
    assert facts(log.rebuilt(parts, len(log.entries))) == facts(log.state)


@pytest.mark.parametrize("tables_after", range(4))
def test_a05_a_name_that_goes_and_comes_while_a_checkpoint_is_made_is_found(tables_after: int) -> None:
    log = Log()
    log.write(Kind.CREATE, Create(1, "queue", "other", 0))
    dump, parts, began = log.state.dump(), list[bytes](), len(log.entries)
    steps = [
        (Kind.CREATE, Create(2, "queue", "again", 0)),
        (Kind.DROP, Drop(2)),
        (Kind.CREATE, Create(3, "topic", "again", 0)),
    ]
    for number, (kind, entry) in enumerate(steps):
        if number == tables_after:
            parts.append(next(dump))
        log.write(kind, entry)
    again = log.rebuilt(parts + list(dump), began)
    assert again.destinations.keys() == {1, 3}
    found = again.find("again")
    assert found is not None
    assert found.identity == 3


def test_a05_tables_do_not_go_back_to_what_a_replay_passes_by() -> None:
    log = Log()
    dump = log.state.dump()
    for version in (1, 2):
        log.write(Kind.OUTCOME, Outcome([bytes([version]) * 24], True, 5, [], "key", version))
        log.write(Kind.POLICY, SetPolicy("glob:a*", {"quota_bytes": 1_000_000 * version}))
        log.write(Kind.PATTERN, SetPattern(1, "glob:a*", "p" if version == 1 else "", True))
    parts = list(dump)
    again = State(SEGMENT_BYTES)
    again.load(parts)
    for at, entry in enumerate(log.entries):
        again.apply(*entry)
        assert again.transactions.keys == {"key": 2}, at
        assert again.policies.effective("a").quota_bytes == 2_000_000
        assert not again.patterns
    assert facts(again) == facts(log.state)


# --- what went wrong once -----------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_b14_what_a_prepared_transaction_reserved_is_free_when_a_replay_decides_it(committed: bool) -> None:
    log = rich()
    parts, began = list(log.state.dump()), len(log.entries)
    ranges = [(1, [(7, 9)])]
    change = Change(1, first=21, confirmed=ranges) if committed else Change(1, first=21, returned=ranges)
    other = Change(2, visible=[(1, 2)], first=6) if committed else Change(2, dropped=[(1, 2)], first=6)
    log.write(Kind.OUTCOME, Outcome([TRANSACTION], committed, 10, [change, other]))
    for state in (log.state, log.rebuilt(parts, began)):
        state.recovered()
        subscription = state.destinations[1].subscriptions[1]
        assert not subscription.reserved
        assert not subscription.away
        assert subscription.confirmed.covers(7, 9) == committed
    assert facts(log.rebuilt(parts, began)) == facts(log.state)


def test_a08_a_page_that_grew_after_it_was_moved_is_whole_after_a_replay() -> None:
    """The part of the checkpoint knows the grown page, the replay begins before the move."""
    log = Log()
    log.write(Kind.CREATE, Create(1, "queue", "q", 0))
    log.publish(1, 2)
    queue = log.state.destinations[1]
    moves = [(log.position + 1_000, 80), (log.position + 2_000, 80)]
    for position, span in moves:
        assert queue.pages.move(1, position, span) is not None
        log.position = position + span
    log.publish(1, 3)
    grown = list(queue.pages)
    assert [(page.first, page.end, page.position, page.span) for page in grown] == [(1, 6, moves[1][0], 180)]
    again = log.rebuilt(list(log.state.dump()), len(log.entries))
    for position, span in moves:
        assert again.destinations[1].pages.move(1, position, span) is None
    assert list(again.destinations[1].pages) == grown
    assert again.destinations[1].pages.bytes_live == queue.pages.bytes_live


def test_b14_a_dropped_destination_leaves_nothing_in_the_table_of_transactions() -> None:
    log = rich()
    log.write(Kind.STAGE, Stage(Publish(1, 1, 0, 1, PRODUCER + 200), 2, 0, TRANSACTION))
    assert log.state.transactions.stages == {TRANSACTION: {2: [1], 1: [2]}}
    log.write(Kind.DROP, Drop(2))
    assert log.state.transactions.stages == {TRANSACTION: {1: [2]}}
    log.write(Kind.DROP, Drop(1))
    assert log.state.transactions.stages == {}


def test_a08_a_lost_body_is_lost_and_nothing_else() -> None:
    """Span 0 says that a body cannot be read: its messages count as confirmed, those around it are there."""
    log = Log()
    log.write(Kind.CREATE, Create(1, "queue", "q", 0))
    log.publish(1, 3)
    log.write(Kind.PUBLISH, Publish(1, 4, 4, 1, PRODUCER + 4), span=0)
    log.publish(1, 2)
    queue = log.state.destinations[1]
    assert queue.subscriptions[1].confirmed.gaps(1, queue.tail) == [(1, 4), (8, 10)]
    assert (queue.lost_messages, queue.depth()) == (4, 5)
    assert [(page.first, page.end) for page in queue.pages] == [(1, 4), (8, 10)]
    log.write(Kind.PUBLISH, Publish(1, 1, 15, 1, PRODUCER + 15))  # what was between is not even in the log
    assert (queue.lost_messages, queue.tail, queue.depth()) == (9, 16, 6)


def test_a07_a_subscription_that_is_gone_owes_nothing_in_a_replay() -> None:
    log = rich()
    log.write(Kind.UNSUBSCRIBE, Unsubscribe(2, 2))
    log.write(Kind.CONFIRM, Ranges(2, 2, [(1, 3)]))
    log.write(Kind.MARK, Mark(2, 2, 99))
    again = log.rebuilt([], 0)
    assert list(again.destinations[2].subscriptions) == [1]
    assert facts(again) == facts(log.state)
