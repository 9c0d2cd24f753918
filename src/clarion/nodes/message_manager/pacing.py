"""Fragments of large bodies make way for everything else: small messages beside a large one stay fast.

Theory of operation
    What is appended while the disk is busy is one commit. A large body has about a mebibyte on its way, so a message
    that comes beside it would wait for a commit of that size, and be in another one. While others append, only one
    fragment is on its way to the disk at a time, and the next one waits here. Nobody else there: nothing waits.

Rules
    1. Commands of a session keep their order: whatever asks about bodies first lets in what waits.
    2. What waits is bounded; beyond that it is let in.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from clarion import limits
from clarion.wire.commands import Command

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_OTHERS_S = 0.05
"""So long after an entry of something else, more of it is expected."""


class Pacing:
    """The fragments that wait for their turn."""

    def __init__(self, host: MessageManager, take: Callable[[Command], None]) -> None:
        self._host = host
        self._take = take
        self._held: deque[Command] = deque()
        self._held_bytes = 0

    def handle(self, command: Command) -> None:
        """FRAGMENT."""
        if not self._held and not self._is_crowded():
            self._take(command)
            return
        self._held.append(command)
        self._held_bytes += len(command.payload)
        if self._held_bytes > limits.FRAGMENTS_PENDING_BYTES_MAX:
            self.let_in_all()

    def step(self) -> None:
        """A fragment is durable, or it was not taken."""
        while self._held and not self._is_crowded():
            self._next()

    def let_in_all(self) -> None:
        """Nothing waits here afterwards."""
        while self._held:
            self._next()

    def ended(self, session: int) -> None:
        """A session is over, and what it sent and nobody has taken with it."""
        kept = [command for command in self._held if command.session != session]
        self._held = deque(kept)
        self._held_bytes = sum(len(command.payload) for command in kept)

    def _next(self) -> None:
        command = self._held.popleft()
        self._held_bytes -= len(command.payload)
        self._take(command)

    def _is_crowded(self) -> bool:
        """A fragment is on its way to the disk, and so is something else, or was a moment ago."""
        return self._host.streaming.pending_bytes > 0 and time.monotonic() - self._host.log.others_s < _OTHERS_S
