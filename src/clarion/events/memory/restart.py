"""Taking a ring over to write it: recovery, and making durable what was only written.

Rules
    1. What was found is not yet durable: a process that was killed may have written it and not synced, and a sync that
       failed may have left pages that only look written. So it is written again, the same bytes to the same place.
    2. The new owner stands in the header before anything else is written: one copy after the other, with a sync
       between, so that one of them always checks.
"""

from __future__ import annotations

from clarion.events.memory.files import RingFile
from clarion.events.memory.layout import (
    HEADER_OFFSETS,
    MARK_DURABLE,
    RING_OFFSET,
    SECTOR_BYTES,
    STATE_OFFSETS,
    Header,
    Range,
    State,
    aligned,
    decode_state,
    encode_header,
    encode_state,
)
from clarion.events.memory.recovery import Found, Ring, recover


def restart(file: RingFile, ring: Ring, header: Header, mark: Range | None) -> Found:
    """Recover, and leave the file so that its owner of the header can go on behind the last record."""
    state = decode_state(file.view)
    head = (state.sequence, state.position) if state is not None else None
    if head is not None and mark is not None and head[1] <= mark[1] <= head[1] + ring.bytes and head[0] <= mark[0]:
        head = mark  # true in any case, and newer: only what is confirmed is released
    found = recover(ring, head, file.marks[MARK_DURABLE], state.torn if state is not None else ())
    synced = header.durability == "power"
    sector = encode_header(header)
    for offset in HEADER_OFFSETS:
        _put(file, offset, sector, synced=synced)
    if synced:
        _write_again(file, ring, found)
    number = state.number + 1 if state is not None else 1
    sector = encode_state(State(number, found.head_sequence, found.head_position, tuple(found.torn)))
    _put(file, STATE_OFFSETS[number % 2], sector, synced=synced)
    return found


def _put(file: RingFile, offset: int, data: bytes, *, synced: bool) -> None:
    if not synced:
        file.view[offset : offset + len(data)] = data
        return
    file.write(offset, memoryview(data))
    file.sync()


def _write_again(file: RingFile, ring: Ring, found: Found) -> None:
    position = found.unsure_from & -SECTOR_BYTES
    end = aligned(found.tail, SECTOR_BYTES)
    while position < end:
        offset = position % ring.bytes
        size = min(end - position, ring.bytes - offset)
        file.write(RING_OFFSET + offset, memoryview(bytes(ring.view[offset : offset + size])))
        position += size
    file.sync()
