"""Whose turn it is to be answered with much data: sessions in turn, each while its connection takes more.

Rules
    1. A session whose connection is full is passed over until it has drained, so nothing piles up for a slow reader.
    2. So many answers are made at a time over all sessions: neither memory nor other work suffers.
    3. The answers of one session begin in the order of its requests.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from clarion import limits
from clarion.nodes.message_manager.sessions import Session

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_BUS_WAITING_BYTES_MAX = 8 * limits.MIB
Work = Callable[[], Coroutine[Any, Any, None]]


class Turns:
    """Work of all sessions that waits or goes on."""

    def __init__(self, host: MessageManager, at_once_max: int) -> None:
        self._host = host
        self._at_once_max = at_once_max
        self._queues: OrderedDict[int, deque[Work]] = OrderedDict()
        """By session: the first has its turn next."""
        self._going_on = 0

    def add(self, session: Session, work: Work) -> None:
        """One more answer for a session, made when it is its turn."""
        self._queues.setdefault(session.identity, deque()).append(work)
        self.pump()

    def pump(self) -> None:
        """Begin what may be begun now."""
        sessions, bus = self._host.sessions, self._host.bus
        passed = 0
        while passed < len(self._queues) and self._going_on < self._at_once_max:
            if bus.waiting_bytes > _BUS_WAITING_BYTES_MAX:
                return  # upkeep comes again
            identity, queue = next(iter(self._queues.items()))
            self._queues.move_to_end(identity)
            session = sessions.find(identity)
            if session is None or not queue:
                del self._queues[identity]
            elif session.paused:
                passed += 1
            else:
                passed = 0
                self._going_on += 1
                self._host.spawn(self._do(queue.popleft()))

    async def _do(self, work: Work) -> None:
        try:
            await work()
        finally:
            self._going_on -= 1
        self.pump()

    def ended(self, session: Session) -> None:
        """Nobody waits for its answers any more."""
        self._queues.pop(session.identity, None)
