"""How events come into a multiplexer: received, recorded for its recipients, confirmed (steps 251, 252, 253).

Guarantees
    1. STORED is answered when the events are in persistent memory, each once: what is there, or was there, is not
       recorded again. Who gets an event is decided here, by the filters of now, and recorded with it.
    2. It works without memory, with the ballast of the section; an event for which the filters cannot be asked then is
       recorded undecided, and the engine decides.
    3. A full memory refuses (`Blocked`) what does not fit, and keeps what does: the sender sends the rest again.

Rule: only the thread of the link's server calls this, except `confirm`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from clarion import ids
from clarion.errors import BadArgument, BadBatch, BadFrame, Blocked, UnknownFrame
from clarion.events.link import frames
from clarion.events.link.confirmations import Ranges, unpack_confirmations
from clarion.events.link.frames import Heartbeat, Hello, Role, Type
from clarion.events.link.server import Peer, Server
from clarion.events.memory import FLAG_UNDECIDED, Recorded, Section
from clarion.events.memory.ballast import NO_MEMORY, keep
from clarion.events.multiplex import origins as origins_module
from clarion.events.multiplex import signals
from clarion.events.multiplex.origins import COMPLETE, HELD, Origins
from clarion.events.multiplex.unheard import Unheard
from clarion.events.routing import Routes
from clarion.events.steps import Steps
from clarion.message import Headers, decode_headers

READ_EVENTS = 1_024
READ_BYTES = 1 << 20
Origin = tuple[int, int]


class Intake:
    """The handler of the server that senders connect to."""

    def __init__(
        self,
        section: Section,
        routes: Callable[[], Routes],
        steps: Steps,
        recorded: Callable[[], None],
        *,
        name: str,
        frame_bytes_max: int,
        confirm_early: bool,
        forward: bool,
    ) -> None:
        self.origins = Origins()
        self.server: Server | None = None
        self._section = section
        self._routes = routes
        self._steps = steps
        self._recorded = recorded
        self._early = confirm_early
        self.frame_bytes_max = frame_bytes_max
        self.unheard = Unheard()
        """Of those who say what they hear, and of those that were not here since the start."""
        switches = signals.CONFIRMS_EARLY * confirm_early | (signals.FORWARDS | signals.TELLS_AGAIN) * forward
        self._welcome = Hello(name, Role.MULTIPLEX, switches, frame_bytes_max, section.producer)
        self._senders: dict[int, str] = {}
        """Who sent events of a producer last, and hears what becomes of them."""
        self._deaf: set[int] = set()
        """Producers whose sender does not say what it hears."""
        self._pending: tuple[int, list[Origin]] | None = None
        """What is being recorded: the next sequence of the section before, and what goes there."""
        self._beat = 0

    def read_memory(self) -> None:
        """Learn what the section holds (step 271)."""
        section = self._section
        at, end = section.first_sequence, section.next_sequence
        if at < end:
            self._steps.at("271")
        while at < end and (found := section.read(at, READ_EVENTS, READ_BYTES)):
            for producer, first, until in signals.joined([(one.producer, one.sequence) for one in found]):
                self.origins.hold(producer, first, until)
            at = found[-1].at + 1

    # --- what the server calls ------------------------------------------------------------------------

    def hello(self, peer: Peer, hello: Hello) -> Hello:
        if hello.role != Role.MULTIPLEX:
            raise BadArgument(argument="role", detail="this is a multiplexer, not a partner")
        return self._welcome

    def store(self, peer: Peer, section: int, records: list[memoryview]) -> int:
        self._steps.at("251")
        if self._pending is not None:
            self._finish()
        routes = self._routes()
        fresh: dict[Origin, Recorded] = {}
        complete: list[Origin] = []
        name, sender = peer.name, -1
        way = peer.hello.memory if peer.hello is not None else 0
        for record in records:
            origin = frames.origin_of(record)
            producer, sequence = origin
            if producer != sender:
                _check_producer(producer)
                sender = producer
                self._sends(peer, producer)  # before the state is looked at: see `Outcomes`
                self.origins.comes(producer, way)
            if not 0 < sequence <= ids.SEQUENCE_MAX:
                raise BadFrame(detail=f"an event has the sequence {sequence}")
            state = self.origins.state(producer, sequence)
            if state is None:
                if origin not in fresh:
                    fresh[origin] = self._decided(record, routes)
            elif state == COMPLETE and not self._early:
                complete.append(origin)
        if fresh:
            self._put_and_tell(list(fresh.values()))
        self._steps.at("252")
        if complete:
            self._say(name, signals.OF_ALL, complete)
        self._steps.at("253")
        return self._section.next_sequence - 1

    def heartbeat(self, peer: Peer, heartbeat: Heartbeat) -> Heartbeat:
        self._beat += 1
        return Heartbeat(self._beat, heartbeat.beat)

    def control(self, peer: Peer, kind: int, flags: int, payload: memoryview) -> bool:
        if kind == Type.RELEASED:
            producer, floor = frames.unpack_released(payload)
            self.origins.will_not_come(producer, peer.hello.memory if peer.hello is not None else 0, floor)
        elif kind == Type.NOTE:
            _, token, confirmations = unpack_confirmations(payload)
            for recipient, ranges in confirmations:
                if token == signals.HEARD:
                    self.unheard.heard(recipient, ranges)
                elif token == signals.TELL:
                    for producer, _, _ in ranges:
                        if producer in self.origins:
                            self._sends(peer, producer)
                else:
                    self._asked(peer, ranges)
        else:
            raise UnknownFrame(type=kind, state="multiplexing")
        return False

    def lost(self, peer: Peer) -> None:
        name = peer.name
        for producer in [producer for producer, sender in list(self._senders.items()) if sender == name]:
            self._senders.pop(producer, None)
            self._deaf.discard(producer)

    # --- recording ------------------------------------------------------------------------------------

    def _decided(self, record: memoryview, routes: Routes) -> Recorded:
        """The event as it is recorded here: for our recipients, not for those of its sender."""
        event = frames.recorded_of(record)
        event.epoch = routes.epoch
        event.bits = routes.bits_all
        event.flags = 0
        if not routes.routes:
            event.flags = FLAG_UNDECIDED
        elif not routes.is_constant:
            try:
                identity = event.producer + event.sequence
                event.bits = routes.decide(_headers(event), event.time_ns // 1_000_000, identity)
            except NO_MEMORY:
                event.flags = FLAG_UNDECIDED
        return event

    def _put_and_tell(self, events: list[Recorded]) -> None:
        try:
            self._put(events)
        finally:
            self._recorded()

    def _put(self, events: list[Recorded]) -> None:
        # One call writes events with the same flags; nearly always they are all the same.
        for _, together in groupby(events, lambda event: event.flags):
            few = list(together)
            self._pending = self._section.writer.next[0], [(event.producer, event.sequence) for event in few]
            try:
                self._section.put_many(few)
            except Blocked:
                self._pending = None
                if len(few) == 1:
                    raise
                middle = len(few) // 2
                self._put(few[:middle])
                self._put(few[middle:])
            else:
                self._finish()

    def _finish(self) -> None:
        """What was staged becomes durable and known. Also after want of memory, from wherever that left it."""
        assert self._pending is not None
        first, events = self._pending
        writer = self._section.writer
        writer.flush()
        for producer, begin, end in signals.joined(events[: writer.next[0] - first]):
            self.origins.hold(producer, begin, end)
        self._pending = None

    # --- what senders hear ------------------------------------------------------------------------------

    def _asked(self, peer: Peer, ranges: list[tuple[int, int, int]]) -> None:
        """A sender that missed what became of its events asks for it."""
        known: list[tuple[int, int, int]] = []
        unknown: list[tuple[int, int, int]] = []
        for producer, first, end in ranges:
            if producer in self.origins:
                self._sends(peer, producer)  # before the state is looked at
            for begin, until, state in self.origins.pieces(producer, first, end):
                if state == COMPLETE or (state == HELD and self._early):
                    known.append((producer, begin, until))
                elif state is None:
                    unknown.append((producer, begin, until))
        for token, found in ((signals.OF_ALL, known), (signals.UNKNOWN, unknown)):
            self._post(peer.name, signals.ASKED, found, token)

    def _sends(self, peer: Peer, producer: int) -> None:
        """Events of this producer come over this connection from now on: what was not heard is told here again."""
        if self._senders.get(producer) == peer.name:
            return
        self._senders[producer] = peer.name
        try:
            missed = self.unheard.of(producer)
        except NO_MEMORY:
            del self._senders[producer]  # the group comes again, and it is told then
            raise
        if peer.hello is None or not peer.hello.epoch & signals.HEARS:
            self._deaf.add(producer)
            self.unheard.forget(producer)
        else:
            self._deaf.discard(producer)
        for recipient, ranges in missed:
            self._post(peer.name, recipient, ranges, signals.OF_RECIPIENT)

    def _say(self, name: str, token: int, events: list[Origin]) -> None:
        self._post(name, signals.ASKED, signals.joined(events), token)

    def confirm(self, recipient: str, ranges: Ranges, token: int) -> None:
        """Tell whoever sent these events (step 256). From any thread; who is not connected asks, or is told later."""
        if token == signals.OF_RECIPIENT:
            self.unheard.add(recipient, [one for one in ranges if one[0] not in self._deaf])
        by_sender: dict[str, list[tuple[int, int, int]]] = {}
        for one in ranges:
            sender = self._senders.get(one[0])
            if sender is not None:
                by_sender.setdefault(sender, []).append(one)
        if by_sender:
            self._steps.at("256")
        for sender, few in by_sender.items():
            self._post(sender, recipient, few, token)

    def _post(self, name: str, recipient: str, ranges: Ranges, token: int) -> None:
        if ranges and self.server is not None:
            for payload in signals.payloads(recipient, ranges, token):
                self.server.post(name, Type.CONFIRMED, payload)


def _check_producer(producer: int) -> None:
    if not producer or producer & ids.SEQUENCE_MAX:
        raise BadFrame(detail=f"{producer:x} is no producer")


def _headers(event: Recorded) -> Headers:
    try:
        return decode_headers(event.headers)
    except BadBatch:
        return Headers()


keep(Intake, Origins, origins_module, signals)
