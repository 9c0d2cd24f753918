"""Finding the events of a ring again, after anything: a kill, a loss of power, a damaged sector.

Guarantees
    1. Every record that checks and is not released is found, whatever lies before it.
    2. A record counts once, and only in the lap where it was written; one that an earlier recovery discarded, or that
       a later run of the program wrote over in part, does not.
    3. What is missing is said: `lost` was durable, or somebody was told so; `torn` was on its way, and nobody was told
       that it is durable.

Rules
    1. Pure over a view of the ring.
    2. Nothing is discarded because something before it is missing: a damaged sector in the last group, which no later
       record can vouch for, looks exactly like a write that was cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from clarion.events.memory.layout import FIRST_LAP, KIND_FOREIGN, KIND_OWN, SECTOR_BYTES, Range, aligned, durable_of
from clarion.journal.record import HEADER_BYTES, Raw, candidates, parse, parse_any


@dataclass(slots=True)
class Found:
    """What a ring holds. Sequences are of the section; ranges are [first, end)."""

    head_sequence: int
    head_position: int
    next_sequence: int
    tail: int
    """Where the last record ends."""
    durable: int
    """The last sequence that is known to have been durable."""
    unsure_from: int
    """Position of the first record that may not be: from here on all is written again before anything goes on."""
    incarnation: int
    lost: list[Range] = field(default_factory=list)
    torn: list[Range] = field(default_factory=list)


class Ring:
    """The ring area of a file, as recovery and readers look at it."""

    __slots__ = ("aligned", "bytes", "salt", "view")

    def __init__(self, view: memoryview, salt: int, *, aligned: bool) -> None:
        self.view = view
        self.bytes = len(view)
        self.salt = salt
        self.aligned = aligned
        """Groups begin at sectors."""

    def parse(self, position: int) -> Raw | None:
        lap, offset = divmod(position, self.bytes)
        return parse(self.view, offset, self.salt | lap)

    def next_record(self, position: int, sequence: int) -> tuple[int, Raw] | None:
        """The record with this sequence where it follows what ends at `position`, without damage; and where it is."""
        raw = self.parse(position)
        if raw is None or raw.index != sequence:
            if self.aligned and position % SECTOR_BYTES:
                position = aligned(position, SECTOR_BYTES)
                raw = self.parse(position)
            if raw is None or raw.index != sequence:
                position = aligned_lap(position, self.bytes)
                raw = self.parse(position)
        if raw is None or raw.index != sequence or not KIND_OWN <= raw.kind <= KIND_FOREIGN:
            return None
        return position, raw

    def salvage(self, position: int, limit: int) -> Iterator[tuple[int, Raw]]:
        """The records that check from `position` on and begin before `limit`, whatever lies between them."""
        while position < limit:
            lap, offset = divmod(position, self.bytes)
            base = lap * self.bytes
            stop = min(limit - base, self.bytes)
            reached = offset
            for candidate in candidates(self.view, offset):
                if candidate >= stop:
                    break
                if candidate < reached:
                    continue
                raw = parse(self.view, candidate, self.salt | lap)
                if raw is not None and KIND_OWN <= raw.kind <= KIND_FOREIGN:
                    yield base + candidate, raw
                    reached = raw.end
            position = base + self.bytes


def aligned_lap(position: int, ring_bytes: int) -> int:
    """Where the next lap begins, if one does not begin here."""
    return -(-position // ring_bytes) * ring_bytes


def recover(ring: Ring, head: Range | None, durable_hint: int, torn: Sequence[Range] = ()) -> Found:
    """What the ring holds after `head`, which is (sequence, position); None if nothing can be read about it.

    `torn` is what an earlier recovery found torn: later records do not make it lost.
    """
    if head is None:
        head, sure = _oldest(ring), False
    else:
        sure = True
    sequence, position = head
    found = Found(sequence, position, sequence, position, durable_hint, -1, 0)
    gaps: list[Range] = []
    for at, raw in ring.salvage(position, position + ring.bytes):
        if raw.index < found.next_sequence or raw.incarnation < found.incarnation:
            continue  # discarded once, and not written over
        if raw.index > found.next_sequence and (sure or found.incarnation):
            gaps.append((found.next_sequence, raw.index))
        if not (sure or found.incarnation):
            found.head_sequence, found.head_position = raw.index, at
        found.next_sequence, found.tail, found.incarnation = (
            raw.index + 1,
            at + raw.end - raw_start(raw),
            raw.incarnation,
        )
        found.durable = max(found.durable, durable_of(raw))
    if found.next_sequence <= found.durable:
        gaps.append((found.next_sequence, found.durable + 1))
        found.next_sequence = found.durable + 1
    for gap in gaps:
        for first, end, is_torn in _parts(gap, torn):
            middle = first if is_torn else max(first, min(end, found.durable + 1))
            if first < middle:
                found.lost.append((first, middle))
            if middle < end:
                found.torn.append((middle, end))
    found.unsure_from = _position_after(ring, found)
    return found


def _parts(gap: Range, torn: Sequence[Range]) -> Iterator[tuple[int, int, bool]]:
    """A gap in parts that are known to be torn, and others."""
    at, limit = gap
    for first, end in sorted(torn):
        first, end = max(first, at), min(end, limit)
        if first < end:
            if at < first:
                yield at, first, False
            yield first, end, True
            at = end
    if at < limit:
        yield at, limit, False


def raw_start(raw: Raw) -> int:
    """The offset at which a record begins in its lap."""
    return raw.body_from - len(raw.head) - HEADER_BYTES


def _position_after(ring: Ring, found: Found) -> int:
    """Position of the first record that is not known to be durable; the tail if all are."""
    for at, raw in ring.salvage(found.head_position, found.tail):
        if raw.index > found.durable:
            return at
    return found.tail


def _oldest(ring: Ring) -> Range:
    """Sequence and position of the oldest record that no newer one was written over."""
    records: list[tuple[int, int, int, int]] = []
    reached = 0
    for candidate in candidates(ring.view, 0):
        if candidate < reached:
            continue
        raw = parse_any(ring.view, candidate)
        if raw is None or raw.generation >> 32 << 32 != ring.salt or not KIND_OWN <= raw.kind <= KIND_FOREIGN:
            continue
        reached = raw.end
        lap = (raw.generation & 0xFFFF_FFFF) * ring.bytes
        records.append((raw.incarnation, raw.index, lap + candidate, lap + raw.end))
    if not records:
        return 1, FIRST_LAP * ring.bytes
    end = max(records)[3]
    # What lies a whole lap behind the last record is what that lap left in a gap.
    return min((index, at) for _, index, at, _ in records if at >= end - ring.bytes)
