"""Writing a ring: what both durabilities have in common.

Guarantees
    1. A record is either in the ring, whole and with its number, or it is not: whatever interrupts a write (an
       exception of a signal handler, no memory, a kill) leaves no half of one and no number used twice.
    2. Space is used again only when it is released and, with "power", that is durable.
    3. A thread that already writes this ring (a signal handler interrupted it) gets `Blocked`, not a deadlock; a forked
       child gets `WrongProcess`.
    4. `stage`, `stage_run` and `commit` leave no lock held, whatever they raise. To leave a `with` takes memory; where
       there was none for it they let go themselves. And a record that was staged by then is staged: it has its number.

Rules
    1. The locks are `RLock`s, because those know their owner at every moment.
    2. What a write depends on changes by one assignment, so that it has happened or not.
    3. A `with`, a `finally` and the inside of an `except` are within the first 256 instructions of their function: for
       an error further on CPython 3.11 makes a number (where it was), and where there is no memory for it, tries that
       for ever. `tests/unit/events/test_memory_errors.py` looks at all functions on the way of an event.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

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
    MARK_REFUSED,
    MARK_RELEASED_CHECK,
    MARK_RELEASED_POSITION,
    MARK_RELEASED_SEQUENCE,
    ORIGIN,
    OWN_BYTES,
    OWN_RECORD,
    RING_OFFSET,
    SECTOR_BYTES,
    State,
    released_check,
)
from clarion.journal.record import ALIGN_BYTES, CHECKSUM, MAGIC

_HEAD_BYTES = HEAD.size
_FOREIGN_HEAD_BYTES = ORIGIN.size + HEAD.size
_pack_own = OWN_RECORD.pack_into
_pack_foreign = FOREIGN_RECORD.pack_into
pack_checksum = CHECKSUM.pack_into

FULL = 0
"""Instead of a sequence: no room."""
BUSY = -1
"""Instead of a sequence: what is gathered has to be committed first."""

Origin = tuple[bytes, int]
"""Producer and sequence of an event that was emitted elsewhere."""


Locks = tuple[Callable[[], bool], Callable[[], None], Any] | None
"""Whether this thread has the first lock; to let it go; the others: a loop over these makes no object."""


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


def chain(*locks: Any) -> Locks:
    """Of locks that know their owner."""
    found: Locks = None
    for lock in locks:
        found = (lock._is_owned, lock.release, found)
    return found


class Writer:
    """What both kinds share: numbers, room, the released head."""

    def __init__(
        self, name: str, file: RingFile, salt: int, incarnation: int, head: State, next_sequence: int, record_max: int
    ) -> None:
        self.name = name
        self.file = file
        self.mirror: Mirror | None = None
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
        self._locks: Locks = chain(self._lock, self._committing)
        """All of them: to let go needs no memory."""
        self._forks = _Forks.number
        self._state = head
        self._limit = head.position + self._ring_bytes
        self._sector = memoryview(bytearray(SECTOR_BYTES))
        self.durable = next_sequence - 1
        self._marks[MARK_DURABLE] = self.durable

    def refuse(self) -> None:
        """An event finds no room: counted where other processes see it."""
        self._marks[MARK_REFUSED] += 1

    def check(self) -> None:
        """Whether this thread may write here now."""
        if self._forks != _Forks.number:
            raise WrongProcess(section=self.name)
        if self.held_here():
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

    def stage(self, event: Encoded, bits: int, epoch: int, flags: int, origin: Origin | None = None) -> int:
        """The sequence of the record; `FULL` if there is no room, `BUSY` if something has to be committed first."""
        span = self._span(event, origin)
        sequence = BUSY
        try:
            with self._lock:
                sequence = self._stage(span, event, bits, epoch, flags, origin)
        except NO_MEMORY:
            while self._owned():
                self._lock.release()
            if sequence == BUSY:
                raise
        return sequence

    def stage_run(
        self, events: Sequence[Encoded], bits: Sequence[int], epoch: int, flags: int, origins: Sequence[Origin] | None,
        needed: int, insist: Callable[..., int],
    ) -> int:  # fmt: skip
        """Stage all, with nobody's records between; the first sequence, or `FULL`."""
        first = BUSY
        try:
            with self._committing, self._lock:
                first = self._stage_all(events, bits, epoch, flags, origins, needed, insist)
        except NO_MEMORY:
            if first == BUSY:
                raise
        finally:  # also when all went well in the end: something inside was tried again
            held = self._locks
            while held is not None:
                owned, release, held = held
                while owned():
                    release()
        return first

    def _stage_all(
        self, events: Sequence[Encoded], bits: Sequence[int], epoch: int, flags: int, origins: Sequence[Origin] | None,
        needed: int, insist: Callable[..., int],
    ) -> int:  # fmt: skip
        if needed > self._ring_bytes:
            raise Blocked(destination=self.name, detail=f"{needed} bytes at once are more than it has")
        origin: Origin | None = None
        first, tail = self.next
        if tail + needed > self._limit and not self._make_room(tail + needed):
            return FULL
        for number, event in enumerate(events):
            if origins is not None:
                origin = origins[number]
            span = self._span(event, origin)
            try:
                sequence = self._stage(span, event, bits[number], epoch, flags, origin)
            except NO_MEMORY:
                sequence = insist(self._stage, span, event, bits[number], epoch, flags, origin)
            if sequence == BUSY:
                insist(self._commit_all)
                sequence = insist(self._stage, span, event, bits[number], epoch, flags, origin)
            if sequence != first + number:
                raise InternalFault(detail=f"record {number} of a run has the number {sequence}")
        return first

    @property
    def next(self) -> tuple[int, int]:
        """The next sequence, and where everything before it ends."""
        raise NotImplementedError

    def commit(self, sequence: int) -> None:
        """Until this sequence is durable, and a mirror has it."""
        raise NotImplementedError

    def _stage(self, span: int, event: Encoded, bits: int, epoch: int, flags: int, origin: Origin | None) -> int:
        """With the lock."""
        raise NotImplementedError

    def _commit_all(self) -> None:
        """Everything that was staged, with both locks."""
        raise NotImplementedError

    def flush(self) -> None:
        """Until everything is durable that was staged before."""
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
