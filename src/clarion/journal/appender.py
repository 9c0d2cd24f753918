"""The appender: where the next record goes, and what a group is made of.

Guarantees
    1. Positions are final when `place` returns them, before anything is written.
    2. Groups never straddle segments; a segment's header page goes out with its first group.
    3. A record enters only the space that its claim allows; a refused one leaves no trace.

Rules
    1. Appending thread only, and the hottest code of the journal: `place` takes about 3 µs for a small
       record, and never copies a body larger than `BODY_COPIED_BYTES_MAX`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from crc32c import crc32c

from clarion import limits
from clarion.errors import JournalFull, MessageTooLarge
from clarion.journal.layout import (
    MIRROR_BYTES,
    SECTOR_BYTES,
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    SegmentHeader,
    encode_trailer,
    group_end,
    header_page,
    ordinal_of_end,
    pack_mirror,
    record_bytes_max,
)
from clarion.journal.record import (
    ALIGN_BYTES,
    CHECKSUM,
    ENTRY_KIND_MIN,
    FIELDS,
    HEADER_BYTES,
    MAGIC,
    PADDING,
    Buffer,
    Location,
)
from clarion.journal.space import Claim, Space
from clarion.journal.writer import Group

BODY_COPIED_BYTES_MAX = 4096
"""Smaller bodies are joined with their header: cheaper than one more buffer for the kernel."""
BUFFER_BYTES_MIN = 4096
"""A group whose buffers are smaller on average is joined to one."""

_TRAILER_ROUNDED = TRAILER_BYTES + SECTOR_BYTES - 1
_ZEROS = bytes(SECTOR_BYTES)
_pack_fields = FIELDS.pack
_pack_checksum = CHECKSUM.pack


class Appender:
    """The open end of the log."""

    def __init__(self, space: Space, sealed: deque[Group], on_shortage: Callable[[], None]) -> None:
        self.on_shortage = on_shortage
        self.sealed = sealed
        self.index = 0
        self.durable = 0
        self.incarnation = 0
        self.previous_end = 0
        self.page: bytes | None = None
        """The header page of a segment that no group was written to yet."""
        self.generation = 0
        self.file = -1
        self.base = 0
        self.offset = self.group_offset = space.segment_bytes
        self.buffers: list[Buffer] = []
        self.mirror: list[bytes] = []
        self.mirror_bytes = 0
        self.room_base = 0
        self._space = space
        self._segment_bytes = space.segment_bytes

    @property
    def tail(self) -> int:
        return self.base + self.offset

    def resume(self, cut: int) -> None:
        """Go on where the recovered log ends: in its last segment, or (if there is none) in the first."""
        ordinal = ordinal_of_end(cut, self._segment_bytes)
        offset = cut - ordinal * self._segment_bytes
        active = self._space.active
        self.previous_end = self.durable = cut
        if active is None:
            # A new journal; or the last segment is lost, and its positions stay so.
            self.generation = ordinal - 1 if offset == SEGMENT_HEADER_BYTES else ordinal
        else:
            self.generation, self.file = ordinal, active.file
            self.base = ordinal * self._segment_bytes
            self.offset = self.group_offset = offset
        self.space_changed()

    def space_changed(self) -> None:
        self.room_base = self._space.room_base(Claim.PRODUCER)

    def place(self, kind: int, head: bytes, body: Buffer, claim: Claim) -> Location:
        head_bytes = len(head)
        body_bytes = len(body)
        size = HEADER_BYTES + head_bytes + body_bytes
        span = (size + ALIGN_BYTES - 1) & -ALIGN_BYTES
        mirror_bytes = self.mirror_bytes + MIRROR_BYTES + head_bytes
        offset = self.offset
        end = (offset + span + _TRAILER_ROUNDED + mirror_bytes) & -SECTOR_BYTES  # group_end()
        room_base = self.room_base if claim is Claim.PRODUCER else self._space.room_base(claim)
        if (
            end > self._segment_bytes
            or end > self._segment_bytes + room_base
            or end - self.group_offset > limits.GROUP_BYTES_MAX
        ):
            self._make_room(span, MIRROR_BYTES + head_bytes, claim)
            mirror_bytes = self.mirror_bytes + MIRROR_BYTES + head_bytes
            offset = self.offset
        if kind >= ENTRY_KIND_MIN:
            self.index = index = self.index + 1
        else:
            index = 0
        fields = _pack_fields(MAGIC, kind, 0, self.generation, self.incarnation, head_bytes, body_bytes, index) + head
        checksum = crc32c(fields)
        buffers = self.buffers
        padding = PADDING[span - size]
        if body_bytes <= BODY_COPIED_BYTES_MAX:
            if body_bytes:
                buffers.append(b"".join((_pack_checksum(crc32c(body, checksum)), fields, body, padding)))
            else:
                buffers.append(_pack_checksum(checksum) + fields + padding)
        else:
            buffers += (_pack_checksum(crc32c(body, checksum)) + fields, body)
            if padding:
                buffers.append(padding)
        self.mirror += (pack_mirror(kind, offset - self.group_offset, head_bytes, body_bytes, index), head)
        self.mirror_bytes = mirror_bytes
        self.offset = offset + span
        return Location(self.base + offset, span, index)

    def _make_room(self, span: int, mirror_bytes: int, claim: Claim) -> None:
        """The record does not fit the open group: end the group, perhaps the segment; or refuse."""
        if group_end(SEGMENT_HEADER_BYTES + span, mirror_bytes) > self._segment_bytes:
            raise MessageTooLarge(size=span, limit=record_bytes_max(self._segment_bytes))
        need = group_end(span, mirror_bytes)
        end = group_end(self.offset, self.mirror_bytes) if self.buffers else self.offset
        fits = end + need <= self._segment_bytes
        # A record that opens the next segment leaves the rest of this one to nobody.
        room = self._space.room_base(claim) + (self._segment_bytes - end if fits else 0)
        if need > room or not (fits or self._space.free):
            self.on_shortage()
            raise JournalFull(wanted=need, room=max(room, 0))
        self.seal()
        if not fits:
            self._begin_segment()

    def _begin_segment(self) -> None:
        ordinal = self.generation + 1
        segment = self._space.begin(ordinal, self.tail)
        self.generation = ordinal
        self.file = segment.file
        self.base = ordinal * self._segment_bytes
        self.offset = self.group_offset = SEGMENT_HEADER_BYTES
        self.page = header_page(SegmentHeader(self.incarnation, self._segment_bytes, ordinal, self._space.checkpoints))
        self.space_changed()
        self.on_shortage()

    def seal(self) -> None:
        """End the open group: trailer, padding, and its place is final."""
        buffers = self.buffers
        if not buffers:
            return
        start, offset, mirror_bytes = self.group_offset, self.offset, self.mirror_bytes
        end = (offset + _TRAILER_ROUNDED + mirror_bytes) & -SECTOR_BYTES  # group_end()
        checksum, trailer = encode_trailer(
            self.generation,
            self.incarnation,
            self.base + start,
            self.previous_end,
            self.durable,
            self._space.checkpoints,
            self.index,
            self.mirror,
            mirror_bytes,
        )
        buffers += (checksum, trailer, _ZEROS[: end - offset - TRAILER_BYTES - mirror_bytes])
        size = end - start
        if size < len(buffers) * BUFFER_BYTES_MIN:
            buffers = [b"".join(buffers)]
        if self.page is not None:
            buffers.insert(0, self.page)
            self.page = None
            start, size = 0, end
        self.previous_end = self.base + end
        self.sealed.append(
            Group(self.file, start, size, buffers, self.generation, self.incarnation, self.previous_end, self.index)
        )
        self.buffers = []
        self.mirror = []
        self.mirror_bytes = 0
        self.offset = self.group_offset = end
