"""A session as its client manager sees it: who it is, what it still owes answers for.

Rules
    1. Pure: no sockets, no clock.
    2. The producer window of a destination holds exactly the batches that were relayed and not
       answered. PUBLISHED, PUBLISH_FAILED and REFUSED give bytes back; what follows a refused batch
       is dropped here until that batch comes again, because its message manager drops it too and
       would never answer.
    3. Nothing here must survive: a client that reconnects says all of it again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from clarion.errors import BadName, CreditExceeded, LimitReached, NotReady, ProtocolError
from clarion.message import parse_destination
from clarion.nodes.gateway import Rejected
from clarion.wire import frames
from clarion.wire.frames import Type

if TYPE_CHECKING:
    from clarion.nodes.connection import Connection

REQUESTS_UNANSWERED_MAX = 1_024
"""Requests of one session that wait for an answer."""


class _Sent(msgspec.Struct, frozen=True, gc=False):
    destination: str
    size: int
    messages: int


class ProducerWindow:
    """Credit of one session's producer: bytes without an answer, by destination."""

    __slots__ = ("_bytes", "_refused", "_sent", "_window")

    def __init__(self, window_bytes: int) -> None:
        self._window = window_bytes
        self._sent: dict[int, _Sent] = {}
        """By first sequence."""
        self._bytes: dict[str, int] = {}
        self._refused: dict[str, int] = {}

    @property
    def unanswered_bytes(self) -> int:
        return sum(self._bytes.values())

    def take(self, destination: str, first: int, count: int, size: int) -> bool:
        """Count a batch. False: it follows a refused one and is to be dropped. Raises `CreditExceeded`."""
        refused = self._refused.get(destination)
        if refused is not None:
            if first > refused:
                return False
            if first == refused:
                del self._refused[destination]
        waiting = self._bytes.get(destination, 0)
        if waiting and waiting + size > self._window:
            raise CreditExceeded(sent=waiting + size, destination=destination, window=self._window)
        again = self._sent.get(first)
        if again is None:
            self._sent[first] = _Sent(destination, size, count)
        elif again.destination == destination:
            # Both are on their way; the first answer settles them.
            self._sent[first] = _Sent(destination, again.size + size, max(again.messages, count))
        else:
            raise ProtocolError(detail=f"sequence {first} goes to {again.destination} and to {destination}")
        self._bytes[destination] = waiting + size
        return True

    def settle(self, first: int, count: int) -> None:
        """[first, first + count) is answered for good; an answer may cover several batches."""
        end = first + count
        while first < end:
            sent = self._sent.pop(first, None)
            if sent is None:
                return
            self._give_back(sent)
            first += sent.messages

    def refuse(self, first: int, destination: str | None) -> None:
        """The batch at `first` was refused, and with it all that follow to the same destination."""
        sent = self._sent.get(first)
        name = sent.destination if sent is not None else destination
        if name is None:
            return
        self._refused[name] = first
        for sequence in [n for n, batch in self._sent.items() if batch.destination == name and n >= first]:
            self._give_back(self._sent.pop(sequence))

    def _give_back(self, sent: _Sent) -> None:
        left = self._bytes[sent.destination] - sent.size
        if left:
            self._bytes[sent.destination] = left
        else:
            del self._bytes[sent.destination]


class FragmentWindow:
    """Bytes of large bodies that were relayed and not answered; the answers say how many each is for."""

    __slots__ = ("_window", "unanswered_bytes")

    def __init__(self, window_bytes: int) -> None:
        self._window = window_bytes
        self.unanswered_bytes = 0

    def take(self, size: int) -> None:
        """Count a fragment. Raises `CreditExceeded`."""
        if self.unanswered_bytes and self.unanswered_bytes + size > self._window:
            sent = self.unanswered_bytes + size
            raise CreditExceeded(sent=sent, destination="large bodies", window=self._window)
        self.unanswered_bytes += size

    def settle(self, size: int) -> None:
        """A message manager has answered so many bytes."""
        self.unanswered_bytes = max(0, self.unanswered_bytes - size)


class _Answer(msgspec.Struct):
    request: int


_decode_answer = msgspec.msgpack.Decoder(_Answer).decode


class Session:
    """One session of one connection."""

    __slots__ = (
        "_awaited",
        "_expired",
        "channel",
        "connection",
        "fragments",
        "identity",
        "producer",
        "relayed",
        "resumed",
        "sender",
        "window",
    )

    def __init__(
        self,
        identity: int,
        producer: int,
        channel: int,
        connection: Connection,
        window_bytes: int,
        sender: bytes = b"",
        resumed: bool = False,
    ) -> None:
        self.identity = identity
        self.producer = producer
        self.sender = sender
        """As OPEN said. If there is one, the producer is not to be forgotten when the session ends."""
        self.resumed = resumed
        self.channel = channel
        self.connection = connection
        self.window = ProducerWindow(window_bytes)
        self.fragments = FragmentWindow(window_bytes)
        self.relayed = False
        """Whether a message manager has heard of it."""
        self._awaited: dict[int, tuple[int, int]] = {}
        """Requests without an answer: deadline and type, in the order of asking."""
        self._expired: dict[int, int] | None = None
        """Requests that were answered by NotReady: their type."""

    # --- requests -------------------------------------------------------------------------------------

    @property
    def awaits(self) -> bool:
        return bool(self._awaited)

    def asked(self, request: int, kind: int, deadline_ms: int) -> None:
        """A request was made. Raises `Rejected` when too many wait."""
        if len(self._awaited) >= REQUESTS_UNANSWERED_MAX:
            error = LimitReached(what="requests without an answer", limit=REQUESTS_UNANSWERED_MAX)
            raise Rejected(request, error)
        self._awaited[request] = (deadline_ms, kind)

    def overdue(self, now_ms: int) -> Iterator[int]:
        """Requests whose time is over; each is given once."""
        while self._awaited:
            request, (deadline_ms, kind) = next(iter(self._awaited.items()))
            if deadline_ms > now_ms:
                return
            del self._awaited[request]
            if self._expired is None:
                self._expired = {}
            elif len(self._expired) >= REQUESTS_UNANSWERED_MAX:
                del self._expired[next(iter(self._expired))]
            self._expired[request] = kind
            yield request

    # --- what a message manager says ------------------------------------------------------------------

    def answered(self, kind: int, payload: memoryview) -> bool:
        """Take note of a command for the client. False: it comes too late and is not to be relayed.

        Raises `NotReady` if the client was told that it has no consumer, and now it has one.
        """
        match kind:
            case Type.DELIVER:
                pass
            case Type.PUBLISHED:
                for first, count, _zero in frames.SETTLED.iter_unpack(payload):
                    self.window.settle(first, count)
            case Type.PUBLISH_FAILED:
                first, count, _zero = frames.SETTLED.unpack_from(payload)
                self.window.settle(first, count)
            case Type.FRAGMENT_STORED:
                self.fragments.settle(frames.STORED.unpack_from(payload)[2])
            case Type.REFUSED:
                first = frames.FLOOR.unpack_from(payload)[0]
                self.window.refuse(first, _refused_name(payload[frames.FLOOR.size :]))
            case Type.REPLY | Type.ERROR if self._awaited or self._expired:
                return self._answered_request(kind, _decode_answer(payload).request)
        return True

    def _answered_request(self, kind: int, request: int) -> bool:
        if self._awaited.pop(request, None) is not None or self._expired is None:
            return True
        asked = self._expired.pop(request, None)
        if asked == Type.SUBSCRIBE and kind == Type.REPLY:
            raise NotReady(detail=f"request {request} was done after it had been given up")
        return asked is None


def _refused_name(payload: memoryview) -> str | None:
    try:
        return parse_destination(frames.unpack(payload)["destination"], system=True).name
    except (BadName, KeyError, TypeError, struct.error):
        return None
