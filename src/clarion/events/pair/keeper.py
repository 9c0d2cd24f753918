"""The thread that connects the mirrors of a process, sends what the partner lacks, and says whether it has everything.

Guarantees
    1. It is said that everything is at the partner only together with the note that the partner has recorded.
    2. Without a partner it tries again, at most once a second; nobody waits for it meanwhile.

Rule: copies of what other processes record are sent as well, and nothing is promised of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from clarion import limits
from clarion.errors import ClarionError
from clarion.events.link.client import Address, Link
from clarion.events.link.frames import Held, Hello
from clarion.events.memory.ballast import NO_MEMORY
from clarion.instruments import Registry

from .mirror import CLOSING_POLL_S, RETRY_S_MAX, Mirror, Mode, Notice, OnceOnly, Points, RingToCopy

RETRY_S_MIN = 0.05


class Keeper:
    """The thread that connects the mirrors of a process, and sends what the partner lacks."""

    def __init__(
        self,
        address: Address,
        hello: Hello,
        registry: Registry,
        *,
        stored_s: float = limits.EVENT_PARTNER_MS_DEFAULT / 1000,
        frame_bytes_max: int = limits.EVENT_LINK_FRAME_BYTES_DEFAULT,
        on_whole: Callable[[bool, int, str], None] | None = None,
    ) -> None:
        """`on_whole` is told whether everything is at the partner, and which version of the note."""
        self._address = address
        self._hello = hello
        self._points = Points(registry)
        self._stored_s = stored_s
        self._frame_bytes_max = frame_bytes_max
        self._on_whole = on_whole
        self._notice = Notice()
        self._mirrors: list[Mirror] = []
        self._lock = threading.Lock()
        self._removed: list[Mirror] = []
        self._retry: dict[Mirror, tuple[float, float]] = {}
        self._said: tuple[bool, int] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clarion-events-mirror", daemon=True)

    def mirror(self, section: RingToCopy) -> Mirror:
        """A mirror for a ring of this process; make it the section's `mirror`."""
        return self._add(Mirror(section, self._points, self._notice, stored_s=self._stored_s))

    def copy(self, section: RingToCopy) -> Mirror:
        """Send what a ring has that this process does not write."""
        return self._add(OnceOnly(section, self._points, self._notice, stored_s=self._stored_s))

    def note(self, version: int, content: bytes) -> None:
        """The partner has to have this durable before it gets what is recorded from now on. Versions grow from 1."""
        self._notice.current = version, content
        for mirror in list(self._mirrors):
            mirror.hold()

    def remove(self, mirror: Mirror) -> None:
        """The ring is finished, or its mirror was taken from it."""
        with self._lock:
            self._mirrors = [one for one in self._mirrors if one is not mirror]
            self._removed.append(mirror)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop; mirrors that stay attached skip everything from now on. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for mirror in [*self._mirrors, *self._removed]:
            mirror.lost(ConnectionAbortedError("closed here"))
            mirror.detach()

    def suspect(self) -> None:
        """The partner is silent: do not let emit() wait for it."""
        for mirror in list(self._mirrors):
            if mirror.live and mirror.whole:
                mirror.lost(TimeoutError("the partner is silent"))

    @property
    def whole(self) -> bool:
        """Everything that was given to it is at the partner, with the newest note."""
        version = self._notice.version
        return all(mirror.whole and mirror.noted == version for mirror in self._mirrors)

    def has(self, mirror: Mirror) -> bool:
        """It is used, or may just be."""
        with self._lock:
            return any(mirror is one for one in [*self._mirrors, *self._removed])

    def _add(self, mirror: Mirror) -> Mirror:
        with self._lock:
            self._mirrors = [*self._mirrors, mirror]
        return mirror

    def _run(self) -> None:
        while not self._stop.is_set():
            busy = False
            try:
                for mirror in self._mirrors:
                    busy |= self._keep(mirror)
                self._let_go()
                self._tell()
            except NO_MEMORY:
                busy = False  # later
            self._stop.wait(CLOSING_POLL_S if busy else RETRY_S_MIN)

    def _keep(self, mirror: Mirror) -> bool:
        """One step for one mirror; whether there is more to do at once."""
        due_s, pause_s = self._retry.get(mirror, (0.0, RETRY_S_MIN))
        try:
            if mirror.mode is not Mode.AWAY:
                mirror.check_idle()
                busy = mirror.catch_up()
                if mirror.whole:
                    self._retry.pop(mirror, None)
                return busy
            if mirror.detach() and time.monotonic() >= due_s:
                self._retry[mirror] = time.monotonic() + pause_s, min(2 * pause_s, RETRY_S_MAX)
                self._connect(mirror)
                return True
        except (ClarionError, OSError) as error:
            mirror.lost(error)
        return False

    def _let_go(self) -> None:
        """Of mirrors that were removed: here, because their links are used by this thread."""
        with self._lock:
            removed, self._removed = self._removed, []
        for mirror in removed:
            mirror.lost(ConnectionAbortedError("removed"))
            self._retry.pop(mirror, None)
            if not mirror.detach():
                with self._lock:
                    self._removed.append(mirror)

    def _connect(self, mirror: Mirror) -> None:
        section = mirror.section
        named = Held(section.producer, section.first_sequence, section.next_sequence)
        hello = Hello(
            self._hello.name, self._hello.role, self._hello.epoch, memory=self._hello.memory, sections=(named,)
        )
        link = Link.connect(self._address, RETRY_S_MAX, hello=hello, frame_bytes_max=self._frame_bytes_max)
        mirror.connected(link, link.welcome.sections[0])

    def _tell(self) -> None:
        """Of what this process records; copies of others come later, and are never promised."""
        live = [mirror for mirror in self._mirrors if mirror.live]
        facts = all(mirror.whole for mirror in live), min((mirror.noted for mirror in live), default=0)
        if facts != self._said and self._on_whole is not None:
            self._said = facts
            self._on_whole(*facts, next((mirror.detail for mirror in live if not mirror.whole), ""))
