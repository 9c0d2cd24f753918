"""The receiving end of links: one thread, and nothing that is not there before the first connection.

Theory of operation
    One thread waits on epoll. Each connection has one of `connections_max` slots, made at the start: a buffer for one
    frame that comes in, one for answers. A frame is handled in its buffer and leaves it only when it was answered.

Guarantees
    1. STORED is sent when the records are durable, never before; it is the handler's `store` that makes them so.
    2. With no descriptor left, connections that exist go on, and new ones wait. With no memory left a turn is given up
       and tried again: nothing is dropped, and nothing is answered that was not done. With a ballast it is tried
       again at once, with a part of that, so that connections that exist are served without any other memory.
    3. Bytes that are no frame cost their sender its connection, and nobody else anything.

Rule: the handler is called by this thread only, one call at a time. It must be idempotent: a frame whose handling
raised `MemoryError` is handled again.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import struct
import threading
import time
from collections import deque
from typing import Protocol

from clarion import limits
from clarion.errors import ClarionError, InternalFault, MessageTooLarge, ProtocolError, UnknownFrame
from clarion.events.memory.ballast import NO_MEMORY, Ballast, apart, keep

from . import frames
from .frames import Frame, Heartbeat, Hello, Incoming, Type

ANSWERS_BYTES = frames.HEADER_BYTES + 1_024 + 32 * limits.EVENT_LINK_SECTIONS_MAX
"""The largest answer is that to a greeting with all sections."""
AGAIN_S = 0.01
"""After a turn for which there was no memory …"""
ACCEPT_AGAIN_S = 0.2
"""… or a connection for which there was no descriptor."""
TURN_S = 0.1
_EVENTS_PER_TURN = 24
"""So few that the kernel's answer fits an object as the ballast has them (12 bytes each)."""
POST_BYTES_MAX = ANSWERS_BYTES - frames.HEADER_BYTES

_logger = logging.getLogger("clarion.events")


class Peer:
    """Who is at the other end of a connection; kept by the server, read by the handler."""

    __slots__ = (
        "_answered",
        "_outgoing",
        "_sent",
        "heard_s",
        "hello",
        "incoming",
        "posted",
        "slot",
        "socket",
        "watching",
    )

    def __init__(self, slot: int, frame_bytes_max: int) -> None:
        self.slot = slot
        self.incoming = Incoming(frame_bytes_max)
        self._outgoing = memoryview(bytearray(b"\1" * ANSWERS_BYTES))
        self._sent = self._answered = 0
        self.socket: socket.socket | None = None
        self.hello: Hello | None = None
        """What it said of itself; None before."""
        self.heard_s = 0.0
        self.watching = 0
        self.posted: deque[bytes] = deque()

    @property
    def name(self) -> str:
        return self.hello.name if self.hello is not None else "?"

    def begin(self, connection: socket.socket, now_s: float) -> None:
        self.socket = connection
        self.hello = None
        self.heard_s = now_s
        self.incoming.clear()
        self.posted.clear()
        self._sent = self._answered = 0

    @property
    def waiting(self) -> bool:
        """Answers are not all sent yet; until then no further frame is handled."""
        return self._sent < self._answered

    def answer_room(self) -> memoryview:
        """Where the payload of the next answer goes."""
        if not self.waiting:
            self._sent = self._answered = 0
        return self._outgoing[self._answered + frames.HEADER_BYTES :]

    def answer(self, kind: int, payload_bytes: int, number: int) -> None:
        """Send what lies in `answer_room`, in time."""
        self._answered += frames.seal(self._outgoing[self._answered :], kind, payload_bytes, number)

    def flush(self) -> None:
        """Send what can be sent now. Raises OSError when the connection is gone."""
        assert self.socket is not None
        while self.waiting or self.posted:
            if not self.waiting:
                whole = self.posted.popleft()
                self._sent, self._answered = 0, len(whole)
                self._outgoing[: len(whole)] = whole
            try:
                self._sent += self.socket.send(self._outgoing[self._sent : self._answered])
            except BlockingIOError:
                return


class Handler(Protocol):
    """What a server does with what it receives. Raising `ClarionError` answers ERROR and keeps the connection."""

    def hello(self, peer: Peer, hello: Hello) -> Hello:
        """Somebody greets; returns the answer: who we are, and what we hold of the sections it named."""
        ...

    def store(self, peer: Peer, section: int, records: list[memoryview]) -> int:
        """Make records durable; returns the last sequence of the section that holds them. Must not keep the views."""
        ...

    def heartbeat(self, peer: Peer, heartbeat: Heartbeat) -> Heartbeat:
        """The answer: our own."""
        ...

    def control(self, peer: Peer, kind: int, flags: int, payload: memoryview) -> bool:
        """Any other frame. True: what it says is durable, and that is answered by STORED."""
        ...

    def lost(self, peer: Peer) -> None:
        """The connection is gone."""
        ...


class Server:
    """Made bound and listening; `start` starts its thread."""

    def __init__(
        self,
        handler: Handler,
        address: tuple[str, int],
        *,
        connections_max: int = limits.EVENT_LINK_CONNECTIONS_MAX,
        frame_bytes_max: int = limits.EVENT_LINK_FRAME_BYTES_DEFAULT,
        idle_s: float | None = None,
        ballast: Ballast | None = None,
    ) -> None:
        """`ballast`: that of the section which the handler stores in, so that it is whole again before each sync."""
        self._handler = handler
        self._ballast = ballast
        self._idle_s = idle_s
        """Connections that greeted nobody, or said nothing, for so long are closed; None: only by the kernel."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=connections_max)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._free = [Peer(slot, frame_bytes_max) for slot in reversed(range(connections_max))]
        self._peers: dict[int, Peer] = {}
        self._epoll = select.epoll(connections_max + 2)
        self._wake_to, self._wake_from = socket.socketpair()
        self._wake_from.setblocking(False)
        self._wake_to.setblocking(False)
        self._posts: deque[tuple[Peer, socket.socket | None, bytes]] = deque()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._epoll.register(self._wake_from.fileno(), select.EPOLLIN)
        self._accepting = True
        self._accept_at_s = 0.0
        self._again = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run_apart, name="clarion-events-link", daemon=True)
        self.starved = 0
        """Turns that were given up for want of memory, and tried again."""
        self.dropped = 0
        """Connections that were closed because of what they sent."""
        self.fault: Exception | None = None
        """The last one of the handler that it did not explain by a `ClarionError`."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, and close every connection. Idempotent."""
        self._stopping = True
        if self._thread.is_alive():
            self._wake()
            self._thread.join()
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._epoll.close()
        for one in (self._listener, self._wake_to, self._wake_from):
            one.close()

    @property
    def peers(self) -> list[str]:
        """Names of those that are connected."""
        return [peer.name for peer in list(self._peers.values()) if peer.hello is not None]

    def post(self, name: str, kind: int, payload: bytes, flags: int = 0) -> bool:
        """Send a frame to whoever greeted by this name, from any thread; False if nobody did.

        A payload has at most `POST_BYTES_MAX`. Nothing tells whether it arrived."""
        if len(payload) > POST_BYTES_MAX:
            raise MessageTooLarge(size=len(payload), limit=POST_BYTES_MAX)
        whole = frames.frame(kind, payload, flags=flags)
        for peer in list(self._peers.values()):
            if peer.name == name and peer.hello is not None:
                self._posts.append((peer, peer.socket, whole))
                self._wake()
                return True
        return False

    def _wake(self) -> None:
        try:
            self._wake_to.send(b".")
        except BlockingIOError:
            pass  # it has not yet read that it was woken before

    # --- the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        ballast = self._ballast
        waits = False
        while not self._stopping:
            try:
                if waits:
                    waits = False
                    time.sleep(AGAIN_S)
                self._turn()
            except NO_MEMORY:
                self._again = True
                if ballast is not None and ballast.scraps is not None:
                    ballast.scraps = None
                    ballast.missing = True
                elif ballast is not None and ballast.whole is not None:
                    ballast.whole = ballast.whole[1]
                    ballast.missing = True
                else:
                    waits = True
                try:
                    self.starved += 1
                except NO_MEMORY:
                    pass

    _run_apart = apart(_run)

    def _turn(self) -> None:
        if self._again:
            for peer in list(self._peers.values()):
                self._serve(peer, readable=False)
            self._again = False
        self._keep_ballast()
        ready = self._epoll.poll(TURN_S, _EVENTS_PER_TURN)
        now_s = time.monotonic()
        for descriptor, _events in ready:
            if descriptor == self._listener.fileno():
                self._accept(now_s)
            elif descriptor == self._wake_from.fileno():
                self._woken()
            elif (found := self._peers.get(descriptor)) is not None:
                found.heard_s = now_s
                self._serve(found, readable=True)
        if not self._accepting and now_s >= self._accept_at_s and self._free:
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)
            self._accepting = True
        if self._idle_s is not None:
            for peer in [one for one in self._peers.values() if now_s - one.heard_s > self._idle_s]:
                self._drop(peer)

    def _keep_ballast(self) -> None:
        """Before others run: they would take what is free."""
        if self._ballast is not None and self._ballast.missing:
            self._ballast.refill()

    def _woken(self) -> None:
        self._wake_from.recv(4_096)
        while self._posts:
            peer, connection, whole = self._posts.popleft()
            if peer.socket is connection and connection is not None:
                peer.posted.append(whole)
                self._serve(peer, readable=False)

    def _accept(self, now_s: float) -> None:
        if not self._free:
            self._pause_accepting(now_s)
            return
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._pause_accepting(now_s)
            return
        self._begin(connection, now_s)

    def _begin(self, connection: socket.socket, now_s: float) -> None:
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._epoll.register(connection.fileno(), select.EPOLLIN)
        except OSError:
            connection.close()
            return
        peer = self._free.pop()
        peer.begin(connection, now_s)
        peer.watching = select.EPOLLIN
        self._peers[connection.fileno()] = peer

    def _pause_accepting(self, now_s: float) -> None:
        self._epoll.unregister(self._listener.fileno())
        self._accepting = False
        self._accept_at_s = now_s + ACCEPT_AGAIN_S

    def _serve(self, peer: Peer, *, readable: bool) -> None:
        try:
            self._handle_frames(peer)
            if readable and not peer.waiting:
                self._receive(peer)
            self._watch(peer)
        except ProtocolError:
            self.dropped += 1
            self._drop(peer)
        except OSError:
            self._drop(peer)
        except NO_MEMORY:
            raise
        except Exception as error:  # a fault of the handler costs this connection, not the others theirs
            self.fault = error
            _logger.exception("a frame of %s could not be handled", peer.name)
            self._drop(peer)

    def _receive(self, peer: Peer) -> None:
        assert peer.socket is not None
        room = peer.incoming.room()
        self._keep_ballast()
        try:
            count = peer.socket.recv_into(room)
        except BlockingIOError:
            return
        if not count:
            raise ConnectionResetError
        peer.incoming.received(count)
        self._handle_frames(peer)

    def _handle_frames(self, peer: Peer) -> None:
        """Handle what is there, and stop at the first frame whose answer cannot leave yet."""
        peer.flush()
        while not peer.waiting and (frame := peer.incoming.peek()) is not None:
            self._handle(peer, frame)
            peer.incoming.drop()
            peer.flush()

    def _watch(self, peer: Peer) -> None:
        wanted = select.EPOLLOUT if peer.waiting else select.EPOLLIN
        if wanted != peer.watching:
            assert peer.socket is not None
            self._epoll.modify(peer.socket.fileno(), wanted)
            peer.watching = wanted

    def _handle(self, peer: Peer, frame: Frame) -> None:
        """One frame. Nothing of the answer is written before all that can fail is done."""
        if peer.hello is None and frame.type != Type.HELLO:
            raise UnknownFrame(type=frame.type, state="before HELLO")
        try:
            self._answer(peer, frame)
        except ProtocolError:
            raise
        except (ClarionError, struct.error, ValueError, OSError) as error:
            _refuse(peer, frame, error)

    def _answer(self, peer: Peer, frame: Frame) -> None:
        if frame.type == Type.PUT:
            section, records = frames.unpack_put(frame.payload)
            last = self._handler.store(peer, section, records)
            frames.STORED.pack_into(peer.answer_room(), 0, len(records), 0, last)
            peer.answer(Type.STORED, frames.STORED.size, frame.number)
        elif frame.type == Type.HEARTBEAT:
            heartbeat = self._handler.heartbeat(peer, frames.unpack_heartbeat(frame.payload))
            size = frames.pack_heartbeat_into(peer.answer_room(), 0, heartbeat)
            peer.answer(Type.HEARTBEAT, size, frame.number)
        elif frame.type == Type.HELLO:
            hello = frames.unpack_hello(frame.payload)
            answer = frames.pack_hello(self._handler.hello(peer, hello))
            peer.hello = hello
            peer.answer_room()[: len(answer)] = answer
            peer.answer(Type.HELLO, len(answer), frame.number)
        elif frame.type in (Type.STORED, Type.ERROR):
            raise UnknownFrame(type=frame.type, state="receiving")
        elif self._handler.control(peer, frame.type, frame.flags, frame.payload):
            frames.STORED.pack_into(peer.answer_room(), 0, 0, 0, 0)
            peer.answer(Type.STORED, frames.STORED.size, frame.number)

    def _drop(self, peer: Peer) -> None:
        connection = peer.socket
        if connection is None:
            return
        peer.socket = None
        del self._peers[connection.fileno()]
        connection.close()
        self._free.append(peer)
        if peer.hello is not None:
            self._handler.lost(peer)


def _refuse(peer: Peer, frame: Frame, error: Exception) -> None:
    known = error if isinstance(error, ClarionError) else InternalFault(detail=repr(error))
    refusal = frames.pack_error(known)[:1_024]
    peer.answer_room()[: len(refusal)] = refusal
    peer.answer(Type.ERROR, len(refusal), frame.number)


keep(Server, Peer, Incoming, frames)
