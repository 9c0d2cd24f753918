"""An event system with a partner: each records the other's events, and delivers them while the other cannot (A-10).

Theory of operation
    `Pair` (in `pair/`) keeps a copy of our rings at the partner, holds the partner's in the section `partner-NAME`, and
    decides who may deliver what. Here it meets the engine: the partner's section is one more feed while we act, with
    its recipients translated by their names, for each system has numbers of its own.

Guarantees
    1. Own events are delivered only while the pair says that they are ours to deliver; it is asked before every batch.
    2. The partner's events leave our memory only when the partner says that they are settled.
    3. What we confirmed for the partner is told to it, and recorded there, before it delivers again.
    4. The partner has recorded who our recipients are before it gets an event that was recorded for them.

A recipient that only one of the two has gets its events from that one, so it waits until that one is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from clarion import limits
from clarion.errors import BadArgument, BadSetting, ClarionError, EngineAbsent, LimitReached
from clarion.events.engine.engine import Engine
from clarion.events.engine.feed import Translate
from clarion.events.engine.seams import PARTNER_KIND
from clarion.events.event import headers_of
from clarion.events.link.confirmations import Confirmations
from clarion.events.link.sink import ForeignSection
from clarion.events.memory import FLAG_UNDECIDED, Recorded, Section
from clarion.events.memory.ballast import NO_MEMORY
from clarion.events.pair.copies import Copies
from clarion.events.pair.host import Pair
from clarion.events.pair.messages import Policy, Timing
from clarion.events.pair.partner_routes import PartnerRoutes
from clarion.events.pair.witness import Witness, open_witness
from clarion.events.routing import Routes
from clarion.events.settings import PairSettings
from clarion.events.system import EventSystem
from clarion.settings import parse_address

ENGINE_S_MAX = 60.0
"""How long a question of the pair waits for an engine that is starting."""
READ_EVENTS = 1_024
READ_BYTES = 1 << 20
WITNESS_S = 1.0
"""How long a question to the witness may take."""
PARTNER_ROUTES = "partner-routes"
"""The file that keeps who the partner's recipients are; a ledger of before has them under this name."""

AGAIN_S = 0.05

_logger = logging.getLogger("clarion.events")
_Result = TypeVar("_Result")


class PairedSystem(EventSystem):
    """See the module."""

    def _prepare(self) -> None:
        settings = self.settings.pair
        assert settings is not None
        self._check_recipients_given()
        self._acting = self._closing = False
        self._partner_routes = PartnerRoutes()
        capacity = self.settings.capacity + self.settings.initialisation_capacity
        self._partner = self.memory.take_named(f"partner-{settings.partner_name}", "partner", capacity)
        listen, partner = parse_address(settings.listen), parse_address(settings.partner)
        self.pair = Pair(
            self.settings.name,
            settings.partner_name,
            listen=(listen.host, listen.port),
            partner_address=(partner.host, partner.port),
            section=self._partner,
            engine=_Seam(self),
            state_path=self.path / "pair",
            note_path=self.path / PARTNER_ROUTES,
            registry=self.registry,
            witness=witness_of(settings),
            without_witness=Policy(settings.without_witness),
            timing=Timing.of(settings.lease_ms),
            stored_ms=settings.stored_ms,
            memory_id=self._partner.producer,
        )
        for section in self._recorder.sections.all():
            section.mirror = self.pair.keeper.mirror(section)
        self.copies = Copies(self._directory, self.pair.keeper, self._is_own, self._partner.producer)
        self._know_partner(self.pair.partner_note)
        if not self._recipients:  # nothing here will say who they are but what others of the directory left
            self.pair.note(self._shared.current().dump())
        self.pair.start()

    def _check_recipients_given(self) -> None:
        """With those that the directory has already. Before anything is recorded, so nothing is lost by refusing."""
        filters = {route.name: route.filter for route in self._shared.current().routes}
        filters.update((name, getattr(one, "filter", "")) for name, one in self._recipients.items())
        try:
            self.check_recipients(filters)
        except LimitReached:
            self._recorder.close()
            self._directory.close()
            self._shared.close()
            raise

    def _know_partner(self, note: bytes | None) -> None:
        """Who the partner's recipients were when it last said so."""
        try:
            self._partner_routes = PartnerRoutes.load(note) if note is not None else PartnerRoutes()
        except ClarionError as error:
            _logger.warning("the recipients of %s cannot be understood: %s", self.pair.partner, error)

    def _is_own(self, name: str) -> bool:
        return name == self._partner.name or any(name == one.name for one in self._recorder.sections.all())

    def close(self) -> None:
        """As of any event system; then the partner acts for us as soon as it may."""
        if not self._closed:
            self._closing = True
            self.pair.close()
            self.copies.close()
        super().close()
        self._partner.close()

    # --- rules --------------------------------------------------------------------------------------

    def may_deliver(self) -> bool:
        return super().may_deliver() and self.pair.may_deliver() and (not self._acting or self.pair.may_act())

    def is_replayed(self, section: Section) -> bool:
        return self._acting if section is self._partner else super().is_replayed(section)

    def translation(self, section: Section) -> Translate | None:
        return self._bits if section is self._partner else super().translation(section)

    def releasable(self, section: Section, floor: int) -> int:
        return min(floor, section.first_sequence) if section is self._partner else floor

    def check_recipients(self, filters: Mapping[str, str]) -> None:
        """Raises `LimitReached` if the partner cannot be told who they are."""
        slots = range(limits.EVENT_RECIPIENTS_MAX - len(filters), limits.EVENT_RECIPIENTS_MAX)
        rows = [(slot, name, text) for slot, (name, text) in zip(slots, filters.items(), strict=False)]
        if Routes.dumped_bytes(rows) > limits.EVENT_LINK_NOTE_BYTES_MAX:
            raise LimitReached(
                what="bytes of the names and filters of all recipients of a system with a partner",
                limit=limits.EVENT_LINK_NOTE_BYTES_MAX,
            )

    def routes_changed(self, routes: Routes) -> None:
        self.pair.note(routes.dump())  # first: then what is recorded by these routes waits until the partner has them
        super().routes_changed(routes)

    def confirmed(self, section: Section, recipient: str, ranges: list[tuple[int, int]]) -> None:
        if section is not self._partner:
            self.pair.confirmed(recipient, [(section.producer, first, end) for first, end in ranges])

    def _begun(self, engine: Engine) -> None:
        if self.pair.partner_note is None:
            self._know_partner(engine.ledger.value(PARTNER_ROUTES))

    def _bits(self, event: Recorded) -> int:
        """For whom an event of the partner is, in our numbers: by the names of its recipients."""
        names = self._names(event)
        engine = self._engine
        ours = {route.name: route.slot for route in engine.decisions.routes.routes} if engine is not None else {}
        return sum(1 << ours[name] for name in names if name in ours)

    def _names(self, event: Recorded) -> list[str]:
        theirs = self._partner_routes
        if not event.flags & FLAG_UNDECIDED:
            return theirs.names(event.bits, event.epoch)
        identity = event.producer + event.sequence
        bits = theirs.routes.decide(headers_of(event), event.time_ns // 1_000_000, identity)
        return theirs.routes.names(bits)

    def _is_delivered(self, event: Recorded, names: Collection[str]) -> bool:
        """To everybody it is for, if these have it. Not if it is for somebody of whom nothing is known here."""
        known = self._partner_routes.routes.bits_all
        return set(self._names(event)) <= set(names) and (not event.bits & ~known or bool(event.flags & FLAG_UNDECIDED))

    # --- facts --------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        known = super().state
        return known if known != "ready" or self.pair.may_deliver() else f"ready, {self.pair.right.value}"

    def addresses(self) -> dict[str, str]:
        host, port = self.pair.server.address
        return {**super().addresses(), "pair": f"{host}:{port}"}

    def pair_status(self) -> dict[str, Any] | None:
        found = self.pair.status()
        detail = f"right {found['right']}, duty {found['duty']}, holds {found['held_for_partner']:,} events for it"
        if found["held_of_former"]:
            detail += f", {found['held_of_former']:,} of them of a memory that it does not have any more"
        return {"state": found["bond"], "detail": detail, **found}

    def take_over(self) -> None:
        """An operator knows that the partner is dead."""
        self.pair.take_over()

    # --- for the seam, in the pair's worker thread ----------------------------------------------------

    def ask_engine(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run it in the engine's loop, as soon as there is one. Raises `EngineAbsent` if there is none in time."""
        waited = threading.Event()
        left_s = ENGINE_S_MAX
        while True:
            engine, thread = self._engine, self._thread
            loop = thread.loop if thread is not None else None
            if engine is not None and engine.is_running and loop is not None:
                try:
                    return self._await(asyncio.run_coroutine_threadsafe(work, loop), engine)
                except (RuntimeError, TimeoutError, CancelledError) as error:
                    raise EngineAbsent(path=str(self.path), detail=f"it ended meanwhile: {error}") from None
            if left_s <= 0 or self._closing or not self.has_engine:
                work.close()
                raise EngineAbsent(path=str(self.path), detail="no engine runs")
            waited.wait(0.02)
            left_s -= 0.02

    def _await(self, asked: Future[_Result], engine: Engine) -> _Result:
        """The answer of this engine, or `TimeoutError` when it is gone: its loop does not answer any more."""
        left_s = ENGINE_S_MAX
        while True:
            try:
                return asked.result(AGAIN_S)
            except TimeoutError:
                left_s -= AGAIN_S
                if asked.done():
                    return asked.result()
                if left_s <= 0 or (self._engine is not engine and asked.cancel()):
                    raise

    @property
    def has_engine(self) -> bool:
        """This process has recipients, so it delivers, or will."""
        return self._thread is not None


class _Seam:
    """What a pair needs of an engine (`pair.engine.PairEngine`)."""

    def __init__(self, system: PairedSystem) -> None:
        self._system = system
        self._held: Sequence[tuple[int, int]] = ()
        self._former: dict[int, int] = {}
        """By producer: what was delivered of a memory that the partner does not have any more."""

    def may_deliver(self, allowed: bool) -> None:
        self._system._ring()

    def start_replay(self, section: ForeignSection) -> None:
        self._system._acting = True
        self._system._ring()

    def stop_replay(self, section: ForeignSection) -> None:
        system = self._system

        async def stop() -> None:
            engine = system._engine
            assert engine is not None
            await engine.adopting.stop(system._partner.producer)
            system._acting = False  # in the same turn: an engine that looks at its sections must not find it again

        while system._acting and not system._closing:
            try:
                system.ask_engine(stop())
            except EngineAbsent:  # one that begins anew; without any nothing is on its way
                if not system.has_engine:
                    system._acting = False
            except Exception:  # it ended meanwhile, and the next one delivers as this one did
                _logger.exception("replaying for %s did not stop", system.pair.partner)
                threading.Event().wait(AGAIN_S)

    def confirmations(self, section: ForeignSection) -> Confirmations:
        return self._system.ask_engine(self._confirmations())

    async def _confirmations(self) -> Confirmations:
        """Which of the partner's events are settled here, by recipient: read from its section and the ledger."""
        system = self._system
        engine, partner = system._engine, system._partner
        assert engine is not None
        settled = {
            route: engine.ledger.settled(partner.producer, route.slot) for route in engine.decisions.routes.routes
        }
        found: dict[str, list[tuple[int, int, int]]] = {}
        former: dict[int, int] = {}
        owed: set[int] = set()
        at = partner.first_sequence
        while at < partner.next_sequence:
            events = partner.read(at, READ_EVENTS, READ_BYTES)
            for event in events:
                bits = system._bits(event)
                having = [
                    route.name
                    for route, (floor, spans) in settled.items()
                    if bits >> route.slot & 1
                    and (event.at < floor or any(first <= event.at < end for first, end in spans))
                ]
                for name in having:
                    _add(found.setdefault(name, []), event)
                if system.pair.is_former(event.producer):
                    if event.producer not in owed and system._is_delivered(event, having):
                        former[event.producer] = event.sequence + 1
                    else:
                        owed.add(event.producer)
            if not events:
                break
            at = events[-1].at + 1
            await asyncio.sleep(0)
        self._former = former
        return list(found.items())

    def forget(self, section: ForeignSection) -> None:
        """The partner says by floors what may leave; but not of a memory that it does not have any more."""
        self._system.pair.release_former(self._former)

    def apply_confirmations(self, confirmations: Confirmations) -> None:
        self._system.ask_engine(self._apply(confirmations))

    async def _apply(self, confirmations: Confirmations) -> None:
        """Durable, then the engine begins anew: what is confirmed is not owed."""
        engine = self._system._engine
        assert engine is not None
        slots = {route.name: route.slot for route in engine.decisions.routes.routes}
        applied = False
        for name, ranges in confirmations:
            for producer, first, end in ranges:
                if name in slots and producer in engine.feeds:
                    engine.ledger.confirm(producer, slots[name], [(first, end)])
                    applied = True
        await engine.ledger.durable()
        if applied:
            engine.begin_anew()

    def own_confirmations(self) -> Confirmations:
        try:
            return self._system.ask_engine(self._own_confirmations())
        except EngineAbsent:
            return []

    async def _own_confirmations(self) -> Confirmations:
        """Of events that are still there because others have not confirmed them, and those that a partner may have."""
        engine = self._system._engine
        assert engine is not None
        found: list[tuple[str, list[tuple[int, int, int]]]] = []
        for route in engine.decisions.routes.routes:
            ranges = []
            for feed in engine.feeds.values():
                if feed.section.kind != PARTNER_KIND:
                    floor, spans = engine.ledger.settled(feed.key, route.slot)
                    kept = [(feed.section.first_sequence, floor), *spans]
                    ranges += [(feed.key, first, end) for first, end in kept if first < end]
            found.append((route.name, ranges))
        return found

    def partner_confirmed(self, confirmations: Confirmations) -> None:
        """What the partner's recipients have: it is not sent again if we act for it."""
        with contextlib.suppress(EngineAbsent):
            self._system.ask_engine(self._note_confirmed(confirmations))

    async def _note_confirmed(self, confirmations: Confirmations) -> None:
        system = self._system
        engine, partner = system._engine, system._partner
        assert engine is not None
        engine.ledger.adopt_section(partner.producer, partner.name, partner.kind, first=partner.first_sequence)
        engine.ledger.released(partner.producer, partner.first_sequence)
        news = False
        slots = {route.name: route.slot for route in engine.decisions.routes.routes}
        for name, ranges in confirmations:
            if name in slots:
                for producer, first, end in ranges:
                    places = system.pair.sink.places(producer, first, end)
                    settled = engine.ledger.settled(partner.producer, slots[name])
                    if fresh := [place for place in places if not _covers(settled, place)]:
                        engine.ledger.confirm(partner.producer, slots[name], fresh)
                        news = True
        if news and system._acting:  # the wire was cut before we heard of it
            engine.begin_anew()

    def partner_note(self, note: bytes) -> bytes:
        system, known = self._system, self._system._partner_routes
        routes = Routes.load(note)
        fresh = known if routes == known.routes else known.followed_by(routes)
        system._partner_routes = fresh
        engine, thread = system._engine, system._thread
        loop = thread.loop if thread is not None else None
        if system._acting and known is not fresh and engine is not None and loop is not None:
            # What was read of its section was read with the old ones. An engine that begins just now reads it later.
            try:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(engine.begin_anew)
            except NO_MEMORY:
                system._partner_routes = known  # the note comes again
                raise
        return fresh.dump()

    def floors(self) -> Iterable[tuple[int, int]]:
        """Of our own sections, and of those that other processes of this host write."""
        system = self._system
        own = system._recorder.sections.all()
        with contextlib.suppress(OSError):  # no descriptor: later
            system.copies.look()
            held = self._held
            if held and system.copies.settle(held, [section.producer for section in own]) and self._held is held:
                self._held = ()
        return [*((section.producer, section.first_sequence) for section in own), *system.copies.floors()]

    def held_there(self, held: Sequence[tuple[int, int]]) -> None:
        self._held = held

    def report(self, type_: str, severity: str, data: dict[str, Any]) -> None:
        with contextlib.suppress(ClarionError):
            self._system.emit(type_, source=f"pair/{self._system.settings.name}", severity=severity, data=data)


def witness_of(settings: PairSettings) -> Witness | None:
    """The one that the settings name. Raises `BadSetting` for an address that is none."""
    if settings.witness is None:
        return None
    try:
        return open_witness(settings.witness, timeout_s=WITNESS_S)
    except BadArgument as error:
        raise BadSetting(file="settings", detail=f"[events.pair] witness: {error.facts['detail']}") from None


def _covers(settled: tuple[int, list[tuple[int, int]]], place: tuple[int, int]) -> bool:
    """All of it is settled."""
    floor, spans = settled
    return place[1] <= floor or any(first <= place[0] and place[1] <= end for first, end in spans)


def _add(ranges: list[tuple[int, int, int]], event: Recorded) -> None:
    """One more event, joined to the last range if it follows it."""
    if ranges and ranges[-1][0] == event.producer and ranges[-1][2] == event.sequence:
        ranges[-1] = event.producer, ranges[-1][1], event.sequence + 1
    else:
        ranges.append((event.producer, event.sequence, event.sequence + 1))
