"""Consumers that are slow: they have no room although something waits for them.

Found by way of sessions and credits, never by way of destinations: there may be a hundred thousand of those, and
nearly all of them have nobody who is slow. The consumer of a pattern is one consumer, and named by one of its topics.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from clarion import ids
from clarion.core.consumer import Consumer
from clarion.core.destination import Destination
from clarion.nodes.logging import WARNING, event
from clarion.wire.frames import MERGED_NUMBER_MIN

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_SLOW_MS = 5_000
"""A consumer that has had no room for so long is called slow in the log."""
_TOPICS_MAX = 1_000
"""Topics of a pattern that are asked whether something waits in them."""
_log = logging.getLogger("clarion.mm")


class Slow:
    """Who is slow, and since when."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._since_ms: dict[Consumer, int] = {}
        self._named: set[Consumer] = set()

    def found(self) -> Iterator[tuple[Destination, Consumer]]:
        """Those that are slow now."""
        merging = self._host.merging
        for session in self._host.sessions:
            topics_count = sum(len(merging.numbers_of(session, number)) for number in session.merging)
            if len(session.consumers) > topics_count:  # else it has consumers of patterns only, perhaps of very much
                for number, (destination, consumer) in session.consumers.items():
                    if number < MERGED_NUMBER_MIN and consumer.is_slow(destination.visible):
                        yield destination, consumer
            for number, credit in session.merging.items():
                if credit.room <= 0:
                    topics = islice(merging.topics_of(session, number, credit.starved), _TOPICS_MAX)
                    yield from islice((one for one in topics if one[1].is_slow(one[0].visible)), 1)

    def step(self) -> None:
        """Say once of each consumer that it has been slow for long: called every second or so."""
        now_ms = self._host.now_ms()
        found = {consumer: destination for destination, consumer in self.found()}
        self._since_ms = {consumer: self._since_ms.get(consumer, now_ms) for consumer in found}
        self._named.intersection_update(found)
        for consumer, since_ms in self._since_ms.items():
            if now_ms - since_ms >= _SLOW_MS and consumer not in self._named:
                self._named.add(consumer)
                facts = {"destination": str(found[consumer]), "session": ids.format_id(consumer.session)}
                event(_log, WARNING, "slow_consumer", in_flight=consumer.held, **facts)
