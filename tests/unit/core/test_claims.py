"""Consumers that come back claim what they hold, and subscriptions that went leave nothing behind (B-02)."""

from __future__ import annotations

from clarion.core.destination import TOPIC, Destination
from clarion.core.subscription import Consumer, Subscription


def consumer_of(subscription: Subscription, session: int) -> Consumer:
    return Consumer(session, 1, subscription, credit_messages=1_000, credit_bytes=1_000_000)


def test_b02_what_is_held_is_taken_from_an_earlier_life_whose_end_is_not_known_yet() -> None:
    subscription = Subscription(1, "", durable=False, shared=True, start=1)
    before, after = consumer_of(subscription, 1), consumer_of(subscription, 2)
    subscription.attach(before)
    list(subscription.deliver(before, 1, 21, 100))
    subscription.confirm([(1, 6)], 21)
    assert subscription.attach(after, [(1, 11)]) == [(6, 11)]
    assert (before.held, after.held) == (10, 5)
    assert subscription.detach(before) == [(11, 21)]  # what it had not seen comes again, what is held does not
    assert subscription.next_ready(21) == (11, 21)


def test_b02_claims_of_what_was_never_delivered_or_is_confirmed_are_passed_over() -> None:
    subscription = Subscription(1, "", durable=False, shared=True, start=1)
    gone, back = consumer_of(subscription, 1), consumer_of(subscription, 2)
    subscription.attach(gone)
    list(subscription.deliver(gone, 1, 11, 100))
    subscription.confirm([(3, 5)], 11)
    subscription.detach(gone)
    assert subscription.attach(back, [(0, 8), (2, 4), (9, 1 << 62)]) == [(1, 3), (5, 8), (9, 11)]
    assert back.held == 7
    assert subscription.next_ready(11) == (8, 9)


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
