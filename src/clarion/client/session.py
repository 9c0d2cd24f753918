"""A session: sending, consuming and requests on one channel of a connection.

Guarantees
    1. A session outlives its connections: after a reconnection it opens again with its producer id,
       consumers claim what the application holds, and unanswered batches, confirmations and
       repeatable requests are sent again.
    2. Leaving `async with` without an exception waits until everything sent and confirmed is durable.
    3. After its end every call raises `SessionClosed`, or what the connection failed with.

Not for several threads: `clarion.sync` is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from typing import Any, Self, TypeVar

import msgspec

from clarion import limits
from clarion.client.consumer import BatchConsumer, Consumer, Receiver, State
from clarion.client.host import Host
from clarion.client.outcome import Outcome, error_of
from clarion.client.publisher import Publisher
from clarion.client.received import Confirmable, each
from clarion.client.subscription import wanted_of
from clarion.errors import BadArgument, BadFrame, ClarionError, ConnectionLost, SessionClosed
from clarion.message import Message, parse_destination
from clarion.wire import frames
from clarion.wire.batch import Batch
from clarion.wire.frames import Frame, Type

REPEATABLE = frozenset({"status", "destinations", "browse", "delete"})
"""Verbs that may be asked twice: in flight when a connection is lost, they are asked again."""
BROWSE_MESSAGES = 1_000

_Receiver = TypeVar("_Receiver", bound=Receiver)
Answer = Callable[[Any, ClarionError | None], None]


class _Reply(msgspec.Struct):
    request: int
    result: Any = None
    code: str = ""
    facts: dict[str, Any] = {}


class _Opened(msgspec.Struct):
    producer: bytes


_decode_reply = msgspec.msgpack.Decoder(_Reply).decode
_decode_opened = msgspec.msgpack.Decoder(_Opened).decode


class _Call(Outcome):
    """A request of the application."""

    __slots__ = ("arguments", "result", "sent", "verb")

    def __init__(self, verb: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.verb = verb
        self.arguments = arguments
        self.result: Any = None
        self.sent = False

    def answered(self, result: Any, error: ClarionError | None) -> None:
        self.result = result
        self.settle(error)


class Session(Publisher):
    """Made by `Connection.session`. Open it with `async with`, or by awaiting it."""

    def __init__(self, host: Host, channel: int, buffer_bytes: int) -> None:
        super().__init__(host, channel, buffer_bytes)
        self._opened = Outcome()
        self._left = Outcome()
        self._registered = False
        self._closing = False
        self._receivers: dict[int, Receiver] = {}
        self._consumers = 0
        self._dirty: dict[Receiver, None] = {}
        self._calls: dict[_Call, None] = {}
        self._requests = 0
        self._answers: dict[int, Answer] = {}

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(flush=kind is None)

    async def _open(self) -> Self:
        if not self._registered:
            self._registered = True
            self._host.register(self)
        await self._opened.wait()
        self._check_open()
        return self

    @property
    def closed(self) -> bool:
        return self._closed

    async def flush(self) -> None:
        """Return when everything sent or confirmed so far is durable.

        Raises the first failure of a `send_nowait` or `confirm_nowait` that nobody awaited; each is
        told once.
        """
        self._check_open()
        await self._flush_sends()
        first: ClarionError | None = None
        for receiver in list(self._receivers.values()):
            inbox = receiver._inbox
            for ack in (*inbox.unanswered, inbox.confirming, inbox.rejecting):
                if ack is not None:
                    try:
                        await ack.wait()
                    except ClarionError as error:
                        first = first or error
        if first is not None:
            raise first
        self._failures.tell()
        self._check_open()  # it may have ended while we waited

    async def close(self, *, flush: bool = True) -> None:
        """End the session: everything sent is made durable first, unless told otherwise."""
        if self._closing or self._closed:
            await self._left.wait()
            return
        try:
            if flush and self._producer and self._host.failure is None:
                await self.flush()
        finally:
            self._closing = True
            try:
                if self._attached:
                    for receiver in list(self._receivers.values()):
                        if receiver._state is not State.ENDED:
                            receiver._end()
                    self._turn()
                    self._host.send(Type.CLOSE, self._channel)
                    self._attached = False
                    self._host.wake()
                    await self._left.wait()
            finally:
                self._finish(SessionClosed())

    # --- consuming ------------------------------------------------------------------------------------

    def receive(
        self,
        destination: str,
        *,
        durable: str | None = None,
        shared: bool = False,
        subscription: str | None = None,
        prefetch_messages: int = limits.CONSUMER_CREDIT_MESSAGES_DEFAULT,
        prefetch_bytes: int = limits.CONSUMER_CREDIT_BYTES_DEFAULT,
        unconfirmed_max: int = limits.UNCONFIRMED_MESSAGES_DEFAULT,
        timeout: float | None = None,
    ) -> Consumer:
        """A consumer of single messages.

        `durable` names a subscription of a topic that outlives its consumers; `subscription` names
        one that does not, for several consumers that share it (`shared`). `timeout` ends the
        iteration after so many idle seconds.
        """
        wanted = wanted_of(
            destination, durable, shared, subscription, prefetch_messages, prefetch_bytes, unconfirmed_max
        )
        return self._add(Consumer(self, self._number(), wanted, timeout))

    def receive_batches(
        self,
        destination: str,
        *,
        durable: str | None = None,
        shared: bool = False,
        subscription: str | None = None,
        prefetch_messages: int = limits.CONSUMER_CREDIT_MESSAGES_DEFAULT,
        prefetch_bytes: int = limits.CONSUMER_CREDIT_BYTES_DEFAULT,
        unconfirmed_max: int = limits.UNCONFIRMED_MESSAGES_DEFAULT,
        timeout: float | None = None,
    ) -> BatchConsumer:
        """A consumer of whole batches: the fast form of `receive`."""
        wanted = wanted_of(
            destination, durable, shared, subscription, prefetch_messages, prefetch_bytes, unconfirmed_max
        )
        return self._add(BatchConsumer(self, self._number(), wanted, timeout))

    async def confirm(self, *what: Confirmable | Iterable[Confirmable]) -> None:
        """Confirm messages and batches together; returns when all of it is durable."""
        acks = {ack: None for item in what for one in each(item) for ack in [one._confirm()]}
        for ack in acks:
            await ack.wait()

    async def browse(
        self, destination: str, *, start: int = 0, count: int | None = None
    ) -> AsyncGenerator[Message, None]:
        """Look at messages from sequence `start` on without consuming them."""
        parse_destination(destination, system=True)
        left = count
        at: int | None = start
        while at is not None and left != 0:
            wanted = BROWSE_MESSAGES if left is None else min(left, BROWSE_MESSAGES)
            arguments = {"destination": destination, "from": at, "messages": wanted, "bytes": limits.MIB}
            result = await self.request("browse", arguments)
            for first, delivery_count, redelivered, data in result["slices"]:
                batch = Batch(data)
                for index in range(batch.count):
                    if left == 0:
                        return
                    left = None if left is None else left - 1
                    yield Message(batch, index, first + index, delivery_count, redelivered)
            at = result["next"]

    async def request(self, verb: str, arguments: dict[str, Any] | None = None) -> Any:
        """Ask the broker something: the verbs of docs/formats/wire.md."""
        self._check_open()
        call = _Call(verb, arguments or {})
        self._calls[call] = None
        self._send_call(call)
        try:
            await call.wait()
        finally:
            self._calls.pop(call, None)
        return call.result

    # --- for consumers --------------------------------------------------------------------------------

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
        self._dirty.pop(receiver, None)

    def _forget_if_idle(self, receiver: Receiver) -> None:
        if receiver._state is State.ENDED and receiver._left.done and receiver._inbox.idle:
            self._drop(receiver)

    def _mark(self, receiver: Receiver) -> None:
        self._dirty[receiver] = None
        self._host.wake()

    def _expect(self, answer: Answer) -> int:
        """A new request number, whose answer goes to `answer`."""
        self._requests += 1
        self._answers[self._requests] = answer
        return self._requests

    def _ask(self, kind: int, request: dict[str, Any], answer: Answer) -> None:
        request = {"request": self._expect(answer), **request}
        self._host.send(kind, self._channel, (frames.pack(request),))
        self._host.wake()

    def _send_call(self, call: _Call) -> None:
        if self._attached:
            call.sent = True
            self._ask(Type.REQUEST, {"verb": call.verb, "arguments": call.arguments}, call.answered)

    async def _delete(self, destination: str, subscription: str | None) -> None:
        await self.request("unsubscribe", {"destination": destination, "subscription": subscription})

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
            for receiver in dirty:
                receiver._turn()
        self._pump()

    def _handle(self, frame: Frame) -> None:
        """A frame of this channel. Raises `BadFrame` and the like for what no broker of ours sends."""
        kind, payload = frame.type, frame.payload
        if kind == Type.PUBLISHED:
            self._published(payload)
        elif kind == Type.DELIVER:
            number, slices = frames.unpack_deliver(payload)
            receiver = self._receivers.get(number)
            if receiver is not None:
                for delivered in slices:
                    receiver._deliver(delivered)
        elif kind in (Type.REPLY, Type.ERROR):
            self._replied(kind, payload)
        elif kind == Type.REFUSED:
            self._refused(payload)
        elif kind == Type.RESUME:
            self._resume(payload)
        elif kind == Type.PUBLISH_FAILED:
            self._publish_failed(payload)
        elif kind == Type.CONSUMER_CLOSED:
            number, _zero = frames.CLOSED.unpack_from(payload)
            receiver = self._receivers.get(number)
            if receiver is not None:
                receiver._fail(error_of(frames.unpack(payload[frames.CLOSED.size :])))
        elif kind == Type.OPENED:
            self._attach(payload)
        elif kind == Type.CLOSED:
            self._left.settle()
            if not self._closing:
                self._finish(SessionClosed())

    def _replied(self, kind: int, payload: memoryview) -> None:
        if not self._attached:
            return  # CLOSE is sent: nothing may follow it, and answers to answers would
        try:
            reply = _decode_reply(payload)
        except msgspec.MsgspecError as error:
            raise BadFrame(detail=f"{Type(kind).name}: {error}") from None
        answer = self._answers.pop(reply.request, None)
        if answer is not None:
            failed = error_of({"code": reply.code, "facts": reply.facts}) if kind == Type.ERROR else None
            answer(reply.result, failed)

    def _attach(self, payload: memoryview) -> None:
        try:
            producer = int.from_bytes(_decode_opened(payload).producer, "big")
        except msgspec.MsgspecError as error:
            raise BadFrame(detail=f"OPENED: {error}") from None
        self._attach_sends(producer)
        for receiver in list(self._receivers.values()):
            receiver._attach()
        for call in list(self._calls):
            self._send_call(call)
        self._opened.settle()

    def _detach(self) -> None:
        """The link is lost."""
        self._detach_sends()
        self._answers.clear()
        self._dirty.clear()
        for receiver in list(self._receivers.values()):
            receiver._detach()
        for call in list(self._calls):
            if call.sent and call.verb not in REPEATABLE:
                call.settle(ConnectionLost(detail=f"whether {call.verb!r} was done is not known"))
                del self._calls[call]
        if self._closing:
            self._left.settle()

    def _finish(self, error: ClarionError) -> None:
        """The end, for whatever reason. Nothing waits for ever."""
        self._end_sends(error)
        for receiver in list(self._receivers.values()):
            receiver._fail(error)
        for call in list(self._calls):
            call.settle(error)
        self._opened.settle(error)
        self._left.settle()
        self._host.forget(self._channel)
