"""Sessions and the bus: frames of clients become commands, commands become frames.

Rules
    1. What is relayed was checked by `gateway` and is relayed unchanged.
    2. Every session that a message manager may know of ends on the bus, by SESSION_ENDED or with the
       membership `cm/<upper half of its ids>`.
    3. When a message manager comes (again), what it was sent before is lost. So the connections that
       relayed something end with NotReady, and their clients return and send it again.
    4. A congested bus refuses batches here, as a full destination does there, and resumes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clarion import limits
from clarion.bus.interface import Bus, Subscription
from clarion.errors import BadName, ClarionError, MessageTooLarge, NotReady
from clarion.instruments import Registry
from clarion.nodes import gateway
from clarion.nodes.connection import Connection
from clarion.nodes.gateway import Rejected
from clarion.nodes.identity import Identity
from clarion.nodes.sessions import Session
from clarion.wire import commands, frames
from clarion.wire.batch import Batch
from clarion.wire.frames import Frame, Type

_RELAYED_FLAGS = frames.RESEND | frames.UNTIL_ANY | frames.UNTIL_EVERY
BUS_WAITING_BYTES_MAX = 2 * limits.PUBLISH_PENDING_BYTES_MAX
"""When so much waits for the bus, batches are refused …"""
BUS_WAITING_BYTES_END = 2 * BUS_WAITING_BYTES_MAX
"""… and when so much does, whoever sends anything at all loses its connection."""


def route(_destination: str | None) -> int:
    """The message manager group of a destination; of everything else, too, while there is one group."""
    return 0


class Relay:
    """All sessions of one client manager."""

    def __init__(
        self, bus: Bus, identity: Identity, registry: Registry, now_ms: Callable[[], int], answer_ms: int
    ) -> None:
        self._bus = bus
        self._identity = identity
        self._now_ms = now_ms
        self._answer_ms = answer_ms
        self._channels: dict[int, tuple[Subscription, Subscription]] = {}
        """Upper half of ids: subscription of the channel, membership."""
        self._watch: Subscription | None = None
        self._awaiting: set[Session] = set()
        self._congested: list[tuple[Session, int, bytes]] = []
        self._congested_streams: dict[tuple[Session, bytes], None] = {}
        self.sessions: dict[int, Session] = {}
        self.in_burst = False
        """Commands are being handed out by the bus, which says when it was the last one (`Bus.after_burst`)."""
        self._before_relay = registry.test_point("cm.before_relay", meaning="a client's frame is about to be relayed")
        self._before_reply = registry.test_point("cm.before_reply", meaning="a command is about to reach its client")

    def start(self) -> None:
        self._attach(self._identity.next_id())
        self._watch = self._bus.watch(self._member)

    def stop(self) -> None:
        for subscription, membership in self._channels.values():
            membership.close()
            subscription.close()
        self._channels.clear()
        if self._watch is not None:
            self._watch.close()

    # --- from clients ---------------------------------------------------------------------------------

    def handle(self, connection: Connection, frame: Frame) -> None:
        """One frame of a session. Raises a `ClarionError` that costs the connection."""
        kind, flags, channel, payload = frame
        if kind == Type.OPEN:
            self._open(connection, channel, payload)
            return
        session = connection.sessions[channel]
        if kind == Type.CLOSE:
            del connection.sessions[channel]
            self.end(session, clean=True)
            connection.reply(Type.CLOSED, channel, [])
            return
        destination: str | None = None
        try:
            if kind == Type.PUBLISH or kind == Type.STAGE or kind == Type.PUBLISH_LARGE:
                if not self._take_batch(session, connection.engine.batch_bytes_max, kind, payload):
                    return
            elif kind == Type.FRAGMENT:
                if not self._take_fragment(session, payload):
                    return
            elif kind == Type.CREDIT:
                gateway.check_credit(payload)
            elif kind in (Type.CONFIRM, Type.REJECT):
                frames.unpack_ack(payload)
            else:
                request, destination = gateway.check_request(kind, payload)
                session.asked(request, kind, self._now_ms() + self._answer_ms)
                self._awaiting.add(session)
        except Rejected as rejected:
            self._fail(session, rejected.request, rejected.error)
            return
        if self._bus.waiting_bytes > BUS_WAITING_BYTES_END:
            raise NotReady(detail="the bus is congested")
        if self._before_relay.armed:
            self._before_relay.fire()
        if not session.relayed:
            session.relayed = True
            self._introduce(connection, session)
        command = commands.encode(kind, session.identity, [payload], flags & _RELAYED_FLAGS)
        self._bus.publish(commands.group_channel(route(destination)), command)

    def _introduce(self, connection: Connection, session: Session) -> None:
        """Tell a message manager whose session it is, before anything else of it."""
        said: dict[str, bytes | bool] = {
            "producer": session.producer.to_bytes(16, "big"),
            "connection": connection.identity.to_bytes(16, "big"),
        }
        if session.sender:
            said |= {"sender": session.sender, "resumed": session.resumed}
        opened = commands.encode(commands.SESSION_OPENED, session.identity, [frames.pack(said)])
        self._bus.publish(commands.group_channel(route(None)), opened)

    def _open(self, connection: Connection, channel: int, payload: memoryview) -> None:
        producer, sender, resumed = gateway.check_open(payload)
        identity = self._identity.next_id()
        self._attach(identity)
        if producer is None:
            producer = self._identity.next_id()
        window_bytes = connection.engine.producer_window_bytes
        session = Session(identity, producer, channel, connection, window_bytes, sender, resumed)
        self.sessions[identity] = session
        connection.identity = connection.identity or identity
        connection.sessions[channel] = session
        if sender:  # at once: from now on no other sender with this producer id stores anything
            session.relayed = True
            self._introduce(connection, session)
        connection.reply(Type.OPENED, channel, [frames.pack({"producer": producer.to_bytes(16, "big")})])

    def _take_batch(self, session: Session, batch_bytes_max: int, kind: int, payload: memoryview) -> bool:
        """Whether a batch is to be relayed; if not, it is answered, or dropped as one that follows a refused one."""
        batch = gateway.check_publish(kind, payload, session.producer)
        first = batch.first_id - session.producer
        try:
            if batch.size > batch_bytes_max:
                raise MessageTooLarge(size=batch.size, limit=batch_bytes_max)
            name = gateway.destination_name(batch.destination)
        except (BadName, MessageTooLarge) as error:
            failed = [frames.SETTLED.pack(first, batch.count, 0), frames.pack(frames.error_facts(error))]
            session.connection.reply(Type.PUBLISH_FAILED, session.channel, list(failed))
            return False
        if not session.window.take(name, first, batch.count, batch.size):
            return False
        if self._bus.waiting_bytes > BUS_WAITING_BYTES_MAX:
            self._refuse(session, batch, name, first)
            return False
        return True

    def _refuse(self, session: Session, batch: Batch, name: str, first: int) -> None:
        session.window.refuse(first, name)
        self._congested.append((session, first, batch.destination))
        said = {"destination": batch.destination.decode(), "reason": "the bus is congested"}
        session.connection.reply(Type.REFUSED, session.channel, [frames.FLOOR.pack(first), frames.pack(said)])

    def _take_fragment(self, session: Session, payload: memoryview) -> bool:
        """As `_take_batch`, for a part of a large body."""
        fragment = gateway.check_fragment(payload, session.producer)
        size = len(fragment.data)
        try:
            gateway.destination_name(fragment.destination)
        except BadName as error:
            self._answer_fragment(session, fragment.stream, size, frames.STORED_FAILED, frames.error_facts(error))
            return False
        if self._bus.waiting_bytes > BUS_WAITING_BYTES_MAX:
            self._congested_streams[session, fragment.stream] = None
            reason = {"reason": "the bus is congested"}
            self._answer_fragment(session, fragment.stream, size, frames.STORED_WAIT, reason)
            return False
        session.fragments.take(size)
        return True

    @staticmethod
    def _answer_fragment(session: Session, stream: bytes, size: int, how: int, said: object = None) -> None:
        answer = [frames.STORED.pack(stream, 0, size, how)]
        if said is not None:
            answer.append(frames.pack(said))
        session.connection.reply(Type.FRAGMENT_STORED, session.channel, list(answer))

    # --- from message managers ------------------------------------------------------------------------

    def _from_bus(self, data: bytes) -> None:
        self.in_burst = True
        kind, flags, identity, payload = commands.decode(data)
        session = self.sessions.get(identity)
        if session is None:
            return  # it ended; its message manager has been told
        connection = session.connection
        try:
            if self._before_reply.armed:
                self._before_reply.fire()
            relay = session.answered(kind, payload)
        except ClarionError as error:
            connection.end(error)
            return
        except Exception as error:
            connection.fault(error)
            return
        if self._awaiting and not session.awaits:
            self._awaiting.discard(session)
        if relay:
            connection.reply(kind, session.channel, [payload], flags)

    def _member(self, name: str, there: bool) -> None:
        kind, _, group = name.partition("/")
        if kind == "mm" and there and group == str(route(None)):
            lost = {session.connection for session in self.sessions.values() if session.relayed}
            for connection in lost:
                connection.end(NotReady(detail="it was started again"))

    # --- time, and the end ----------------------------------------------------------------------------

    def sweep(self, now_ms: int) -> None:
        """Requests that nobody answered; batches that found the bus congested."""
        for session in tuple(self._awaiting):
            for request in session.overdue(now_ms):
                self._fail(session, request, NotReady(detail=f"no answer within {self._answer_ms} ms"))
            if not session.awaits:
                self._awaiting.discard(session)
        if self._congested and self._bus.waiting_bytes < BUS_WAITING_BYTES_MAX // 2:
            congested, self._congested = self._congested, []
            for session, first, destination in congested:
                session.connection.reply(Type.RESUME, session.channel, [frames.FLOOR.pack(first), destination])
        if self._congested_streams and self._bus.waiting_bytes < BUS_WAITING_BYTES_MAX // 2:
            congested_streams, self._congested_streams = self._congested_streams, {}
            for session, stream in congested_streams:
                self._answer_fragment(session, stream, 0, frames.STORED_GO)

    def end(self, session: Session, *, clean: bool) -> None:
        """A session is over: tell the message manager."""
        if self.sessions.pop(session.identity, None) is None:
            return
        self._awaiting.discard(session)
        said = {"clean": clean and not session.sender, "producer": session.producer.to_bytes(16, "big")}
        ended = commands.encode(commands.SESSION_ENDED, session.identity, [frames.pack(said)])
        self._bus.publish(commands.group_channel(route(None)), ended)

    def flow(self, sessions: Iterable[Session], *, paused: bool) -> None:
        """The client of these sessions reads too slowly, or has caught up: tell the message manager."""
        for session in tuple(sessions):
            said = commands.encode(commands.SESSION_FLOW, session.identity, [frames.pack({"paused": paused})])
            self._bus.publish(commands.group_channel(route(None)), said)

    def end_all(self, sessions: Iterable[Session]) -> None:
        """A connection is over."""
        for session in tuple(sessions):
            self.end(session, clean=False)

    def _fail(self, session: Session, request: int, error: ClarionError) -> None:
        said = {"request": request, **frames.error_facts(error)}
        session.connection.reply(Type.ERROR, session.channel, [frames.pack(said)])

    def _attach(self, identity: int) -> None:
        """Listen on the channel of a session's id. They all share it, until the generator's start moves."""
        half = identity >> 64
        if half not in self._channels:
            subscription = self._bus.subscribe(commands.session_channel(identity), self._from_bus)
            self._channels[half] = (subscription, self._bus.join(f"cm/{half:016x}"))
            self._detach_unused(half)

    def _detach_unused(self, current: int) -> None:
        used = {identity >> 64 for identity in self.sessions}
        for half in [half for half in self._channels if half != current and half not in used]:
            subscription, membership = self._channels.pop(half)
            membership.close()
            subscription.close()
