"""Writing a ring: what both durabilities have in common, and the one that copies into a map.

Guarantees
    1. A record is either in the ring, whole and with its number, or it is not: whatever interrupts a write (an
       exception of a signal handler, no memory, a kill) leaves no half of one and no number used twice.
    2. Space is used again only when it is released and, with "power", that is durable.
    3. A thread that already writes this ring (a signal handler interrupted it) gets `Blocked`, not a deadlock; a forked
       child gets `WrongProcess`.

Rules
    1. The locks are `RLock`s, because those know their owner at every moment.
    2. `MappedWriter.stage` makes no system call and does not give up the interpreter (`benchmarks/events.py`).
    3. What a write depends on changes by one assignment, so that it has happened or not.
    4. What may find no memory inside of a `with` is within the first 256 instructions of its function: for an error
       further on CPython 3.11 makes a number (where it was), and where there is no memory for it, tries that for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from crc32c import crc32c

from clarion.errors import Blocked, EventTooLarge, InternalFault, JournalFailed, WrongProcess
from clarion.events.encoding import Encoded
from clarion.events.memory.ballast import NO_MEMORY
from clarion.events.memory.files import RingFile
from clarion.events.memory.layout import (
    FOREIGN_BYTES,
    FOREIGN_RECORD,
    HEAD,
    KIND_FOREIGN,
    KIND_OWN,
    MARK_DURABLE,
    MARK_RELEASED_CHECK,
    MARK_RELEASED_POSITION,
    MARK_RELEASED_SEQUENCE,
    ORIGIN,
    OWN_BYTES,
    OWN_RECORD,
    RING_OFFSET,
    SECTOR_BYTES,
    STATE_OFFSETS,
    State,
    pack_state,
    released_check,
)
from clarion.journal.record import ALIGN_BYTES, CHECKSUM, MAGIC, parse

_HEAD_BYTES = HEAD.size
_FOREIGN_HEAD_BYTES = ORIGIN.size + HEAD.size
_pack_own = OWN_RECORD.pack_into
_pack_foreign = FOREIGN_RECORD.pack_into
_pack_checksum = CHECKSUM.pack_into

FULL = 0
"""Instead of a sequence: no room."""
BUSY = -1
"""Instead of a sequence: what is gathered has to be committed first."""

Origin = tuple[bytes, int]
"""Producer and sequence of an event that was emitted elsewhere."""


class Mirror(Protocol):
    """Who gets a copy of every group: a partner."""

    def begin(self, group: memoryview, first: int, end: int) -> None:
        """Records [first, end) are durable here. The view is valid until `finish` returns.

        After an interruption the same group comes again.
        """
        ...

    def finish(self) -> None:
        """Wait for the copy, or note that there is none. Never raises."""
        ...


class _Forks:
    number = 0


def _count_fork() -> None:
    _Forks.number += 1


os.register_at_fork(after_in_child=_count_fork)


class Writer:
    """What both kinds share: numbers, room, the released head."""

    def __init__(
        self, name: str, file: RingFile, salt: int, incarnation: int, head: State, next_sequence: int, record_max: int
    ) -> None:
        self.name = name
        self.file = file
        self.mirror: Mirror | None = None
        self.refused = 0
        """Events that found no room."""
        self.failed = ""
        """Why nothing can be written any more."""
        self._view = file.view
        self._marks = file.marks
        self._ring_bytes = len(file.view) - RING_OFFSET
        self._salt = salt
        self._incarnation = incarnation
        self._record_max = record_max
        self._run_bytes = self._ring_bytes
        """What is gathered for one sync at most."""
        self._lock = threading.RLock()
        self._owned = self._lock._is_owned  # type: ignore[attr-defined]
        self._committing = threading.RLock()
        self._leading = self._committing._is_owned  # type: ignore[attr-defined]
        self._forks = _Forks.number
        self._state = head
        self._limit = head.position + self._ring_bytes
        self._sector = memoryview(bytearray(SECTOR_BYTES))
        self.durable = next_sequence - 1
        self._marks[MARK_DURABLE] = self.durable

    def check(self) -> None:
        """Whether this thread may write here now."""
        if self._forks != _Forks.number:
            raise WrongProcess(section=self.name)
        if self._owned() or self._leading():
            raise Blocked(destination=self.name, detail="the same thread is recording an event in it")
        if self.failed:
            raise JournalFailed(operation="an earlier write", detail=self.failed)

    def held_here(self) -> bool:
        """This thread is in the middle of a call."""
        return bool(self._owned() or self._leading())

    def adopt_process(self) -> None:
        """From now on this process writes, though it was forked after the ring was opened."""
        self._forks = _Forks.number

    def released_mark(self) -> tuple[int, int] | None:
        """The head that the reader, here or elsewhere, has moved to; None while it is being written."""
        marks = self._marks
        sequence, position = marks[MARK_RELEASED_SEQUENCE], marks[MARK_RELEASED_POSITION]
        if marks[MARK_RELEASED_CHECK] != released_check(sequence, position, self._salt):
            return None
        return sequence, position

    def _pack(
        self, target: memoryview, at: int, lap: int, sequence: int, event: Encoded, bits: int, epoch: int, flags: int,
        origin: Origin | None,
    ) -> tuple[int, int]:  # fmt: skip
        """Everything of a record but its checksum. Returns where it ends, and the checksum."""
        headers, body = event.headers, event.body
        header_bytes = len(headers)
        size = header_bytes + len(body)
        if origin is None:
            _pack_own(
                target, at, 0, MAGIC, KIND_OWN, 0, self._salt | lap, self._incarnation, _HEAD_BYTES, size, sequence,
                event.time_ns, self.durable, bits, epoch, header_bytes, event.severity, flags,
            )  # fmt: skip
            start = at + OWN_BYTES
        else:
            _pack_foreign(
                target, at, 0, MAGIC, KIND_FOREIGN, 0, self._salt | lap, self._incarnation, _FOREIGN_HEAD_BYTES, size,
                sequence, *origin, event.time_ns, self.durable, bits, epoch, header_bytes, event.severity, flags,
            )  # fmt: skip
            start = at + FOREIGN_BYTES
        middle, end = start + header_bytes, start + size
        target[start:middle] = headers
        target[middle:end] = body
        # The last argument: never give up the interpreter, which it would for more than 32 KiB.
        return end, crc32c(target[at + 4 : end], 0, 0)

    def _span(self, event: Encoded, origin: Origin | None) -> int:
        size = len(event.headers) + len(event.body) + (OWN_BYTES if origin is None else FOREIGN_BYTES)
        if size > self._record_max:
            raise EventTooLarge(size=size, limit=self._record_max)
        return (size + ALIGN_BYTES - 1) & -ALIGN_BYTES

    def bytes_needed(self, events: Sequence[Encoded], origins: Sequence[Origin] | None) -> int:
        """What these events take at most, with what the ends of groups and of a lap waste."""
        foreign = origins[0] if origins else None
        spans = [self._span(event, foreign) for event in events]
        total = sum(spans)
        return total + max(spans, default=0) + SECTOR_BYTES * (2 + total // self._run_bytes)

    def stage_run(
        self, events: Sequence[Encoded], bits: Sequence[int], epoch: int, flags: int, origins: Sequence[Origin] | None,
        needed: int, insist: Callable[..., int],
    ) -> int:  # fmt: skip
        """Stage all, with nobody's records between; the first sequence, or `FULL`."""
        if needed > self._ring_bytes:
            raise Blocked(destination=self.name, detail=f"{needed} bytes at once are more than it has")
        origin: Origin | None = None
        with self._committing, self._lock:
            first, tail = self.next
            if tail + needed > self._limit and not self._make_room(tail + needed):
                return FULL
            for number, event in enumerate(events):
                if origins is not None:
                    origin = origins[number]
                try:
                    sequence = self.stage(event, bits[number], epoch, flags, origin)
                except NO_MEMORY:
                    sequence = insist(self.stage, event, bits[number], epoch, flags, origin)
                if sequence == BUSY:
                    insist(self.commit, self.next[0] - 1)
                    sequence = insist(self.stage, event, bits[number], epoch, flags, origin)
                if sequence != first + number:
                    raise InternalFault(detail=f"record {number} of a run has the number {sequence}")
            return first

    @property
    def next(self) -> tuple[int, int]:
        """The next sequence, and where everything before it ends."""
        raise NotImplementedError

    def stage(self, event: Encoded, bits: int, epoch: int, flags: int, origin: Origin | None = None) -> int:
        raise NotImplementedError

    def commit(self, sequence: int) -> None:
        raise NotImplementedError

    def _make_room(self, end: int) -> bool:
        raise NotImplementedError

    def _next_state(self) -> State | None:
        """The released head as it will stand in the file; None if it is there already."""
        mark = self.released_mark()
        if mark is None or mark[1] <= self._state.position:
            return None
        torn = self._state.torn
        if torn and torn[0][1] <= mark[0]:
            torn = tuple(each for each in torn if each[1] > mark[0])
        return State(self._state.number + 1, mark[0], mark[1], torn)


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

    def stage(self, event: Encoded, bits: int, epoch: int, flags: int, origin: Origin | None = None) -> int:
        """The sequence of the record; `FULL` if there is no room."""
        span = self._span(event, origin)
        with self._lock:
            return self._stage(span, event, bits, epoch, flags, origin)

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
        _pack_checksum(view, at, checksum)
        self._next = following
        self._reserved = False
        self.durable = sequence
        self._marks[MARK_DURABLE] = sequence
        return sequence

    def commit(self, sequence: int) -> None:
        """Everything is durable already; give it to the mirror."""
        while self.mirror is not None and self._mirrored[0] <= sequence:
            with self._committing:
                mirrored, start = self._mirrored
                if mirrored > sequence:
                    break
                self._give(self.mirror, start)

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
