"""What must be true after every step: the real state and the naive model say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clarion import limits
from clarion.core.destination import Destination
from clarion.core.spans import Spans
from clarion.core.subscription import Subscription
from clarion.core.view import View
from tests.unit.core.model import (
    ASSIGNED,
    DYING,
    IN_FLIGHT,
    LATER,
    RESERVED,
    SELECTORS,
    ModelDestination,
    ModelSubscription,
    Place,
)

if TYPE_CHECKING:
    from tests.unit.core.model_clients import Clients


def check_all(host: Clients) -> None:
    """Everything."""
    state, model = host.state, host.live
    assert state.destinations.keys() == model.destinations.keys()
    for identity, destination in state.destinations.items():
        assert state.find(destination.name) is destination, "it cannot be found by its name"
        check_destination(host, identity)
        assert destination.awaited == model.destinations[identity].awaited
    table = state.transactions
    assert table.prepared == model.prepared
    assert table.outcomes == model.outcomes
    assert table.keys == model.keys
    staged = {
        (stage.transaction, identity, number)
        for identity, destination in model.destinations.items()
        for number, stage in destination.stages.items()
        if stage.transaction
    }
    known = {
        (transaction, identity, number)
        for transaction, places in table.stages.items()
        for identity, numbers in places.items()
        for number in numbers
    }
    assert known == staged, "which stages belong to whom"
    if host.is_synced:
        used = sum(destination.bytes_live for destination in state.destinations.values())
        assert host.bytes_live() == used, "the journal keeps other bytes than the destinations"
    for client in host.clients.values():
        credit, purse = client.consumer.credit, client.purse
        assert credit.held == sum(one.consumer.held for one in purse.clients)
        assert (credit.messages, credit.size) == (purse.messages, purse.size)


def check_readable(host: Clients) -> None:
    """What must be there can be read, every byte of it."""
    for identity, destination in host.state.destinations.items():
        model = host.live.destinations[identity]
        there = host.there(model)
        for page in destination.pages:
            wanted = there.intersection(range(page.first, page.end))
            if wanted and host.is_durable(page):
                copy = host.read(identity, page)
                for sequence in sorted(wanted):
                    found = copy.find(sequence)
                    assert found is not None, f"{sequence} of {destination} cannot be read"
                    assert bytes(found[1].record(sequence - found[0])[1]) == model.messages[sequence].body


def check_destination(host: Clients, identity: int) -> None:
    """One destination, with all that hangs on it."""
    destination, model = host.state.destinations.get(identity), host.live.destinations.get(identity)
    assert (destination is None) == (model is None)
    if destination is None or model is None:
        return
    assert destination.tail == model.tail
    assert destination.visible <= destination.tail
    assert destination.subscriptions.keys() == model.subscriptions.keys()
    for number, subscription in destination.subscriptions.items():
        check_subscription(host, destination, subscription, model, model.subscriptions[number])
    assert destination.floor() == model.floor
    assert destination.depth() == model.depth
    assert destination.retained_from == model.retained_from
    assert {(one.number, one.batch.messages, one.due_ms, one.transaction) for one in destination.stages} == {
        (number, len(stage.messages), stage.due_ms, stage.transaction) for number, stage in model.stages.items()
    }
    owed, there = model.owed(), host.there(model)
    check_pages(destination, owed, there, synced=host.is_synced)
    check_times(destination, model, owed & there)


def check_subscription(
    host: Clients,
    destination: Destination,
    subscription: Subscription,
    inside: ModelDestination,
    model: ModelSubscription,
) -> None:
    """Every message is in exactly one place, and in the right one."""
    tail = destination.tail
    entry = model.entry
    assert (subscription.name, subscription.shared, subscription.selector) == (entry.name, entry.shared, entry.selector)
    assert subscription.mark == model.mark
    confirmed = subscription.confirmed
    owed = [sequence for first, end in confirmed.gaps(confirmed.floor, tail) for sequence in range(first, end)]
    assert owed == sorted(model.owed), "what is confirmed"
    assert subscription.depth(tail) == len(owed)
    assert _expanded(subscription.counts) == {s: count for s, count in model.owed.items() if count}
    assert subscription.history == model.history
    assert _expanded(subscription.reserved).keys() == model.reserved
    places: dict[int, Place] = {}
    total = 0
    for consumer in subscription.consumers:
        client = host.clients[consumer]
        for spans, where in ((consumer.inflight, IN_FLIGHT), (consumer.assigned, ASSIGNED)):
            for first, end, _ in spans:
                total += end - first
                places.update(dict.fromkeys(range(first, end), (where, client)))
    for first, end, why in subscription.away:
        total += end - first
        places.update(dict.fromkeys(range(first, end), _away(why)))
    assert places == model.place, _difference(places, model.place)
    assert total == len(places), "something is in two places"
    for view in subscription.views.values():
        check_view(host, view, subscription, inside, model)


def _away(why: int) -> Place:
    if why in (2, 3):
        return (DYING if why == 2 else RESERVED), None
    return LATER, why


def check_view(
    host: Clients, view: View, subscription: Subscription, inside: ModelDestination, model: ModelSubscription
) -> None:
    """Ready is ready in every view that wants it."""
    assert view.cursor <= max(subscription.cursor, inside.tail)
    assert view.consumers or view.owners
    passed: list[int] = [n for first, end, _ in view.returned for n in range(first, end)]
    for priority, pool in (view._pools or {}).items():
        for first, end, _ in pool:
            passed += range(first, end)
            wrong = [n for n in range(first, end) if inside.messages[n].priority != priority]
            assert not wrong or host.there(inside).isdisjoint(wrong), "in the pool of another priority"
    ready = {n for n in model.owed if n < view.cursor and n not in model.place}
    seen = set(passed)
    assert len(seen) == len(passed), "twice in one view"
    if seen != ready:
        assert not seen - ready, f"{seen - ready} is not ready"
        selector = SELECTORS["" if view.selector is None else view.selector.canonical]
        assert not any(selector(inside.messages[n]) for n in ready - seen), "a message disappeared"


def check_pages(destination: Destination, owed: set[int], there: set[int], *, synced: bool) -> None:
    """What is owed is stored; what is stored is owed, or kept, or not durable yet."""
    held: set[int] = set()
    live = 0
    for page in destination.pages:
        live += page.live
        inside = range(page.first, page.end)
        held.update(inside)
        if synced and owed.isdisjoint(inside):
            kept = 0 < destination.retained_from < page.end
            assert kept or page.end > destination.visible, f"{page} is not freed"
    assert destination.pages.bytes_live == live
    lost = (owed & there) - held
    assert not lost, f"{sorted(lost)} is owed and not stored"


def check_times(destination: Destination, model: ModelDestination, stored: set[int]) -> None:
    """Priorities and times of what is owed are known."""
    messages = model.messages
    known = _expanded(destination.priorities)
    assert all(messages[n].priority == priority for n, priority in known.items())
    assert all(n in known for n in stored if messages[n].priority != limits.PRIORITY_DEFAULT), (
        "its priority is forgotten"
    )
    for _, _, step in destination.expiring:
        assert 0 < destination.expiry_next_ms <= step


def _expanded(spans: Spans) -> dict[int, int]:
    return {n: value for first, end, value in spans for n in range(first, end)}


def _difference(real: dict[int, Place], model: dict[int, Place]) -> str:
    return "\n".join(
        f"{n}: is {real.get(n)}, should be {model.get(n)}"
        for n in sorted(real.keys() | model.keys())
        if real.get(n) != model.get(n)
    )
