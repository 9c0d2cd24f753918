"""The host of a message manager: bus on one side, journal on the other, the pure core between.

Rules
    1. It hears and speaks only over the bus, and only in bytes.
    2. Recovery is checkpoint plus replay; nothing leaves before the recovered tail is durable again.
    3. A failure of persistent memory ends the process through `on_failed`; nothing is sent afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from clarion import limits
from clarion.bus.interface import Bus, Subscription
from clarion.core.cache import PageCache
from clarion.core.destination import EXPIRY_STEP_MS, Destination
from clarion.core.entries import Transfer
from clarion.core.policies import Effective, PolicyTable
from clarion.core.state import State
from clarion.core.wellknown import KINDS
from clarion.errors import ClarionError, InternalFault, JournalFull, LimitReached
from clarion.ids import IdGenerator
from clarion.instruments import Registry
from clarion.journal import Recovery
from clarion.nodes.logging import ERROR, event
from clarion.nodes.message_manager.clockwork import Clockwork
from clarion.nodes.message_manager.consuming import Consuming
from clarion.nodes.message_manager.dead import Dead
from clarion.nodes.message_manager.delivery import Delivery
from clarion.nodes.message_manager.freeing import Freeing
from clarion.nodes.message_manager.leasing import Leasing
from clarion.nodes.message_manager.log import EntryLog
from clarion.nodes.message_manager.looking import Looking
from clarion.nodes.message_manager.merging import Merging
from clarion.nodes.message_manager.naming import Naming
from clarion.nodes.message_manager.publishing import Publishing
from clarion.nodes.message_manager.ranging import Ranging
from clarion.nodes.message_manager.readers import Readers
from clarion.nodes.message_manager.reading import PageReader
from clarion.nodes.message_manager.recovering import OpenJournal, files_of, options_of, probe_of, replay, report, retain
from clarion.nodes.message_manager.requests import Requests
from clarion.nodes.message_manager.restarting import Restarting
from clarion.nodes.message_manager.retention import Retention
from clarion.nodes.message_manager.room import Room
from clarion.nodes.message_manager.sessions import Sessions
from clarion.nodes.message_manager.slow import Slow
from clarion.nodes.message_manager.streaming import Streaming
from clarion.nodes.message_manager.subscribing import Subscribing
from clarion.nodes.message_manager.temporary import Temporary
from clarion.nodes.message_manager.transacting import Transacting
from clarion.nodes.message_manager.upkeep import Upkeep
from clarion.nodes.message_manager.watching import Watching
from clarion.settings import Settings
from clarion.wire import commands, frames
from clarion.wire.batch import Batch, Buffer

_LEFT_OVER_MS = 100
_log = logging.getLogger("clarion.mm")


class MessageManager:
    """One message manager: `start`, then it lives on the bus until `stop`."""

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        registry: Registry,
        *,
        on_failed: Callable[[ClarionError], None],
        open_journal: OpenJournal | None = None,
    ) -> None:
        """`open_journal` replaces the files of the settings: by a faulty or a simulated disk."""
        self.bus = bus
        self.settings = settings
        self.registry = registry
        self._on_failed = on_failed
        self._open_journal = open_journal
        self._failed = self._ended = False
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[int, Callable[[commands.Command], None]] = {}
        self.sessions = Sessions()
        self.cache = PageCache(settings.message_manager.read_cache_bytes)
        self.started_ms = 0
        self._left_over: list[Callable[[], None]] = []

    # --- start and stop -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the journal, recover, and begin to listen. Raises `JournalError` and `ConfigurationError`s."""
        self._loop = asyncio.get_running_loop()
        began = time.perf_counter()
        recovery = await self._open()
        self._build()
        await self._loop.run_in_executor(None, replay, self.state, recovery)
        retain(self.state, self.journal)
        self.journal.start()
        self.state.recovered()
        for destination in self.state.destinations.values():
            self.freeing.release(destination, [(1, destination.tail)])
        self.upkeep.measure()
        self._resume_work()
        self.bus.after_burst = self.journal.flush
        group = self.settings.message_manager.group
        self._subscriptions = [
            self.bus.subscribe(commands.group_channel(group), self._receive),
            self.bus.watch(self._member),
            self.bus.join(f"mm/{group}"),
        ]
        self.spawn(self.retention.look_at_all())
        self.spawn(self.upkeep.run())
        self.started_ms = int(time.time() * 1000)
        report(self.state, self.journal, recovery, time.perf_counter() - began)

    async def _open(self) -> Recovery:
        opener = self._open_journal or files_of(self.settings, self._loop)
        options, (probe, is_clear) = options_of(self.settings), probe_of(self.registry)
        self.journal, recovery = await self._loop.run_in_executor(None, opener, options, probe)
        self.journal.on_failed = self._fail_stop
        if self.settings.journal.lone_in_place:
            self.journal.may_wait = is_clear
        return recovery

    def _build(self) -> None:
        policies = PolicyTable(self.settings.destinations.rules)
        self.state = State(self.journal.status().segment_bytes, policies)
        self._ids = IdGenerator.begin(self.settings.node.site, self.settings.node.node, self.now_ms())
        self._own_producer, self._own_sequence = self._ids.next_producer(), 1
        self.naming = Naming(self)
        self.freeing = Freeing(self)
        self.room = Room(self)
        self.publishing = Publishing(self)
        self.upkeep = Upkeep(self)
        self.log = EntryLog(
            self.journal, self.state, answer=self.publishing.answer, soon=self.soon, settled=self.upkeep.committed
        )
        self.journal.on_durable = self._on_durable
        self.journal.on_room = self.room.resume
        self.reader = PageReader(self.journal, self.cache, self._loop, self._fault)
        self.delivery = Delivery(self)
        self.subscribing = Subscribing(self)
        self.consuming = Consuming(self)
        self.merging = Merging(self)
        self.restarting = Restarting(self)
        self.clockwork = Clockwork(self)
        self.dead = Dead(self)
        self.watching = Watching(self)
        self.retention = Retention(self)
        self.temporary = Temporary(self)
        self.streaming = Streaming(self)
        self.journal.growing.is_shared = self.streaming.pacing.shares
        self.transacting = Transacting(self)
        self.slow = Slow(self)
        self.leasing = Leasing(self)
        self.ranging = Ranging(self)
        self.readers = Readers(self)
        self.looking = Looking(self)
        self.requests = Requests(self)
        self._handlers = {
            frames.Type.PUBLISH: self.publishing.handle,
            frames.Type.STAGE: self.publishing.handle_staged,
            frames.Type.PUBLISH_LARGE: self.publishing.handle_large,
            frames.Type.FRAGMENT: self.streaming.pacing.handle,
            frames.Type.SUBSCRIBE: self.consuming.subscribe,
            frames.Type.UNSUBSCRIBE: self.consuming.unsubscribe,
            frames.Type.CREDIT: self.consuming.credit,
            frames.Type.CONFIRM: self.consuming.confirm,
            frames.Type.REJECT: self.consuming.reject,
            frames.Type.RETURN: self.consuming.reject_with_reason,
            frames.Type.REQUEST: self.requests.handle,
            commands.SESSION_OPENED: self._session_opened,
            commands.SESSION_ENDED: self._session_ended,
            commands.SESSION_FLOW: self._session_flow,
        }

    def _resume_work(self) -> None:
        """What an earlier run left to do, and what can be done without room in the log."""
        self.merging.recovered()
        self.leasing.recovered()
        self._left_over = [self._make_wellknown, *self.temporary.recovered(), *self.transacting.recovered()]
        self._left_over.append(self.streaming.space.recovered)
        for destination in list(self.state.destinations.values()):
            for subscription in destination.subscriptions.values():
                self.consuming.bury_worn(destination, subscription, [(1, destination.tail)])
            self.clockwork.look(destination)
        self._do_left_over()

    def _do_left_over(self) -> None:
        """The rest, now or as soon as there is room."""
        try:
            while self._left_over:
                self._left_over[0]()
                del self._left_over[0]
        except JournalFull:
            self.later(_LEFT_OVER_MS, self._do_left_over)

    def _make_wellknown(self) -> None:
        for name in KINDS:
            self.naming.system(name)

    async def stop(self) -> None:
        """Make everything durable and leave: a clean end needs no recovery."""
        for subscription in self._subscriptions:
            subscription.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if hasattr(self, "reader"):
            self.streaming.pacing.close()
            await self.reader.close()
            await self._loop.run_in_executor(None, self.streaming.reading.close)
        if hasattr(self, "journal"):
            # Called by `close`, and in its thread, where nothing may be handed out.
            self.journal.on_durable = lambda position: self._guarded(self.log.on_durable, position)
            self._ended = True
            await self._loop.run_in_executor(None, self.journal.close)

    def _fail_stop(self, error: ClarionError) -> None:
        self._failed = True
        self._on_failed(error)

    # --- the bus --------------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        if self._failed:
            return
        self.journal.gathers = True
        command = commands.decode(data)
        handler = self._handlers.get(command.type)
        if handler is None:
            event(_log, ERROR, "unknown_command", type=command.type)
            return
        try:
            handler(command)
        except Exception as error:  # state may be half changed: stop, and recover what is durable
            self._fault(error)

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except Exception as error:
            self._fault(error)

    def _on_durable(self, position: int) -> None:
        self.bus.hold()
        try:
            self.log.on_durable(position)
        except Exception as error:
            self._fault(error)
        finally:
            self.bus.release()

    def _fault(self, error: BaseException) -> None:
        _log.error("fault", exc_info=error)
        self._fail_stop(error if isinstance(error, ClarionError) else InternalFault(detail=repr(error)))

    def send(self, session: int, kind: int, parts: Sequence[Buffer]) -> None:
        """To a session, wherever it is."""
        if not self._failed:
            self.bus.publish(commands.session_channel(session), commands.encode(kind, session, parts))

    def reply(self, session: int, request: int, result: object) -> None:
        """The answer to a request."""
        payload = frames.pack({"request": request, "result": result})
        if len(payload) > limits.FRAME_BYTES_MAX:
            self.fail(session, request, LimitReached(what="bytes of one answer", limit=limits.FRAME_BYTES_MAX))
        else:
            self.send(session, frames.Type.REPLY, [payload])

    def fail(self, session: int, request: int, error: ClarionError) -> None:
        """The answer to a request that cannot be done."""
        if request:
            self.send(session, frames.Type.ERROR, [frames.pack({"request": request, **frames.error_facts(error)})])

    def _session_opened(self, command: commands.Command) -> None:
        facts = frames.unpack(command.payload)
        producer, connection = (int.from_bytes(facts[key], "big") for key in ("producer", "connection"))
        sender, resumed = facts.get("sender", b""), facts.get("resumed", False)
        earlier = self.sessions.introduce(command.session, producer, connection, sender, resumed)
        if earlier:
            # Its client came back by another client manager before the end of the first one was heard of. What was
            # in flight there comes back now, before anything newer is delivered.
            self._end(earlier, producer, clean=False)

    def _session_flow(self, command: commands.Command) -> None:
        self.consuming.flow(command)
        self.streaming.reading.pump()
        self.ranging.pump()

    def _session_ended(self, command: commands.Command) -> None:
        facts = frames.unpack(command.payload)
        self._end(command.session, int.from_bytes(facts["producer"], "big"), bool(facts["clean"]))
        self.sessions.taken.pop(command.session, None)

    def _end(self, identity: int, producer: int, clean: bool) -> None:
        session = self.sessions.pop(identity)
        if session is not None:
            self.transacting.ended(session)
            self.consuming.ended(session)
            self.readers.ended(session)
            self.ranging.ended(session)
            self.publishing.ended(session, producer, clean)
            self.streaming.ended(session, producer, clean)
            self.watching.ended(identity)
            self.temporary.ended(session)

    def _member(self, name: str, present: bool) -> None:
        """A client manager that vanished takes its sessions along."""
        kind, _, half = name.partition("/")
        if kind == "cm" and not present:
            for identity in self.sessions.of_manager(int(half, 16)):
                self._end(identity, 0, clean=False)
            self.sessions.forget_taken(int(half, 16))

    # --- for the parts --------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Unix time."""
        return time.time_ns() // 1_000_000

    def later(self, wait_ms: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back in so many milliseconds, unless the log is closed or has failed by then."""
        return self._loop.call_later(wait_ms / 1000, self._on_time, callback)

    def _on_time(self, callback: Callable[[], None]) -> None:
        if not self._failed and not self._ended:
            self._guarded(callback)

    def policy(self, destination: Destination) -> Effective:
        """What holds for a destination now."""
        return self.state.policies.effective(destination.name)

    def own_ids(self, count: int) -> int:
        """The first of so many ids, for messages that the broker itself makes."""
        first = self._own_producer + self._own_sequence
        self._own_sequence += count
        return first

    def transfer(self, entry: Transfer, batch: Buffer) -> None:
        """Write messages that go from one destination to another; they are seen when that is durable."""
        target = self.state.destinations[entry.destination]
        position, span = self.log.transfer(entry.encode(), batch)
        self.journal.retain(position, span)
        self.streaming.space.hold(target, entry)
        self.cache.published(target.identity, entry.first, False, entry.first, Batch(batch))
        tail = target.tail
        self.log.after(lambda: self.shown(target, tail))

    def shown(self, destination: Destination, tail: int) -> None:
        """Everything below `tail` is durable and visible."""
        if self.state.destinations.get(destination.identity) is not destination:
            return
        first, destination.visible = destination.visible, max(destination.visible, tail)
        self.watching.stored(destination, first, tail, self.now_ms())
        self.watching.shown(destination, first)
        self.delivery.wake(destination)
        if not destination.subscriptions or destination.floor() > first:
            self.freeing.release(destination, [(first, tail)])
        if destination.expiry_next_ms:
            self.clockwork.at(destination, destination.expiry_next_ms + EXPIRY_STEP_MS)

    def quota_bytes(self, destination: Destination, policy: Effective | None = None) -> int:
        """Its own quota, or half of what the journal can hold: one abandoned subscription leaves the rest."""
        said = (policy or self.policy(destination)).quota_bytes
        return said or destination.bytes_quota or self.upkeep.capacity_bytes // 2

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that this journal takes."""
        return min(limits.BATCH_BYTES_MAX, self.journal.record_bytes_max - limits.FRAME_OVERHEAD_BYTES_MAX)

    def count(self, name: str) -> int:
        """The value of one of our counters."""
        value = self.registry.instrument(name).read()
        if not isinstance(value, int):
            raise InternalFault(detail=f"{name} is not a counter")
        return value

    def soon(self, callback: Callable[[], None]) -> None:
        """After what is being done now."""
        self._loop.call_soon(self._guarded, callback)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that takes its time; a fault in it stops the process rather than being swallowed."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault(error)
