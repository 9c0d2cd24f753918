"""Writing a ring that survives the loss of power: gather, write, sync, together with whoever waits.

Theory of operation
    A thread packs its record into the gathering buffer under the lock. What is gathered together is a group, and a
    group has a gate: the first of its threads that comes there leads it, the others wait behind the gate. The leader
    waits until the group before is durable, writes everything that was gathered with one `pwrite` and one `fdatasync`,
    while the next group gathers, and lets its followers go. There is no helper thread, so nothing has to be started
    when an event occurs.

    So of all threads that wait only one, the next leader, waits for the disk. When they all did, the lock went through
    the hands of everybody whose record was durable before somebody came who had one to write, and the disk did nothing.
    There are four gates, and groups have them in turn: who returns and emits again does not meet at a gate those whom
    he left behind.

Guarantees
    1. `commit` returns when the record is durable. A write that was interrupted is done again, with the same bytes at
       the same place, by whoever comes next. One that is done is not: what follows it may fail for want of memory, and
       to wait for the disk once more would give others what was dropped for it.
    2. A sync that failed is never tried again: what the disk holds is unknown, so nothing more is recorded here.

Rules
    1. Locks in this order: a gate, `_committing`, `_lock`. Who holds `_lock` or `_committing` never waits for a gate.
    2. Gates only make waiting short. That a thread is at the gate of another group, or none, changes nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from clarion.errors import JournalFailed
from clarion.events.encoding import Encoded
from clarion.events.memory.ballast import NO_MEMORY, Ballast
from clarion.events.memory.files import RingFile
from clarion.events.memory.layout import (
    MARK_DURABLE,
    MARK_RELEASED_POSITION,
    RING_OFFSET,
    SECTOR_BYTES,
    STATE_OFFSETS,
    State,
    pack_state,
)
from clarion.events.memory.writing import BUSY, FULL, Mirror, Origin, Writer, chain, pack_checksum

_ZEROS = bytes(SECTOR_BYTES)
_STATE_SHARE = 8
"""When an eighth of the ring is released, that is written along with a group; earlier only if there is no room."""


_GATES = 4
_PAD = SECTOR_BYTES - 1

_Group = tuple[int, int, int, int, int]
"""What is, or was about to be, written: its number, position, size, first and last sequence."""

_Gathering = tuple[int, int, int, int, int, int]
"""Next sequence, where everything before it ends; number of the group; position and size of what is in it; its first
sequence. Numbers say which gate a group has, and which of the two buffers; they begin again after the last gate."""


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
        self._ballast = ballast
        self._make_whole = ballast.make_whole  # made now: to make it later would need memory
        self._state_bytes = self._ring_bytes // _STATE_SHARE
        self._gates = [threading.RLock() for _ in range(_GATES)]
        self._at_gate = tuple(gate._is_owned for gate in self._gates)  # type: ignore[attr-defined]
        self._locks = chain(self._lock, self._committing, *self._gates)

    @property
    def next(self) -> tuple[int, int]:
        """The next sequence, and where everything before it ends; what is not committed yet included."""
        return self._gathering[:2]

    def held_here(self) -> bool:
        """This thread is in the middle of a call."""
        first, second, third, fourth = self._at_gate
        return bool(self._owned() or self._leading() or first() or second() or third() or fourth())

    def _stage(self, span: int, event: Encoded, bits: int, epoch: int, flags: int, origin: Origin | None) -> int:
        """The record is not durable yet."""
        group = self._group
        if group is not None and group[0] == self._gathering[2]:
            self._hand_over()
        sequence, tail, number, position, size, first = self._gathering
        if not size:
            position, first = (tail + _PAD) & -SECTOR_BYTES, sequence
        lap, offset = divmod(position, self._ring_bytes)
        if offset + size + span > self._ring_bytes or size + span > self._gather_bytes:
            if size:
                return BUSY
            lap, offset = lap + 1, 0
            position = lap * self._ring_bytes
        end = position + size + span
        if end > self._limit and not self._make_room(end):  # which is the beginning of a sector
            return FULL
        buffer = self._buffers[number & 1]
        _, checksum = self._pack(buffer, size, lap, sequence, event, bits, epoch, flags, origin)
        pack_checksum(buffer, size, checksum)
        self._gathering = (sequence + 1, end, number, position, size + span, first)
        return sequence

    def commit(self, sequence: int) -> None:
        """Until this sequence is durable."""
        try:
            while self.durable < sequence:
                with self._gates[self._gathering[2]]:
                    if self.durable < sequence:
                        with self._committing:
                            if self.durable < sequence:
                                self._lead()
        except NO_MEMORY:
            held = self._locks
            while held is not None:
                owned, release, held = held
                while owned():
                    release()
            raise

    def _commit_all(self) -> None:
        while self.durable < self._gathering[0] - 1:
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
                padded = (size + _PAD) & -SECTOR_BYTES
                self._buffers[number & 1][size:padded] = _ZEROS[: padded - size]
                self._group = group = (number, position, padded, first, following - 1)
            if group is not None and group[0] == number:
                self._hand_over()
            return group

    def _hand_over(self) -> None:
        """Gather the next group in the other buffer. Also later, if it was interrupted; nothing was gathered since."""
        following, tail, number, *_ = self._gathering
        self._gathering = (following, tail, (number + 1) % _GATES, 0, 0, 0)

    def _lead(self) -> None:
        if self.failed:
            raise JournalFailed(operation="an earlier write", detail=self.failed)
        group = self._take()
        if group is None:
            return
        records = self._buffers[group[0] & 1][: group[2]]
        stored = self._stored
        if stored is None or stored[0] is not group:
            stored = self._store(group, records)
        mirror = self.mirror
        if mirror is not None:
            # Not beside the sync: power lost in between would leave these numbers to other events here, and the partner
            # with events that nobody emitted under them.
            mirror.begin(records, group[3], group[4] + 1)
            mirror.finish()
        if stored[1] > self._limit:
            self._raise_limit(stored[1])
        self.durable = last = group[4]
        self._marks[MARK_DURABLE] = last
        self._group = None

    def _raise_limit(self, limit: int) -> None:
        with self._lock:
            if limit > self._limit:
                self._limit = limit

    def _store(self, group: _Group, records: memoryview) -> tuple[_Group, int]:
        # A look at what may just be changing; whether it is a head is seen when it is to be written.
        if self._marks[MARK_RELEASED_POSITION] - self._state.position >= self._state_bytes:
            self._write_head()
        stored = group, self._limit_of(self._state.position)
        # What was dropped of the ballast is taken again before the write: others run then.
        before = self._make_whole if self._ballast.missing else None
        self._write(RING_OFFSET + group[1] % self._ring_bytes, records, before)
        self._sync()
        self._stored = stored
        return stored

    def _write_head(self) -> None:
        """Along with a group, which is synced."""
        with self._lock:
            state = self._next_state()
            if state is not None:
                self._write_state(state)

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
        self._write(STATE_OFFSETS[state.number % 2], self._sector, self._make_whole)
        self._state = state

    def _write(self, offset: int, data: memoryview, before: Callable[[], None] | None) -> None:
        try:
            self.file.write(offset, data, before)
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
