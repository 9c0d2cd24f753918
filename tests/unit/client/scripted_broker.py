"""A broker for tests of the client engine: loopback TCP, in memory, and it does as it is told.

It stands in for the other side of the wire only; what a real server does is tested with a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from clarion import limits
from clarion.errors import ClarionError
from clarion.ids import producer_of, sequence_of
from clarion.protocols.native import ServerConnection
from clarion.wire import frames
from clarion.wire.batch import Batch
from clarion.wire.frames import Frame, Type

_Result = TypeVar("_Result")


loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
"""Which loop `run` uses: conftest.py runs every test on both."""


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """A test's event loop; nothing here takes seconds."""

    async def bounded() -> _Result:
        async with asyncio.timeout(20):
            return await work

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(bounded())


@dataclass
class Publish:
    """A PUBLISH as it came."""

    connection: int
    channel: int
    first: int
    count: int
    floor: int
    resend: bool
    destination: str
    bodies: list[bytes]
    identity: int
    size: int


@dataclass
class Subscriber:
    end: ServerEnd
    channel: int
    number: int
    destination: str
    credit_messages: int
    credit_bytes: int
    request: dict[str, Any]
    inflight: set[int] = field(default_factory=set)


class ServerEnd(asyncio.Protocol):
    """One connection of the broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.number = len(broker.ends)
        self.engine = ServerConnection(
            server="scripted",
            batch_bytes_max=broker.batch_bytes_max,
            producer_window_bytes=broker.window,
            heartbeat_ms=broker.heartbeat_ms,
            authenticate=broker.authenticate,
        )
        broker.ends.append(self)
        self.transport: asyncio.Transport | None = None
        self.gone = False
        self.heard = asyncio.Event()
        """Set when anything arrives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.gone:
            return
        self.heard.set()
        try:
            for frame in self.engine.receive(data, 0):
                self.broker.handle(self, frame)
        except ClarionError as error:
            self.broker.errors.append(error)
            self.engine.goodbye(error)
            self.flush()
            if self.transport is not None:
                self.transport.close()
            return
        self.flush()

    def send(self, kind: int, channel: int, *parts: bytes) -> None:
        if not self.gone:
            self.engine.send(kind, channel, parts)
            self.flush()

    def flush(self) -> None:
        outgoing = self.engine.take_outgoing()
        if outgoing and not self.gone and self.transport is not None:
            self.transport.writelines(outgoing)

    def cut(self) -> None:
        """The network fails, or the server dies."""
        self.connection_lost(None)
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.gone:
            self.gone = True
            self.broker.ended(self)


class Broker:
    """Destinations are lists of bodies; a sequence is an index. Switches say what it does not do by itself."""

    def __init__(self) -> None:
        self.window = limits.PRODUCER_WINDOW_BYTES
        self.batch_bytes_max = limits.BATCH_BYTES_MAX
        self.heartbeat_ms = limits.HEARTBEAT_MS_DEFAULT
        self.answering = True
        """Answer PUBLISH by itself."""
        self.confirming = True
        """Answer CONFIRM and REJECT by itself."""
        self.authenticate: Callable[[dict[str, Any]], None] = lambda authentication: None
        self.requests: Callable[[str, dict[str, Any]], Any] = lambda verb, arguments: None
        self.refusing: set[str] = set()
        self.refused: dict[tuple[int, str], int] = {}
        self.failing: dict[str, ClarionError] = {}
        self.ends: list[ServerEnd] = []
        self.errors: list[ClarionError] = []
        self.published: list[Publish] = []
        self.stored: dict[str, list[tuple[int, Batch, int]]] = {}
        self.seen: set[int] = set()
        self.producers = 0
        self.log: list[tuple[int, Frame]] = []
        self.confirmed: dict[str, set[int]] = {}
        self.returned: dict[str, list[int]] = {}
        self.counts: dict[tuple[str, int], int] = {}
        self.reasons: list[tuple[list[Any], str | None, int | None]] = []
        self.subscribers: list[Subscriber] = []
        self.credits: list[tuple[int, int, int]] = []
        self.unsubscribed: list[dict[str, Any]] = []
        self._changed = asyncio.Event()
        self.server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"clarion://127.0.0.1:{self.port}"

    @property
    def end(self) -> ServerEnd:
        return self.ends[-1]

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = await self.loop.create_server(lambda: ServerEnd(self), "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Also cut everybody off."""
        if self.server is not None:
            self.server.close()
            for end in self.ends:
                if not end.gone:
                    end.cut()
            await self.server.wait_closed()
            self.server = None

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something that arrived makes it true."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    # --- what clients do ------------------------------------------------------------------------------

    def handle(self, end: ServerEnd, frame: Frame) -> None:
        self.log.append((end.number, Frame(frame.type, frame.flags, frame.channel, memoryview(bytes(frame.payload)))))
        getattr(self, f"_{Type(frame.type).name.lower()}")(end, frame)
        self._changed.set()

    def _open(self, end: ServerEnd, frame: Frame) -> None:
        producer = frames.unpack(frame.payload)["producer"]
        if producer is None:
            self.producers += 1
            producer = (self.producers << 48).to_bytes(16, "big")
        end.send(Type.OPENED, frame.channel, frames.pack({"producer": producer}))

    def _close(self, end: ServerEnd, frame: Frame) -> None:
        for subscriber in [one for one in self.subscribers if one.end is end and one.channel == frame.channel]:
            self._give_back(subscriber)
        end.send(Type.CLOSED, frame.channel)

    def _publish(self, end: ServerEnd, frame: Frame) -> None:
        (floor,) = frames.FLOOR.unpack_from(frame.payload)
        batch = Batch.parse(bytes(frame.payload[frames.FLOOR.size :]))
        if self.admits(end, frame, batch, floor):
            self.store(batch.destination.decode(), batch)
            if self.answering:
                self.answer(self.published[-1])

    def failure_of(self, batch: Batch) -> ClarionError | None:
        """What a batch fails with."""
        return self.failing.get(batch.destination.decode())

    def admits(self, end: ServerEnd, frame: Frame, batch: Batch, floor: int) -> bool:
        """Note a batch; whether it is to be stored. Else it was refused or has failed, and that is said."""
        destination = batch.destination.decode()
        first = sequence_of(batch.first_id)
        bodies = [bytes(batch.record(index)[1]) for index in range(batch.count)]
        resend = bool(frame.flags & frames.RESEND)
        self.published.append(
            Publish(end.number, frame.channel, first, batch.count, floor, resend, destination, bodies,
                    batch.first_id, batch.size)
        )  # fmt: skip
        lane = (producer_of(batch.first_id), destination)
        if self.refused.get(lane, first) != first:
            return False
        if destination in self.refusing:
            self.refused[lane] = first
            said = {"destination": destination, "reason": "full"}
            end.send(Type.REFUSED, frame.channel, frames.FLOOR.pack(first) + frames.pack(said))
            return False
        self.refused.pop(lane, None)
        failure = self.failure_of(batch)
        if failure is not None:
            error = frames.pack(frames.error_facts(failure))
            end.send(Type.PUBLISH_FAILED, frame.channel, frames.SETTLED.pack(first, batch.count, 0) + error)
        return failure is None

    def answer(self, published: Publish) -> None:
        end = self.ends[published.connection]
        end.send(Type.PUBLISHED, published.channel, frames.SETTLED.pack(published.first, published.count, 0))

    def resume(self, published: Publish) -> None:
        name = published.destination.encode()
        self.end.send(Type.RESUME, published.channel, frames.FLOOR.pack(published.first) + name)

    def store(self, destination: str, batch: Batch) -> None:
        if batch.first_id not in self.seen:
            self.seen.add(batch.first_id)
            log = self.stored.setdefault(destination, [])
            log.append((log[-1][0] + log[-1][1].count if log else 0, batch, batch.first_id))
            self.dispatch(destination)

    def bodies(self, destination: str) -> list[bytes]:
        """Everything stored, each message once."""
        log = self.stored.get(destination, [])
        return [bytes(batch.record(index)[1]) for _, batch, _ in log for index in range(batch.count)]

    def _subscribe(self, end: ServerEnd, frame: Frame) -> None:
        request = frames.unpack(frame.payload)
        name = request["destination"]
        if name in self.failing:
            said = {"request": request["request"], **frames.error_facts(self.failing[name])}
            end.send(Type.ERROR, frame.channel, frames.pack(said))
            return
        one = Subscriber(
            end, frame.channel, request["consumer"], name, request["credit_messages"], request["credit_bytes"], request
        )
        returned = self.returned.get(name, [])
        for first, last in request["held"]:
            for sequence in range(first, last):
                if sequence in returned:
                    returned.remove(sequence)
                    one.inflight.add(sequence)
        self.subscribers.append(one)
        result = {"destination": name, "kind": "queue", "held": request["held"]}
        end.send(Type.REPLY, frame.channel, frames.pack({"request": request["request"], "result": result}))
        self.dispatch(name)

    def _credit(self, end: ServerEnd, frame: Frame) -> None:
        number, messages, size = frames.CREDIT.unpack(frame.payload)
        self.credits.append((number, messages, size))
        for one in self.subscribers:
            if one.end is end and one.channel == frame.channel and one.number == number:
                one.credit_messages += messages
                one.credit_bytes += size
                self.dispatch(one.destination)

    def _confirm(self, end: ServerEnd, frame: Frame) -> None:
        number, request, ranges = frames.unpack_ack(frame.payload)
        self._acknowledged(end, frame, number, request, ranges)

    _reject = _confirm

    def _return(self, end: ServerEnd, frame: Frame) -> None:
        said = frames.unpack(frame.payload)
        self.reasons.append((said["ranges"], said["reason"], said["delay_ms"]))
        self._acknowledged(end, frame, said["consumer"], said["request"], said["ranges"])

    def _acknowledged(self, end: ServerEnd, frame: Frame, number: int, request: int, ranges: list[Any]) -> None:
        one = next(s for s in self.subscribers if (s.end, s.channel, s.number) == (end, frame.channel, number))
        for first, last in ranges:
            for sequence in range(first, last):
                one.inflight.discard(sequence)
                if frame.type == Type.CONFIRM:
                    self.confirmed.setdefault(one.destination, set()).add(sequence)
                else:
                    self.come_back(one.destination, sequence)
        if self.confirming and request:
            end.send(Type.REPLY, frame.channel, frames.pack({"request": request, "result": None}))
        self.dispatch(one.destination)

    def come_back(self, name: str, sequence: int) -> None:
        """It was delivered, and is to be delivered again."""
        self.returned.setdefault(name, []).append(sequence)
        self.counts[name, sequence] = self.counts.get((name, sequence), 1) + 1

    def _unsubscribe(self, end: ServerEnd, frame: Frame) -> None:
        request = frames.unpack(frame.payload)
        self.unsubscribed.append(request)
        for one in self.subscribers:
            if (one.end, one.channel, one.number) == (end, frame.channel, request["consumer"]):
                one.credit_messages = 0
                for first, last in request["unseen"]:
                    for sequence in range(first, last):
                        if sequence in one.inflight:
                            one.inflight.discard(sequence)
                            self.returned.setdefault(one.destination, []).append(sequence)
        end.send(Type.REPLY, frame.channel, frames.pack({"request": request["request"], "result": None}))
        for name in list(self.stored):
            self.dispatch(name)

    def _request(self, end: ServerEnd, frame: Frame) -> None:
        request = frames.unpack(frame.payload)
        try:
            answer = {"request": request["request"], "result": self.requests(request["verb"], request["arguments"])}
        except ClarionError as error:
            end.send(
                Type.ERROR, frame.channel, frames.pack({"request": request["request"], **frames.error_facts(error)})
            )
            return
        self.restart((end, frame.channel), request["arguments"])
        if answer["result"] is not ...:
            end.send(Type.REPLY, frame.channel, frames.pack(answer))
            for name in list(self.stored):
                self.dispatch(name)

    def restart(self, session: tuple[ServerEnd, int], arguments: dict[str, Any]) -> None:
        """What these consumers have was never seen: it comes again, after the answer."""
        for one in self.subscribers:
            if (one.end, one.channel) == session and one.number in arguments.get("restart", ()):
                one.inflight.clear()

    # --- deliveries -----------------------------------------------------------------------------------

    def ended(self, end: ServerEnd) -> None:
        for subscriber in [one for one in self.subscribers if one.end is end]:
            self._give_back(subscriber)
        self._changed.set()

    def _give_back(self, one: Subscriber) -> None:
        self.subscribers.remove(one)
        back = one.inflight - self.confirmed.get(one.destination, set())
        self.returned.setdefault(one.destination, []).extend(sorted(back))

    def dispatch(self, name: str) -> None:
        """Give what is ready to whoever has credit: as large slices as there are."""
        for one in self.subscribers:
            while one.destination == name and one.credit_messages > 0 and one.credit_bytes > 0:
                taken = self._next_slice(one)
                if taken is None:
                    break
                first, batch, again = taken
                one.credit_messages -= batch.count
                one.credit_bytes -= len(batch.data)
                one.inflight.update(range(first, first + batch.count))
                count = self.counts.get((name, first), 1)
                parts = frames.deliver_parts(one.number, [(first, count, again, [batch.buffer])])
                one.end.engine.send(Type.DELIVER, one.channel, parts)
                one.end.flush()

    def _next_slice(self, one: Subscriber) -> tuple[int, Batch, bool] | None:
        name = one.destination
        confirmed = self.confirmed.get(name, set())
        returned = self.returned.setdefault(name, [])
        returned[:] = [sequence for sequence in returned if sequence not in confirmed]
        if returned:
            sequence = returned.pop(0)
            for first, batch, _ in self.stored[name]:
                if first <= sequence < first + batch.count:
                    return sequence, batch.sliced(sequence - first, sequence - first + 1), True
        busy = set().union(*(other.inflight for other in self.subscribers if other.destination == name))
        for first, batch, _ in self.stored.get(name, []):
            free = [s for s in range(first, first + batch.count) if s not in confirmed and s not in busy]
            if free:
                start = free[0]
                end = start
                while end in free and end - start < one.credit_messages:
                    end += 1
                return start, batch.sliced(start - first, end - first), False
        return None


@contextlib.asynccontextmanager
async def broker() -> AsyncIterator[Broker]:
    """A running one."""
    made = Broker()
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
