"""A multiplexer: one recipient that stands for many, with a persistent memory of its own (A-11).

    multiplexer = Multiplexer.open("multiplexer", recipients=[log, pager], listen="0.0.0.0:7790")
    multiplexer.ready()
    print(multiplexer.address)                # where `recipients.Multiplexing` sends to

Theory of operation
    It is an event system. Other systems send it their events over a link; they go to its section `multiplex`, under
    the ids they were emitted with, for those of its recipients whose filters want them; and its engine delivers them
    as it delivers everything. It can itself have a multiplexer as a recipient, so that there are hierarchies.

    confirm_early    the sender's delivery is confirmed when an event is recorded here; otherwise when all recipients
                     here have confirmed it, and the sender keeps it until then
    forward          the sender hears of each recipient's confirmation, as it comes

Guarantees
    1. What was confirmed early is in persistent memory, and reaches every recipient it is for, in spite of crashes.
    2. An event that is sent again (a crash on either side, a connection that broke) is known: it is not delivered again
       to who has confirmed it, and its sender hears how it is with it.
    3. The order of a source is kept. A sender, or a recipient, that is slow or gone delays nobody else.
    4. What arrives over a connection that exists is recorded when address space, disk and descriptors are used up.
       (With MALLOC_ARENA_MAX=1, where threads share all memory, that is very slow: `arenas`.)
    5. A forwarded confirmation is told again until its sender has heard it: after a broken connection, and after a
       crash of either. A multiplexer in between says that it has heard one when it has it in its own memory.

Rules
    1. It listens when it delivers: the process that has the engine of its directory, once what was complete before is
       known. No other event system delivers the section `multiplex`.
    2. The link is not protected: listen where only those that may emit can connect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from clarion import limits
from clarion.errors import AddressInUse, BadArgument
from clarion.events.distribution import RetryPolicy
from clarion.events.engine.engine import Engine
from clarion.events.link import frames
from clarion.events.link.confirmations import Ranges
from clarion.events.link.server import Server
from clarion.events.memory import Section
from clarion.events.multiplex.intake import Intake
from clarion.events.multiplex.outcomes import Outcomes
from clarion.events.recipients.multiplexer import Multiplexing
from clarion.events.settings import EventsSettings, MultiplexSettings
from clarion.events.steps import Steps
from clarion.events.system import EventSystem
from clarion.settings import parse_address

SECTION = "multiplex"
IDLE_S = 60.0
"""A sender says something every 10 s; who is silent for so long is gone."""
_ALSO = {"215": "254", "216": "255", "231b": "272"}


class _Steps(Steps):
    """What an event system's engine does are steps of a multiplexer here."""

    __slots__ = ()

    def __init__(self, steps: Steps) -> None:
        self._points = steps._points

    def at(self, name: str) -> None:
        super().at(name)
        also = _ALSO.get(name)
        if also is not None:
            super().at(also)


class Multiplexer(EventSystem):
    """See the module. Made by `open`."""

    def __init__(
        self, path: Path, settings: EventsSettings, recipients: Sequence[Any], policies: dict[str, RetryPolicy]
    ) -> None:
        """As `EventSystem`; `settings.multiplex` says where it listens and how it confirms."""
        if settings.multiplex is None or not recipients:
            missing = "recipients" if settings.multiplex is not None else "settings of a multiplexer"
            raise BadArgument(argument="multiplexer", detail=f"it has no {missing}")
        self._multiplex = settings.multiplex
        self._section: Section | None = None
        self._server: Server | None = None
        self._intake: Intake | None = None
        self._outcomes: Outcomes | None = None
        self._serves = False
        super().__init__(path, settings, recipients, policies)

    @classmethod
    def open(
        cls,
        path: Path | str,
        recipients: Iterable[Any] = (),
        *,
        listen: str = "127.0.0.1:0",
        confirm_early: bool = True,
        forward: bool = False,
        multiplex_capacity: int | None = None,
        multiplex: MultiplexSettings | None = None,
        **options: Any,
    ) -> Multiplexer:
        """As `EventSystem.open`, with the same options.

        `listen` is HOST:PORT, where port 0 takes a free one; see the module for the switches. `multiplex_capacity`:
        events of others that are recorded while nothing is delivered, as many as `capacity` by default. Everything
        that recording them needs is allocated when this returns.
        """
        chosen = multiplex or MultiplexSettings(listen, confirm_early, forward, multiplex_capacity)
        opened = super().open(path, recipients, multiplex=chosen, **options)
        assert isinstance(opened, Multiplexer)
        return opened

    @property
    def address(self) -> str:
        """HOST:PORT where others find it."""
        assert self._server is not None
        host, port = self._server.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def addresses(self) -> dict[str, str]:
        return {**super().addresses(), SECTION: self.address}

    # --- life -----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        super()._prepare()
        self.steps = _Steps(self.steps)
        settings, switches = self.settings, self._multiplex
        section = self._section = self.memory.take_named(SECTION, SECTION, switches.capacity or settings.capacity)
        try:
            room = frames.PUT_OVERHEAD_BYTES + settings.event_bytes_max
            intake = self._intake = Intake(
                section,
                self._shared.current,
                self.steps,
                self._ring,
                name=settings.name,
                frame_bytes_max=max(room, limits.EVENT_LINK_FRAME_BYTES_DEFAULT),
                confirm_early=switches.confirm_early,
                forward=switches.forward,
            )
            intake.read_memory()
            intake.server = self._server = self._listening(intake, section)
        except BaseException:
            section.close()
            self._recorder.close()
            raise
        for recipient in self._multiplexers():
            recipient.relay = partial(self._relay, recipient.name)

    def _multiplexers(self) -> list[Multiplexing]:
        """Behind this one."""
        return [recipient for recipient in self._recipients.values() if isinstance(recipient, Multiplexing)]

    def _listening(self, intake: Intake, section: Section) -> Server:
        address = parse_address(self._multiplex.listen)
        try:
            return Server(
                intake,
                (address.host, address.port),
                frame_bytes_max=intake.frame_bytes_max,
                idle_s=IDLE_S,
                ballast=section.ballast,
            )
        except OSError as error:
            raise AddressInUse(address=str(address)) from error

    def _begun(self, engine: Engine) -> None:
        super()._begun(engine)
        assert self._section is not None and self._intake is not None and self._server is not None
        switches = self._multiplex
        self._outcomes = Outcomes(
            engine, self._section, self._intake, confirm_early=switches.confirm_early, forward=switches.forward
        )
        for recipient in self._multiplexers():
            recipient.expect(self._intake.origins.producers() if switches.forward else ())
        if not self._serves:  # what was complete before this start is known now
            self._serves = True
            self._server.start()

    def __enter__(self) -> Multiplexer:
        return self

    def close(self) -> None:
        if self._closed:
            return
        is_ours = os.getpid() == self._pid
        if self._server is not None and is_ours:
            self._server.close()
        super().close()
        if self._section is not None and is_ours:
            self._section.close()

    # --- what the engine asks and tells ---------------------------------------------------------------

    def is_replayed(self, section: Section) -> bool:
        return section is self._section or super().is_replayed(section)

    def releasable(self, section: Section, floor: int) -> int:
        if section is self._section and self._outcomes is not None:
            return self._outcomes.releasable(floor)
        return super().releasable(section, floor)

    def confirmed(self, section: Section, recipient: str, ranges: list[tuple[int, int]]) -> None:
        super().confirmed(section, recipient, ranges)
        if section is self._section and self._outcomes is not None:
            self._outcomes.confirmed(recipient, ranges)

    def settled(self, section: Section, floor: int) -> None:
        super().settled(section, floor)
        if section is self._section and self._outcomes is not None:
            self._outcomes.settled()

    def _relay(self, name: str, recipient: str, ranges: Ranges, heard: Callable[[], None]) -> None:
        if self._outcomes is not None:
            self._outcomes.relay(f"{name}/{recipient}", ranges, heard)

    # --- facts ----------------------------------------------------------------------------------------

    def multiplex_status(self) -> dict[str, Any]:
        assert self._server is not None and self._intake is not None
        return {
            "listen": self.address,
            "confirm_early": self._multiplex.confirm_early,
            "forward": self._multiplex.forward,
            "senders": sorted(self._server.peers),
            "producers": len(self._intake.origins),
            "unheard": len(self._intake.unheard),
            "connections_dropped": self._server.dropped,
            "starved": self._server.starved,
        }
