"""Messages to the partner: over a link of their own, by a thread of their own.

Guarantee: nothing here waits for the partner but this thread. What cannot be sent is left out: whoever needs it asks
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from clarion.errors import BadArgument, ClarionError
from clarion.events.link import frames
from clarion.events.link.client import Address, Link
from clarion.events.link.confirmations import Ranges, pack_confirmations
from clarion.events.link.frames import FIRST, LAST, Heartbeat, Hello, Type

from .messages import Timing
from .worker import Points, Worker

Connected = Callable[[Hello], None]


class Messenger:
    """One for each system of a pair."""

    def __init__(
        self,
        address: Address,
        partner: str,
        hello: Hello,
        timing: Timing,
        points: Points,
        connected: Connected,
        *,
        frame_bytes_max: int,
    ) -> None:
        """`connected` hears what the partner says when there is a new link, in this thread."""
        self._address = address
        self._partner = partner
        self._hello = hello
        self._timing = timing
        self._points = points
        self._on_connected = connected
        self._frame_bytes_max = frame_bytes_max
        self._worker = Worker("pair-messenger")
        self._link: Link | None = None
        self._beating = False

    def start(self) -> None:
        self._worker.start()

    def close(self) -> None:
        self._worker.close()
        if self._link is not None:
            self._link.close()

    # --- from any thread ------------------------------------------------------------------------------

    def post(self, kind: int, payload: bytes, flags: int = 0) -> None:
        self._worker.do(lambda: self._send(kind, payload, flags))

    def beat(self, heartbeat: Heartbeat, heard: Callable[[Heartbeat], None]) -> None:
        """Send one, unless the last one is not answered yet; `heard` gets the answer."""
        if not self._beating:
            self._beating = self._worker.do(lambda: self._beat(heartbeat, heard))

    def give_back(self, parts: list[list[tuple[str, Ranges]]], epoch: int, token: int) -> None:
        self._worker.do(lambda: self._send_state(parts, epoch, token))

    # --- in its thread --------------------------------------------------------------------------------

    def _deadline_s(self) -> float:
        return time.monotonic() + self._timing.silence_ms / 2 / 1000

    def _connected(self) -> Link:
        link = self._link
        if link is not None and link.broken:
            link.close()
            link = self._link = None
        if link is None:
            timeout_s = self._timing.silence_ms / 2 / 1000
            link = Link.connect(self._address, timeout_s, hello=self._hello, frame_bytes_max=self._frame_bytes_max)
            if link.welcome.name != self._partner:
                link.close()
                raise BadArgument(argument="partner", detail=f"{link.welcome.name} answers instead of {self._partner}")
            self._link = link
            self._on_connected(link.welcome)
        return link

    def _send(self, kind: int, payload: bytes, flags: int) -> None:
        try:
            self._points.before_send()
            self._connected().send(kind, payload, flags=flags, deadline_s=self._deadline_s())
        except (ClarionError, OSError):
            pass  # whoever needs it asks again

    def _beat(self, heartbeat: Heartbeat, heard: Callable[[Heartbeat], None]) -> None:
        try:
            link = self._connected()
            kind, payload = link.ask(Type.HEARTBEAT, frames.pack_heartbeat(heartbeat), self._deadline_s())
            if kind == Type.HEARTBEAT:
                heard(frames.unpack_heartbeat(memoryview(payload)))
        except (ClarionError, OSError):
            pass
        finally:
            self._beating = False

    def _send_state(self, parts: list[list[tuple[str, Ranges]]], epoch: int, token: int) -> None:
        """All parts over one connection, or the rest not at all."""
        try:
            link = self._connected()
            for number, part in enumerate(parts):
                flags = FIRST * (number == 0) | LAST * (number == len(parts) - 1)
                payload = pack_confirmations(part, epoch, token)
                link.send(Type.GIVE_BACK, payload, flags=flags, deadline_s=self._deadline_s())
        except (ClarionError, OSError):
            pass  # the partner asks again
