"""What administrators look at: status, destinations, messages, consumers. Nothing here changes anything."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from clarion import ids, limits
from clarion.core.destination import Destination
from clarion.core.subscription import Subscription
from clarion.core.wellknown import DEAD
from clarion.nodes.message_manager.arguments import Arguments, find, number
from clarion.nodes.message_manager.ranging import Bounds, first_kept, owed_by_any
from clarion.nodes.message_manager.subscribing import filter_of

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_BROWSE_MESSAGES = 1_000
_BROWSE_BYTES = limits.MIB
_SLOW_MAX = 100
_STREAMS_MAX = 4
"""Incomplete large bodies that a destination is described with: as many as `_DESCRIPTION_BYTES` hold."""
_DESCRIPTION_BYTES = 512
"""What a destination or subscription takes in an answer, at most, with a name of the usual length."""


class Looking:
    """The verbs that only look; each answers with a result or an error."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self.verbs: dict[str, Callable[[Arguments], Awaitable[object]]] = {
            "status": self._status,
            "destinations": self._destinations,
            "browse": self._browse,
            "dead": self._dead,
            "consumers": self._consumers,
            "patterns": self._patterns,
            "policies": self._policies,
        }

    async def _status(self, _arguments: Arguments) -> object:
        host = self._host
        journal = host.journal.status()
        published_rate, confirmed_rate = host.upkeep.rates()
        destinations = [known for known in host.state.destinations.values() if not known.name.startswith("_")]
        dead = host.naming.system(DEAD)
        return {
            "node": host.settings.node.name,
            "uptime_s": round((time.time() * 1000 - host.started_ms) / 1000, 1),
            "destinations": len(destinations),
            "sessions": len(host.sessions),
            "depth": sum(destination.depth() for destination in destinations),
            "published": host.count("mm.published"),
            "confirmed": host.count("mm.confirmed"),
            "published_per_s": round(published_rate, 1),
            "confirmed_per_s": round(confirmed_rate, 1),
            "commits_in_place": journal.commits_here,
            "commit_us_p50": journal.commit_us_p50,
            "commit_us_p99": journal.commit_us_p99,
            "commits": journal.commits,
            "space": {
                "bytes_total": journal.bytes_total,
                "bytes_live": journal.bytes_live,
                "bytes_reserve": journal.bytes_reserve,
                "bytes_room": journal.room,
                "bytes_max": host.upkeep.capacity_bytes,
                "segments": journal.segments,
                "segments_free": journal.free_segments,
                "segment_bytes": journal.segment_bytes,
                "growth_blocked": journal.growth_blocked,
            },
            "producers_waiting": host.room.waiting,
            "dead_messages": dead.depth(),
            "prepared_transactions": len(host.state.transactions.prepared),
            "slow_consumers": self._slow(),
            "lost_messages": sum(destination.lost_messages for destination in destinations),
            "oldest": await self._oldest(),
            "warnings": list(journal.warnings),
        }

    async def _oldest(self) -> object:
        """The oldest unconfirmed message of all, and who holds it."""
        oldest: tuple[int, Destination] | None = None
        for destination in self._host.state.destinations.values():
            page = destination.pages.find(destination.floor())  # earlier ones are only retained
            if page is not None and (oldest is None or page.position < oldest[0]):
                oldest = (page.position, destination)
        if oldest is None:
            return None
        destination = oldest[1]
        sequence = destination.floor()
        batch = await self._host.reader.batch(destination, sequence)
        stored_ms = batch[1].time_ms(sequence - batch[0]) if batch else None
        return {
            "destination": str(destination),
            "sequence": sequence,
            "age_s": None if stored_ms is None else round(time.time() - stored_ms / 1000, 3),
            "held_by": self._holders(destination, sequence),
        }

    def _holders(self, destination: Destination, sequence: int) -> list[object]:
        return [
            {
                "subscription": subscription.name or None,
                "consumers": len(subscription.consumers),
                "in_flight": any(
                    consumer.inflight.overlap(sequence, sequence + 1) for consumer in subscription.consumers
                ),
            }
            for subscription in destination.subscriptions.values()
            if not subscription.confirmed.covers(sequence, sequence + 1)
        ]

    async def _destinations(self, arguments: Arguments) -> object:
        """As many as an answer holds, in the order of their names, after the one that is named."""
        after = arguments.get("after") or ""
        found = sorted(self._host.state.destinations.values(), key=lambda destination: destination.name)
        listed: list[object] = []
        room = limits.FRAME_BYTES_MAX // 2
        for destination in found:
            if destination.name <= after or (destination.name.startswith("_") and not arguments.get("system")):
                continue
            room -= _DESCRIPTION_BYTES * (1 + len(destination.subscriptions))
            if listed and room < 0:
                break
            listed.append(self.describe(destination))
        return listed

    def describe(self, destination: Destination) -> object:
        return {
            "name": destination.name,
            "kind": destination.kind,
            "depth": destination.depth(),
            "next_sequence": destination.tail,
            "bytes": destination.bytes_live,
            "streams": self._streams(destination),
            "delayed": sum(staged.batch.messages for staged in destination.stages if not staged.transaction),
            "retained_from": destination.retained_from or None,
            "bytes_quota": self._host.quota_bytes(destination),
            "lost_messages": destination.lost_messages,
            "subscriptions": [
                _describe_subscription(destination, subscription) for subscription in destination.subscriptions.values()
            ],
        }

    def _streams(self, destination: Destination) -> list[object]:
        """Large bodies on their way to it, those first of which something came last."""
        found = self._host.state.streams.incomplete(destination.identity)
        now_ms = self._host.now_ms()
        return [
            {"stream": stream.identity.hex(), "bytes": stream.size, "idle_ms": max(0, now_ms - stream.touched_ms)}
            for stream in sorted(found, key=lambda one: -one.touched_ms)[:_STREAMS_MAX]
        ]

    async def _browse(self, arguments: Arguments) -> object:
        destination = find(self._host.state, arguments)
        selector = filter_of(arguments)
        first = max(number(arguments, "from", 0), first_kept(destination), 1)
        bounds = Bounds(
            min(number(arguments, "messages", _BROWSE_MESSAGES), limits.BATCH_MESSAGES_MAX),
            min(number(arguments, "bytes", _BROWSE_BYTES), _BROWSE_BYTES),
        )
        run, owed = (first, destination.visible), partial(owed_by_any, destination)
        slices, at = await self._host.ranging.collect(destination, owed, run, bounds, selector)
        return {"slices": slices, "next": at if at < destination.visible else None}

    async def _dead(self, arguments: Arguments) -> object:
        return await self._browse({**arguments, "destination": DEAD})

    async def _consumers(self, arguments: Arguments) -> object:
        destination = find(self._host.state, arguments)
        return [
            {
                "session": ids.format_id(consumer.session),
                "subscription": subscription.name or None,
                "selector": None
                if consumer.view is None or consumer.view.selector is None
                else consumer.view.selector.canonical,
                "in_flight": consumer.held,
                "room": consumer.room,
                "paused": consumer.credit.paused,
            }
            for subscription in destination.subscriptions.values()
            for consumer in subscription.consumers
        ]

    def _slow(self) -> Sequence[object]:
        """Consumers that have no room although something waits for them."""
        return [
            {
                "destination": str(destination),
                "subscription": consumer.subscription.name or None,
                "session": ids.format_id(consumer.session),
                "in_flight": consumer.held,
                "waiting": consumer.subscription.depth(destination.visible) - consumer.held,
                "paused": consumer.credit.paused,
            }
            for destination, consumer in islice(self._host.slow.found(), _SLOW_MAX)
        ]

    async def _patterns(self, _arguments: Arguments) -> object:
        return [
            {"name": one.name, "pattern": one.pattern, "shared": one.shared, "selector": one.selector or None}
            for one in self._host.state.patterns.values()
        ]

    async def _policies(self, _arguments: Arguments) -> object:
        table = self._host.state.policies
        return {
            "file": [(pattern, policy.said()) for pattern, policy in table.file_rules()],
            "set": [(pattern, policy.said()) for pattern, policy in table.rules()],
        }


def _describe_subscription(destination: Destination, subscription: Subscription) -> object:
    return {
        "name": subscription.name or None,
        "durable": subscription.durable,
        "shared": subscription.shared,
        "depth": subscription.depth(destination.tail),
        "in_flight": sum(consumer.held for consumer in subscription.consumers),
        "consumers": len(subscription.consumers),
        "reader": subscription.reader != 0,
        "floor": subscription.confirmed.floor,
        "selector": subscription.selector or None,
    }
