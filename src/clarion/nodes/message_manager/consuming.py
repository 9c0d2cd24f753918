"""Consuming: subscriptions, credit, confirmations, returns, and sessions that end.

Rules
    1. A confirmation of a durable subscription is logged; its answer leaves, and its pages are freed,
       when it is durable. Plain subscriptions are soft: their confirmations cost no entry.
    2. Whatever a session has in flight when it ends comes back, counted and flagged.
    3. Only what was delivered can be confirmed: ranges are cut at the subscription's cursor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clarion import limits
from clarion.core.destination import QUEUE, QUEUE_SUBSCRIPTION, TOPIC, Destination
from clarion.core.entries import Kind, Ranges, Subscribe, Unsubscribe
from clarion.core.subscription import Consumer, Range, Subscription
from clarion.errors import (
    BadArgument,
    ClarionError,
    JournalFull,
    LimitReached,
    NoSuchSubscription,
    SubscriptionInUse,
)
from clarion.message import check_name
from clarion.nodes.message_manager.sessions import Session
from clarion.wire import frames
from clarion.wire.commands import Command

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager


class Consuming:
    """The consuming side of a message manager."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        registry = host.registry
        self._confirmed = registry.counter("mm.confirmed", unit="messages", meaning="messages confirmed by consumers")
        self._returned = registry.counter("mm.returned", unit="messages", meaning="messages that came back")
        self._before = registry.test_point("mm.before_confirm", meaning="a confirmation is about to be logged")
        self._durable = registry.test_point("mm.before_confirmed", meaning="a confirmation is durable, not answered")

    # --- subscriptions --------------------------------------------------------------------------------

    def subscribe(self, command: Command) -> None:
        """SUBSCRIBE: attach a consumer, answered when what it needs is durable."""
        wanted = frames.unpack(command.payload)
        request = wanted["request"]
        session = self._host.sessions.get(command.session)
        try:
            destination = self._host.resolve(wanted["destination"])
            if wanted["consumer"] in session.consumers:
                raise BadArgument(argument="consumer", detail=f"{wanted['consumer']} is in use")
            if len(session.consumers) >= limits.CONSUMERS_PER_SESSION_MAX:
                raise LimitReached(what="consumers of a session", limit=limits.CONSUMERS_PER_SESSION_MAX)
            subscription = self._find_or_make(destination, wanted)
            consumer = Consumer(
                session.identity,
                wanted["consumer"],
                subscription,
                credit_messages=min(wanted["credit_messages"], limits.CONSUMER_CREDIT_MESSAGES_MAX),
                credit_bytes=min(wanted["credit_bytes"], limits.CONSUMER_CREDIT_BYTES_MAX),
                unconfirmed_max=wanted["unconfirmed_max"],
            )
        except ClarionError as error:
            self._host.fail(session.identity, request, error)
            return
        consumer.paused = session.paused
        held = subscription.attach(consumer, wanted.get("held") or ())
        session.consumers[consumer.number] = (destination, consumer)
        result = {"destination": str(destination), "kind": destination.kind, "held": held}
        self._host.log.after(lambda: self._host.reply(session.identity, request, result))
        self._host.delivery.wake(destination)

    def _find_or_make(self, destination: Destination, wanted: dict[str, Any]) -> Subscription:
        name, durable, shared = wanted.get("subscription"), wanted.get("durable"), wanted.get("shared")
        if destination.kind == QUEUE:
            if name or durable:
                raise BadArgument(argument="subscription", detail="a queue has no named subscriptions")
            return destination.subscriptions[QUEUE_SUBSCRIPTION]
        if (durable or shared) and not name:
            raise BadArgument(argument="subscription", detail="a durable or shared subscription needs a name")
        if not name:
            return self._make(destination, "", durable=False, shared=False)
        check_name(name)
        found = destination.find_subscription(name)
        if found is None:
            return self._make(destination, name, durable=bool(durable), shared=bool(shared))
        if found.durable != bool(durable) or found.shared != bool(shared):
            raise BadArgument(
                argument="subscription",
                detail=f"{name} is {_adjectives(found.durable, found.shared)}",
            )
        if not found.shared and any(not consumer.detached for consumer in found.consumers):
            raise SubscriptionInUse(destination=str(destination), subscription=name)
        return found

    def _make(self, destination: Destination, name: str, *, durable: bool, shared: bool) -> Subscription:
        if len(destination.subscriptions) >= limits.SUBSCRIPTIONS_PER_DESTINATION_MAX:
            raise LimitReached(what=f"subscriptions of {destination}", limit=limits.SUBSCRIPTIONS_PER_DESTINATION_MAX)
        start = destination.tail
        if not durable:
            return destination.add_subscription(name, durable=False, shared=shared, start=start)
        identity = destination.next_subscription
        entry = Subscribe(destination.identity, identity, name, shared, start)
        self._host.log.write(Kind.SUBSCRIBE, entry.encode())
        return destination.subscriptions[identity]

    def unsubscribe(self, command: Command) -> None:
        """UNSUBSCRIBE: what was prefetched and not seen goes back; the rest stays with the session."""
        wanted = frames.unpack(command.payload)
        session, request = command.session, wanted["request"]
        known = self._find(session, wanted["consumer"])
        if known is None:
            self._host.fail(session, request, BadArgument(argument="consumer", detail="there is none of this number"))
            return
        destination, consumer = known
        subscription = consumer.subscription
        subscription.take_back(consumer, [(first, end) for first, end in wanted.get("unseen") or ()])
        consumer.detached = True
        if not consumer.held:
            self._leave(session, destination, consumer)
        try:
            if wanted.get("delete") and destination.kind == TOPIC and subscription.durable:
                self.delete(destination, subscription)
        except ClarionError as error:
            self._host.fail(session, request, error)
        else:
            self._host.log.after(lambda: self._host.reply(session, request, None))
        self._host.delivery.wake(destination)

    def delete(self, destination: Destination, subscription: Subscription) -> None:
        """Remove a durable subscription that nobody uses."""
        if any(not consumer.detached for consumer in subscription.consumers):
            raise SubscriptionInUse(destination=str(destination), subscription=subscription.name)
        self._host.log.write(Kind.UNSUBSCRIBE, Unsubscribe(destination.identity, subscription.identity).encode())
        self._host.log.after(lambda: self._host.release(destination))

    def delete_by_name(self, destination: Destination, name: str) -> None:
        """Remove a durable subscription by its name."""
        found = destination.find_subscription(name)
        if found is None or not found.durable:
            raise NoSuchSubscription(destination=str(destination), subscription=name)
        self.delete(destination, found)

    # --- credit, confirmation, return -----------------------------------------------------------------

    def credit(self, command: Command) -> None:
        """CREDIT."""
        number, messages, size = frames.CREDIT.unpack_from(command.payload)
        known = self._find(command.session, number)
        if known is not None:
            known[1].add_credit(messages, size)
            self._host.delivery.wake(known[0])

    def flow(self, command: Command) -> None:
        """SESSION_FLOW: the session's connection is full, or has drained."""
        session = self._host.sessions.get(command.session)
        session.paused = bool(frames.unpack(command.payload)["paused"])
        for destination, consumer in session.consumers.values():
            consumer.paused = session.paused
            self._host.delivery.wake(destination)

    def confirm(self, command: Command) -> None:
        """CONFIRM."""
        number, request, ranges = frames.unpack_ack(command.payload)
        known = self._find(command.session, number)
        if known is None:
            self._unknown(command.session, request, number)
            return
        destination, consumer = known
        subscription = consumer.subscription
        ranges = _cut(ranges, subscription)
        subscription.hint = consumer
        if ranges:
            try:
                self._log_confirm(destination, subscription, ranges)
            except JournalFull as error:
                self._host.fail(command.session, request, error)
                return
        session = command.session

        def durable() -> None:
            self._durable()
            self._host.release(destination, ranges)
            if request:
                self._host.reply(session, request, None)

        self._host.log.after(durable) if subscription.durable else durable()
        if consumer.detached and not consumer.held:
            self._leave(session, destination, consumer)
        self._host.delivery.wake(destination)

    def _log_confirm(self, destination: Destination, subscription: Subscription, ranges: list[Range]) -> None:
        self._before()
        self._confirmed.add(sum(end - first for first, end in ranges))
        if subscription.durable:
            entry = Ranges(destination.identity, subscription.identity, ranges)
            self._host.log.write(Kind.CONFIRM, entry.encode())
        else:
            subscription.confirm(ranges, destination.tail)

    def reject(self, command: Command) -> None:
        """REJECT: they come again, to whoever is next."""
        number, request, ranges = frames.unpack_ack(command.payload)
        known = self._find(command.session, number)
        if known is None:
            self._unknown(command.session, request, number)
            return
        destination, consumer = known
        back = consumer.subscription.take_back(consumer, ranges)
        try:
            self._count(destination, consumer.subscription, back)
        except JournalFull as error:
            self._host.fail(command.session, request, error)
        else:
            if request:
                self._host.log.after(lambda: self._host.reply(command.session, request, None))
        if consumer.detached and not consumer.held:
            self._leave(command.session, destination, consumer)
        self._host.delivery.wake(destination)

    def _count(self, destination: Destination, subscription: Subscription, back: list[Range]) -> None:
        if not back:
            return
        self._returned.add(sum(end - first for first, end in back))
        if subscription.durable:
            entry = Ranges(destination.identity, subscription.identity, back)
            self._host.log.write(Kind.RETURN, entry.encode())
        else:
            subscription.count_return(back)

    def _find(self, session: int, number: int) -> tuple[Destination, Consumer] | None:
        known = self._host.sessions.find(session)
        return None if known is None else known.consumers.get(number)

    def _unknown(self, session: int, request: int, number: int) -> None:
        if request:
            self._host.fail(session, request, BadArgument(argument="consumer", detail=f"there is no {number}"))

    # --- ends -----------------------------------------------------------------------------------------

    def ended(self, session: Session) -> None:
        """All consumers of a session are gone."""
        for destination, consumer in session.consumers.values():
            back = consumer.subscription.detach(consumer)
            try:
                self._count(destination, consumer.subscription, back)
            except JournalFull:
                pass  # the mark flags them after a crash all the same
            self._forget_plain(destination, consumer.subscription)
            self._host.delivery.wake(destination)
        session.consumers.clear()

    def _leave(self, session: int, destination: Destination, consumer: Consumer) -> None:
        """A detached consumer holds nothing any more."""
        consumer.subscription.detach(consumer)
        known = self._host.sessions.find(session)
        if known is not None:
            known.consumers.pop(consumer.number, None)
        self._forget_plain(destination, consumer.subscription)

    def _forget_plain(self, destination: Destination, subscription: Subscription) -> None:
        if not subscription.durable and not subscription.consumers:
            destination.remove_subscription(subscription.identity)
            self._host.release(destination, [(subscription.confirmed.floor, destination.tail)])


def _cut(ranges: list[Range], subscription: Subscription) -> list[Range]:
    """Only what was delivered and is not confirmed."""
    floor, cursor = subscription.confirmed.floor, subscription.cursor
    cut = [(max(first, floor), min(end, cursor)) for first, end in ranges]
    return [(first, end) for first, end in cut if first < end and not subscription.confirmed.covers(first, end)]


def _adjectives(durable: bool, shared: bool) -> str:
    return f"{'durable' if durable else 'plain'} and {'shared' if shared else 'not shared'}"
