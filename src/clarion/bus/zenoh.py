"""The bus between processes: Zenoh peers over explicit endpoints (extra `cluster`).

How the guarantees of `interface` are kept
    * Order: one writer thread puts what `publish` queued; `put` blocks when Zenoh is congested
      (reliable, never dropping), which is why the event loop must not call it.
    * Wakes: Zenoh's threads append to one inbox; only the append that finds nobody waking wakes the
      loop, which then takes all there is.
    * Bounds: a full inbox holds up Zenoh's receiving thread, so the pressure reaches the sender's
      writer thread through TCP and shows there as `waiting_bytes`. Nothing is dropped.
    * Membership: liveliness tokens under `clarion/member/`; a killed process is gone in milliseconds.
    * No discovery: no multicast scouting, no gossip. A node knows what `listen` and `connect` say.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from clarion import limits
from clarion.bus.interface import Receive, Watch
from clarion.errors import AddressInUse, ConfigurationError, MissingExtra

_log = logging.getLogger(__name__)

INBOX_BYTES_MAX = 4 * limits.FRAME_BYTES_MAX
"""Received and not yet handed out."""
PUBLISHERS_MAX = 1_024
"""Declared publishers that are kept for the next message of their channel."""
CONGESTION_US_MAX = 60_000_000
"""Zenoh gives a congested peer up for lost after this."""
_ROOT = "clarion/"
_MEMBERS = _ROOT + "member/"
_Item = tuple[Callable[..., None], "_Entry", tuple[object, ...], int]


class _Entry:
    """A subscription, a membership or a watch, with what Zenoh must undeclare."""

    def __init__(self, bus: ZenohBus) -> None:
        self._bus = bus
        self.alive = True
        self.declared: Any = None

    def close(self) -> None:
        if self.alive:
            self.alive = False
            self._bus.forget(self)


class ZenohBus:
    """One endpoint. `open` may be called on any thread; the rest belongs to the loop's thread."""

    @classmethod
    async def open(cls, listen: Sequence[str], connect: Sequence[str]) -> ZenohBus:
        """Connect, without waiting for peers that are not there yet (they are retried for ever)."""
        loop = asyncio.get_running_loop()
        session = await loop.run_in_executor(None, _open_session, list(listen), list(connect))
        return cls(loop, session)

    def __init__(self, loop: asyncio.AbstractEventLoop, session: Any) -> None:
        self._loop = loop
        self._session = session
        self._entries: set[_Entry] = set()
        self._closed = False
        self._outbox: SimpleQueue[tuple[str, bytes] | Callable[[], None] | None] = SimpleQueue()
        self._out_published = 0
        self._out_sent = 0
        self.after_burst: Callable[[], None] | None = None
        self._inbox: deque[_Item] = deque()
        self._inbox_bytes = 0
        self._room = threading.Condition()
        self._waking = False
        self._writer = threading.Thread(target=self._write, name="clarion-bus", daemon=True)
        self._writer.start()

    @property
    def waiting_bytes(self) -> int:
        return self._out_published - self._out_sent

    # --- sending --------------------------------------------------------------------------------------

    def publish(self, channel: str, data: bytes) -> None:
        if not self._closed:
            self._out_published += len(data)
            self._outbox.put((channel, data))

    def _write(self) -> None:
        """The writer thread: everything that talks to Zenoh, in the order in which it was asked for."""
        import zenoh

        publishers: dict[str, Any] = {}
        while (item := self._outbox.get()) is not None:
            try:
                if not isinstance(item, tuple):
                    item()
                    continue
                channel, data = item
                publisher = publishers.get(channel)
                if publisher is None:
                    if len(publishers) >= PUBLISHERS_MAX:
                        publishers.pop(next(iter(publishers))).undeclare()
                    publisher = publishers[channel] = self._session.declare_publisher(
                        _ROOT + channel,
                        congestion_control=zenoh.CongestionControl.BLOCK,
                        reliability=zenoh.Reliability.RELIABLE,
                    )
                publisher.put(data)
            except Exception:
                _log.exception("the bus could not send")
            finally:
                if isinstance(item, tuple):
                    self._out_sent += len(item[1])
        self._session.close()

    def hold(self) -> None:
        """Nothing is ever handed out sooner than by the threads of Zenoh."""

    def release(self) -> None:
        """See `hold`."""

    # --- receiving ------------------------------------------------------------------------------------

    def _take_in(self, callback: Callable[..., None], entry: _Entry, arguments: tuple[object, ...], size: int) -> None:
        """On a thread of Zenoh: queue a call, wake the loop if nobody did; wait while there is no room."""
        with self._room:
            while self._inbox_bytes > INBOX_BYTES_MAX and not self._closed:
                self._room.wait()
            self._inbox.append((callback, entry, arguments, size))
            self._inbox_bytes += size
            wake, self._waking = not self._waking, True
        if wake:
            try:
                self._loop.call_soon_threadsafe(self._hand_out)
            except RuntimeError:  # the loop is closed, so nobody listens any more
                pass

    def _hand_out(self) -> None:
        with self._room:
            items, self._inbox = self._inbox, deque()
            self._inbox_bytes = 0
            self._waking = False
            self._room.notify_all()
        for callback, entry, arguments, _size in items:
            if entry.alive:
                try:
                    callback(*arguments)
                except Exception:
                    _log.exception("a callback of the bus failed")
        if self.after_burst is not None:
            self.after_burst()

    # --- declaring ------------------------------------------------------------------------------------

    def subscribe(self, channel: str, callback: Receive) -> _Entry:
        import zenoh

        def received(sample: Any) -> None:
            data = sample.payload.to_bytes()
            self._take_in(callback, entry, (data,), len(data))

        handler = zenoh.handlers.Callback(received, indirect=False)
        entry = self._declare(lambda session: session.declare_subscriber(_ROOT + channel, handler))
        return entry

    def join(self, name: str) -> _Entry:
        return self._declare(lambda session: session.liveliness().declare_token(_MEMBERS + name))

    def watch(self, callback: Watch) -> _Entry:
        import zenoh

        def changed(sample: Any) -> None:
            name = str(sample.key_expr).removeprefix(_MEMBERS)
            self._take_in(callback, entry, (name, sample.kind == zenoh.SampleKind.PUT), 0)

        handler = zenoh.handlers.Callback(changed, indirect=False)
        entry = self._declare(
            lambda session: session.liveliness().declare_subscriber(_MEMBERS + "**", handler, history=True)
        )
        return entry

    def _declare(self, declare: Callable[[Any], Any]) -> _Entry:
        """Declare by the writer thread: in order with what is published, so that whoever sees a member
        reaches all it subscribed before; and off the loop, for which a callback that Zenoh waits for may wait."""
        entry = _Entry(self)
        self._entries.add(entry)

        def effect() -> None:
            if entry.alive:
                entry.declared = declare(self._session)

        self._outbox.put(effect)
        return entry

    def forget(self, entry: _Entry) -> None:
        """Undeclare, by the writer thread too."""
        self._entries.discard(entry)
        self._outbox.put(lambda: _undeclare(entry))

    def close(self) -> None:
        if self._closed:
            return
        for entry in tuple(self._entries):
            entry.close()
        with self._room:
            self._closed = True
            self._room.notify_all()
        self._outbox.put(None)

    async def closed(self) -> None:
        """After `close`: until everything is sent and Zenoh is gone."""
        await self._loop.run_in_executor(None, self._writer.join, 10.0)


def _undeclare(entry: _Entry) -> None:
    if entry.declared is not None:
        entry.declared.undeclare()


def _open_session(listen: list[str], connect: list[str]) -> Any:
    try:
        import zenoh
    except ImportError:
        raise MissingExtra(extra="cluster") from None
    settings: dict[str, object] = {
        "mode": "peer",
        "listen/endpoints": listen,
        "connect/endpoints": connect,
        "connect/timeout_ms": -1,
        "connect/exit_on_failure": False,
        "connect/retry": {"period_init_ms": 50, "period_max_ms": 1_000, "period_increase_factor": 2},
        "scouting/multicast/enabled": False,
        "scouting/gossip/enabled": False,
        "transport/link/tx/queue/congestion_control/block/wait_before_close": CONGESTION_US_MAX,
        # A pool of 16 MiB per direction, for a gain that was not measurable here.
        "transport/shared_memory/transport_optimization/enabled": False,
    }
    config = zenoh.Config()
    try:
        for key, value in settings.items():
            config.insert_json5(key, json.dumps(value))
        return zenoh.open(config)
    except zenoh.ZError as error:
        if "in use" in str(error):
            raise AddressInUse(address=", ".join(listen)) from None
        raise ConfigurationError(detail=f"bus: {error}") from None
