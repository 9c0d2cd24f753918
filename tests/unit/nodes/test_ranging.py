"""What a range owes to whom, against sets of sequences (D-01)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from clarion.core.consumer import Consumer, Credit
from clarion.core.destination import TOPIC, Destination
from clarion.core.subscription import DYING, RESERVED, Range, Subscription
from clarion.core.whereabouts import not_in_flight
from clarion.nodes.message_manager.confirming import cut_visible
from clarion.nodes.message_manager.ranging import first_kept, owed_by, owed_by_any, unclaimed

TAIL = 40
RANGES = st.lists(
    st.tuples(st.integers(1, TAIL), st.integers(1, TAIL)).map(lambda pair: (min(pair), max(pair))), max_size=6
)


def members(ranges: list[Range]) -> set[int]:
    return {one for first, end in ranges for one in range(first, end)}


def subscription_with(confirmed: list[Range], dying: list[Range], reserved: list[Range]) -> Subscription:
    subscription = Subscription(1, "s", durable=True, shared=False, start=1)
    subscription.confirm(confirmed, TAIL)
    subscription.reserve(reserved)
    subscription.bury(dying)
    return subscription


def every(owed: list[Range]) -> set[int]:
    assert all(first < end for first, end in owed)
    return members(owed)


def walk(subscription: Subscription, at: int, end: int) -> list[Range]:
    found: list[Range] = []
    while (run := owed_by(subscription, at, end)) is not None:
        assert at <= run[0] < run[1] <= end
        found.append(run)
        at = run[1]
    return found


@given(RANGES, RANGES, RANGES, st.integers(1, TAIL), st.integers(1, TAIL))
def test_d01_a_subscription_is_owed_what_is_neither_confirmed_nor_anybody_elses(
    confirmed: list[Range], dying: list[Range], reserved: list[Range], first: int, end: int
) -> None:
    subscription = subscription_with(confirmed, dying, reserved)
    gone = members(confirmed) | members(dying) | members(reserved)
    assert every(walk(subscription, first, end)) == set(range(first, end)) - gone
    away = {one for low, high, why in subscription.away for one in range(low, high) if why in (DYING, RESERVED)}
    assert every(unclaimed(subscription, (first, end)) if first < end else []) == set(range(first, end)) - away


@given(RANGES, RANGES, RANGES, RANGES, st.integers(1, TAIL))
def test_d01_a_confirmation_reaches_what_is_visible_and_not_what_dies(
    wanted: list[Range], confirmed: list[Range], dying: list[Range], reserved: list[Range], visible: int
) -> None:
    subscription = subscription_with(confirmed, dying, reserved)
    before = members(confirmed)
    others = (members(dying) | members(reserved)) - before
    ranges = cut_visible(sorted(wanted), subscription, visible)
    assert all(one[1] <= two[0] for one, two in pairwise(ranges))
    subscription.confirm(ranges, TAIL)
    now = {one for one in range(1, TAIL) if subscription.confirmed.covers(one, one + 1)}
    assert now == before | {one for one in members(wanted) if one < visible and one not in others}
    assert cut_visible(sorted(wanted), subscription, visible) == [] or others & members(wanted)


@given(st.lists(RANGES, max_size=3), st.integers(0, TAIL), st.integers(1, TAIL))
def test_d01_whatever_is_kept_is_owed_to_those_who_have_no_subscription(
    confirmed: list[list[Range]], retained_from: int, first: int
) -> None:
    destination = Destination(1, TOPIC, "t", 1 << 20, 0)
    destination.tail = destination.visible = TAIL
    destination.retained_from = retained_from
    for ranges in confirmed:
        destination.add_subscription("", durable=True, shared=False, start=1).confirm(ranges, TAIL)
    left: set[int] = set()
    for ranges in confirmed:
        left |= set(range(1, TAIL)) - members(ranges)
    at, found = max(first, first_kept(destination)), set()
    while (run := owed_by_any(destination, at, TAIL)) is not None:
        found |= set(range(*run))
        at = run[1]
    if retained_from:
        assert found == set(range(max(first, first_kept(destination)), TAIL))
    else:
        assert found == {one for one in left if one >= first}


@given(RANGES, st.integers(0, TAIL), RANGES)
def test_d01_what_a_reader_was_told_of_is_as_good_as_in_flight(
    inflight: list[Range], taken: int, confirmed: list[Range]
) -> None:
    destination = Destination(1, TOPIC, "t", 1 << 20, 0)
    destination.tail = destination.visible = TAIL
    subscription = destination.add_subscription("s", durable=True, shared=False, start=1)
    consumer = Consumer(1, 1, subscription, Credit(10, 10, 10))
    subscription.consumers.append(consumer)
    for first, end in inflight:
        if first < end:
            consumer.hold(first, end, 0)
    subscription.taken = taken
    free = every(not_in_flight(subscription, (1, TAIL)))
    assert free == {one for one in range(1, TAIL) if one >= taken} - members(inflight)
    subscription.confirm(confirmed, TAIL)
    held = destination.held_below()
    assert held == (max(taken, subscription.confirmed.floor) if taken else 0)
    destination.add_subscription("other", durable=True, shared=False, start=1)
    assert destination.held_below() == (1 if taken else 0)
