"""Large bodies make way for everything else: small messages beside a large one stay fast.

Theory of operation
    A body that streams at full speed keeps its sender, the server, its reader and the disk busy all the time: a small
    message would wait for a core, for a commit of a mebibyte, and be in another one. So while others are about, bodies
    have one fragment under way at a time, in whichever direction, and rest after it, several times as long as it took.
    A slow machine so makes longer rests, and most small messages meet no fragment. Nobody else there: nothing waits.

Rules
    1. Others are about as long as messages without a large body are published or confirmed, and a moment longer. What
       comes with bodies (their messages, the confirmations of those) does not count: bodies alone go at full speed.
    2. Commands of a session keep their order: whatever asks about bodies first lets in what waits.
    3. What waits is bounded; beyond that it is let in.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from clarion import limits
from clarion.wire.commands import Command

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

Turn = asyncio.Future[None]


class Pacing:
    """Fragments that wait for their turn: those that came, and those that are to be read."""

    def __init__(
        self, host: MessageManager, take: Callable[[Command], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._take = take
        self._clock = clock
        self._held: deque[Command | Turn] = deque()
        self._held_bytes = 0
        self._reads = 0
        self._began_s = -math.inf
        """When the fragment that is under way had its turn."""
        self._rests_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._rest = host.settings.message_manager.stream_rest
        self._waits = host.registry.counter(
            "mm.fragments_waited", unit="fragments", meaning="fragments that had to wait because others were about"
        )

    def others_about(self) -> bool:
        """Somebody publishes or confirms small messages, or did a moment ago. For any thread."""
        return self._clock() - self._host.log.others_s < limits.FRAGMENT_OTHERS_MS / 1000

    def shares(self) -> bool:
        """Bodies and others are about together: whatever a body needs is done gently. For any thread.

        A journal that grows for small messages alone grows as fast as it can: they would wait for its room.
        """
        return self._clock() - self._began_s < limits.FRAGMENT_OTHERS_MS / 1000 and self.others_about()

    def handle(self, command: Command) -> None:
        """FRAGMENT."""
        if not self._held and not self._is_crowded():
            self._begin(command)
            return
        self._waits.add()
        self._held.append(command)
        self._held_bytes += len(command.payload)
        if self._held_bytes > limits.FRAGMENTS_PENDING_BYTES_MAX:
            self.let_in_all()
        else:
            self._wait()

    async def begin_read(self) -> None:
        """Return when a fragment may be read; `end_read` comes after it."""
        if self._held or self._is_crowded():
            turn = asyncio.get_running_loop().create_future()
            self._waits.add()
            self._held.append(turn)
            self._wait()
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.end_read()
                raise
        else:
            self._begin(None)

    def end_read(self) -> None:
        """It was read, and handed on."""
        self._reads -= 1
        self.step()

    def step(self) -> None:
        """A fragment is durable, or was read."""
        now_s = self._clock()
        rest_s = min(self._rest * (now_s - self._began_s), limits.FRAGMENT_REST_MS_MAX / 1000)
        self._rests_until_s = now_s + rest_s
        self._pump()

    def let_in_all(self) -> None:
        """Nothing that came waits here afterwards."""
        came = [command for command in self._held if isinstance(command, Command)]
        self._held = deque(turn for turn in self._held if not isinstance(turn, Command))
        self._held_bytes = 0
        for command in came:
            self._begin(command)

    def ended(self, session: int) -> None:
        """A session is over, and what it sent and nobody has taken with it."""
        self._held = deque(one for one in self._held if not isinstance(one, Command) or one.session != session)
        self._held_bytes = sum(len(command.payload) for command in self._held if isinstance(command, Command))

    def close(self) -> None:
        """The message manager stops: what waits was not answered, and is sent again to the next one."""
        if self._timer is not None:
            self._timer.cancel()
        self._held.clear()
        self._held_bytes = 0

    def _pump(self) -> None:
        while self._held and not self._is_crowded():
            one = self._held.popleft()
            if isinstance(one, Command):
                self._held_bytes -= len(one.payload)
                self._begin(one)
            elif not one.done():
                one.set_result(None)
                self._begin(None)
        self._wait()

    def _begin(self, command: Command | None) -> None:
        self._began_s = self._clock()
        if command is None:
            self._reads += 1
        else:
            self._take(command)

    def _wait(self) -> None:
        """Come again when the rest is over; the end of what is under way comes by itself."""
        if self._held and self._timer is None and not self._is_busy():
            rest_ms = (self._rests_until_s - self._clock()) * 1000
            self._timer = self._host.later(max(rest_ms, 0), self._rested)

    def _rested(self) -> None:
        self._timer = None
        self._pump()

    def _is_busy(self) -> bool:
        return self._host.streaming.pending_bytes > 0 or self._reads > 0

    def _is_crowded(self) -> bool:
        """Others are about, and a fragment is under way or was a moment ago."""
        return (self._is_busy() or self._clock() < self._rests_until_s) and self.others_about()
