"""The gateway: what a client sent is checked here, once, and trusted by everybody behind.

Guarantees, of every payload that a function here returned for
    1. It can be decoded again by `frames` and `Batch` without an error, and has every field that its
       type needs, of the right type and within its bounds.
    2. Names are valid names of destinations and subscriptions.
    3. Neither checking it nor decoding it takes long: sizes and numbers of ranges are bounded.

A payload that cannot be read at all raises a `ProtocolError`, which costs the connection; one that
can be read and is wrong raises `Rejected` with the number of its request, which costs an ERROR.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec

from clarion import ids, limits
from clarion.core import streams
from clarion.core.patterns import is_pattern, parse_pattern
from clarion.core.wellknown import receivable, sendable
from clarion.errors import BadArgument, BadBatch, BadFrame, BadName, ProtocolError, RequestError
from clarion.message import check_name, decode_headers
from clarion.selector import compile_selector
from clarion.wire import frames
from clarion.wire.batch import Batch
from clarion.wire.frames import Type

CONTROL_BYTES_MAX = 512 * limits.KIB
"""SUBSCRIBE, UNSUBSCRIBE and REQUEST: decoding more would hold up other connections."""
RANGES_MAX = 16 * limits.KIB
"""Ranges in `held` and `unseen`."""

_U63_MAX = (1 << 63) - 1
_U64_MAX = (1 << 64) - 1
_HEADS: dict[int, int] = {
    Type.PUBLISH: frames.FLOOR.size,
    Type.STAGE: frames.STAGED.size,
    Type.PUBLISH_LARGE: frames.LARGE.size,
}
"""What stands before the batch."""
_Number32 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
_Number63 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_CreditMessages = Annotated[int, msgspec.Meta(ge=0, le=limits.CONSUMER_CREDIT_MESSAGES_MAX)]
_CreditBytes = Annotated[int, msgspec.Meta(ge=0, le=limits.CONSUMER_CREDIT_BYTES_MAX)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
_Ranges = Annotated[list[tuple[_Number63, _Number63]], msgspec.Meta(max_length=RANGES_MAX)]
_Selector = Annotated[str, msgspec.Meta(max_length=limits.SELECTOR_BYTES_MAX)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=limits.POLICY_MS_MAX)]
_Merged = Annotated[list[tuple[str, _Ranges]], msgspec.Meta(max_length=RANGES_MAX)]
_Unseen = Annotated[list[tuple[_Number32, _Ranges]], msgspec.Meta(max_length=RANGES_MAX)]
_Verb = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class Rejected(Exception):
    """A request that can be answered only by `error`."""

    def __init__(self, request: int, error: RequestError) -> None:
        super().__init__(request, error)
        self.request = request
        self.error = error


class _Open(msgspec.Struct):
    producer: bytes | None = None
    sender: bytes | None = None
    resumed: bool | None = None


class Opening(NamedTuple):
    """What OPEN asks for."""

    producer: int | None
    """The producer id that the client resumes, or has of its own; None asks for a new one."""
    sender: bytes
    """Whose producer id outlives the session: 8 bytes that tell its senders apart; empty for a usual session."""
    resumed: bool
    """This sender had a session before, on a connection that was lost."""


class _Subscribe(msgspec.Struct):
    consumer: _Number32
    destination: str
    credit_messages: _CreditMessages
    credit_bytes: _CreditBytes
    unconfirmed_max: _Positive
    subscription: str | None = None
    durable: bool | None = None
    shared: bool | None = None
    held: _Ranges | None = None
    selector: _Selector | None = None
    no_local: bool | None = None
    start: _Number63 | None = None
    start_ms: _Number63 | None = None
    visibility_ms: _Milliseconds | None = None
    held_merged: _Merged | None = None


class _Unsubscribe(msgspec.Struct):
    consumer: _Number32
    unseen: _Ranges | None = None
    delete: bool | None = None
    unseen_merged: _Unseen | None = None


class _Return(msgspec.Struct):
    consumer: _Number32
    ranges: _Ranges
    reason: str | None = None
    delay_ms: _Milliseconds | None = None


class _Request(msgspec.Struct):
    verb: _Verb
    arguments: dict[str, Any] | None


_TYPES: dict[int, type[_Subscribe | _Unsubscribe | _Return | _Request]] = {
    Type.SUBSCRIBE: _Subscribe,
    Type.RETURN: _Return,
    Type.UNSUBSCRIBE: _Unsubscribe,
    Type.REQUEST: _Request,
}


def check_open(payload: memoryview) -> Opening:
    """OPEN: the producer id, if the client has one, and whether it outlives the session."""
    try:
        wanted = msgspec.convert(frames.unpack(payload), _Open)
    except msgspec.ValidationError as error:
        raise BadFrame(detail=f"OPEN: {error}") from None
    producer, sender = wanted.producer, wanted.sender or b""
    if len(sender) not in (0, frames.SENDER_BYTES) or (sender and producer is None):
        raise ProtocolError(detail="OPEN with something that is not a sender")
    if producer is None:
        return Opening(None, b"", False)
    identity = int.from_bytes(producer, "big")
    if len(producer) != 16 or identity == 0 or ids.sequence_of(identity):
        raise ProtocolError(detail="OPEN with something that is not a producer id")
    return Opening(identity, sender, bool(wanted.resumed))


def check_request(kind: int, payload: memoryview) -> tuple[int, str | None]:
    """SUBSCRIBE, UNSUBSCRIBE, REQUEST: the number of the request and the destination it names, if any."""
    if len(payload) > CONTROL_BYTES_MAX:
        raise BadFrame(detail=f"{Type(kind).name} with {len(payload)} bytes")
    value = frames.unpack(payload)
    request = value.get("request") if isinstance(value, dict) else None
    if not isinstance(request, int) or isinstance(request, bool) or not 0 <= request <= _U64_MAX:
        raise BadFrame(detail=f"{Type(kind).name} without a request number")
    try:
        wanted = msgspec.convert(value, _TYPES[kind])
        if isinstance(wanted, _Subscribe):
            _check_subscribe(wanted)
            return request, wanted.destination
        if isinstance(wanted, _Unsubscribe):
            _check_ranges("unseen", wanted.unseen)
            for _number, ranges in wanted.unseen_merged or ():
                _check_ranges("unseen_merged", ranges)
            return request, None
        if isinstance(wanted, _Return):
            _check_ranges("ranges", wanted.ranges)
            return request, None
        named = (wanted.arguments or {}).get("destination")
        return request, named if isinstance(named, str) else None
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        raise Rejected(request, BadArgument(argument=place.strip(".`") or Type(kind).name, detail=what)) from None
    except RequestError as error:
        raise Rejected(request, error) from None


def _check_subscribe(wanted: _Subscribe) -> None:
    _check_ranges("held", wanted.held)
    for _destination, ranges in wanted.held_merged or ():
        _check_ranges("held_merged", ranges)
    if is_pattern(wanted.destination):
        parse_pattern(wanted.destination)
    else:
        receivable(wanted.destination)
    if wanted.subscription is not None:
        check_name(wanted.subscription)
    if wanted.selector:
        compile_selector(wanted.selector)


def check_credit(payload: memoryview) -> None:
    """CREDIT: bounds."""
    _consumer, messages, size = frames.CREDIT.unpack(payload)
    if messages > limits.CONSUMER_CREDIT_MESSAGES_MAX or size > limits.CONSUMER_CREDIT_BYTES_MAX:
        raise BadFrame(detail=f"credit of {messages} messages and {size} bytes")


def check_publish(kind: int, payload: memoryview, producer: int) -> Batch:
    """PUBLISH, STAGE, PUBLISH_LARGE: the batch, sound in itself, of this producer. Its destination is not looked at."""
    head = _HEADS[kind]
    size = len(payload) - head
    if size > limits.BATCH_BYTES_MAX:
        raise BadBatch(detail=f"{size} bytes, the limit is {limits.BATCH_BYTES_MAX}")
    batch = Batch.parse(payload[head:])
    first = batch.first_id - producer
    # The ids of a sparse batch were looked at when it was parsed.
    if not 0 <= first <= ids.SEQUENCE_MAX:
        raise ProtocolError(detail="a batch of another producer than the session's")
    if first == 0 or first + batch.count - 1 > ids.SEQUENCE_MAX:
        raise ProtocolError(detail=f"{batch.count} messages from sequence {first}")
    floor = frames.FLOOR.unpack_from(payload, head - frames.FLOOR.size)[0]
    if kind == Type.STAGE and not any(payload[: frames.FLOOR.size]):
        raise ProtocolError(detail="a batch of transaction 0")
    if floor > first:
        raise ProtocolError(detail=f"a batch from sequence {first} below its floor of {floor}")
    if kind == Type.PUBLISH_LARGE:
        _check_large(bytes(payload[: streams.ID_BYTES]), batch, producer)
    return batch


def _check_large(stream: bytes, batch: Batch, producer: int) -> None:
    """The batch is one message, whose headers speak of the large body that it is sent for."""
    headers, body = batch.record(0)
    large = decode_headers(headers).large
    if batch.count != 1 or len(body) or large is None or large[0] != stream:
        raise ProtocolError(detail="a message that is not that of its large body")
    check_stream(stream, producer)


def check_stream(stream: bytes, producer: int) -> None:
    """The id of a large body: of a key, or of this producer."""
    if streams.producer_of(stream) not in (0, producer):
        raise ProtocolError(detail="a large body of another producer than the session's")


def check_fragment(payload: memoryview, producer: int) -> frames.Fragment:
    """FRAGMENT: sound in itself and of this producer. Its destination is not looked at."""
    fragment = frames.unpack_fragment(payload)
    check_stream(fragment.stream, producer)
    if fragment.offset > _U63_MAX - limits.FRAGMENT_BYTES_MAX:
        raise BadFrame(detail=f"a fragment at {fragment.offset}")
    return fragment


@lru_cache(maxsize=4_096)
def destination_name(raw: bytes) -> str:
    """The name without its kind: one namespace, so one window. Raises `BadName`."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise BadName(name=ascii(raw[:40]), detail="it is not valid UTF-8") from None
    return sendable(text).name


def _check_ranges(argument: str, ranges: list[tuple[int, int]] | None) -> None:
    for first, end in ranges or ():
        if first >= end:
            raise BadArgument(argument=argument, detail=f"the range {first} to {end} is empty")
