"""The bus within one process: endpoints of one hub on one event loop.

It keeps the guarantees of `interface` by one queue: everything that is published, joined or left, by
whomever, waits in it and takes effect in one callback per turn of the loop. What is published while
that callback runs waits for the next turn, so a conversation between two endpoints never starves the
sockets, and nothing is ever called from within a call.

A lone message need not wait for the turn to end: whoever publishes it says when it is done (`release`), and if
the last burst was no larger, nobody else is likely to have something in the same turn. So a producer that waits for
each answer saves two turns of the loop, and many of them still share bursts, and commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from clarion.bus.interface import Receive, Watch

_log = logging.getLogger(__name__)
_FAILED = "a callback of the bus failed"


class _Entry:
    """A subscription, a membership or a watch: alive until closed."""

    __slots__ = ("_end", "alive")

    def __init__(self, end: Callable[[], None]) -> None:
        self.alive = True
        self._end: Callable[[], None] | None = end

    def close(self) -> None:
        end, self._end, self.alive = self._end, None, False
        if end is not None:
            end()


class _Receiver(_Entry):
    __slots__ = ("callback", "owner")

    def __init__(self, owner: LoopbackBus, callback: Receive, end: Callable[[], None]) -> None:
        super().__init__(end)
        self.owner = owner
        self.callback = callback


class _Watcher(_Entry):
    __slots__ = ("callback",)

    def __init__(self, callback: Watch, end: Callable[[], None]) -> None:
        super().__init__(end)
        self.callback = callback


class LoopbackHub:
    """What the endpoints of one process share. Made on the loop that it serves."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.queue: deque[tuple[LoopbackBus, str, bytes] | Callable[[], None]] = deque()
        self.waking = False
        self.held = False
        self._handing_out = False
        self._lone = False
        """The last burst was one message."""
        self.receivers: dict[str, tuple[_Receiver, ...]] = {}
        """By channel; replaced when somebody comes or goes, so that what is being handed out goes on as it began."""
        self.watchers: list[_Watcher] = []
        self.members: dict[str, None] = {}

    def endpoint(self) -> LoopbackBus:
        """A new endpoint, as if it were in a process of its own."""
        return LoopbackBus(self)

    def put(self, item: tuple[LoopbackBus, str, bytes] | Callable[[], None]) -> None:
        """Deliver (sender, channel, data), or do something, after all that was put before."""
        self.queue.append(item)
        if not self.waking and not self.held:
            self.wake()

    def wake(self) -> None:
        """Hand out what waits in the next turn of the loop."""
        self.waking = True
        self._loop.call_soon(self._hand_out)

    def hold(self) -> None:
        """What is put from now on waits for `release`."""
        self.held = True

    def release(self) -> None:
        """Hand out what was held: now, or in the next turn of the loop."""
        self.held = False
        if self.queue and not self.waking:
            if self._lone and len(self.queue) == 1 and not self._handing_out:
                self._hand_out()
            else:
                self.wake()

    def tell(self, name: str, there: bool) -> None:
        """Tell all watchers. Only from within the queue."""
        for watcher in tuple(self.watchers):
            if watcher.alive:
                _guarded(watcher.callback, name, there)

    def _hand_out(self) -> None:
        # On the way of every lone message, twice: no call here that is not the receiver's (`benchmarks/latency.py`).
        self.waking = False
        self._handing_out = True
        queue, receivers = self.queue, self.receivers
        reached: dict[LoopbackBus, None] = {}
        count = len(queue)
        self._lone = count == 1
        for _ in range(count):
            item = queue.popleft()
            if not isinstance(item, tuple):
                item()
                continue
            sender, channel, data = item
            sender.waiting_bytes -= len(data)
            for receiver in receivers.get(channel, ()):
                if receiver.alive:
                    try:
                        receiver.callback(data)
                    except Exception:
                        _log.exception(_FAILED)
                    reached[receiver.owner] = None
        self._handing_out = False  # what follows may hand out the answer to a lone message
        for endpoint in reached:
            if endpoint.after_burst is not None:
                try:
                    endpoint.after_burst()
                except Exception:
                    _log.exception(_FAILED)


class LoopbackBus:
    """One endpoint."""

    def __init__(self, hub: LoopbackHub) -> None:
        self._hub = hub
        self.hold = hub.hold
        self.release = hub.release
        self._entries: set[_Entry] = set()
        self._closed = False
        self.waiting_bytes = 0
        self.after_burst: Callable[[], None] | None = None

    def publish(self, channel: str, data: bytes) -> None:
        if not self._closed:
            self.waiting_bytes += len(data)
            hub = self._hub
            hub.queue.append((self, channel, data))  # `put` without its call: every message comes by twice
            if not hub.waking and not hub.held:
                hub.wake()

    def subscribe(self, channel: str, callback: Receive) -> _Entry:
        receivers = self._hub.receivers

        def end() -> None:
            self._entries.discard(receiver)
            left = tuple(other for other in receivers[channel] if other is not receiver)
            if left:
                receivers[channel] = left
            else:
                del receivers[channel]

        receiver = _Receiver(self, callback, end)
        receivers[channel] = (*receivers.get(channel, ()), receiver)
        self._entries.add(receiver)
        return receiver

    def join(self, name: str) -> _Entry:
        hub = self._hub

        def come() -> None:
            hub.members[name] = None
            hub.tell(name, True)

        def go() -> None:
            hub.members.pop(name, None)
            hub.tell(name, False)

        def end() -> None:
            self._entries.discard(membership)
            hub.put(go)

        membership = _Entry(end)
        self._entries.add(membership)
        hub.put(come)
        return membership

    def watch(self, callback: Watch) -> _Entry:
        hub = self._hub

        def begin() -> None:
            if watcher.alive:
                for name in tuple(hub.members):
                    _guarded(callback, name, True)
                hub.watchers.append(watcher)

        def end() -> None:
            self._entries.discard(watcher)
            if watcher in hub.watchers:
                hub.watchers.remove(watcher)

        watcher = _Watcher(callback, end)
        self._entries.add(watcher)
        hub.put(begin)
        return watcher

    def close(self) -> None:
        self._closed = True
        for entry in tuple(self._entries):
            entry.close()


def _guarded(callback: Callable[..., None], *arguments: object) -> None:
    try:
        callback(*arguments)
    except Exception:
        _log.exception(_FAILED)
