"""The engine under a session: its consumers, its transaction, its place on a connection.

Guarantees
    1. A session outlives its connections. On a new one, in this order: it opens with its producer id, its temporary
       destinations are made again, transactions that were being decided are asked for, consumers claim
       what the application holds, repeatable commands are asked again, unanswered batches are sent again.
    2. Confirmations that gather in one turn of the loop leave together, before messages: they free the broker.
    3. Whatever waits is told when the session ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from clarion import limits
from clarion.client.acknowledging import Several
from clarion.client.commands import Commander
from clarion.client.host import Host
from clarion.client.inbox import Inbox, Ranges
from clarion.client.lanes import Lane
from clarion.client.options import Terms
from clarion.client.outbox import OutBatch
from clarion.client.outcome import Outcome, error_of
from clarion.client.receiver import Receiver, State
from clarion.client.streaming import Uploads
from clarion.client.temporary import Temporaries
from clarion.client.transaction import Transactions
from clarion.errors import BadArgument, BadFrame, ClarionError, SessionClosed
from clarion.wire import frames
from clarion.wire.frames import Frame, Type

if TYPE_CHECKING:
    from clarion.client.reading import Reader

_Receiver = TypeVar("_Receiver", bound=Receiver)


class _Opened(msgspec.Struct):
    producer: bytes


class _Merged(msgspec.Struct):
    consumer: int
    merged: list[tuple[int, str]]


_decode_opened = msgspec.msgpack.Decoder(_Opened).decode
_decode_merged = msgspec.msgpack.Decoder(_Merged).decode


class Channel(Commander):
    """What a session does, below what applications call."""

    def __init__(self, host: Host, channel: int, buffer_bytes: int, transacted: bool = False) -> None:
        super().__init__(host, channel, buffer_bytes)
        self._opened = Outcome()
        self._left = Outcome()
        self._closing = False
        self._receivers: dict[int, Receiver] = {}
        self._merged: dict[int, tuple[Receiver, Inbox]] = {}
        """Topics of patterns, by the numbers that the broker gave them."""
        self._consumers = 0
        self._dirty: dict[Inbox, Receiver] = {}
        self._readers: dict[int, Reader] = {}
        """Those that are open: the broker is told of them again on every connection."""
        self._readers_opened = 0
        self._temporaries = Temporaries(self)
        self._uploads = Uploads(self)
        self._transactions: Transactions | None = None
        if transacted:
            self._transactions = Transactions(self)

    # --- for consumers and transactions -----------------------------------------------------------------

    def _number(self) -> int:
        self._check_open()
        if len(self._receivers) >= limits.CONSUMERS_PER_SESSION_MAX:
            raise BadArgument(argument="session", detail=f"it has {limits.CONSUMERS_PER_SESSION_MAX} consumers")
        self._consumers += 1
        return self._consumers

    def _add(self, receiver: _Receiver) -> _Receiver:
        self._receivers[receiver._number] = receiver
        return receiver

    def _drop(self, receiver: Receiver) -> None:
        self._receivers.pop(receiver._number, None)
        for inbox in (receiver._inbox, *receiver._inboxes()):
            inbox.over = True
            self._dirty.pop(inbox, None)
            self._merged.pop(inbox.number, None)

    def _forget_if_idle(self, receiver: Receiver) -> None:
        if receiver._state is State.ENDED and receiver._left.done and receiver._idle:
            self._drop(receiver)

    def _mark(self, inbox: Inbox, receiver: Receiver) -> None:
        self._dirty[inbox] = receiver
        self._host.wake()

    def _begin(self, lane: Lane, terms: Terms) -> OutBatch:
        if self._transactions is not None:
            self._transactions.tell()
        return super()._begin(lane, terms)

    def _take_consumed(self) -> list[tuple[int, Ranges]]:
        """What the application received in the transaction of now, by consumer number; the next one begins."""
        consumed: list[tuple[int, Ranges]] = []
        for receiver in list(self._receivers.values()):
            consumed += receiver._take_seen()
            self._forget_if_idle(receiver)
        return consumed

    def _confirm_received(self) -> Outcome:
        """Confirm everything that was received in mode `client`."""
        acks: list[Outcome] = []
        for receiver in self._receivers.values():
            if receiver._wanted.ack == "client":
                for inbox, ranges in receiver._seen():
                    acks += [Inbox.acknowledge(inbox, Type.CONFIRM, first, end) for first, end in ranges]
        return Several(dict.fromkeys(acks))

    def _stop_seen(self) -> list[Receiver]:
        """Consumers whose messages are about to be given back: `Restart` lets them begin again."""
        if not self._attached:
            return []  # the end of the connection gives everything back, in order
        return _stopped([one for one in self._receivers.values() if one._seen()])

    def _stop_of(self, consumed: list[tuple[int, Ranges]]) -> list[Receiver]:
        """Consumers of what is given back late; not where the application has seen more, which it keeps."""
        found = [self._find(number)[0] for number, _ in consumed]
        return _stopped([one for one in dict.fromkeys(found) if one is not None and not one._seen()])

    async def _delete(self, destination: str, subscription: str | None) -> None:
        await self.command("unsubscribe", {"destination": destination, "subscription": subscription})

    # --- the connection's side ------------------------------------------------------------------------

    def _connect(self) -> None:
        """There is a link: open on it, with the producer id of before if there was one."""
        producer = self._producer.to_bytes(16, "big") if self._producer else None
        self._host.send(Type.OPEN, self._channel, (frames.pack({"producer": producer}),))

    def _turn(self) -> None:
        """Send what has gathered: confirmations first, they free the broker."""
        if not self._attached:
            return
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for inbox, receiver in dirty.items():
                receiver._turn(inbox)
        if self._active:
            self._pump()
        self._uploads.turn()

    def _handle(self, frame: Frame) -> bool:
        """A frame of this channel. Raises `BadFrame` and the like for what no broker of ours sends."""
        kind, _flags, _channel, payload = frame
        if kind == Type.PUBLISHED:
            return self._published(payload)
        self._handle_other(kind, payload)
        return True

    def _handle_other(self, kind: int, payload: memoryview) -> None:
        if kind == Type.DELIVER:
            number, slices = frames.unpack_deliver(payload)
            receiver, inbox = self._find(number)
            if receiver is not None and inbox is not None:
                for delivered in slices:
                    receiver._deliver(inbox, delivered)
        elif kind in (Type.REPLY, Type.ERROR):
            self._replied(kind, payload)
        elif kind == Type.REFUSED:
            self._refused(payload)
        elif kind == Type.RESUME:
            self._resume(payload)
        elif kind == Type.PUBLISH_FAILED:
            self._publish_failed(payload)
        elif kind == Type.DELIVERED:
            self._delivered(payload)
        elif kind == Type.FRAGMENT_STORED:
            self._uploads.stored(payload)
        elif kind == Type.MERGED:
            self._merge(payload)
        elif kind == Type.CONSUMER_CLOSED:
            number, _zero = frames.CLOSED.unpack_from(payload)
            receiver, inbox = self._find(number)
            if receiver is not None and inbox is not None:
                self._merged.pop(number, None)
                receiver._closed(inbox, error_of(frames.unpack(payload[frames.CLOSED.size :])))
        elif kind == Type.OPENED:
            self._attach(payload)
        elif kind == Type.CLOSED:
            self._left.settle()
            if not self._closing:
                self._finish(SessionClosed())

    def _find(self, number: int) -> tuple[Receiver, Inbox] | tuple[None, None]:
        receiver = self._receivers.get(number)
        return (receiver, receiver._inbox) if receiver is not None else self._merged.get(number, (None, None))

    def _merge(self, payload: memoryview) -> None:
        try:
            said = _decode_merged(payload)
        except msgspec.MsgspecError as error:
            raise BadFrame(detail=f"MERGED: {error}") from None
        receiver = self._receivers.get(said.consumer)
        if receiver is not None:
            for number, name in said.merged:
                inbox = receiver._merge(number, name)
                if inbox is not None:
                    self._merged[number] = (receiver, inbox)

    def _attach(self, payload: memoryview) -> None:
        try:
            producer = int.from_bytes(_decode_opened(payload).producer, "big")
        except msgspec.MsgspecError as error:
            raise BadFrame(detail=f"OPENED: {error}") from None
        self._attach_sends(producer)
        self._temporaries.attach()
        self._attach_calls(deciding=True)
        for receiver in list(self._receivers.values()):
            receiver._attach()
        for reader in self._readers.values():
            reader._attach()
        self._attach_calls(deciding=False)
        self._uploads.attach()
        self._opened.settle()

    def _detach(self) -> None:
        """The link is lost."""
        self._detach_sends()
        self._uploads.detach()
        if self._transactions is not None:
            self._transactions.detach()
        self._detach_calls()
        self._dirty.clear()
        self._merged.clear()
        for receiver in list(self._receivers.values()):
            receiver._detach()
        if self._closing:
            self._left.settle()

    def _finish(self, error: ClarionError) -> None:
        """The end, for whatever reason. Nothing waits for ever."""
        self._end_sends(error)
        self._uploads.end(error)
        for receiver in list(self._receivers.values()):
            receiver._fail(error)
        self._readers.clear()
        self._end_calls(error)
        self._temporaries.end(error)
        self._opened.settle(error)
        self._left.settle()
        self._host.forget(self._channel)


def _stopped(receivers: list[Receiver]) -> list[Receiver]:
    for receiver in receivers:
        receiver._stop()
    return receivers
