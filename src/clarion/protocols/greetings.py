"""The first and the last frames of a connection: HELLO, WELCOME and GOODBYE, and what they say.

Guarantee: whatever a peer sends in one of them, decoding raises a `ProtocolError` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from clarion import limits
from clarion.errors import BadFrame, ClarionError, FrameTooLarge, from_code
from clarion.wire.frames import Frame, Type

HANDSHAKE_BYTES_MAX = 64 * limits.KIB
"""HELLO, WELCOME and GOODBYE: a peer that is not known yet costs no more memory than this."""


class Hello(msgspec.Struct):
    """What a client says of itself."""

    versions: tuple[int, int]
    name: str | None = None
    software: str | None = None
    heartbeat_ms: int = limits.HEARTBEAT_MS_DEFAULT
    authentication: dict[str, Any] = {}


class Welcome(msgspec.Struct):
    """What a server answers: the version and the bounds that hold on this connection."""

    version: int
    server: str
    heartbeat_ms: int
    batch_bytes_max: int
    producer_window_bytes: int


class Goodbye(msgspec.Struct):
    """Why a peer ends the connection; an empty code is an ordinary end."""

    code: str = ""
    facts: dict[str, Any] = {}

    def error(self) -> ClarionError | None:
        """What it says, as an error to raise; None for an ordinary end."""
        if not self.code:
            return None
        return from_code(self.code, {name: fact for name, fact in self.facts.items() if name != "self"})


_Said = TypeVar("_Said")

_decode_hello = msgspec.msgpack.Decoder(Hello).decode
_decode_welcome = msgspec.msgpack.Decoder(Welcome).decode
_decode_goodbye = msgspec.msgpack.Decoder(Goodbye).decode


def hello_of(frame: Frame) -> Hello:
    """What HELLO says. Raises `FrameTooLarge`, `BadFrame`."""
    return _decode(_decode_hello, frame)


def welcome_of(frame: Frame) -> Welcome:
    """What WELCOME says, likewise."""
    return _decode(_decode_welcome, frame)


def goodbye_of(frame: Frame) -> Goodbye:
    """What GOODBYE says, likewise."""
    return _decode(_decode_goodbye, frame)


def _decode(decode: Callable[[memoryview], _Said], frame: Frame) -> _Said:
    if len(frame.payload) > HANDSHAKE_BYTES_MAX:
        raise FrameTooLarge(size=len(frame.payload), limit=HANDSHAKE_BYTES_MAX)
    try:
        return decode(frame.payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadFrame(detail=f"{Type(frame.type).name}: {error}") from None
