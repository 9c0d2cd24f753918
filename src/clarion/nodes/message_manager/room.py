"""Room: whether something more can be stored now, and who waits until there is room again.

Rules
    1. Nothing waits here: a refused producer has its answer, and its place in the order in which room is given.
    2. Producers are resumed first come, first served, as many as fit; one that left takes no room.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from clarion import limits
from clarion.core.destination import TOPIC, Destination
from clarion.core.policies import Effective
from clarion.nodes.message_manager.sessions import Session
from clarion.wire import frames

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_PAUSE_MESSAGES = 1_000
"""How far the slowest consumer of a topic may be behind before the topic pauses, if it is told to."""
_LOW_WATER = 0.9
"""Producers are resumed when a destination holds less than this part of its quota."""


class Room:
    """What limits admission, and the producers that it has refused."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._waiting: OrderedDict[tuple[int, int], int] = OrderedDict()
        """(destination, session) → refused sequence, in the order of refusal."""
        self.pending_bytes = 0
        """What was written to the journal and is not durable yet."""
        self._pending_bytes_max = host.settings.message_manager.publish_pending_bytes_max
        self._refusals = host.registry.counter(
            "mm.refusals", unit="batches", meaning="batches refused for want of room"
        )

    @property
    def waiting(self) -> int:
        """How many producers wait for room."""
        return len(self._waiting) + self._host.streaming.waiting

    def lacks(self, destination: Destination, size: int, policy: Effective | None = None) -> str | None:
        """Why nothing more of so many bytes can be stored now; None: it can."""
        quota, live = self._host.quota_bytes(destination, policy), destination.bytes_live
        if live and live + size > quota:  # one batch alone always fits
            self._host.retention.make_room(destination)
            return f"its quota of {quota} bytes is used up"
        if self._host.journal.room() < size:
            return "persistent memory is full"
        if self.pending_bytes + size > self._pending_bytes_max:
            return "too much is waiting for the disk"
        return self._behind(destination) if self._pauses(destination) else None

    def _pauses(self, destination: Destination) -> bool:
        """Is it a topic that waits for all its consumers?"""
        return destination.kind == TOPIC and self._host.policy(destination).pause_for_slowest

    @staticmethod
    def _behind(destination: Destination) -> str | None:
        """Why a topic pauses that waits for all its consumers."""
        for subscription in destination.subscriptions.values():
            consumers = subscription.consumers
            stuck = bool(consumers) and all(consumer.room <= 0 for consumer in consumers)
            if stuck and subscription.depth(destination.tail) >= _PAUSE_MESSAGES:
                return f"a consumer of {subscription.name or 'a plain subscription'} is behind"
        return None

    def refuse(self, session: Session, destination: Destination, first: int, reason: str) -> None:
        """The producer sends the batch that begins with `first` again, and what followed it, when it is resumed."""
        self._refusals.add()
        session.refusing[destination.identity] = first
        self._waiting[destination.identity, session.identity] = first
        payload = [frames.FLOOR.pack(first), frames.pack({"destination": str(destination), "reason": reason})]
        self._host.send(session.identity, frames.Type.REFUSED, payload)

    def let_pass(self, session: Session, destination: Destination) -> None:
        """The refused batch has its answer: what follows it is no longer dropped."""
        session.refusing.pop(destination.identity, None)
        self._waiting.pop((destination.identity, session.identity), None)

    def forget(self, session: Session) -> None:
        """A session is over: it waits for nothing."""
        for identity in session.refusing:
            self._waiting.pop((identity, session.identity), None)

    def resume(self) -> None:
        """Let producers go on that wait for room: first come, first served, as many as fit."""
        self._host.streaming.resume()
        if not self._waiting:
            return
        # A little more than none, so that nobody is resumed for one batch; little also of a small journal.
        margin = min(limits.PRODUCER_WINDOW_BYTES // 16, self._host.upkeep.capacity_bytes // 64)
        room = self._host.journal.room() - margin
        budget = min(room, self._pending_bytes_max - self.pending_bytes)
        granted: dict[int, int] = {}
        for (identity, session), first in list(self._waiting.items()):
            if budget <= 0:
                return
            destination = self._host.state.destinations.get(identity)
            if destination is None or self._host.sessions.find(session) is None:
                del self._waiting[identity, session]
                continue
            used = destination.bytes_live + granted.get(identity, 0)
            if used >= self._host.quota_bytes(destination) * _LOW_WATER:
                continue
            if self._pauses(destination) and self._behind(destination):
                continue
            granted[identity] = granted.get(identity, 0) + limits.PRODUCER_WINDOW_BYTES
            budget -= limits.PRODUCER_WINDOW_BYTES
            del self._waiting[identity, session]
            payload = [frames.FLOOR.pack(first), str(destination).encode()]
            self._host.send(session, frames.Type.RESUME, payload)
