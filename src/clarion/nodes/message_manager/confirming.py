"""Confirmations by those who read by sequences: of work that is done elsewhere.

Rules
    1. A confirmation needs no right, neither a reader nor the session that read: it is of work that is done.
    2. It is an entry of the log, answered when it is durable, and as good twice as once.
    3. It reaches neither beyond what is visible, nor what is on its way to the dead messages or belongs to a prepared
       transaction. A destination that is not there, or is another one now, is passed over.
    4. All of a request is checked before anything changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clarion import limits
from clarion.core.destination import Destination
from clarion.core.subscription import Range, Subscription
from clarion.errors import BadArgument
from clarion.message import parse_destination
from clarion.nodes.message_manager.arguments import Arguments, counted
from clarion.nodes.message_manager.ranging import subscription_of, unclaimed
from clarion.nodes.message_manager.sessions import Session

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager


class Confirming:
    """The verb `reader_confirm`."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host

    async def confirm(self, _session: Session, arguments: Arguments) -> object:
        """Confirm ranges of several destinations; those that are not there, or are others now, are passed over."""
        confirmed = 0
        for destination, subscription, wanted in self._checked(arguments):
            ranges = cut_visible(wanted, subscription, destination.visible)
            if not ranges:
                continue
            for at in range(0, len(ranges), limits.RANGES_PER_FRAME_MAX):
                part = ranges[at : at + limits.RANGES_PER_FRAME_MAX]
                self._host.consuming.log_confirm(destination, subscription, part)
            confirmed += sum(end - first for first, end in ranges)
            self._settle_later(destination, ranges)
        return {"confirmed": confirmed}

    def _settle_later(self, destination: Destination, ranges: list[Range]) -> None:
        def durable() -> None:
            self._host.consuming.settled(destination, ranges)
            self._host.delivery.wake(destination)

        self._host.log.after(durable)

    def _checked(self, arguments: Arguments) -> list[tuple[Destination, Subscription, list[Range]]]:
        """What a confirmation is of, all of it checked before anything changes."""
        name, said = arguments.get("subscription"), arguments["ranges"]
        if not isinstance(said, dict):
            raise BadArgument(argument="ranges", detail="it is not {destination: [identity, ranges]}")
        if sum(len(ranges) for _, ranges in said.values()) > limits.RANGES_PER_FRAME_MAX:
            raise BadArgument(argument="ranges", detail=f"at most {limits.RANGES_PER_FRAME_MAX}")
        every: list[tuple[Destination, Subscription, list[Range]]] = []
        for full_name, (identity, ranges) in said.items():
            if not isinstance(full_name, str):
                raise BadArgument(argument="ranges", detail="the name of a destination is not text")
            kind, plain = parse_destination(full_name, system=True)
            checked = [(counted("ranges", first), counted("ranges", end)) for first, end in ranges]
            destination = self._host.state.find(plain)
            if destination is None or (kind is not None and kind != destination.kind):
                continue
            if identity is not None and counted("identity", identity) != destination.identity:
                continue
            subscription = subscription_of(destination, name)
            if subscription is not None:
                every.append((destination, subscription, sorted(checked)))
        return every


def cut_visible(ranges: list[Range], subscription: Subscription, visible: int) -> list[Range]:
    """Only what is visible, not confirmed, and nobody else's. `ranges` ascend, and may overlap."""
    found: list[Range] = []
    reached = subscription.confirmed.floor
    for first, end in ranges:
        first, end = max(first, reached), min(end, visible)
        if first < end:
            reached = end
            if not subscription.confirmed.covers(first, end):
                found += unclaimed(subscription, (first, end))
    return found
