"""What the fault tests of one message manager share: a broker on any disk, and a client that speaks bus commands.

Theory of operation
    A `Story` outlives brokers: ledgers, producers with what they still want an answer for, and a count of
    lives. Each `Broker` is one life on the story's disk; `Client` speaks to it as a client manager would, and
    writes down in the ledgers what it saw.

Rules
    1. Nothing waits by time: `Client.until` wakes with every command that arrives and with the broker's death.
    2. What a broker sends after it failed is a fault, and is counted where it is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clarion import ids
from clarion.bus import LoopbackBus, LoopbackHub
from clarion.errors import ClarionError
from clarion.instruments import Registry
from clarion.journal import Journal, JournalOptions, Probe, Recovery, Store
from clarion.nodes.message_manager import MessageManager
from clarion.settings import JournalSettings, NodeSettings, Settings
from clarion.testing.faulty_disk import Crashed
from clarion.testing.invariants import Ledger
from clarion.testing.loop_committer import LoopCommitter
from clarion.wire import batch as wire
from clarion.wire import commands, frames
from clarion.wire.batch import Batch
from clarion.wire.frames import Type

WAIT_S = 20.0
QUEUE, TOPIC, SUBSCRIPTION = "queue:orders", "topic:prices", "desk"


class BrokerDead(Exception):
    """The broker of this life crashed or failed; what it owed will not come."""


# --- the story ------------------------------------------------------------------------------------


@dataclass
class Producer:
    """One producer over all lives: what is unanswered is sent again."""

    identity: int
    name: str
    sequence: int = 1
    unanswered: dict[int, tuple[str, list[bytes]]] = field(default_factory=dict)

    @property
    def floor(self) -> int:
        return min(self.unanswered, default=self.sequence)


@dataclass
class Story:
    """What must hold over all lives: one ledger for each destination, each with one consumer."""

    ledgers: dict[str, Ledger] = field(default_factory=lambda: {QUEUE: Ledger(), TOPIC: Ledger()})
    producers: dict[str, Producer] = field(default_factory=dict)
    asked: dict[str, set[bytes]] = field(default_factory=lambda: {QUEUE: set(), TOPIC: set()})
    """What consumers wanted to confirm: it may be confirmed, answered or not."""
    lives: int = 0
    sentinels: int = 0
    start: int = 1
    """Of its ids: stories of one disk have different ones."""

    def __post_init__(self) -> None:
        self._ids = ids.IdGenerator.begin(0, 1, ids.EPOCH_MS + self.start)

    def producer(self, name: str) -> Producer:
        found = self.producers.get(name)
        if found is None:
            found = self.producers[name] = Producer(self._ids.next_producer(), name)
        return found

    def check(self, queue: Held, topic: Held) -> None:
        """The ledgers hold, and in this life all came that nobody had confirmed before it."""
        for held in (queue, topic):
            held.ledger.check()
            missing = held.owed - set(held.bodies.values())
            assert not missing, f"{len(missing)} did not come again, the first is {min(missing)[:60]!r}"


# --- one life -------------------------------------------------------------------------------------


class StoppingCommitter(LoopCommitter):
    """Ends for good where the machine stops."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.over = False
        self.on_crash: Callable[[], None] = lambda: None

    def _add(self, *steps: Callable[[], None]) -> None:
        if not self.over:
            super()._add(*steps)

    def _run_due(self) -> None:
        if self.over:
            return
        try:
            super()._run_due()
        except Crashed:
            self.stop()
            self.on_crash()

    def stop(self) -> None:
        """The machine is off: nothing is done any more."""
        self.over = True
        self._steps.clear()

    def close(self) -> None:
        if not self.over:
            super().run()
            self.over = True


class WatchedBus(LoopbackBus):
    """Counts what is sent after the broker said that it failed."""

    def __init__(self, hub: LoopbackHub) -> None:
        super().__init__(hub)
        self.failed = False
        self.sent_after_failure = 0

    def publish(self, channel: str, data: bytes) -> None:
        if self.failed:
            self.sent_after_failure += 1
        super().publish(channel, data)


def settings_for(data: Path, bytes_max: int, **journal: Any) -> Settings:
    return Settings(node=NodeSettings(data=str(data)), journal=JournalSettings(bytes_max=bytes_max, **journal))


class Broker:
    """One life of a message manager. `store` None: the files of the settings, with real threads."""

    def __init__(self, settings: Settings, store: Store | None = None) -> None:
        self.hub = LoopbackHub()
        self.bus = WatchedBus(self.hub)
        self.failure: ClarionError | None = None
        self.crashed = False
        self.changed = asyncio.Event()
        self.recovery: Recovery | None = None
        self._store = store
        self._committer: StoppingCommitter | None = None
        if store is not None:
            self._committer = StoppingCommitter(asyncio.get_running_loop())
            self._committer.on_crash = self._on_crash
        self.manager = MessageManager(
            self.bus,
            settings,
            Registry(),
            on_failed=self._on_failed,
            open_journal=None if store is None else self._open,
        )

    def _open(self, options: JournalOptions, probe: Probe) -> tuple[Journal, Recovery]:
        assert self._store is not None
        assert self._committer is not None
        journal, self.recovery = Journal.open(self._store, options, self._committer, probe=probe)
        return journal, self.recovery

    def _on_failed(self, error: ClarionError) -> None:
        self.failure = self.failure or error
        self.bus.failed = True
        self.changed.set()

    def _on_crash(self) -> None:
        self.crashed = True
        self.changed.set()

    @property
    def dead(self) -> bool:
        return self.crashed or self.failure is not None

    async def start(self) -> None:
        """Raises `BrokerDead` if the machine stops meanwhile, and what the manager raises."""
        try:
            await self.manager.start()
        except Crashed:
            self._on_crash()
            await self.end()
            raise BrokerDead from None
        except BaseException:
            await self.end()
            raise

    async def end(self) -> None:
        """Stop in order, or clean up after a death; no thread stays."""
        if self._committer is not None and self.dead:
            self._committer.stop()
        await self.manager.stop()
        self.bus.close()


# --- the client -----------------------------------------------------------------------------------


@dataclass
class Held:
    """What one consumer has received, by sequence: body and whether it was confirmed."""

    number: int
    destination: str
    ledger: Ledger
    owed: set[bytes]
    """Stored before it came, and not confirmed."""
    bodies: dict[int, bytes] = field(default_factory=dict)
    open: dict[int, bytes] = field(default_factory=dict)
    """Neither confirmed nor rejected."""
    counts: dict[int, int] = field(default_factory=dict)


class Client:
    """Speaks bus commands for one session of one life, and keeps the story's books."""

    def __init__(self, broker: Broker, story: Story) -> None:
        story.lives += 1
        self.broker = broker
        self.story = story
        self._bus = broker.hub.endpoint()
        self._sessions = ids.IdGenerator.begin(0, 2, ids.EPOCH_MS + 1000 * story.lives)
        self._session = self._sessions.next_producer()
        self._by_producer: dict[str, int] = {}
        self._by_session: dict[int, Producer] = {}
        self._bus.subscribe(commands.session_channel(self._session), self._receive)
        self._requests: dict[int, Callable[[Any], None]] = {}
        self._number = 0
        self._consumers: dict[int, Held] = {}
        self.errors: list[dict[str, Any]] = []
        self.refused: dict[tuple[str, int], str] = {}

    # --- saying -----------------------------------------------------------------------------------

    def _say(self, kind: int, *parts: Any, flags: int = 0, session: int | None = None) -> None:
        command = commands.encode(kind, session or self._session, list(parts), flags)
        self._bus.publish(commands.group_channel(0), command)

    def _ask(self, kind: int, wanted: dict[str, Any], done: Callable[[Any], None]) -> None:
        self._number += 1
        self._requests[self._number] = done
        self._say(kind, frames.pack({"request": self._number, **wanted}))

    def publish(self, name: str, destination: str, bodies: list[bytes]) -> None:
        """One batch of a producer."""
        producer = self.story.producer(name)
        first = producer.sequence
        producer.sequence += len(bodies)
        producer.unanswered[first] = (destination, bodies)
        self._publish(producer, first, flags=0)

    def _publish(self, producer: Producer, first: int, flags: int) -> None:
        destination, bodies = producer.unanswered[first]
        session = self._by_producer.get(producer.name)
        if session is None:
            session = self._by_producer[producer.name] = self._sessions.next_producer()
            self._by_session[session] = producer
        batch = wire.encode(destination.encode(), producer.identity + first, bodies, None, created_ms=ids.EPOCH_MS)
        self._say(Type.PUBLISH, frames.FLOOR.pack(producer.floor), batch, flags=flags, session=session)

    def resend(self) -> None:
        """Everything unanswered, as a client does after a reconnection."""
        for producer in self.story.producers.values():
            for first in list(producer.unanswered):
                self._publish(producer, first, flags=frames.RESEND)

    async def subscribe(self, destination: str, durable: str | None = None, *, credit: int = 1_000_000) -> Held:
        number = len(self._consumers) + 1
        ledger = self.story.ledgers[destination]
        held = Held(number, destination, ledger, ledger.stored - self.story.asked[destination])
        self._consumers[number] = held
        wanted = {
            "consumer": number,
            "destination": destination,
            "subscription": durable,
            "durable": durable is not None,
            "shared": False,
            "credit_messages": credit,
            "credit_bytes": 64 << 20,
            "unconfirmed_max": 1_000_000,
            "held": [],
        }
        done: list[Any] = []
        self._ask(Type.SUBSCRIBE, wanted, done.append)
        await self.until(lambda: bool(done))
        return held

    def confirm(self, held: Held, sequences: Iterable[int]) -> None:
        """The ledger hears of it when the answer comes."""
        chosen = sorted(sequences)
        bodies = [held.open.pop(sequence) for sequence in chosen]
        self.story.asked[held.destination].update(bodies)

        def durable(_result: Any) -> None:
            for body in bodies:
                held.ledger.on_confirmed(body)

        self._acknowledge(Type.CONFIRM, held, chosen, durable)

    def reject(self, held: Held, sequences: Iterable[int]) -> None:
        chosen = sorted(sequences)
        for sequence in chosen:
            del held.open[sequence]
        self._acknowledge(Type.REJECT, held, chosen, lambda _result: None)

    def _acknowledge(self, kind: int, held: Held, chosen: list[int], done: Callable[[Any], None]) -> None:
        if not chosen:
            return
        ranges: list[tuple[int, int]] = []
        for sequence in chosen:
            if ranges and ranges[-1][1] == sequence:
                ranges[-1] = (ranges[-1][0], sequence + 1)
            else:
                ranges.append((sequence, sequence + 1))
        self._number += 1
        self._requests[self._number] = done
        self._say(kind, frames.pack_ack(held.number, self._number, ranges))

    async def request(self, verb: str, **arguments: Any) -> Any:
        done: list[Any] = []
        self._ask(Type.REQUEST, {"verb": verb, "arguments": arguments}, done.append)
        await self.until(lambda: bool(done))
        return done[0]

    # --- hearing ----------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        command = commands.decode(data)
        payload = command.payload
        match command.type:
            case Type.PUBLISHED:
                for first, count, _zero in frames.SETTLED.iter_unpack(payload):
                    self._stored(self._by_session[command.session], first, count)
            case Type.DELIVER:
                self._delivered(payload)
            case Type.REPLY:
                reply = frames.unpack(payload)
                self._requests.pop(reply["request"])(reply["result"])
            case Type.ERROR:
                error = frames.unpack(payload)
                self.errors.append(error)
                self._requests.pop(error["request"], None)
            case Type.REFUSED:
                first = frames.FLOOR.unpack_from(payload)[0]
                self.refused[self._by_session[command.session].name, first] = frames.unpack(payload[8:])["reason"]
            case Type.RESUME:
                self._resume(self._by_session[command.session], frames.FLOOR.unpack_from(payload)[0])
            case kind:
                self.errors.append({"unexpected": kind, "payload": bytes(payload)})
        self.broker.changed.set()

    def _resume(self, producer: Producer, refused: int) -> None:
        """The refused batch, and all after it to the same destination, again and in order."""
        if refused in producer.unanswered:
            destination = producer.unanswered[refused][0]
            for first in [n for n, (name, _) in producer.unanswered.items() if n >= refused and name == destination]:
                self._publish(producer, first, flags=0)

    def _stored(self, producer: Producer, first: int, count: int) -> None:
        if first in producer.unanswered:
            destination, bodies = producer.unanswered.pop(first)
            self.refused.pop((producer.name, first), None)
            assert len(bodies) == count
            for body in bodies:
                self.story.ledgers[destination].on_stored(body)

    def _delivered(self, payload: memoryview) -> None:
        number, slices = frames.unpack_deliver(payload)
        held = self._consumers[number]
        for piece in slices:
            batch = Batch.parse(bytes(piece.batch))
            for index in range(batch.count):
                body = bytes(batch.record(index)[1])
                held.ledger.on_received(body, piece.redelivered)
                held.bodies[piece.first + index] = held.open[piece.first + index] = body
                held.counts[piece.first + index] = piece.delivery_count

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for it. Raises `BrokerDead` when it cannot come any more."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                if self.broker.dead:
                    raise BrokerDead
                self.broker.changed.clear()
                await self.broker.changed.wait()

    @property
    def idle(self) -> bool:
        """Everything is answered."""
        return not self._requests and not any(producer.unanswered for producer in self.story.producers.values())

    async def settled(self) -> None:
        """Until everything is answered; where memory is full, by confirming what there is."""
        while not self.idle:
            if self.refused:
                for held in self._consumers.values():
                    self.confirm(held, list(held.open))
            await self.until(
                lambda: self.idle or (bool(self.refused) and any(h.open for h in self._consumers.values()))
            )

    async def upkeep(self) -> None:
        """Upkeep as a step of a script: otherwise it would come when the clock says so."""
        upkeep = self.broker.manager.upkeep
        upkeep.step()
        while upkeep._compacting or upkeep._checkpointing:
            await self.request("destinations")

    async def drain(self, queue: Held, topic: Held) -> None:
        """Until everything that is stored has been received: a last message of each destination comes last."""
        self.story.sentinels += 1
        last = []
        for destination, held in ((QUEUE, queue), (TOPIC, topic)):
            name = f"last-{self.story.sentinels}-{destination}"
            body = held.ledger.new_body(name)
            self.publish(name, destination, [body])
            last.append((held.ledger, body))
        await self.settled()
        await self.until(lambda: all(body in ledger.received for ledger, body in last))
