"""Writing a ring that survives the loss of power: gather, write, sync, together with whoever waits.

Theory of operation
    A thread packs its record into the gathering buffer under the lock, and then wants to be the leader. The one that
    is writes everything that was gathered with one `pwrite` and one `fdatasync`; the others gather behind it meanwhile,
    and find their records durable when it is done, or lead themselves. There is no helper thread, so nothing has to be
    started when an event occurs.

Guarantees
    1. `commit` returns when the record is durable. A write that was interrupted is done again, with the same bytes at
       the same place, by whoever comes next. One that is done is not: what follows it may fail for want of memory, and
       to wait for the disk once more would give others what was dropped for it.
    2. A sync that failed is never tried again: what the disk holds is unknown, so nothing more is recorded here.

Rules
    1. Locks in this order: `_committing`, `_lock`. Who holds `_lock` never waits for `_committing`.
"""

from __future__ import annotations

from typing import NamedTuple

from clarion.errors import JournalFailed
from clarion.events.encoding import Encoded
from clarion.events.memory.ballast import Ballast
from clarion.events.memory.files import RingFile
from clarion.events.memory.layout import (
    MARK_DURABLE,
    RING_OFFSET,
    SECTOR_BYTES,
    STATE_OFFSETS,
    State,
    aligned,
    pack_state,
)
from clarion.events.memory.writing import BUSY, FULL, Mirror, Origin, Writer, _pack_checksum

_ZEROS = bytes(SECTOR_BYTES)
_STATE_SHARE = 8
"""When an eighth of the ring is released, that is written along with a group; earlier only if there is no room."""


class _Group(NamedTuple):
    """What is, or was about to be, written."""

    buffer: int
    position: int
    size: int
    first: int
    last: int


_Gathering = tuple[int, int, int, int, int, int]
"""Next sequence, where everything before it ends; buffer; position and size of what is in it; its first sequence."""


class SyncedWriter(Writer):
    """Durability "power"."""

    def __init__(
        self, name: str, file: RingFile, salt: int, incarnation: int, head: State, next_sequence: int, tail: int,
        record_max: int, gather_bytes: int, ballast: Ballast,
    ) -> None:  # fmt: skip
        super().__init__(name, file, salt, incarnation, head, next_sequence, record_max)
        self._limit = self._limit_of(head.position)
        self._gather_bytes = gather_bytes
        self._run_bytes = max(SECTOR_BYTES, gather_bytes - record_max)
        self._buffers = (memoryview(bytearray(gather_bytes)), memoryview(bytearray(gather_bytes)))
        self._gathering: _Gathering = (next_sequence, tail, 0, 0, 0, 0)
        self._group: _Group | None = None
        self._stored: tuple[_Group, int] | None = None
        """The group that is durable, though not everybody was told, and how far the ring may be written then."""
        self._make_whole = ballast.make_whole  # made now: to make it later would need memory

    @property
    def next(self) -> tuple[int, int]:
        """The next sequence, and where everything before it ends; what is not committed yet included."""
        return self._gathering[:2]

    def stage(self, event: Encoded, bits: int, epoch: int, flags: int, origin: Origin | None = None) -> int:
        """The sequence of the record, which is not durable yet; `FULL` or `BUSY`."""
        span = self._span(event, origin)
        with self._lock:
            return self._stage(span, event, bits, epoch, flags, origin)

    def _stage(self, span: int, event: Encoded, bits: int, epoch: int, flags: int, origin: Origin | None) -> int:
        if self._group is not None and self._group.buffer == self._gathering[2]:
            self._hand_over(self._group)
        sequence, tail, number, position, size, first = self._gathering
        if not size:
            position, first = aligned(tail, SECTOR_BYTES), sequence
        lap, offset = divmod(position, self._ring_bytes)
        if offset + size + span > self._ring_bytes or size + span > self._gather_bytes:
            if size:
                return BUSY
            lap, offset = lap + 1, 0
            position = lap * self._ring_bytes
        end = position + size + span
        if aligned(end, SECTOR_BYTES) > self._limit and not self._make_room(aligned(end, SECTOR_BYTES)):
            return FULL
        buffer = self._buffers[number]
        _, checksum = self._pack(buffer, size, lap, sequence, event, bits, epoch, flags, origin)
        _pack_checksum(buffer, size, checksum)
        self._gathering = (sequence + 1, end, number, position, size + span, first)
        return sequence

    def commit(self, sequence: int) -> None:
        """Until this sequence is durable."""
        while self.durable < sequence:
            with self._committing:
                if self.durable < sequence:
                    self._lead()

    def flush(self) -> None:
        """Until everything is durable that was staged before."""
        self.commit(self._gathering[0] - 1)

    def _take(self) -> _Group | None:
        """What was gathered, or the group that somebody was interrupted with: the same bytes to the same place."""
        with self._lock:
            group = self._group
            following, _, number, position, size, first = self._gathering
            if group is None and size:
                padded = aligned(size, SECTOR_BYTES)
                self._buffers[number][size:padded] = _ZEROS[: padded - size]
                self._group = group = _Group(number, position, padded, first, following - 1)
            if group is not None and group.buffer == number:
                self._hand_over(group)
            return group

    def _hand_over(self, group: _Group) -> None:
        """Gather in the other buffer. Also later, if that was interrupted; nothing was gathered in between."""
        following, tail = self._gathering[:2]
        self._gathering = (following, tail, 1 - group.buffer, 0, 0, 0)

    def _lead(self) -> None:
        if self.failed:
            raise JournalFailed(operation="an earlier write", detail=self.failed)
        group = self._take()
        if group is None:
            return
        records = self._buffers[group.buffer][: group.size]
        stored = self._stored
        if stored is None or stored[0] is not group:
            stored = self._store(group, records)
        mirror = self.mirror
        if mirror is not None:
            # Not beside the sync: power lost in between would leave these numbers to other events here, and the partner
            # with events that nobody emitted under them.
            mirror.begin(records, group.first, group.last + 1)
            mirror.finish()
        with self._lock:
            self._settle(group.last, stored[1])

    def _settle(self, last: int, limit: int) -> None:
        if limit > self._limit:
            self._limit = limit
        self.durable = last
        self._marks[MARK_DURABLE] = last
        self._group = None

    def _store(self, group: _Group, records: memoryview) -> tuple[_Group, int]:
        offset = RING_OFFSET + group.position % self._ring_bytes
        with self._lock:
            state = self._next_state()
            if state is not None and state.position - self._state.position >= self._ring_bytes // _STATE_SHARE:
                self._write_state(state)
            stored = group, self._limit_of(self._state.position)
        # What was dropped of the ballast is taken again before the write: others run then.
        self._write(offset, records)
        self._sync()
        self._stored = stored
        return stored

    def attach(self, mirror: Mirror | None) -> None:
        """Copy every group from the next one on."""
        with self._committing:
            self.mirror = mirror

    def save_state(self) -> None:
        """Write the released head into the file, and sync it."""
        with self._lock:
            state = self._next_state()
            if state is not None:
                self._write_state(state)
            limit = self._limit_of(self._state.position)
            if limit > self._limit:
                self._sync()
                self._limit = limit

    def _make_room(self, end: int) -> bool:
        self.save_state()
        return end <= self._limit

    def _limit_of(self, head: int) -> int:
        """The sector in which the oldest record begins is not written."""
        return (head & -SECTOR_BYTES) + self._ring_bytes

    def _write_state(self, state: State) -> None:
        pack_state(self._sector, state)
        self._write(STATE_OFFSETS[state.number % 2], self._sector)
        self._state = state

    def _write(self, offset: int, data: memoryview) -> None:
        try:
            self.file.write(offset, data, self._make_whole)
        except OSError as error:
            self._fail("write", error)

    def _sync(self) -> None:
        try:
            self.file.sync()
        except OSError as error:
            self._fail("sync", error)

    def _fail(self, operation: str, error: OSError) -> None:
        self.failed = f"{operation}: {error.strerror}"
        raise JournalFailed(operation=operation, detail=str(error.strerror)) from error
