"""Who has confirmed which events, as payloads of frames: CONFIRMED, GIVE_BACK, and the NOTE of a multiplexer.

Rule: as in `frames`: pure, and whatever bytes come, reading them returns what they say or raises `ProtocolError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from clarion import limits
from clarion.errors import BadFrame
from clarion.events.link.frames import HEADER_BYTES, pack_producer, text_of

Ranges = Sequence[tuple[int, int, int]]
"""(producer, first, end): events `first` to before `end` of a producer."""
Confirmations = Sequence[tuple[str, Ranges]]
"""Recipients by name, and what each has confirmed."""

_CONFIRMATIONS = struct.Struct("<QQI")
"""Epoch, token, count of recipients."""
_RECIPIENT = struct.Struct("<HI")
_RANGE = struct.Struct("<16sQQ")


def pack_confirmations(confirmations: Confirmations, epoch: int = 0, token: int = 0) -> bytes:
    """Payload of CONFIRMED and GIVE_BACK; see `parts_of` for more than one frame holds."""
    parts = [_CONFIRMATIONS.pack(epoch, token, len(confirmations))]
    for recipient, ranges in confirmations:
        name = recipient.encode()
        parts += (_RECIPIENT.pack(len(name), len(ranges)), name)
        parts += [_RANGE.pack(pack_producer(producer), first, end) for producer, first, end in ranges]
    return b"".join(parts)


def unpack_confirmations(payload: memoryview) -> tuple[int, int, list[tuple[str, list[tuple[int, int, int]]]]]:
    """(epoch, token, confirmations)."""
    if len(payload) < _CONFIRMATIONS.size:
        raise BadFrame(detail=f"confirmations of {len(payload)} bytes")
    epoch, token, count = _CONFIRMATIONS.unpack_from(payload)
    at = _CONFIRMATIONS.size
    total = 0
    found: list[tuple[str, list[tuple[int, int, int]]]] = []
    for _ in range(count):
        if at + _RECIPIENT.size > len(payload):
            raise BadFrame(detail="confirmations end early")
        name_bytes, ranges_count = _RECIPIENT.unpack_from(payload, at)
        name_at = at + _RECIPIENT.size
        ranges_at = name_at + name_bytes
        at = ranges_at + ranges_count * _RANGE.size
        total += ranges_count
        if not 0 < name_bytes <= limits.NAME_BYTES_MAX or at > len(payload) or total > limits.EVENT_LINK_RANGES_MAX:
            raise BadFrame(detail="confirmations with impossible numbers")
        ranges = [
            (int.from_bytes(producer, "big"), first, end)
            for producer, first, end in _RANGE.iter_unpack(payload[ranges_at:at])
        ]
        if any(first >= end for _, first, end in ranges):
            raise BadFrame(detail="an empty range is confirmed")
        found.append((text_of(payload[name_at:ranges_at]), ranges))
    if at != len(payload):
        raise BadFrame(detail=f"confirmations have {len(payload) - at} bytes too many")
    return epoch, token, found


def parts_of(confirmations: Confirmations, frame_bytes_max: int) -> Iterator[list[tuple[str, Ranges]]]:
    """Cut confirmations so that each part fits a frame; there is always one, maybe empty."""
    room = frame_bytes_max - HEADER_BYTES - _CONFIRMATIONS.size
    head = _RECIPIENT.size + limits.NAME_BYTES_MAX
    part: list[tuple[str, Ranges]] = []
    left, ranges_left = room, limits.EVENT_LINK_RANGES_MAX
    for recipient, ranges in confirmations:
        at = 0
        while at < len(ranges):
            fits = min((left - head) // _RANGE.size, ranges_left)
            if fits <= 0:
                yield part
                part, left, ranges_left = [], room, limits.EVENT_LINK_RANGES_MAX
                continue
            taken = ranges[at : at + fits]
            part.append((recipient, taken))
            at += len(taken)
            left -= head + len(taken) * _RANGE.size
            ranges_left -= len(taken)
    yield part
