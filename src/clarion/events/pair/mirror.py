"""The copy of a ring at the partner: made while events are recorded, and made good after the partner was away.

    AWAY         no link; groups are recorded here only, and remembered as missing there
    CATCHING_UP  a link; what is missing is read from the ring and sent in order, while groups are still skipped
    CLOSING      little is missing; a group that begins now waits until all before it is sent, and goes itself
    LIVE         every group goes to the partner when it is synced here

Guarantees
    1. `begin` and `finish` never raise for anything the link does, and need no memory beyond small objects (`begin` may
       raise for want of these, for the ring to try again with its ballast); each waits no longer than `stored_s`. In
       LIVE a group is durable at the partner when `finish` returned; otherwise the mirror is no longer LIVE.
    2. The partner gets a ring's events in their order, and none is left out: it says what it has when the link is made,
       and everything after that is sent before the mirror is LIVE.
    3. The partner has the newest note (who the recipients are) durable before it gets an event that was recorded after
       the note was given. A group that comes in between waits as in CLOSING.

Rules
    1. One mirror and one link per ring: a signal handler that emits while its thread emits uses another ring.
    2. The link belongs to the keeper's thread except in LIVE, when it belongs to whoever leads the commit of the ring.
       It stays his until the group that he took it for is done.
    3. Look for a newer note after events were read, not before: who emits them may have been told of it in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from clarion import limits
from clarion.errors import ProtocolError
from clarion.events.link import frames
from clarion.events.link.client import Link
from clarion.events.link.frames import Held, Type
from clarion.events.memory.ballast import NO_MEMORY
from clarion.events.memory.layout import Recorded
from clarion.instruments import Registry

READ_EVENTS = 512
READ_BYTES = 128 * limits.KIB
CLOSING_POLL_S = 0.0005
CLOSING_EVENTS = 4_096
"""With no more missing than this, a group waits until it can go itself: some tenths of a second, once."""
LAGGING_S = 1.0
"""When more is missing than so long ago, groups are slowed down …"""
LAGGING_PAUSE_S = 0.002
"""… by this much, or the partner would never have everything."""
STARVED_MAX = 3
"""So often a group is tried for which there is no memory; then it is recorded here only."""
RETRY_S_MAX = 1.0


class Mode(StrEnum):
    AWAY = "away"
    CATCHING_UP = "catching up"
    CLOSING = "closing"
    LIVE = "live"


class RingToCopy(Protocol):
    """What a mirror needs of `clarion.events.memory.ring.Section`."""

    name: str
    producer: int

    @property
    def first_sequence(self) -> int: ...
    @property
    def next_sequence(self) -> int: ...
    def read(self, first: int, count_max: int, bytes_max: int) -> Sequence[Recorded]: ...


class Points:
    """Where a fault test can step in; one set for all mirrors of a process."""

    def __init__(self, registry: Registry) -> None:
        point = registry.test_point
        self.before_put = point("events.pair.before_put", meaning="a group is about to be sent to the partner")
        self.before_stored = point("events.pair.before_stored", meaning="a group is sent, not answered")
        self.after_stored = point(
            "events.pair.after_stored", meaning="a group is durable at the partner, emit() goes on"
        )
        self.before_catch_up = point(
            "events.pair.before_catch_up", meaning="what the partner lacks is about to be sent"
        )
        self.before_note = point(
            "events.pair.before_note", meaning="the partner is about to be told who the recipients are"
        )
        self.after_note = point("events.pair.after_note", meaning="it has that durable, nobody knows it yet")


class Notice:
    """The newest of what the partner has to know before events go there; one for all mirrors of a process."""

    def __init__(self) -> None:
        self.current = (0, b"")
        """Version and content; replaced as a whole. Version 0: nothing yet, and events go there without."""

    @property
    def version(self) -> int:
        return self.current[0]


class Mirror:
    """`Section.mirror` of one ring."""

    live = True
    """Groups come by `begin`."""

    def __init__(self, section: RingToCopy, points: Points, notice: Notice, *, stored_s: float) -> None:
        self.section = section
        self.mode = Mode.AWAY
        self.noted = 0
        """The version of the note that the partner has, told over the present link."""
        self.detail = "not connected yet"
        """Why it is not LIVE."""
        self.degraded = 0
        """How often it was LIVE and is not any more."""
        self._points = points
        self._notice = notice
        self._producer = frames.pack_producer(section.producer)
        self._stored_s = stored_s
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._sent_to = 0
        """Everything before this is at the partner."""
        self._skipped_to = 0
        """Something before this was not sent by `begin`."""
        self._group: tuple[int, int] | None = None
        self._sent = False
        self._uses_link = False
        """The present group was sent, or is about to be, by who leads the commit."""
        self._held = False
        """In CLOSING: it was LIVE, nothing is missing, and only the note has to be told."""
        self._wanted = 0
        self._starved = 0
        """How often the present group could not be sent for want of memory."""
        self._lagging = False
        self._missing = (0.0, 0)
        """When it was last looked at how many events are missing, and how many were."""

    # --- in the thread that emits ---------------------------------------------------------------------

    def begin(self, group: memoryview, first: int, end: int) -> None:
        """Send a group, unless the partner is away."""
        if self._sent and self._group == (first, end):
            return  # the same group again, after an interruption
        if self._announce(first, end):
            self._wait_for_handover()
        elif self._lagging:
            time.sleep(LAGGING_PAUSE_S)
        link = self._take_link(end)
        if link is not None:
            self._send(link, group, first, end)

    def _announce(self, first: int, end: int) -> bool:
        """A group comes. Whether somebody is about to hand the link over."""
        with self._lock:
            self._group = first, end
            self._sent = self._uses_link = False
            closing = self.mode is Mode.CLOSING
            if closing:
                self._wanted = first
            return closing

    def _take_link(self, end: int) -> Link | None:
        with self._lock:
            self._wanted = 0
            link = self._link if self.mode is Mode.LIVE else None
            if link is None:
                self._skipped_to = end
                self._held = False
            else:
                self._uses_link = True
            return link

    def _send(self, link: Link, group: memoryview, first: int, end: int) -> None:
        complete = False
        try:
            self._put(link, group, first, end)
            self._sent = complete = True
        except NO_MEMORY as error:
            complete = True
            if link.broken or self._starved >= STARVED_MAX:
                self._degrade(error)
            else:
                self._starved += 1  # nothing has left yet: the ring does it again, with its ballast
                raise
        except Exception as error:
            self._degrade(error)
            complete = True
        finally:
            if not complete:  # a signal's handler raised: the ring will come again with the same group
                self._degrade(None)

    def _put(self, link: Link, group: memoryview, first: int, end: int) -> None:
        self._points.before_put()
        link.put_group(self._producer, group, first, end, time.monotonic() + self._stored_s)

    def finish(self) -> None:
        """Wait until what was sent is durable there."""
        link = self._link
        if self._sent and link is not None:
            try:
                self._points.before_stored()
                self._await_stored(link)
                self._points.after_stored()
            except Exception as error:
                self._degrade(error)
        with self._lock:
            if self._sent and self._group is not None:
                self._sent_to = self._group[1]
            self._group = None
            self._sent = self._uses_link = False
            self._starved = 0

    def _await_stored(self, link: Link) -> None:
        deadline_s = time.monotonic() + self._stored_s
        while True:
            try:
                link.await_stored(deadline_s)
                return
            except NO_MEMORY:
                if time.monotonic() >= deadline_s:
                    raise

    def _wait_for_handover(self) -> None:
        deadline_s = time.monotonic() + self._stored_s
        while self.mode is Mode.CLOSING and time.monotonic() < deadline_s:
            time.sleep(CLOSING_POLL_S)

    def _degrade(self, error: Exception | None) -> None:
        with self._lock:
            if self.mode is Mode.LIVE or self._held:
                self.degraded += 1
            self.mode = Mode.AWAY
            self._sent = self._held = False
            if self._group is not None:
                self._skipped_to = self._group[1]
            try:
                self.detail = str(error) if error is not None else "interrupted"
            except NO_MEMORY:
                self.detail = "no memory"

    # --- in the keeper's thread -----------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Everything is at the partner."""
        return self.mode is Mode.LIVE or self._held

    def hold(self) -> None:
        """There is a newer note: the next group waits until the partner has it. In any thread."""
        with self._lock:
            if self.mode is Mode.LIVE:
                self.mode = Mode.CLOSING
                self.detail = "the partner does not know the recipients yet"
                self._held = True

    def connected(self, link: Link, held: Held) -> None:
        """A new link, over which the partner said what it has."""
        with self._lock:
            self._sent_to = max(held.end, self.section.first_sequence)
            self._link = link
            self.noted = 0
            self.mode = Mode.CATCHING_UP

    def lost(self, error: Exception) -> None:
        """Whatever it was, from now on nothing is sent."""
        self._degrade(error)

    def detach(self) -> bool:
        """In AWAY: close the link of before; False while a group may still use it."""
        with self._lock:
            if self.mode is not Mode.AWAY or self._group is not None:
                return False
            link, self._link = self._link, None
        if link is not None:
            link.close()
        return True

    def catch_up(self) -> bool:
        """Send the next of what is missing; False when there is nothing to do. Raises what the link does."""
        link = self._link
        if link is None or self.mode in (Mode.AWAY, Mode.LIVE):
            return False
        with self._lock:
            if self._uses_link:
                return True  # it was LIVE until a moment ago
        if self.noted != self._notice.version:
            self._tell_note(link)
        end = self.section.next_sequence
        self._watch_lag(end - self._sent_to)
        if self.mode is Mode.CATCHING_UP and end - self._sent_to <= CLOSING_EVENTS:
            with self._lock:
                if self._mode_now() is Mode.CATCHING_UP:
                    self.mode = Mode.CLOSING
        if self._sent_to < end:
            self._points.before_catch_up()
            events = self.section.read(self._sent_to, READ_EVENTS, READ_BYTES)
            if self.noted != self._notice.version:
                return True  # they may be for recipients that the partner does not know
            deadline_s = time.monotonic() + max(self._stored_s, RETRY_S_MAX)
            link.put_recorded(self.section.producer, events, deadline_s)
            link.await_stored(deadline_s)
            self._sent_to = events[-1].at + 1 if events else end
            return True
        with self._lock:
            if self._mode_now() is not Mode.CLOSING:
                return False
            if self.noted != self._notice.version:
                return True
            if self._wanted:
                ready = self._sent_to >= self._wanted
            else:
                ready = self._group is None and self._sent_to >= self._skipped_to
            if ready and not self.live:
                return False
            if ready:
                self.mode = Mode.LIVE
                self.detail = ""
                self._held = False
                self._lagging, self._missing = False, (0.0, 0)
                return False
        return True

    def _tell_note(self, link: Link) -> None:
        version, content = self._notice.current
        self._points.before_note()
        kind, _ = link.ask(Type.NOTE, content, time.monotonic() + max(self._stored_s, RETRY_S_MAX))
        if kind != Type.STORED:
            raise ProtocolError(detail=f"NOTE was answered by type {kind}")
        self._points.after_note()
        self.noted = version

    def _watch_lag(self, missing: int) -> None:
        now_s = time.monotonic()
        looked_s, before = self._missing
        if now_s - looked_s >= LAGGING_S:
            self._lagging = bool(looked_s) and missing > before
            self._missing = now_s, missing

    def _mode_now(self) -> Mode:
        """It may have changed since it was last looked at, in another thread."""
        return self.mode

    def check_idle(self) -> None:
        """Notice that the partner has closed the link although nobody emits."""
        link = self._link
        with self._lock:
            if self.mode is not Mode.LIVE or self._group is not None or link is None:
                return
            gone = link.hung_up()
        if gone:
            self._degrade(ConnectionResetError("closed by the partner"))


class OnceOnly(Mirror):
    """A ring that nobody writes any more, or that another process mirrors: only what is missing is sent."""

    live = False

    @property
    def whole(self) -> bool:
        return self.mode is Mode.CLOSING and self._sent_to >= self.section.next_sequence
