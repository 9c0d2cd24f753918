"""Turns of a destination, case by case: credit, groups, fairness, and what is not there (B-04, B-13, A-07)."""

from __future__ import annotations

from typing import Any

import pytest

from clarion.core import sift
from clarion.core.cache import PageCache
from clarion.core.consumer import Consumer, Credit
from clarion.core.destination import QUEUE, QUEUE_SUBSCRIPTION, TOPIC, Destination
from clarion.core.dispatch import dispatch
from clarion.core.entries import Publish
from clarion.core.subscription import Subscription
from clarion.core.turn import Turn
from clarion.message import Headers, encode_headers
from clarion.selector import compile_selector
from clarion.wire.batch import Batch, encode

SEGMENT_BYTES = 1 << 20
PRODUCER = 9 << 48


class Desk:
    """One destination, everything durable at once."""

    def __init__(self, kind: str = QUEUE, cache_bytes: int = 1 << 30) -> None:
        self.destination = Destination(1, kind, "d", SEGMENT_BYTES, 0)
        self.cache = PageCache(cache_bytes)
        self.position = 4_096
        self._number = 0

    @property
    def queue(self) -> Subscription:
        return self.destination.subscriptions[QUEUE_SUBSCRIPTION]

    def subscribe(self, name: str, start: int = 1) -> Subscription:
        return self.destination.add_subscription(name, durable=False, shared=True, start=start)

    def publish(
        self,
        count: int = 1,
        *,
        groups: list[int] | None = None,
        priority: int = 4,
        colors: str = "",
        expiry_ms: int = 0,
    ) -> None:
        """Messages of 100 bytes, each batch on a page of its own; a color is a letter."""
        first = self.destination.tail
        headers = [encode_headers(Headers(properties={"color": color})) for color in colors] or None
        count = len(groups or colors) or count
        bodies = [b"x" * 100] * count
        data = bytes(
            encode(
                b"queue:d",
                PRODUCER + first,
                bodies,
                headers,
                groups,
                priority=priority,
                expiry_first_ms=expiry_ms,
                expiry_last_ms=expiry_ms,
            )
        )
        batch = Batch.parse(data)
        self.position += SEGMENT_BYTES
        entry = Publish(1, count, first, 1, PRODUCER + first, 0, expiry_ms, expiry_ms, priority)
        self.destination.apply_publish(entry, self.position, len(data))
        self.destination.visible = self.destination.tail
        self.cache.published(1, first, False, first, batch)

    def consumer(
        self,
        subscription: Subscription | None = None,
        messages: int = 1_000,
        size: int = 1 << 20,
        *,
        selector: str = "",
        held: list[tuple[int, int]] | None = None,
    ) -> Consumer:
        self._number += 1
        subscription = subscription or self.queue
        subscription.mark_durable = 1 << 40
        made = Consumer(1, self._number, subscription, Credit(messages, size))
        subscription.attach(made, held or (), compile_selector(selector) if selector else None)
        return made

    def turn(self, bytes_max: int = 1 << 20, now_ms: int = 1_000) -> tuple[dict[int, list[int]], Turn]:
        """Consumer → sequences, in their order; and the turn itself."""
        turn = dispatch(self.destination, self.cache, bytes_max, now_ms)
        got: dict[int, list[int]] = {}
        for consumer, slices in turn.deliveries.items():
            for first, _, _, parts in slices:
                count = Batch.parse(b"".join(parts)).count
                got.setdefault(consumer.number, []).extend(range(first, first + count))
        return got, turn

    def got(self, **options: Any) -> dict[int, list[int]]:
        return self.turn(**options)[0]

    def confirm(self, subscription: Subscription, *sequences: int) -> None:
        ranges = [(sequence, sequence + 1) for sequence in sequences]
        subscription.confirm(ranges, self.destination.tail)
        self.destination.release(ranges)


# --- credit -------------------------------------------------------------------------------------------


def test_b13_credit_holds_where_batches_with_and_without_groups_take_turns() -> None:
    """A batch with groups may use up the credit of others than the consumer whose turn it was."""
    desk = Desk()
    for _ in range(4):
        desk.publish(groups=[0, 0])
        desk.publish(2)
    small, large = desk.consumer(messages=3), desk.consumer(messages=6)
    got = desk.got()
    assert (len(got[small.number]), len(got[large.number])) == (3, 6)
    assert (small.credit.messages, large.credit.messages) == (0, 0)


@pytest.mark.parametrize("groups", [None, [0] * 5, [1] * 5])
def test_b13_one_message_may_be_larger_than_the_credit_and_only_one(groups: list[int] | None) -> None:
    desk = Desk()
    desk.publish(5, groups=groups)
    consumer = desk.consumer(size=150)
    assert desk.got() == {1: [1, 2]}
    assert consumer.credit.size == -50
    assert desk.got() == {}
    consumer.credit.add(0, 50)
    assert desk.got() == {}
    consumer.credit.add(0, 1)
    assert desk.got() == {1: [3]}


def test_b13_an_owner_without_room_is_woken_by_its_own_credit() -> None:
    desk = Desk()
    owner = desk.consumer(messages=2)
    desk.publish(groups=[1])
    assert desk.got() == {owner.number: [1]}
    other = desk.consumer()
    desk.publish(groups=[1, 1, 1, 2])
    assert desk.got() == {owner.number: [2], other.number: [5]}
    assert [span[:2] for span in owner.assigned] == [(3, 5)]
    assert owner.credit.starved == {1}
    owner.credit.add(1, 0)
    assert desk.got() == {owner.number: [3]}


# --- groups -------------------------------------------------------------------------------------------


def test_b04_messages_without_a_group_wait_for_nobody() -> None:
    """Also while what is assigned to the next consumer cannot be read yet."""
    desk = Desk()
    owner = desk.consumer(messages=1)
    desk.publish(groups=[1])
    assert desk.got() == {owner.number: [1]}
    other = desk.consumer(messages=1)
    desk.publish(groups=[1])
    desk.publish(groups=[2])
    assert desk.got() == {other.number: [3]}
    assert [span[:2] for span in owner.assigned] == [(2, 3)]
    desk.publish(groups=[0, 0])
    desk.cache.drop(1, 2)
    owner.credit.add(10, 0)
    got, turn = desk.turn()
    assert [page.first for page in turn.missing] == [2]
    assert got == {owner.number: [4, 5]}
    assert [span[:2] for span in owner.assigned] == [(2, 3)]


def test_b04_of_what_is_assigned_the_higher_priority_comes_first() -> None:
    desk = Desk()
    owner = desk.consumer(messages=1)
    desk.publish(groups=[1], priority=9)
    assert desk.got() == {owner.number: [1]}
    desk.consumer()
    desk.publish(groups=[1, 1], priority=4)
    desk.publish(groups=[1, 1], priority=9)
    desk.publish(groups=[1, 1], priority=0)
    assert desk.got() == {}
    assert owner.assigned.total() == 6
    owner.credit.add(5, 0)
    assert desk.got() == {owner.number: [4, 5, 2, 3, 6]}


def test_b04_what_expires_while_it_is_assigned_is_set_aside_and_the_rest_comes() -> None:
    desk = Desk()
    owner = desk.consumer(messages=1)
    desk.publish(groups=[1])
    desk.got()
    desk.consumer()
    desk.publish(groups=[1], expiry_ms=1_500)
    desk.publish(groups=[1])
    desk.got()
    owner.credit.add(5, 0)
    got, turn = desk.turn(now_ms=2_000)
    assert got == {owner.number: [3]}
    assert [run for _, run in turn.expired] == [(2, 3)]


def test_b04_a_group_waits_for_a_consumer_that_has_left_and_still_holds_some_of_it() -> None:
    desk = Desk()
    leaving, other = desk.consumer(), desk.consumer(messages=0)
    desk.publish(groups=[1, 2])
    assert desk.got() == {leaving.number: [1, 2]}
    other.credit.add(100, 0)
    leaving.credit.detached = True
    desk.queue.leave(leaving)
    desk.publish(groups=[1, 2, 3])
    assert desk.got() == {other.number: [5]}
    desk.confirm(desk.queue, 1)
    assert desk.got() == {other.number: [3]}
    desk.queue.take_back(leaving, [(2, 3)])
    assert desk.got() == {other.number: [2, 4]}
    desk.queue.detach(leaving)
    assert not desk.queue.groups.bound


def test_b04_whoever_claims_messages_of_a_group_gets_the_next_ones() -> None:
    desk = Desk()
    before = desk.consumer()
    desk.publish(groups=[1, 2])
    assert desk.got() == {before.number: [1, 2]}
    back, other = desk.consumer(held=[(1, 3)]), desk.consumer()
    desk.queue.detach(before)
    desk.publish(groups=[1, 2, 1])
    assert desk.got() == {back.number: [3, 4, 5]}
    assert other.held == 0


def test_b04_whoever_claims_a_part_of_a_group_gets_it_when_the_rest_comes_back() -> None:
    desk = Desk()
    before = desk.consumer()
    desk.publish(groups=[1, 1])
    desk.got()
    back, other = desk.consumer(held=[(1, 2)]), desk.consumer()
    desk.publish(groups=[1])
    assert desk.got() == {before.number: [3]}  # it still has the second one, as far as anybody knows
    desk.queue.detach(before)
    assert desk.got() == {back.number: [2, 3]}
    assert other.held == 0


def test_b04_an_owner_with_too_much_waiting_holds_up_its_view_and_turns_are_not_wasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sift, "_ASSIGNED_SPANS_MAX", 2)
    desk = Desk()
    owner = desk.consumer(messages=1)
    desk.publish(groups=[1])
    assert desk.got() == {owner.number: [1]}
    other = desk.consumer()
    desk.publish(groups=[1, 2, 1, 2, 1, 2])
    got, turn = desk.turn()
    assert got == {other.number: [3, 5]}
    assert not turn.more
    assert owner.credit.starved == {1}
    for _ in range(2):
        got, turn = desk.turn(bytes_max=1)
        assert not got
        assert not turn.more  # or the host would turn for ever
    owner.credit.add(100, 0)
    got = desk.got()
    assert (got[owner.number], got[other.number]) == ([2, 4, 6], [7])


# --- fairness -----------------------------------------------------------------------------------------


def test_a07_a_subscription_that_could_take_every_turn_leaves_some_to_others() -> None:
    desk = Desk(TOPIC)
    consumers = [desk.consumer(desk.subscribe(name)) for name in "abc"]
    for _ in range(50):
        desk.publish(2)
    for _ in range(6):
        assert desk.turn(bytes_max=500)[1].more
    assert [consumer.held for consumer in consumers] == [12, 12, 12]


def test_a07_a_selector_that_could_take_every_turn_leaves_some_to_others() -> None:
    desk = Desk()
    red, blue = desk.consumer(selector="color = 'r'"), desk.consumer(selector="color = 'b'")
    for _ in range(10):
        desk.publish(colors="rrrrrbbbbb")
    for _ in range(4):
        desk.turn(bytes_max=300)
    assert red.held > 0
    assert blue.held > 0


def test_a07_looking_at_messages_does_not_use_up_a_turn() -> None:
    desk = Desk()
    consumer = desk.consumer(selector="color = 'r'")
    desk.publish(colors="b" * 500 + "r")
    got, turn = desk.turn(bytes_max=1)
    assert got == {consumer.number: [501]}
    assert turn.more


# --- what is not there --------------------------------------------------------------------------------


def test_a08_a_subscription_that_begins_where_pages_were_freed_costs_nobody_else_a_message() -> None:
    desk = Desk(TOPIC)
    slow = desk.subscribe("slow")
    for _ in range(5):
        desk.publish(2)
    desk.confirm(slow, 3, 4, 5, 6)
    assert [(page.first, page.end) for page in desk.destination.pages] == [(1, 3), (7, 9), (9, 11)]
    late = desk.subscribe("late", start=3)
    desk.consumer(late)
    got, turn = desk.turn()
    assert not got
    assert turn.damaged == [(3, 7)]
    desk.destination.apply_discard(turn.damaged)
    assert slow.confirmed.gaps(1, 11) == [(1, 3), (7, 11)]
    assert desk.got() == {1: [7, 8, 9, 10]}


def test_a08_freed_pages_are_passed_over_by_whoever_looks_ahead() -> None:
    desk = Desk(TOPIC)
    slow = desk.subscribe("slow")
    for _ in range(5):
        desk.publish(2)
    desk.confirm(slow, 3, 4, 5, 6)
    pages = desk.destination.pages
    assert [page.first for page in pages.following(1, 1)] == [7]
    assert [page.first for page in pages.following(1, 9)] == [7, 9]
    assert pages.following(9, 1) == []
