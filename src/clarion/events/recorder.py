"""The recording half of an event system: `emit()` in any thread, in signal handlers, after a fork (A-02, A-03, A-04).

Theory of operation
    A process has a section for normal events, one for those emitted while the system initialises, and small ones for
    the case that a signal handler emits while its own thread is emitting: the interrupted call holds its section, so
    the handler's event goes to the next one. A forked child takes sections of its own at its first event.

Guarantees
    1. `record` returns when the event is in persistent memory. It starts no thread, and needs nothing that may be
       missing.
    2. Who gets an event is decided before it is recorded; if that cannot be done for want of memory it is recorded
       undecided, and the engine decides.
    3. Full sections refuse (`Blocked`), count that, and never lose what they hold.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

from clarion import ids
from clarion.errors import BadArgument, Blocked
from clarion.events.event import PROPERTY_SEVERITY, PROPERTY_SOURCE, PROPERTY_TIME, Severity, format_time
from clarion.events.memory import FLAG_UNDECIDED, Section
from clarion.events.memory.ballast import NO_MEMORY, keep, of_process
from clarion.events.routing import Routes
from clarion.events.steps import Steps
from clarion.instruments import TestPoint
from clarion.message import Headers, PropertyValue

NESTED = 3
"""How often a signal handler may interrupt the emit of another in one thread."""

_SEVERITIES: dict[str | int, Severity] = {
    **{each.text: each for each in Severity},
    **{int(each): each for each in Severity},
}


class Sections(NamedTuple):
    """The sections of one process."""

    normal: Section
    initialisation: Section
    nested: tuple[Section, ...]

    def all(self) -> tuple[Section, ...]:
        return self.initialisation, self.normal, *self.nested


class Recorder:
    """See the module. `take` gives a process its sections; it is called again in a forked child."""

    def __init__(
        self,
        take: Callable[[], Sections],
        steps: Steps,
        routes: Callable[[], Routes],
        *,
        source: str,
        initialising: bool,
    ) -> None:
        self._take = take
        self._at_211, self._at_212, self._at_213 = steps.point("211"), steps.point("212"), steps.point("213")
        self.source = source
        self.ballast = of_process()
        """Memory for when there is no other."""
        self._opening = threading.RLock()
        self._sections: Sections | None = take()
        self._chain: tuple[Section, ...] = ()
        self._is_opening = False
        self.initialising = initialising
        self.routes = routes
        """Who gets an event. May be changed at any time."""
        self.recorded: Callable[[], None] = _nothing
        """Called after each event, in the thread that emitted it; must neither raise nor wait. Gets nothing of the
        ballast: without memory it is not called, or in vain."""
        self.set_initialising(initialising)
        _at_fork(self)

    # --- state --------------------------------------------------------------------------------------

    @property
    def sections(self) -> Sections:
        """Of this process; a forked child gets its own here."""
        sections = self._sections
        return sections if sections is not None else self._reopen()

    def set_initialising(self, initialising: bool) -> None:
        """Where events go from now on."""
        sections = self.sections
        self.initialising = initialising
        first = sections.initialisation if initialising else sections.normal
        self._chain = (first, *sections.nested)

    def forked(self) -> None:
        """In a child: the parent's sections are not ours, and its locks may be held for ever."""
        self._sections = None
        self._chain = ()
        self._opening = threading.RLock()
        self._is_opening = False
        self.recorded = _nothing

    def _reopen(self) -> Sections:
        with self._opening:
            if self._sections is None:
                if self._is_opening:  # a signal handler interrupted this very call
                    raise Blocked(destination="events", detail="this process is just getting its sections")
                self._is_opening = True
                try:
                    self._sections = self._take()
                finally:
                    self._is_opening = False
                self.set_initialising(False)
            return self._sections

    def close(self) -> None:
        """Let the sections go; what they hold stays."""
        sections, self._sections = self._sections, None
        self._chain = ()
        self._take = self.routes = _closed
        for section in sections.all() if sections is not None else ():
            section.close()

    # --- recording ----------------------------------------------------------------------------------

    def record(
        self,
        type_: str,
        source: str | None,
        severity: Severity | str | int,
        data: Any,
        attributes: dict[str, PropertyValue] | None,
        time_ns: int | None,
        wait_s: float | None,
    ) -> str:
        """One event; its id. Raises `BadEvent`, `EventTooLarge`, `Blocked`, `JournalFailed`.

        Without memory each part is tried again with what the ballast has. `MemoryError` means that it has nothing left.
        """
        ballast = self.ballast
        section: Section | None = None
        sequence = 0
        spent = False
        while True:
            try:
                if section is None or not sequence:
                    section = self._free()
                    sequence = self._record_in(section, type_, source, severity, data, attributes, time_ns, wait_s)
                    spent = False  # the section has taken it again
                return self._told(section, sequence, spent)
            except NO_MEMORY as error:
                if error is ballast.final:
                    raise
                if ballast.scraps is not None:
                    ballast.scraps = None
                elif ballast.whole is not None:
                    ballast.whole = ballast.whole[1]
                    ballast.blocks = ballast.blocks[1]
                    ballast.resize(*ballast.blocks[0])
                else:
                    raise
                ballast.missing = spent = True

    def _record_in(
        self,
        section: Section,
        type_: str,
        source: str | None,
        severity: Severity | str | int,
        data: Any,
        attributes: dict[str, PropertyValue] | None,
        time_ns: int | None,
        wait_s: float | None,
    ) -> int:
        if self._at_211.armed:
            self._at_211.fire()
        level = _SEVERITIES.get(severity)
        if level is None:
            level = Severity.of(severity)
        if time_ns is None:
            time_ns = time.time_ns()
        if source is None:
            source = self.source
        bits, epoch, flags = decide(self.routes(), type_, source, level, time_ns, attributes)
        if self._at_212.armed:
            self._at_212.fire()
        return section.record(
            type_, source, level, time_ns, data, attributes, bits=bits, epoch=epoch, flags=flags, wait_s=wait_s
        )

    def _told(self, section: Section, sequence: int, spent: bool) -> str:
        """The id of an event that is recorded, and everybody told of it. May be called again."""
        if self._at_213.armed:
            self._at_213.fire()
        identity = ids.format_id(section.producer + sequence)
        if spent:
            self.ballast.refill()
        try:
            self.recorded()
        except NO_MEMORY:
            pass
        return identity

    def record_many(
        self, events: Iterable[tuple[str, str | None, Severity | str | int, Any]], wait_s: float | None
    ) -> list[str]:
        """Many events with few syncs; their ids. If there is no room for all, `Blocked` says how many are recorded."""
        section = self._free()
        encoder = section.encoder
        encoded, bits = [], []
        routes = self.routes()
        constant = routes.is_constant and bool(routes.routes)
        flags = 0 if routes.routes else FLAG_UNDECIDED
        for type_, source, severity, data in events:
            level = _SEVERITIES.get(severity) or Severity.of(severity)
            source = self.source if source is None else source
            time_ns = time.time_ns()
            encoded.append(encoder.encode(type_, source, level, time_ns, data))
            if constant:
                bits.append(routes.bits_all)
            else:
                wanted, _, undecided = decide(routes, type_, source, level, time_ns, None)
                bits.append(wanted)
                flags |= undecided  # all of them: they are recorded in one piece
        recorded = section.append_many(encoded, bits, routes.epoch, flags, wait_s=wait_s)
        self.recorded()
        return [ids.format_id(section.producer + sequence) for sequence in recorded]

    def _free(self) -> Section:
        """The section for the next event: the first that this thread is not recording in already."""
        chain = self._chain
        if not chain:
            chain = self._reopened_chain()
        for section in chain:
            if not section.held_here():
                return section
        raise Blocked(destination="events", detail="a signal handler interrupted emit too often")

    def _reopened_chain(self) -> tuple[Section, ...]:
        self._reopen()
        return self._chain


def decide(
    routes: Routes,
    type_: str,
    source: str,
    severity: Severity,
    time_ns: int,
    attributes: dict[str, PropertyValue] | None,
) -> tuple[int, int, int]:
    """Bits, epoch and flags of an event."""
    if not routes.routes:
        return 0, 0, FLAG_UNDECIDED
    if routes.is_constant:
        return routes.bits_all, routes.epoch, 0
    try:
        properties = {
            PROPERTY_SOURCE: source,
            PROPERTY_SEVERITY: severity.text,
            PROPERTY_TIME: format_time(time_ns),
            **(attributes or {}),
        }
        return routes.decide(Headers(type=type_, properties=properties), time_ns // 1_000_000), routes.epoch, 0
    except MemoryError:
        return routes.bits_all, routes.epoch, FLAG_UNDECIDED


def _nothing() -> None:
    return None


def _closed() -> NoReturn:
    raise BadArgument(argument="event system", detail="it is closed")


keep(sys.modules[__name__], Recorder, Steps, TestPoint, Routes, ids)

_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _at_fork(recorder: Recorder) -> None:
    _recorders.add(recorder)


def _after_fork() -> None:
    for recorder in _recorders:
        recorder.forked()


os.register_at_fork(after_in_child=_after_fork)
