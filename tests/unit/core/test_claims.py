"""Consumers that come back claim what they hold, and subscriptions that went leave nothing behind (B-02)."""

from __future__ import annotations

from clarion.core.consumer import Consumer, Credit
from clarion.core.destination import TOPIC, Destination
from clarion.core.spans import Spans
from clarion.core.subscription import Range, Subscription
from clarion.selector import compile_selector


def consumer_of(subscription: Subscription, session: int, *, visibility_ms: int = 0) -> Consumer:
    return Consumer(session, 1, subscription, Credit(1_000, 1_000_000), visibility_ms=visibility_ms)


def deliver(consumer: Consumer, first: int, end: int, now_ms: int = 0) -> None:
    """As dispatch does: out of the view, and into the hands of a consumer."""
    assert consumer.view is not None
    consumer.view.take(first, end)
    list(consumer.subscription.deliver(consumer, first, end, 100, now_ms))


def next_ready(consumer: Consumer, limit: int) -> Range | None:
    assert consumer.view is not None
    return consumer.view.next_run(limit, Spans())


def queue() -> Subscription:
    return Subscription(1, "", durable=False, shared=True, start=1)


def test_b02_what_is_held_is_taken_from_an_earlier_life_whose_end_is_not_known_yet() -> None:
    subscription = queue()
    before, after = consumer_of(subscription, 1), consumer_of(subscription, 2)
    subscription.attach(before)
    deliver(before, 1, 21)
    subscription.confirm([(1, 6)], 21)
    assert subscription.attach(after, [(1, 11)]) == [(6, 11)]
    assert (before.held, after.held) == (10, 5)
    assert (before.credit.held, after.credit.held) == (10, 5)
    assert subscription.detach(before) == [(11, 21)]  # what it had not seen comes again, what is held does not
    assert next_ready(after, 21) == (11, 21)


def test_b02_claims_of_what_was_never_delivered_or_is_confirmed_are_passed_over() -> None:
    subscription = queue()
    gone, back = consumer_of(subscription, 1), consumer_of(subscription, 2)
    subscription.attach(gone)
    deliver(gone, 1, 11)
    subscription.confirm([(3, 5)], 11)
    subscription.detach(gone)
    assert subscription.attach(back, [(0, 8), (2, 4), (9, 1 << 62)]) == [(1, 3), (5, 8), (9, 11)]
    assert back.held == 7
    assert next_ready(back, 11) == (8, 9)


def test_b02_what_waits_for_its_time_can_be_claimed_what_is_reserved_or_dying_cannot() -> None:
    subscription = queue()
    gone, back = consumer_of(subscription, 1), consumer_of(subscription, 2)
    subscription.attach(gone)
    deliver(gone, 1, 11)
    subscription.reserve([(1, 3)])
    subscription.take_back(gone, [(3, 7)], due_ms=5_000)
    assert subscription.bury([(5, 7)]) == [(5, 7)]
    assert subscription.attach(back, [(1, 9)]) == [(3, 5), (7, 9)]
    assert (gone.held, back.held) == (2, 4)
    assert not subscription.come_due(6_000)


def test_b02_what_another_selector_has_not_come_to_can_be_claimed() -> None:
    """It came back while nobody was left who had passed it, so no list of what came back has it."""
    subscription = queue()
    red, other = compile_selector("color = 'red'"), compile_selector("color = 'blue'")
    gone, slow, back = (consumer_of(subscription, session) for session in (1, 2, 3))
    subscription.attach(slow, selector=other)
    subscription.attach(gone, selector=red)
    deliver(gone, 1, 6)
    subscription.detach(gone)
    assert subscription.attach(back, [(2, 5)], other) == [(2, 5)]
    assert slow.view is back.view
    ready = []
    while (run := next_ready(slow, 6)) is not None:
        ready.append(run)
        assert slow.view is not None
        slow.view.take(*run)
    assert ready == [(1, 2), (5, 6)]


def test_b04_who_claims_a_part_of_a_group_gets_no_more_of_it_while_another_holds_the_rest() -> None:
    subscription = queue()
    owner, back = consumer_of(subscription, 1), consumer_of(subscription, 2)
    subscription.attach(owner)
    view, group = owner.view, 7
    assert view is not None
    subscription.groups.known.put(1, 6, group)
    view.owners[group] = owner
    deliver(owner, 1, 6)
    assert subscription.attach(back, [(1, 3)]) == [(1, 3)]
    subscription.leave(owner)  # and keeps the rest of the group
    assert view.owners.get(group) is None
    assert subscription.groups.holder(group, view) is owner  # what is next waits for it
    subscription.confirm([(3, 6)], 6)
    assert subscription.groups.holder(group, view) is back
    subscription.confirm([(1, 3)], 6)
    assert subscription.groups.holder(group, view) is None


# --- times --------------------------------------------------------------------------------------------


def test_b04_what_comes_back_and_goes_to_the_same_consumer_again_has_a_time_of_its_own() -> None:
    subscription = queue()
    consumer = consumer_of(subscription, 1, visibility_ms=100)
    subscription.attach(consumer)
    deliver(consumer, 1, 4, now_ms=1_000)
    subscription.take_back(consumer, [(2, 3)])
    deliver(consumer, 2, 3, now_ms=1_050)
    assert consumer.overdue(1_099) == []
    assert consumer.overdue(1_100) == [(1, 2), (3, 4)]
    assert consumer.overdue(1_100) == []
    subscription.take_back(consumer, [(1, 2), (3, 4)])
    assert consumer.overdue(1_150) == [(2, 3)]


def test_b04_what_is_claimed_has_to_be_confirmed_in_time_too() -> None:
    subscription = queue()
    gone, back = consumer_of(subscription, 1), consumer_of(subscription, 2, visibility_ms=100)
    subscription.attach(gone)
    deliver(gone, 1, 4)
    assert subscription.attach(back, [(1, 3)], now_ms=2_000) == [(1, 3)]
    assert back.overdue(2_099) == []
    assert back.overdue(2_100) == [(1, 3)]


def test_b04_the_time_of_an_earlier_return_does_not_end_a_later_one() -> None:
    subscription = queue()
    first, second = consumer_of(subscription, 1), consumer_of(subscription, 2)
    subscription.attach(first)
    deliver(first, 1, 3)
    subscription.take_back(first, [(1, 3)], due_ms=1_000)
    assert subscription.attach(second, [(1, 3)]) == [(1, 3)]  # its own life before had given them back
    subscription.take_back(second, [(1, 3)], due_ms=5_000)
    assert not subscription.come_due(1_000)
    assert next_ready(second, 3) is None
    assert subscription.come_due(5_000)
    assert next_ready(second, 3) == (1, 3)


# --- subscriptions ------------------------------------------------------------------------------------


def test_a08_subscriptions_that_come_and_go_leave_nothing_behind() -> None:
    topic = Destination(1, TOPIC, "t", 1 << 20, 0)
    kept = topic.add_subscription("kept", durable=True, shared=False, start=1)
    for _ in range(10_000):
        topic.tail += 1
        plain = topic.add_subscription("", durable=False, shared=False, start=topic.tail)
        topic.remove_subscription(plain.identity)
    assert len(topic._floors) < 50
    assert topic.floor() == 1
    kept.confirm([(1, 500)], topic.tail)
    assert topic.floor() == 500
