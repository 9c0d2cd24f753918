"""Writing a ring that survives the end of the process: a record is copied into a map, and is there.

Guarantee: what `stage` returned for is in the file, whatever happens to the process. Others read it whole, or not.

Rule: `_stage` makes no system call and does not give up the interpreter (`benchmarks/events.py`).
"""

from __future__ import annotations

from clarion.events.encoding import Encoded
from clarion.events.memory.ballast import NO_MEMORY
from clarion.events.memory.files import RingFile
from clarion.events.memory.layout import MARK_DURABLE, RING_OFFSET, SECTOR_BYTES, STATE_OFFSETS, State, pack_state
from clarion.events.memory.writing import FULL, Mirror, Origin, Writer, pack_checksum
from clarion.journal.record import parse


class MappedWriter(Writer):
    """Durability "process": records are packed into the map, their checksum last."""

    def __init__(
        self, name: str, file: RingFile, salt: int, incarnation: int, head: State, next_sequence: int, tail: int,
        record_max: int,
    ) -> None:  # fmt: skip
        super().__init__(name, file, salt, incarnation, head, next_sequence, record_max)
        self._next = (next_sequence, tail)
        self._reserved = False
        """A record at the tail may be whole without being counted."""
        self._mirrored = (next_sequence, tail)

    @property
    def next(self) -> tuple[int, int]:
        return self._next

    def _stage(self, span: int, event: Encoded, bits: int, epoch: int, flags: int, origin: Origin | None) -> int:
        if self._reserved:
            self._settle()
        sequence, tail = self._next
        lap, offset = divmod(tail, self._ring_bytes)
        if offset + span > self._ring_bytes:
            lap, offset = lap + 1, 0
        end = lap * self._ring_bytes + offset + span
        if end > self._limit and not self._make_room(end):
            return FULL
        at = RING_OFFSET + offset
        view = self._view
        _, checksum = self._pack(view, at, lap, sequence, event, bits, epoch, flags, origin)
        # The pair that is stored below is made before: nothing can fail between the checksum and that.
        following = (sequence + 1, end)
        self._reserved = True
        pack_checksum(view, at, checksum)
        self._next = following
        self._reserved = False
        self.durable = sequence
        self._marks[MARK_DURABLE] = sequence
        return sequence

    def commit(self, sequence: int) -> None:
        """Everything is durable already; give it to the mirror."""
        if self.mirror is None:
            return
        try:
            while self.mirror is not None and self._mirrored[0] <= sequence:
                with self._committing:
                    mirrored, start = self._mirrored
                    if mirrored > sequence:
                        break
                    self._give(self.mirror, start)
        except NO_MEMORY:
            held = self._locks
            while held is not None:
                owned, release, held = held
                while owned():
                    release()
            raise

    def _give(self, mirror: Mirror, start: int) -> None:
        """One piece of the ring without an end of a lap in it."""
        with self._lock:
            following, tail = self._next
        first = self._mirrored[0]
        lap, offset = divmod(start, self._ring_bytes)
        if tail > (lap + 1) * self._ring_bytes:
            records, end, position = self._walk(lap, offset, first)
            if end == first:
                self._mirrored = (first, (lap + 1) * self._ring_bytes)
                return
        else:
            records, end, position = (
                self._view[RING_OFFSET + offset : RING_OFFSET + offset + tail - start],
                following,
                tail,
            )
        mirror.begin(records, first, end)
        mirror.finish()
        self._mirrored = (end, position)

    def _walk(self, lap: int, offset: int, sequence: int) -> tuple[memoryview, int, int]:
        """The records up to the end of a lap."""
        area = self._view[RING_OFFSET:]
        at = offset
        while (raw := parse(area, at, self._salt | lap)) is not None and raw.index == sequence:
            at, sequence = raw.end, sequence + 1
        return area[offset:at], sequence, lap * self._ring_bytes + at

    def attach(self, mirror: Mirror | None) -> None:
        """Copy everything from now on."""
        with self._lock:
            self._mirrored = self._next
            self.mirror = mirror

    def save_state(self) -> None:
        """Write the released head into the file."""
        state = self._next_state()
        if state is None:
            return
        pack_state(self._sector, state)
        at = STATE_OFFSETS[state.number % 2]
        self._view[at : at + SECTOR_BYTES] = self._sector
        self._limit = state.position + self._ring_bytes
        self._state = state

    def flush(self) -> None:
        """Nothing waits here."""

    def _commit_all(self) -> None:
        """Nothing waits here; `stage` does not ask for it."""

    def _make_room(self, end: int) -> bool:
        self.save_state()
        return end <= self._limit

    def _settle(self) -> None:
        """An exception came just when a record was finished: it counts if it is whole, for others may have read it."""
        sequence, tail = self._next
        for position in (tail, -(-tail // self._ring_bytes) * self._ring_bytes):
            lap, offset = divmod(position, self._ring_bytes)
            raw = parse(self._view[RING_OFFSET:], offset, self._salt | lap)
            if raw is not None and raw.index == sequence and raw.incarnation == self._incarnation:
                self._next = (sequence + 1, lap * self._ring_bytes + raw.end)
                break
        self.durable = self._next[0] - 1
        self._marks[MARK_DURABLE] = self.durable
        self._reserved = False
