"""Reading a ring while somebody writes it, here or in another process.

Guarantees
    1. Only what is durable is read: a record that another process has written and not yet synced could vanish with the
       power, and its id be given to another event.
    2. In order, each once, byte for byte as it was recorded; what is damaged is skipped and added to `lost`.

Rules
    1. Reading needs no lock and no system call. Released records may be written over: who releases reads no more.
"""

from __future__ import annotations

from clarion.events.memory.layout import Range, Recorded, to_recorded
from clarion.events.memory.recovery import Ring, raw_start
from clarion.events.memory.scanning import scan
from clarion.journal.record import Raw

_INDEX_STEP = 64
"""Every so many records a position is remembered: 16 bytes of index for some kilobytes of ring."""


class Reader:
    """Finds the records of a ring by sequence."""

    def __init__(self, ring: Ring, producer: int, head: Range, lost: list[Range], torn: list[Range]) -> None:
        self._ring = ring
        self._producer = producer
        self._lost = lost
        self._torn = torn
        self.head = head
        """(sequence, position): everything before is released."""
        self._end = head
        """The sequence that was not looked at yet, and where what is before it ends."""
        self._positions: dict[int, int] = {}
        """By sequence // step: a position at or after which that sequence and the following ones are."""

    def read(self, first: int, limit: int, count_max: int, bytes_max: int) -> list[Recorded]:
        """Records with sequences in [first, limit), at least one if there is one, then up to the bounds."""
        found: list[Recorded] = []
        sequence, position = self._near(max(first, self.head[0]))
        view, size = self._ring.view, 0
        while sequence < limit and len(found) < count_max:
            if sequence >= first:
                count, room = min(limit - sequence, count_max - len(found)), bytes_max - size
                some, reached, is_full = self._scan(sequence, position, count, room)
                found += some
                size += sum([len(one.headers) + len(one.body) for one in some])
                if is_full and found:
                    break
                if some:
                    sequence, position = sequence + len(some), reached
                    continue
            step = self._step(sequence, position, limit)
            if step is None:
                break
            at, raw = step
            sequence, position = raw.index + 1, at + raw.end - raw_start(raw)
            self._note(sequence, position)
            if raw.index < first:
                continue
            recorded = to_recorded(view, raw, self._producer)
            if recorded is None:
                continue
            size += len(recorded.headers) + len(recorded.body)
            if found and size > bytes_max:
                break
            found.append(recorded)
        return found

    def _scan(self, sequence: int, position: int, count: int, bytes_max: int) -> tuple[list[Recorded], int, bool]:
        """What can be read at once, where that ends, and whether it is so many bytes."""
        ring = self._ring
        lap, offset = divmod(position, ring.bytes)
        found, ends, is_full = scan(
            ring.view, offset, ring.salt | lap, sequence, count, bytes_max, self._producer, aligned=ring.aligned
        )
        if not found:
            return found, position, is_full
        base = position - offset
        for number in range(-(sequence + 1) % _INDEX_STEP, len(ends), _INDEX_STEP):
            self._positions[(sequence + number + 1) // _INDEX_STEP] = base + ends[number]
        self._note(sequence + len(found), base + ends[-1])
        return found, base + ends[-1], is_full

    def position_of(self, sequence: int, limit: int) -> int:
        """Where everything before `sequence` ends; it is at most `limit`, and that what is durable ends with."""
        reached, position = self._near(sequence)
        while reached < sequence:
            step = self._step(reached, position, limit)
            if step is None or step[1].index >= sequence:
                break
            at, raw = step
            reached, position = raw.index + 1, at + raw.end - raw_start(raw)
            self._note(reached, position)
        return position

    def release(self, sequence: int, position: int) -> None:
        """Forget what is before."""
        first, end = self.head[0] // _INDEX_STEP, sequence // _INDEX_STEP
        self.head = sequence, position
        if self._end[0] < sequence:
            self._end = self.head
        for number in range(first, end):
            self._positions.pop(number, None)

    def _near(self, sequence: int) -> Range:
        """The nearest place known at or before this sequence."""
        if sequence >= self._end[0]:
            return self._end
        number = sequence // _INDEX_STEP
        while number * _INDEX_STEP > self.head[0]:
            position = self._positions.get(number)
            if position is not None:
                return number * _INDEX_STEP, position
            number -= 1
        return self.head

    def _note(self, sequence: int, position: int) -> None:
        if sequence > self._end[0]:
            self._end = sequence, position
        if sequence % _INDEX_STEP == 0:
            self._positions[sequence // _INDEX_STEP] = position

    def _step(self, sequence: int, position: int, limit: int) -> tuple[int, Raw] | None:
        """The first record from `sequence` on, which should be at `position`; None if there is none before `limit`."""
        found = self._ring.next_record(position, sequence)
        if found is not None:
            return found
        for at, raw in self._ring.salvage(position, self.head[1] + self._ring.bytes):
            if raw.index >= limit:
                break
            if raw.index >= sequence:
                self._damaged(sequence, raw.index)
                return at, raw
        self._damaged(sequence, limit)
        self._note(limit, position)
        return None

    def _damaged(self, first: int, end: int) -> None:
        if first < end and not any(known <= first and end <= until for known, until in (*self._lost, *self._torn)):
            self._lost.append((first, end))
