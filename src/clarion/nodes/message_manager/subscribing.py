"""Subscriptions: found or made for a consumer, changed, deleted.

Rules
    1. A durable subscription is an entry of the log; its consumer is answered when that is durable.
    2. The selector of a topic's subscription belongs to the subscription: what it does not select counts as
       confirmed. A queue's consumers have selectors of their own.
    3. A durable subscription whose consumer comes with another selector or another no-local is a new one (JMS 2.0,
       8.3.3). One that is shared has no no-local: what one consumer leaves out, another would miss.
    4. A durable subscription and one that is not are two, whatever their names are (JMS 2.0, 8.3.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from clarion import limits
from clarion.core.destination import QUEUE, QUEUE_SUBSCRIPTION, Destination
from clarion.core.entries import Kind, Subscribe, Unsubscribe
from clarion.core.subscription import Subscription
from clarion.core.view import Filter
from clarion.errors import BadArgument, LimitReached, NoSuchSubscription, SubscriptionInUse
from clarion.message import check_name
from clarion.selector import compile_selector

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

Wanted = dict[str, Any]


class Subscribing:
    """Which subscription a consumer gets."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host

    def find_or_make(self, destination: Destination, wanted: Wanted) -> tuple[Subscription, Filter | None]:
        """The subscription, and the selector to see it through. Raises what is wrong with what is wanted."""
        selector = filter_of(wanted)
        if destination.kind == QUEUE:
            for argument in ("subscription", "durable", "start", "start_ms", "no_local"):
                if wanted.get(argument):
                    raise BadArgument(argument=argument, detail="a queue has one subscription, from its first message")
            own = destination.subscriptions[QUEUE_SUBSCRIPTION]
            if own.reader:
                raise SubscriptionInUse(destination=str(destination), subscription=own.name)
            return own, selector
        return self._of_topic(destination, wanted), selector

    def _of_topic(self, destination: Destination, wanted: Wanted) -> Subscription:
        name, durable, shared = wanted.get("subscription"), bool(wanted.get("durable")), bool(wanted.get("shared"))
        if (durable or shared) and not name:
            raise BadArgument(argument="subscription", detail="a durable or shared subscription needs a name")
        text, no_local = canonical(wanted), no_local_of(wanted)
        start = start_of(destination, wanted)
        if not name:
            return self.make(destination, "", durable=False, shared=False, start=start, selector=text)
        check_name(name)
        found = named(destination, name, durable=durable)
        if found is None:
            return self.make(
                destination, name, durable=durable, shared=shared, start=start, selector=text, no_local=no_local
            )
        if found.shared != shared:
            raise BadArgument(argument="subscription", detail=f"{name} is {'shared' if found.shared else 'not shared'}")
        in_use = found.in_use
        if in_use and (found.reader or not found.shared):
            raise SubscriptionInUse(destination=str(destination), subscription=name)
        if found.selector == text and found.no_local in (None, no_local):
            return found
        if in_use:
            raise BadArgument(argument="selector", detail=f"{name} has consumers with the selector {found.selector!r}")
        if durable:
            self.delete(destination, found)
        else:
            destination.remove_subscription(found.identity)
        return self.make(
            destination, name, durable=durable, shared=shared, start=start, selector=text, no_local=no_local
        )

    def make(
        self,
        destination: Destination,
        name: str,
        *,
        durable: bool,
        shared: bool,
        start: int,
        selector: str = "",
        pattern: int = 0,
        no_local: bool | None = None,
    ) -> Subscription:
        """A new subscription."""
        if len(destination.subscriptions) >= limits.SUBSCRIPTIONS_PER_DESTINATION_MAX:
            raise LimitReached(what=f"subscriptions of {destination}", limit=limits.SUBSCRIPTIONS_PER_DESTINATION_MAX)
        if not durable:
            return destination.add_subscription(name, durable=False, shared=shared, start=start, selector=selector)
        identity = destination.next_subscription
        entry = Subscribe(destination.identity, identity, name, shared, start, selector, pattern, no_local)
        self._host.log.write(Kind.SUBSCRIBE, entry.encode())
        return destination.subscriptions[identity]

    def delete(self, destination: Destination, subscription: Subscription) -> None:
        """Remove a durable subscription that nobody uses."""
        if subscription.in_use:
            raise SubscriptionInUse(destination=str(destination), subscription=subscription.name)
        self._host.log.write(Kind.UNSUBSCRIBE, Unsubscribe(destination.identity, subscription.identity).encode())
        self._host.log.after(lambda: self._host.freeing.release(destination, [(1, destination.tail)]))

    def delete_by_name(self, destination: Destination, name: str) -> None:
        """Remove a durable subscription by its name."""
        found = named(destination, name, durable=True)
        if found is None:
            raise NoSuchSubscription(destination=str(destination), subscription=name)
        self.delete(destination, found)

    def forget_plain(self, destination: Destination, subscription: Subscription) -> None:
        """A plain subscription ends with its last consumer: it collects no more.

        What that one has in flight is nobody else's any more, and can be confirmed or given back. The body of a
        large message is read from here until then, so that keeps the subscription.
        """
        if subscription.durable or subscription.in_use:
            return
        if not _in_flight(subscription, destination.large):
            destination.remove_subscription(subscription.identity)
            self._host.freeing.release(destination, [(subscription.confirmed.floor, destination.tail)])


def named(destination: Destination, name: str, *, durable: bool) -> Subscription | None:
    """By its name, among those that are durable or among those that are not."""
    every = destination.subscriptions.values()
    return next((found for found in every if name and found.name == name and found.durable == durable), None)


def start_of(destination: Destination, wanted: Wanted) -> int:
    """Where a new subscription begins: with what comes, or with what is retained from a sequence or a time on."""
    start, start_ms = wanted.get("start"), wanted.get("start_ms")
    if start is None and start_ms is None:
        return destination.tail
    kept = destination.retained_from or destination.floor()
    if start_ms is not None:
        found = destination.pages.since(start_ms)
        start = max(start or 0, destination.tail if found is None else found)
    return min(max(start or 0, kept, 1), destination.tail)


def filter_of(wanted: Wanted) -> Filter | None:
    """The selector that somebody wants; None for none. Raises `BadSelector`."""
    text = wanted.get("selector")
    if not text:
        return None
    if not isinstance(text, str):
        raise BadArgument(argument="selector", detail="it is not text")
    selector = compile_selector(text)
    return None if selector.is_trivial else selector


def canonical(wanted: Wanted) -> str:
    """The selector as text, the same for all that mean the same."""
    selector = filter_of(wanted)
    return "" if selector is None else selector.canonical


def no_local_of(wanted: Wanted) -> bool:
    """Whether what the own connection sends is left out. Raises `BadArgument` where several connections share."""
    no_local = bool(wanted.get("no_local"))
    if no_local and wanted.get("shared"):
        raise BadArgument(argument="no_local", detail="a shared subscription is not of one connection")
    return no_local


def _in_flight(subscription: Subscription, sequences: Iterable[int]) -> bool:
    return any(
        consumer.inflight.overlap(sequence, sequence + 1)
        for sequence in sequences
        for consumer in subscription.consumers
    )
