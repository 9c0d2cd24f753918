"""The native protocol as a state machine, for both roles: bytes in, frames out.

Theory of operation
    A host feeds what it read to `receive`, calls `tick` at least once per heartbeat, and after
    either writes what `take_outgoing` gives. The engine does the handshake, heartbeats and the end
    of a connection itself and hands out only the frames of sessions.

    state     stimulus                               next      effect
    NEW       client HELLO / server WELCOME          READY     the server queues WELCOME
    NEW       10 s without it (`tick`)               CLOSING   HandshakeTimeout
    NEW       any other frame but GOODBYE            CLOSING   UnknownFrame
    READY     HEARTBEAT                              READY
    READY     a frame of the peer's role             READY     handed out
    READY     any other frame                        CLOSING   UnknownFrame or BadFrame
    READY     silence of 3 heartbeats (`tick`)       CLOSING   HeartbeatMissed
    any       GOODBYE                                CLOSING   the client raises what it says
    any       `goodbye()`                            CLOSING   queues GOODBYE
    CLOSING   anything                               CLOSING   ignored

Guarantees
    1. Pure: no socket, no clock, no random. Times are arguments, in ms of any monotonic clock.
    2. Bad input raises a `ProtocolError` (or what `authenticate` raises) and nothing else; the host
       then calls `goodbye(error)`, writes and closes.
    3. A frame that is handed out has a type of the peer's role, a channel that is open, and the
       length that its type demands. Payloads are not decoded here.
    4. Small: no timers, no buffers beyond one unfinished frame; some 1 KiB when idle.

A host that did not run for long (stopped, swapped out) does not take its own silence for the
peer's: `tick` after a pause of more than 3 heartbeats starts the count anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any

from clarion import limits
from clarion.errors import (
    BadFrame,
    ClarionError,
    ConnectionLost,
    FrameTooLarge,
    HandshakeTimeout,
    HeartbeatMissed,
    UnknownFrame,
    VersionMismatch,
)
from clarion.protocols.greetings import HANDSHAKE_BYTES_MAX, Hello, Welcome, goodbye_of, hello_of, welcome_of
from clarion.wire import frames
from clarion.wire.batch import HEADER_BYTES as BATCH_HEADER_BYTES
from clarion.wire.batch import Buffer
from clarion.wire.frames import Frame, Type

_HEADER_BYTES = frames.HEADER_BYTES
_pack_header = frames.HEADER.pack
_unpack_header = frames.HEADER.unpack_from
_new_frame = tuple.__new__


class State(IntEnum):
    NEW = 0
    READY = 1
    CLOSING = 2


# Smallest and largest payload of each type that may come on a session, and its unit beyond the smallest.
_ANY = limits.FRAME_BYTES_MAX
_ACK_MAX = frames.ACK.size + frames.RANGE.size * limits.RANGES_PER_FRAME_MAX
_FRAGMENT_MAX = frames.FRAGMENT.size + limits.NAME_BYTES_MAX + 8 + limits.FRAGMENT_BYTES_MAX
_CLIENT_SIZES: dict[int, tuple[int, int, int]] = {
    Type.OPEN: (1, HANDSHAKE_BYTES_MAX, 1),
    Type.CLOSE: (0, 0, 1),
    Type.PUBLISH: (frames.FLOOR.size + BATCH_HEADER_BYTES + 8, _ANY, 1),
    Type.STAGE: (frames.STAGED.size + BATCH_HEADER_BYTES + 8, _ANY, 1),
    Type.FRAGMENT: (frames.FRAGMENT.size + 1, _FRAGMENT_MAX, 1),
    Type.PUBLISH_LARGE: (frames.LARGE.size + BATCH_HEADER_BYTES + 8, _ANY, 1),
    Type.SUBSCRIBE: (1, _ANY, 1),
    Type.CREDIT: (frames.CREDIT.size, frames.CREDIT.size, 1),
    Type.CONFIRM: (frames.ACK.size, _ACK_MAX, frames.RANGE.size),
    Type.REJECT: (frames.ACK.size, _ACK_MAX, frames.RANGE.size),
    Type.RETURN: (1, _ANY, 1),
    Type.UNSUBSCRIBE: (1, _ANY, 1),
    Type.REQUEST: (1, _ANY, 1),
}
_SERVER_SIZES: dict[int, tuple[int, int, int]] = {
    Type.OPENED: (1, HANDSHAKE_BYTES_MAX, 1),
    Type.CLOSED: (0, 0, 1),
    Type.PUBLISHED: (frames.SETTLED.size, _ANY, frames.SETTLED.size),
    Type.REFUSED: (frames.FLOOR.size + 1, _ANY, 1),
    Type.RESUME: (frames.FLOOR.size + 1, _ANY, 1),
    Type.DELIVERED: (frames.SETTLED.size, _ANY, frames.SETTLED.size),
    Type.FRAGMENT_STORED: (frames.STORED.size, _ANY, 1),
    Type.MERGED: (1, _ANY, 1),
    Type.PUBLISH_FAILED: (frames.SETTLED.size + 1, _ANY, 1),
    Type.DELIVER: (frames.DELIVER.size, _ANY, 1),
    Type.CONSUMER_CLOSED: (frames.CLOSED.size + 1, _ANY, 1),
    Type.REPLY: (1, _ANY, 1),
    Type.ERROR: (1, _ANY, 1),
}


_CHANNEL_KINDS = frozenset({int(Type.OPEN), int(Type.CLOSE)})
"""What a client says of a channel itself; everything else needs one that is open."""
_CLOSED = int(Type.CLOSED)


class _Connection:
    """What both roles share: cutting, the outgoing queue, heartbeats, the end."""

    __slots__ = ("_cut_off", "_heard_at_ms", "_now_ms", "_reader", "_sent_at_ms", "heartbeat_ms", "outgoing", "state")

    def __init__(self, heartbeat_ms: int) -> None:
        self.state = State.NEW
        self.heartbeat_ms = heartbeat_ms
        """What both sides agreed on, once READY."""
        self.outgoing: list[Buffer] = []
        """What is to be written; `take_outgoing` takes it."""
        self._reader = frames.FrameReader()
        self._cut_off = False
        """The reader holds the beginning of a frame."""
        self._now_ms = -1
        self._heard_at_ms = -1
        self._sent_at_ms = -1

    def send(self, kind: int, channel: int, parts: Iterable[Buffer] = (), flags: int = 0) -> None:
        """Append one frame to what is to be written. CLOSED makes its channel free again."""
        # `frames.frame` without its call and its list, for this is on the way of every lone message.
        self._sent_at_ms = self._now_ms
        body = tuple(parts)
        self.outgoing += (_pack_header(sum(map(len, body)), kind, flags, 0, channel), *body)
        if kind == _CLOSED:
            self._free(channel)

    def _free(self, channel: int) -> None:
        """Only servers say CLOSED."""

    def take_outgoing(self) -> list[Buffer]:
        """Everything to be written now, in order, for `transport.writelines`."""
        outgoing = self.outgoing
        if outgoing:
            self.outgoing = []
        return outgoing

    def tick(self, now_ms: int) -> None:
        """Queue a heartbeat that is due. Raises `HandshakeTimeout` or `HeartbeatMissed`."""
        if self._now_ms < 0:
            self._heard_at_ms = self._sent_at_ms = now_ms
        paused_ms, self._now_ms = now_ms - self._now_ms, now_ms
        if self.state is State.CLOSING:
            return
        if self.state is State.NEW:
            if now_ms - self._heard_at_ms > limits.HANDSHAKE_MS_MAX:
                raise HandshakeTimeout(limit_ms=limits.HANDSHAKE_MS_MAX)
            return
        silence_ms_max = self.heartbeat_ms * limits.HEARTBEATS_MISSED_MAX
        if paused_ms > silence_ms_max:
            self._heard_at_ms = now_ms
        if now_ms - self._heard_at_ms > silence_ms_max:
            raise HeartbeatMissed(silent_ms=now_ms - self._heard_at_ms)
        if now_ms - self._sent_at_ms >= self.heartbeat_ms:
            self.send(Type.HEARTBEAT, 0)

    def goodbye(self, error: ClarionError | None = None) -> None:
        """Queue the last frame. Whatever comes after it is ignored."""
        if self.state is not State.CLOSING:
            said = {"code": "", "facts": {}} if error is None else frames.error_facts(error)
            self.send(Type.GOODBYE, 0, (frames.pack(said),))
            self.state = State.CLOSING

    def _cut(self, data: bytes) -> Iterable[Frame]:
        """The frames that are complete with `data`; all of them must be looked at.

        Exactly one frame, as a lone message is, needs no reader: it halves the time of `receive`, from 3.3 us to 1.5
        (`benchmarks/latency.py`).
        """
        size = len(data)
        if size >= _HEADER_BYTES and not self._cut_off:
            payload_bytes, kind, flags, _zero, channel = _unpack_header(data)
            if payload_bytes == size - _HEADER_BYTES and size <= HANDSHAKE_BYTES_MAX:
                return (_new_frame(Frame, (kind, flags, channel, memoryview(data)[_HEADER_BYTES:])),)
        return self._read(data)

    def _read(self, data: bytes) -> Iterator[Frame]:
        yield from self._reader.feed(data)
        self._cut_off = self._reader.buffered > 0

    def _heard(self, now_ms: int) -> None:
        if self._now_ms < 0:
            self._sent_at_ms = now_ms
        # In NEW the time of the first look counts: bytes that are no HELLO do not prolong it.
        if self.state is not State.NEW or self._heard_at_ms < 0:
            self._heard_at_ms = now_ms
        self._now_ms = now_ms

    def _check_handshake_bytes(self) -> None:
        if self._reader.buffered > HANDSHAKE_BYTES_MAX:
            raise FrameTooLarge(size=self._reader.buffered, limit=HANDSHAKE_BYTES_MAX)

    def _refuse(self, frame: Frame) -> ClarionError:
        return UnknownFrame(type=frame.type, state=self.state.name)


class ServerConnection(_Connection):
    """The server's end of one connection.

    >>> def nobody(authentication): ...
    >>> connection = ServerConnection(server="a", batch_bytes_max=4096, producer_window_bytes=4096,
    ...                               heartbeat_ms=10_000, authenticate=nobody)
    >>> connection.receive(b"".join(frames.frame(Type.HELLO, 0, [frames.pack({"versions": [1, 1]})])), now_ms=0)
    []
    >>> connection.state.name, connection.version, len(connection.take_outgoing())
    ('READY', 1, 2)
    """

    __slots__ = (
        "_authenticate",
        "_channels",
        "batch_bytes_max",
        "client_name",
        "client_software",
        "peer_error",
        "producer_window_bytes",
        "server",
        "version",
    )

    def __init__(
        self,
        *,
        server: str,
        batch_bytes_max: int,
        producer_window_bytes: int,
        heartbeat_ms: int,
        authenticate: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__(heartbeat_ms)
        self.server = server
        self.batch_bytes_max = batch_bytes_max
        self.producer_window_bytes = producer_window_bytes
        self.version = 0
        self.client_name = ""
        self.client_software = ""
        self.peer_error: ClarionError | None = None
        """The error of the client's GOODBYE, if it named one."""
        self._authenticate = authenticate
        self._channels: dict[int, bool] = {}
        """Sessions; False from the client's CLOSE until our CLOSED."""

    @property
    def channels(self) -> list[int]:
        """Channels in use, those between CLOSE and CLOSED too."""
        return list(self._channels)

    def receive(self, data: bytes, now_ms: int) -> list[Frame]:
        """The session frames that are complete with `data`. Raises `ProtocolError`, `AuthenticationFailed`."""
        received: list[Frame] = []
        if self.state is State.READY:
            self._heard_at_ms = self._now_ms = now_ms
        else:
            self._heard(now_ms)
            if self.state is State.CLOSING:
                return received
        for frame in self._cut(data):
            kind, _flags, channel, payload = frame
            bounds = _CLIENT_SIZES.get(kind)
            if bounds is not None and self.state is State.READY:
                low, high, unit = bounds
                if not low <= (size := len(payload)) <= high or (size - low) % unit:
                    raise _bad_size(kind, size)
                if kind in _CHANNEL_KINDS or not self._channels.get(channel):
                    self._check_channel(kind, channel)
                received.append(frame)
            elif channel != 0:
                raise self._refuse(frame)
            elif kind == Type.HELLO and self.state is State.NEW:
                self._welcome(frame)
            elif kind == Type.GOODBYE:
                self.peer_error = goodbye_of(frame).error()
                self.state = State.CLOSING
                break
            elif kind != Type.HEARTBEAT or self.state is State.NEW:
                raise self._refuse(frame)
        if self.state is State.NEW:
            self._check_handshake_bytes()
        return received

    def _free(self, channel: int) -> None:
        self._channels.pop(channel, None)

    def _welcome(self, frame: Frame) -> None:
        hello = hello_of(frame)
        low, high = hello.versions
        version = min(high, frames.PROTOCOL_VERSION_MAX)
        if version < max(low, frames.PROTOCOL_VERSION_MIN):
            raise VersionMismatch(
                server_min=frames.PROTOCOL_VERSION_MIN,
                server_max=frames.PROTOCOL_VERSION_MAX,
                client_min=low,
                client_max=high,
            )
        self._authenticate(hello.authentication)
        self.version = version
        self.client_name = (hello.name or "")[: limits.NAME_BYTES_MAX]
        self.client_software = (hello.software or "")[: limits.NAME_BYTES_MAX]
        self.heartbeat_ms = max(limits.HEARTBEAT_MS_MIN, min(self.heartbeat_ms, hello.heartbeat_ms))
        self.state = State.READY
        self._heard_at_ms = self._now_ms
        answer = Welcome(version, self.server, self.heartbeat_ms, self.batch_bytes_max, self.producer_window_bytes)
        self.send(Type.WELCOME, 0, (frames.pack(answer),))

    def _check_channel(self, kind: int, channel: int) -> None:
        if kind == Type.OPEN:
            if channel == 0 or channel in self._channels:
                raise BadFrame(detail=f"OPEN on channel {channel}, which is in use")
            if len(self._channels) >= limits.SESSIONS_PER_CONNECTION_MAX:
                raise BadFrame(detail=f"more than {limits.SESSIONS_PER_CONNECTION_MAX} sessions on one connection")
            self._channels[channel] = True
        elif not self._channels.get(channel):
            raise BadFrame(detail=f"{Type(kind).name} on channel {channel}, which is not open")
        elif kind == Type.CLOSE:
            self._channels[channel] = False


class ClientConnection(_Connection):
    """The client's end of one connection."""

    __slots__ = ("_ended", "welcome")

    def __init__(self) -> None:
        super().__init__(limits.HEARTBEAT_MS_DEFAULT)
        self.welcome: Welcome | None = None
        """The server's answer to HELLO; None before it came."""
        self._ended: ClarionError | None = None

    def hello(
        self, *, name: str | None, software: str, heartbeat_ms: int, authentication: dict[str, Any] | None = None
    ) -> None:
        """Queue HELLO: the first thing to do."""
        said = Hello(
            (frames.PROTOCOL_VERSION_MIN, frames.PROTOCOL_VERSION_MAX),
            name,
            software,
            heartbeat_ms,
            authentication or {"mechanism": "none"},
        )
        self.send(Type.HELLO, 0, (frames.pack(said),))

    def receive(self, data: bytes, now_ms: int) -> list[Frame]:
        """The session frames that are complete with `data`.

        Raises `ProtocolError` for bad input. GOODBYE raises the error that it names, or
        `ConnectionLost`; frames that came with it are handed out first, and the next call raises.
        """
        received: list[Frame] = []
        if self.state is State.READY:
            self._heard_at_ms = self._now_ms = now_ms
        else:
            self._heard(now_ms)
        for frame in self._cut(data) if self.state is not State.CLOSING else ():
            kind, _flags, channel, payload = frame
            bounds = _SERVER_SIZES.get(kind)
            if bounds is not None and self.state is State.READY and channel != 0:
                low, high, unit = bounds
                if not low <= (size := len(payload)) <= high or (size - low) % unit:
                    raise _bad_size(kind, size)
                received.append(frame)
            elif channel != 0:
                raise self._refuse(frame)
            elif kind == Type.WELCOME and self.state is State.NEW:
                self._welcomed(welcome_of(frame))
            elif kind == Type.GOODBYE:
                ended = goodbye_of(frame).error()
                self._ended = ended or ConnectionLost(detail="the server ended it")
                self.state = State.CLOSING
                break
            elif kind != Type.HEARTBEAT or self.state is State.NEW:
                raise self._refuse(frame)
        if self.state is State.NEW:
            self._check_handshake_bytes()
        if self._ended is not None and not received:
            raise self._ended
        return received

    def _welcomed(self, welcome: Welcome) -> None:
        if not frames.PROTOCOL_VERSION_MIN <= welcome.version <= frames.PROTOCOL_VERSION_MAX:
            raise VersionMismatch(
                server_min=welcome.version,
                server_max=welcome.version,
                client_min=frames.PROTOCOL_VERSION_MIN,
                client_max=frames.PROTOCOL_VERSION_MAX,
            )
        self.welcome = welcome
        self.heartbeat_ms = max(limits.HEARTBEAT_MS_MIN, welcome.heartbeat_ms)
        self.state = State.READY
        self._heard_at_ms = self._now_ms


def _bad_size(kind: int, size: int) -> BadFrame:
    return BadFrame(detail=f"{Type(kind).name} with {size} bytes")
