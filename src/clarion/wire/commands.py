"""Commands on the bus: what client managers and message managers say to each other, in bytes.

A command is a 24-byte head (type u8, flags u8, zero u16, zero u32, session id 16 bytes) and the
same payload as the client frame of that type, so a client manager relays without re-encoding.
Commands to a message manager are addressed to a destination's group; commands to a client are
addressed to its session: the channel follows from the session's id, never from a machine's name.

Beyond the types of `frames.Type` there are three by which a client manager speaks of a session itself:
`SESSION_OPENED` (before its first command: whose it is), `SESSION_ENDED` (cleanly: its producers may be forgotten
too) and `SESSION_FLOW` (its client does not read as fast as it is sent to: deliver no more for now, or again).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from clarion import ids
from clarion.wire.batch import Buffer

HEAD = struct.Struct("<BBHI16s")
HEAD_BYTES = HEAD.size
assert HEAD_BYTES == 24
_unpack_head = HEAD.unpack_from
_new_command = tuple.__new__

SESSION_ENDED = 100
"""From a client manager: payload {clean: bool, producer: 16 bytes}."""
SESSION_FLOW = 101
"""From a client manager: payload {paused: bool}."""
SESSION_OPENED = 102
"""From a client manager: payload {producer: 16 bytes, connection: 16 bytes, the same for its other sessions}, and
{sender, resumed} of its OPEN if it has ids of its own."""


class Command(NamedTuple):
    """One decoded command; the payload is a view."""

    type: int
    flags: int
    session: int
    payload: memoryview


def encode(kind: int, session: int, parts: Sequence[Buffer], flags: int = 0) -> bytes:
    """One command as it goes over the bus."""
    return b"".join((HEAD.pack(kind, flags, 0, 0, session.to_bytes(16, "big")), *parts))


def decode(data: Buffer) -> Command:
    """The inverse of `encode`."""
    kind, flags, _zero, _zero2, session = _unpack_head(data)
    # `Command(…)` without its call: every message is decoded twice.
    return _new_command(Command, (kind, flags, int.from_bytes(session, "big"), memoryview(data)[HEAD_BYTES:]))


@lru_cache(maxsize=1_024)
def group_channel(group: int) -> str:
    """Where commands for the destinations of one message manager group go."""
    return f"group/{group}"


def session_channel(session: int) -> str:
    """Where commands for a session go: all sessions of one run of a client manager share it."""
    return _manager_channel(session >> (ids.SEQUENCE_BITS + 16))


@lru_cache(maxsize=1_024)
def _manager_channel(upper_half: int) -> str:
    return f"session/{upper_half:016x}"
