"""The event system of a process: events recorded whatever happens, delivered until everyone has confirmed.

    events = EventSystem.open("events", recipients=[log, pager], capacity=20_000)
    events.ready()
    events.emit("disk.full", source="volume/7", severity="error", data={"free_bytes": 0})

Theory of operation
    Recording (`Recorder`) and delivering (`Engine`, in a thread of its own) share nothing but persistent memory. One
    process of a directory delivers for all: the one that has the engine lock; the others record, and one of them that
    has recipients takes over when it ends.

Guarantees
    1. `emit` returns when the event is in persistent memory, and in the partner's too if there is one and it can be
       reached. What it returned for reaches every recipient that it was recorded for, in spite of crashes.
    2. Until `ready()` nothing is delivered, and events go to the initialisation section; they are delivered first.
    3. `emit` works in every thread, in signal handlers, after `fork`, and when memory, disk and descriptors are used
       up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from clarion import limits
from clarion.errors import BadArgument, BadSetting, EngineAbsent
from clarion.events import look
from clarion.events.capture import quiet
from clarion.events.control import ControlServer
from clarion.events.distribution import RetryPolicy
from clarion.events.engine.engine import Engine
from clarion.events.engine.feed import Translate
from clarion.events.engine.host import EngineThread
from clarion.events.engine.seams import FOREIGN_KINDS
from clarion.events.event import Severity
from clarion.events.host_memory import HostMemory, Sizes
from clarion.events.ledger import Ledger
from clarion.events.memory import Section
from clarion.events.memory.ballast import NO_MEMORY, keep
from clarion.events.memory.directory import Directory
from clarion.events.recipients.function import as_recipient
from clarion.events.recorder import Recorder
from clarion.events.routing import Routes
from clarion.events.settings import EventsSettings, MultiplexSettings, PairSettings, check
from clarion.events.shared_routes import SharedRoutes
from clarion.events.steps import Steps
from clarion.instruments import Registry
from clarion.message import PropertyValue

CLOSE_AGAIN_S = 0.1
ENGINE_AGAIN_S = 0.5
"""How often a process that has recipients looks whether the one that delivers is gone."""
ADD_S_MAX = 30.0


_NO_ROUTES = Routes()


class EventSystem:
    """See the module. Made by `open`."""

    def __init__(
        self, path: Path, settings: EventsSettings, recipients: Sequence[Any], policies: dict[str, RetryPolicy]
    ) -> None:
        self.path = path
        self.settings = settings
        self.registry = Registry()
        self.steps = Steps(self.registry)
        self.registry.arm_from(os.environ)
        self._recipients: dict[str, Any] = {name_of(one): one for one in map(as_recipient, recipients)}
        if len(self._recipients) < len(recipients):
            raise BadArgument(argument="recipients", detail="two of them have the same name")
        self._policies = policies
        self._pid = os.getpid()
        self._directory = Directory.open(path)
        self._shared = SharedRoutes(path)
        sizes = Sizes(
            settings.capacity,
            settings.initialisation_capacity,
            settings.event_bytes,
            settings.event_bytes_max,
            settings.durability,
        )
        self.memory = HostMemory(self._directory, sizes)
        self.memory.clean()
        self._wait_s = settings.wait_ms / 1_000
        source = f"{socket.gethostname()}/{Path(sys.argv[0] or 'python').name or 'python'}"
        self._recorder = Recorder(
            self.memory.take, self.steps, self._shared.current, source=source[:255], initialising=True
        )
        self._engine: Engine | None = None
        self._closed = False
        self._thread: EngineThread | None = None
        self._prepare()
        if self._recipients:
            # Until it is clear who delivers, events are recorded undecided: recipients that are new get them too.
            self._recorder.routes = lambda: _NO_ROUTES
            self._recorder.recorded = self._ring
            self._thread = EngineThread(self._serve)

    @classmethod
    def open(
        cls,
        path: Path | str,
        recipients: Iterable[Any] = (),
        *,
        partner: PairSettings | None = None,
        multiplex: MultiplexSettings | None = None,
        name: str = "events",
        capacity: int = limits.EVENT_CAPACITY_DEFAULT,
        initialisation_capacity: int = limits.EVENT_INITIALISATION_CAPACITY_DEFAULT,
        event_bytes: int = limits.EVENT_BYTES_AVERAGE,
        event_bytes_max: int = limits.EVENT_BYTES_MAX_DEFAULT,
        durability: str = "power",
        wait_s: float = 0.0,
        retry: RetryPolicy | dict[str, RetryPolicy] | None = None,
    ) -> EventSystem:
        """Open the directory, or make it. Everything that recording needs is allocated when this returns.

        `recipients`: recipients or callables. `capacity`: events of `event_bytes` on average that this process can
        record while nothing is delivered. `wait_s`: how long `emit` waits for room before it raises `Blocked`.
        `retry`: how all recipients, or those of a name, are tried again, and when they are given up (never).
        """
        if durability not in ("power", "process"):
            raise BadArgument(argument="durability", detail=f"{durability!r} is neither power nor process")
        try:
            settings = check(
                EventsSettings(
                    directory=str(path),
                    name=name,
                    capacity=capacity,
                    initialisation_capacity=initialisation_capacity,
                    event_bytes=event_bytes,
                    event_bytes_max=event_bytes_max,
                    durability=durability,  # type: ignore[arg-type]
                    wait_ms=int(wait_s * 1_000),
                    pair=partner,
                    multiplex=multiplex,
                )
            )
        except BadSetting as error:
            raise BadArgument(argument="event system", detail=error.facts["detail"]) from None
        chosen = [as_recipient(one) for one in recipients]
        policies = retry if isinstance(retry, dict) else {name_of(one): retry for one in chosen} if retry else {}
        kind: type[EventSystem] = cls
        if partner is not None:
            from clarion.events.paired import PairedSystem as kind
        return kind(Path(path), settings, chosen, policies)

    def _prepare(self) -> None:
        """For who has more than this: called once, before anything can be delivered."""

    # --- recording ----------------------------------------------------------------------------------

    def emit(
        self,
        type: str,
        *,
        source: str | None = None,
        severity: Severity | str | int = "info",
        data: Any = None,
        attributes: dict[str, PropertyValue] | None = None,
        time_ns: int | None = None,
    ) -> str:
        """Record an event; its id, when it is in persistent memory.

        Raises `BadEvent`, `EventTooLarge`, `Blocked` (there is no room), `JournalFailed` (the disk failed).
        """
        recorder = self._recorder
        ballast = recorder.ballast
        while True:
            try:
                return recorder.record(type, source, severity, data, attributes, time_ns, self._wait_s)
            except NO_MEMORY as error:
                # There was no memory for the call itself, so nothing happened; what comes from inside has left nothing.
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
                ballast.missing = True

    def emit_many(self, events: Iterable[tuple[str, str | None, Severity | str | int, Any]]) -> list[str]:
        """Record (type, source, severity, data) each, with few syncs; their ids, when all are in persistent memory.

        `Blocked` says how many were recorded before there was no room.
        """
        return self._recorder.record_many(events, self._wait_s)

    # --- state --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def initialising(self) -> Iterator[None]:
        """Within it events are recorded in the initialisation section, and nothing is delivered; then `ready`."""
        self.pause()
        try:
            yield
        finally:
            self.ready()

    def pause(self) -> None:
        """Deliver nothing; events go to the initialisation section until `ready`."""
        self._recorder.set_initialising(True)

    def ready(self) -> None:
        """Initialisation is over: what was recorded is delivered, then what comes."""
        self._recorder.set_initialising(False)
        self._ring()

    @property
    def is_delivering(self) -> bool:
        """This process delivers for its directory."""
        return self._engine is not None and self._pid == os.getpid()

    def status(self) -> dict[str, Any]:
        """Sections, recipients, what is owed, as an operator sees it: told by the process that delivers."""
        return look.status(self.path)

    def close(self) -> None:
        """Stop delivering, let everything go. What is not delivered stays recorded."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None and os.getpid() == self._pid:
            self._recorder.recorded = lambda: None
            self._thread.close()
        self._recorder.close()
        self.memory.close_foreign()
        self._directory.close()
        self._shared.close()

    def __enter__(self) -> EventSystem:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- delivering: in the engine's thread -----------------------------------------------------------

    def _ring(self) -> None:
        """Tell the engine, if it sleeps. No lock, no memory that must be there: it looks by itself soon."""
        engine, thread = self._engine, self._thread
        if engine is None or thread is None or self._pid != os.getpid():
            return
        loop = thread.loop
        if loop is not None and not engine.rung:
            engine.rung = True
            with contextlib.suppress(RuntimeError, MemoryError):
                loop.call_soon_threadsafe(engine.ring)

    async def _serve(self, stop: asyncio.Event) -> None:
        """Become the one that delivers, when nobody else is; then deliver."""
        with quiet():
            while not self._directory.try_engine():
                self._recorder.routes = self._shared.current
                await _pause(stop)
                if stop.is_set():
                    return
            await self._deliver_alone(stop)

    async def _deliver_alone(self, stop: asyncio.Event) -> None:
        try:
            await self._deliver(stop)
        finally:
            self._engine = None
            self._directory.leave_engine()

    # What follows ends while there is no memory, often. Each is so short that an error in its `finally` needs none
    # (rule 3 of `memory.writing`); the loops in there are in line, for a call would need some.

    async def _deliver(self, stop: asyncio.Event) -> None:
        ledger = self._open_ledger()
        try:
            await self._deliver_with(ledger, stop)
        finally:
            while True:  # what stays open keeps the next engine from starting
                try:
                    ledger.close()
                    break
                except NO_MEMORY:
                    time.sleep(CLOSE_AGAIN_S)  # noqa: ASYNC251 - nothing else runs here any more
            self.memory.close_foreign()

    def _open_ledger(self) -> Ledger:
        return Ledger.open(
            self.path / "ledger",
            asyncio.get_running_loop(),
            durability=self.settings.durability,
            event_bytes_max=self.settings.event_bytes_max,
        )

    async def _deliver_with(self, ledger: Ledger, stop: asyncio.Event) -> None:
        engine = Engine(self.memory, self, ledger, self.steps, self._recipients, self._policies)
        control = ControlServer(self.path, look.handlers(self, engine))
        await control.open()
        self._engine = engine
        self._begun(engine)
        await self._run(engine, control, stop)

    async def _run(self, engine: Engine, control: ControlServer, stop: asyncio.Event) -> None:
        try:
            await engine.run(stop)
        finally:
            self._engine = None
            while True:  # however long there is no memory
                try:
                    await control.close()
                    break
                except NO_MEMORY:
                    time.sleep(CLOSE_AGAIN_S)  # noqa: ASYNC251 - nothing else runs here any more

    def _begun(self, engine: Engine) -> None:
        """For who has more than this: an engine with its ledger is there, and about to run in this loop."""

    def may_deliver(self) -> bool:
        return not self._recorder.initialising

    def is_replayed(self, section: Section) -> bool:
        return section.kind not in FOREIGN_KINDS

    def translation(self, section: Section) -> Translate | None:
        return None

    def releasable(self, section: Section, floor: int) -> int:
        return floor

    def routes_changed(self, routes: Routes) -> None:
        self._shared.publish(routes)
        self._recorder.routes = self._shared.current

    def check_recipients(self, filters: Mapping[str, str]) -> None:
        """For a pair, whose partner has to know all of them."""

    def settled(self, section: Section, floor: int) -> None:
        """For a partner, who forgets what is settled."""

    def confirmed(self, section: Section, recipient: str, ranges: list[tuple[int, int]]) -> None:
        """For a multiplexer, which forwards confirmations."""

    def add_recipients(self, recipients: Iterable[Any]) -> list[str]:
        """Those whose names are new join, for events that are recorded from now on; their names.

        Raises `EngineAbsent` if this process does not deliver at the moment.
        """
        fresh = {name_of(one): one for one in map(as_recipient, recipients) if name_of(one) not in self._recipients}
        engine, thread = self._engine, self._thread
        loop = thread.loop if thread is not None else None
        if not fresh:
            return []
        if engine is None or loop is None:
            raise EngineAbsent(path=str(self.path), detail="another process delivers, or none")

        async def add() -> None:
            for name, recipient in fresh.items():
                engine.add_recipient(name, recipient)
            await engine.ledger.durable()

        asyncio.run_coroutine_threadsafe(add(), loop).result(ADD_S_MAX)
        self._recipients.update(fresh)
        return sorted(fresh)

    def forget_recipient(self, name: str) -> None:
        """It was removed by an operator: an engine that starts again in this process must not bring it back."""
        self._recipients.pop(name, None)

    # --- facts --------------------------------------------------------------------------------------

    def addresses(self) -> dict[str, str]:
        """Where others find this system: a partner's or a multiplexer's link."""
        return {}

    @property
    def state(self) -> str:
        """`initialising` or `ready`."""
        return "initialising" if self._recorder.initialising else "ready"

    def pair_status(self) -> dict[str, Any] | None:
        """How it is with the partner; None without one."""
        return None

    def multiplex_status(self) -> dict[str, Any] | None:
        """Who sends to this system and how it confirms; None if it is no multiplexer."""
        return None

    def take_over(self) -> None:
        """An operator knows that the partner is dead."""
        raise BadArgument(argument="event system", detail="it has no partner")

    @property
    def problem(self) -> str:
        """What stopped the engine last; empty while it runs."""
        return self._thread.problem if self._thread is not None and self._engine is None else ""

    def wait_until_delivered(self, timeout_s: float = 30.0) -> bool:
        """Everything that this directory holds has been confirmed by all recipients; False after `timeout_s`.

        For short programs that want to end only when their events are delivered: recorded they are anyway.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            with contextlib.suppress(EngineAbsent):
                if not look.waiting(self.path):
                    return True
            threading.Event().wait(0.01)
        return False


async def _pause(stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ENGINE_AGAIN_S):
            await stop.wait()


keep(EventSystem, SharedRoutes)


def name_of(recipient: Any) -> str:
    """A recipient's name: its own, or that of its class."""
    return str(getattr(recipient, "name", "") or type(recipient).__name__.lower())
