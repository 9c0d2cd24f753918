"""Large bodies: fragments come in, are stored and answered one by one, until their message is stored.

Rules
    1. A fragment is answered exactly once for each time it is received, when it is durable. One that does not begin
       where the body ends so far is answered by where that is.
    2. Without room its sender is told to wait, and to go on when there is some. A body that announced its size
       begins only when all of it fits beside those that have begun, so that two never wait for each other's room;
       one that can never fit is refused at once.
    3. What is held here is bounded: what is not durable yet, and nothing else.
    4. A body without a message is given up when nothing of it came for too long, when its sender says so, and with
       the session that sent it, unless it has a key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from clarion import ids, limits
from clarion.core.destination import Destination
from clarion.core.entries import Fragment
from clarion.core.streams import ID_BYTES, Stream, producer_of
from clarion.errors import (
    BadArgument,
    Blocked,
    ClarionError,
    JournalFull,
    LimitReached,
    MessageTooLarge,
    NoSuchStream,
)
from clarion.message import decode_headers
from clarion.nodes.message_manager.fragment_reading import FragmentReading
from clarion.nodes.message_manager.pacing import Pacing
from clarion.nodes.message_manager.sessions import Session
from clarion.nodes.message_manager.stream_space import StreamSpace
from clarion.wire import frames
from clarion.wire.batch import Batch
from clarion.wire.commands import Command

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

Arguments = dict[str, Any]
_FULL = "persistent memory is full"
_FRAGMENT_EXTRA_BYTES = 256
"""What a fragment takes of the journal besides its bytes, and a little more."""


class Streaming:
    """The large bodies of a message manager."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self.reading = FragmentReading(host)
        self.pacing = Pacing(host, self._handle)
        self.space = StreamSpace(host, self.reading, lambda identity: self._announced.pop(identity, None))
        self._waiting: OrderedDict[tuple[int, bytes], tuple[str, int]] = OrderedDict()
        """(session, stream) → destination and size of what was told to wait, in the order of telling."""
        self._announced: dict[bytes, tuple[int, int, str]] = {}
        """Bodies that are being sent: session, size (0: not known), destination."""
        self._tied: dict[int, int] = {}
        """Destinations in which bodies wait for nothing but each other: since when."""
        self.pending_bytes = 0
        registry = host.registry
        self._bytes = registry.counter(
            "mm.fragment_bytes", unit="bytes", meaning="bytes of large bodies stored durably"
        )
        self._waits = registry.counter(
            "mm.fragments_refused", unit="fragments", meaning="fragments refused for want of room"
        )
        self._before = registry.test_point("mm.before_fragment", meaning="a fragment is about to be logged")
        self._after = registry.test_point("mm.after_fragment", meaning="a fragment is durable, not yet answered")
        self.verbs: dict[str, Callable[[Session, Arguments], object]] = {
            "stream": self._stream,
            "drop_stream": self._drop_stream,
        }

    @property
    def waiting(self) -> int:
        """How many senders wait for room."""
        return len(self._waiting)

    # --- fragments ------------------------------------------------------------------------------------

    def _handle(self, command: Command) -> None:
        """One FRAGMENT, when it has its turn."""
        fragment = frames.unpack_fragment(command.payload)
        session = self._host.sessions.get(command.session)
        try:
            self._take(session, self._host.naming.resolve(fragment.destination.decode()), fragment)
        except JournalFull:
            self._wait(session, fragment, _FULL)
        except ClarionError as error:
            self._fail(session, fragment, error)

    def _take(self, session: Session, destination: Destination, fragment: frames.Fragment) -> None:
        streams = self._host.state.streams
        stream = streams.find(fragment.stream)
        if fragment.stream in streams.finished or (stream is not None and stream.complete):
            raise BadArgument(argument="stream", detail="its message is stored already")
        if stream is not None and stream.destination != destination.identity:
            raise BadArgument(argument="stream", detail=f"it goes to another destination than {destination}")
        stored, size = 0 if stream is None else stream.size, len(fragment.data)
        if fragment.offset != stored:
            self._host.log.after(lambda: self._say(session.identity, fragment.stream, stored, size, frames.STORED_ELSE))
            return
        self._check(destination, stream, fragment)
        reason = self._no_room(destination, stream, fragment.stream, size)
        if reason is None:
            self._store(session, destination, stream, fragment)
        elif self._host.policy(destination).when_full == "fail":
            raise Blocked(destination=str(destination), detail=reason)
        else:
            self._wait(session, fragment, reason)

    def _check(self, destination: Destination, stream: Stream | None, fragment: frames.Fragment) -> None:
        """Raises for a body that would become too large, which is given up then, and for one too many."""
        if stream is None:
            if len(self._host.state.streams.incomplete(destination.identity)) >= limits.STREAMS_PER_DESTINATION_MAX:
                raise LimitReached(
                    what=f"large bodies on their way to {destination}", limit=limits.STREAMS_PER_DESTINATION_MAX
                )
        elif len(stream) >= limits.FRAGMENTS_PER_STREAM_MAX:
            self.space.drop([stream], "it has too many fragments")
            raise LimitReached(what="fragments of one body", limit=limits.FRAGMENTS_PER_STREAM_MAX)
        taken = 0 if stream is None else stream.bytes_live
        try:
            self._check_size(destination, fragment.offset + len(fragment.data), taken + _space(len(fragment.data)))
        except MessageTooLarge:
            if stream is not None:
                self.space.drop([stream], "it is too large")
            raise

    def _check_size(self, destination: Destination, size: int, space: int) -> None:
        """Could a body of so many bytes, which takes so many of the journal, ever be here? Raises `MessageTooLarge`."""
        possible = min(self._host.quota_bytes(destination), self._host.upkeep.large_bytes_max)
        if space > possible:
            raise MessageTooLarge(size=size, limit=possible)
        said = self._host.policy(destination).message_bytes_max
        if said and size > said:
            raise MessageTooLarge(size=size, limit=said)

    def _no_room(self, destination: Destination, stream: Stream | None, identity: bytes, size: int) -> str | None:
        """Why a fragment cannot be stored now."""
        if self.pending_bytes + size > limits.FRAGMENTS_PENDING_BYTES_MAX:
            return "too much is waiting for the disk"
        if stream is None:
            _, announced, _ = self._announced.get(identity, (0, 0, ""))
            whole = _space(max(size, announced))
            quota = self._host.quota_bytes(destination)
            if destination.bytes_live + self._owed_bytes(destination.identity) + whole > quota:
                self._host.retention.make_room(destination)
                return f"its quota of {quota} bytes is used up"
            journal = self._host.journal.status()
            if (
                journal.bytes_live + journal.bytes_reserve + self._owed_bytes() + whole
                > self._host.upkeep.capacity_bytes
            ):
                return _FULL
        return self._host.room.lacks(destination, size)

    def _owed_bytes(self, destination: int | None = None) -> int:
        """What bodies that have begun, and are being sent, will still need."""
        found = self._host.state.streams.incomplete(destination)
        sizes = [(self._announced.get(stream.identity, (0, 0, ""))[1], stream.size) for stream in found]
        return sum(_space(announced - size) for announced, size in sizes if announced > size)

    def _store(
        self, session: Session, destination: Destination, stream: Stream | None, fragment: frames.Fragment
    ) -> None:
        host, streams, size = self._host, self._host.state.streams, len(fragment.data)
        self._before()
        number, checksum = (streams.next_number, 0) if stream is None else (stream.number, stream.checksum)
        entry = Fragment(
            destination.identity, number, fragment.stream, fragment.offset, size,
            crc32c(fragment.data, checksum), host.now_ms(),
        )  # fmt: skip
        position, span = host.log.fragment(entry.encode(), fragment.data)
        host.journal.retain(position, span)
        destination.bytes_streamed += span
        self._waiting.pop((session.identity, fragment.stream), None)
        self._pend(size)
        stored = fragment.offset + size

        def durable() -> None:
            self._after()
            self._pend(-size)
            self._bytes.add(size)
            self._say(session.identity, fragment.stream, stored, size, frames.STORED_ALL)
            if self._waiting:
                self.resume()
            self.pacing.step()

        host.log.after(durable)

    def _pend(self, size: int) -> None:
        self.pending_bytes += size
        self._host.room.pending_bytes += size

    # --- answers --------------------------------------------------------------------------------------

    def _say(self, session: int, stream: bytes, stored: int, answered: int, how: int, said: object = None) -> None:
        payload = [frames.STORED.pack(stream, stored, answered, how)]
        if said is not None:
            payload.append(frames.pack(said))
        self._host.send(session, frames.Type.FRAGMENT_STORED, payload)

    def _wait(self, session: Session, fragment: frames.Fragment, reason: str) -> None:
        self._waits.add()
        size = len(fragment.data)
        self._waiting[session.identity, fragment.stream] = (fragment.destination.decode(), size)
        self._say(session.identity, fragment.stream, 0, size, frames.STORED_WAIT, {"reason": reason})

    def _fail(self, session: Session, fragment: frames.Fragment, error: ClarionError) -> None:
        self._waiting.pop((session.identity, fragment.stream), None)
        self._announced.pop(fragment.stream, None)
        said = frames.error_facts(error)
        self._say(session.identity, fragment.stream, 0, len(fragment.data), frames.STORED_FAILED, said)

    def resume(self) -> None:
        """Let senders go on that wait for room: first come, first served, as many as fit."""
        if not self._waiting:
            return
        budget = self._host.journal.room()
        for (session, identity), (name, size) in list(self._waiting.items()):
            destination = self._host.state.find(name.rpartition(":")[2])
            known = self._host.sessions.find(session) is not None
            if known and budget < size:
                return
            if known and destination is not None:
                stream = self._host.state.streams.find(identity)
                if self._no_room(destination, stream, identity, size) is not None:
                    continue
            del self._waiting[session, identity]
            if known:
                budget -= limits.FRAGMENTS_UNANSWERED_MAX * limits.FRAGMENT_BYTES_MAX
                self._say(session, identity, 0, 0, frames.STORED_GO)

    # --- what senders ask -----------------------------------------------------------------------------

    def _stream(self, session: Session, arguments: Arguments) -> object:
        """The verb `stream`: how much of a body is here, and, once its message is stored, the id of that."""
        self.pacing.let_in_all()
        identity = _identity(session, arguments)
        destination = self._host.naming.resolve(_text(arguments, "destination"))
        size = arguments.get("size") or 0
        if not isinstance(size, int) or not 0 <= size < 1 << 63:
            raise BadArgument(argument="size", detail="it is not a number of bytes")
        streams = self._host.state.streams
        if (finished := streams.finished.get(identity)) is not None:
            return {"offset": 0, "checksum": 0, "id": ids.format_id(finished[1])}
        stream = streams.find(identity)
        if stream is None or not stream.complete:
            self._check_size(destination, size, _space(size))
            of_session = sum(known == session.identity for known, _, _ in self._announced.values())
            if of_session >= limits.STREAMS_PER_DESTINATION_MAX:
                raise LimitReached(what="large bodies of one session", limit=limits.STREAMS_PER_DESTINATION_MAX)
            self._announced[identity] = (session.identity, size, str(destination))
        if stream is None:
            return {"offset": 0, "checksum": 0, "id": None}
        return {"offset": stream.size, "checksum": stream.checksum, "id": None}

    def _drop_stream(self, session: Session, arguments: Arguments) -> object:
        """The verb `drop_stream`: a body will not be sent to its end."""
        self.pacing.let_in_all()
        stream = self._host.state.streams.find(_identity(session, arguments))
        if stream is not None and not stream.complete:
            self.space.drop([stream], "its sender has given it up")
        return {}

    # --- the message ----------------------------------------------------------------------------------

    def whole(self, destination: Destination, identity: bytes, batch: Batch) -> Stream:
        """The body that a message comes for, if it is all here. Raises `NoSuchStream` or `BadArgument`."""
        stream = self._host.state.streams.find(identity)
        if stream is None or stream.destination != destination.identity:
            raise NoSuchStream(stream=identity.hex(), destination=str(destination))
        if stream.complete:
            raise BadArgument(argument="stream", detail="its message is stored already")
        large = decode_headers(batch.record(0)[0]).large
        if large is None or large[1:] != (stream.size, stream.checksum):
            wanted = "nothing" if large is None else f"{large[1]} bytes with checksum {large[2]:08x}"
            detail = f"the message says {wanted}, {stream.size} bytes with {stream.checksum:08x} are here"
            raise BadArgument(argument="stream", detail=detail)
        return stream

    def completed(self, stream: Stream) -> None:
        """Its message is stored."""
        self._announced.pop(stream.identity, None)

    # --- giving up ------------------------------------------------------------------------------------

    def step(self) -> None:
        """Give up what nobody sends any more: called every second or so."""
        self._untie()
        idle_ms = self._host.settings.message_manager.stream_idle_ms
        oldest_ms = self._host.now_ms() - idle_ms
        if self._host.started_ms > oldest_ms:
            return  # who was sending may not be back yet
        waiting = {identity for _, identity in self._waiting}
        idle = [
            stream
            for stream in self._host.state.streams.incomplete()
            if stream.touched_ms < oldest_ms and stream.identity not in waiting
        ]
        if idle:
            try:
                self.space.drop(idle, f"nothing of it came for {idle_ms} ms")
            except JournalFull:
                pass  # another time

    def _untie(self) -> None:
        """Bodies that hold all the room there is, and wait for each other's, wait for ever: one of them must go.

        Those come first that nobody sends at present, then the smallest.
        """
        state, now_ms = self._host.state, self._host.now_ms()
        waiting = {identity for _, identity in self._waiting}
        tied: dict[int, int] = {}
        for identity in {stream.destination for one in waiting if (stream := state.streams.find(one)) is not None}:
            destination = state.destinations.get(identity)
            found = state.streams.incomplete(identity)
            moving = any(one.identity in self._announced and one.identity not in waiting for one in found)
            held = 0 if destination is None else destination.bytes_live - sum(one.bytes_live for one in found)
            if destination is None or held or moving:
                continue  # what others hold they will give back
            tied[identity] = self._tied.get(identity, now_ms)
            if now_ms - tied[identity] >= limits.STREAMS_TIED_MS:
                del tied[identity]
                victim = min(found, key=lambda one: (one.identity in self._announced, one.size))
                self._sacrifice(destination, victim)
        self._tied = tied

    def _sacrifice(self, destination: Destination, stream: Stream) -> None:
        reason = "large bodies on their way hold all the room, so none of them could be finished"
        try:
            self.space.drop([stream], reason)
        except JournalFull:
            return  # another time
        error = frames.error_facts(Blocked(destination=str(destination), detail=reason))
        for session, identity in [key for key in self._waiting if key[1] == stream.identity]:
            del self._waiting[session, identity]
            self._say(session, identity, 0, 0, frames.STORED_FAILED, error)

    def ended(self, session: Session, producer: int, clean: bool) -> None:
        """A session is over; what it was sending has a key, or it comes back unless it said goodbye."""
        self.reading.ended(session)
        self.pacing.ended(session.identity)
        for identity in [one for one, (known, _, _) in self._announced.items() if known == session.identity]:
            del self._announced[identity]
        for key in [key for key in self._waiting if key[0] == session.identity]:
            del self._waiting[key]
        if clean and producer:
            left = [one for one in self._host.state.streams.incomplete() if producer_of(one.identity) == producer]
            if left:
                try:
                    self.space.drop(left, "its session ended")
                except JournalFull:
                    pass  # it is then given up by age


def _space(size: int) -> int:
    """What a body of so many bytes takes of the journal, in fragments of the usual size."""
    return size + _FRAGMENT_EXTRA_BYTES * (size // limits.FRAGMENT_BYTES_MAX + 1)


def _identity(session: Session, arguments: Arguments) -> bytes:
    identity = arguments["stream"]
    if not isinstance(identity, bytes) or len(identity) != ID_BYTES:
        raise BadArgument(argument="stream", detail=f"it is not an id of {ID_BYTES} bytes")
    if producer_of(identity) not in (0, session.producer):
        raise BadArgument(argument="stream", detail="it is of another producer")
    return identity


def _text(arguments: Arguments, name: str) -> str:
    value = arguments[name]
    if not isinstance(value, str):
        raise BadArgument(argument=name, detail="it is not text")
    return value
