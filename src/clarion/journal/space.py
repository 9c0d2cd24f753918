"""Space: which segment holds what lives, what is free, and who may still take how much.

Guarantees
    1. A segment is handed out again only when nothing in it lives, it lies wholly before the older
       kept checkpoint, and everything appended until its last byte died is durable: a crash can then
       not bring back the need for it.
    2. Producers never enter the reserve: two checkpoints, one segment for compaction, and a margin
       for confirmations, outcomes and administration. Confirmations never enter what checkpoints
       and compaction need, nor compaction what checkpoints need, so that freeing space is always possible.

Rules
    1. Pure: it decides; the journal acts.
    2. Bytes of an ordinal that is not in use are ignored by `retain` and `release`: a replay from
       the older checkpoint names segments that were recycled since, and frees them again itself.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from clarion import limits
from clarion.errors import InternalFault
from clarion.journal.layout import SECTOR_BYTES, SEGMENT_HEADER_BYTES, Checkpoints

COMPACTION_SEGMENTS = 1
MARGIN_SEGMENTS = 3
"""What confirmations fill before a segment full of them is recycled: when space is low a checkpoint
is due after half a segment of log, and it takes three to move the older one past a whole segment."""
VICTIM_LIVE_FRACTION_MAX = 0.5


class Claim(enum.IntEnum):
    """Who asks for space; a later one may take what an earlier one may not."""

    PRODUCER = 0
    RESERVE = 1
    COMPACTION = 2
    UPKEEP = 3


@dataclass(slots=True)
class Segment:
    file: int
    ordinal: int
    live_bytes: int = 0
    dead_at: int = 0
    """The tail of the log when the last live byte was released."""


class Victim(NamedTuple):
    """A segment worth emptying: the owner appends again what lives in it, and releases the old."""

    position_from: int
    position_to: int
    live_bytes: int


class Space:
    """The table of segments of one journal."""

    def __init__(self, segment_bytes: int, bytes_max: int) -> None:
        self.segment_bytes = segment_bytes
        self.usable_bytes = segment_bytes - SEGMENT_HEADER_BYTES
        self.segments_max = max(bytes_max // segment_bytes, limits.SEGMENTS_MIN)
        self.in_use: dict[int, Segment] = {}
        self.free: deque[int] = deque()
        self.pending = 0
        """Files whose space is secured but that are not prepared yet: they stand for the reserve."""
        self.active: Segment | None = None
        self.checkpoints = Checkpoints(0, 0)
        self.growth_blocked = False
        self.live_bytes = 0
        self.dead: set[int] = set()
        """Closed ordinals without live bytes that are not recycled yet."""
        self._checkpoints_owed = 0
        self._estimate_bytes = 0
        self._checkpoint_bytes = 0
        """The size of the last one: an estimate below it is not believed."""
        self._victim = 0
        self._no_victim_at: tuple[int, ...] = ()
        self._set_reserve()

    # --- segments -------------------------------------------------------------------------------

    @property
    def segments(self) -> int:
        return len(self.in_use) + len(self.free)

    def adopt(self, file: int, ordinal: int) -> None:
        """Recovery found this file to hold this part of the log."""
        self.in_use[ordinal] = Segment(file, ordinal)

    def begin(self, ordinal: int, tail: int) -> Segment:
        """Close the active segment, and take a free one as the next part of the log."""
        segment = Segment(self.free.popleft(), ordinal)
        self.in_use[ordinal] = segment
        closed, self.active = self.active, segment
        if closed is not None and closed.live_bytes == 0:
            closed.dead_at = tail
            self.dead.add(closed.ordinal)
        return segment

    def after_recovery(self, active: int, tail: int) -> None:
        """All that lives is retained now: what is not retained is dead."""
        self.active = self.in_use.get(active)
        for ordinal, segment in self.in_use.items():
            if segment.live_bytes == 0 and ordinal != active:
                segment.dead_at = tail
                self.dead.add(ordinal)
                self._checkpoints_owed = 2  # whoever crashed may not have come to it, and nothing else may have room

    def recycle(self, durable: int) -> list[Segment]:
        """The segments that may be used again, now free."""
        ready = []
        for ordinal in self.dead:
            segment = self.in_use[ordinal]
            before_checkpoint = (ordinal + 1) * self.segment_bytes <= self.checkpoints.older
            if before_checkpoint and segment.dead_at <= durable:
                ready.append(segment)
        for segment in ready:
            self.dead.discard(segment.ordinal)
            del self.in_use[segment.ordinal]
            self.free.append(segment.file)
        return ready

    # --- what lives -------------------------------------------------------------------------------

    def retain(self, position: int, span: int) -> None:
        active = self.active
        if active is not None and active.ordinal == position // self.segment_bytes:
            # What was appended just now; the active segment is never dead, and no record leaves it.
            active.live_bytes += span
            self.live_bytes += span
            return
        for ordinal, count in self._split(position, span):
            segment = self.in_use.get(ordinal)
            if segment is not None:
                segment.live_bytes += count
                self.live_bytes += count
                self.dead.discard(ordinal)

    def release(self, position: int, span: int, tail: int) -> bool:
        """True if a closed segment died of it."""
        died = False
        for ordinal, count in self._split(position, span):
            segment = self.in_use.get(ordinal)
            if segment is None:
                continue
            if count > segment.live_bytes:
                detail = f"released {count} bytes at {position}; only {segment.live_bytes} live there"
                raise InternalFault(detail=detail)
            segment.live_bytes -= count
            self.live_bytes -= count
            if segment.live_bytes == 0 and segment is not self.active and count:
                segment.dead_at = tail
                self.dead.add(ordinal)
                self._checkpoints_owed = 2
                died = True
        return died

    def _split(self, position: int, span: int) -> list[tuple[int, int]]:
        ordinal, offset = divmod(position, self.segment_bytes)
        if offset + span <= self.segment_bytes:
            return [(ordinal, span)]
        parts = []
        while span > 0:
            count = min(span, self.segment_bytes - offset)
            parts.append((ordinal, count))
            span -= count
            ordinal, offset = ordinal + 1, 0
        return parts

    # --- who may take how much ----------------------------------------------------------------------

    @property
    def estimate_bytes(self) -> int:
        return self._estimate_bytes

    @estimate_bytes.setter
    def estimate_bytes(self, value: int) -> None:
        self._estimate_bytes = value
        self._set_reserve()

    @property
    def checkpoint_bytes(self) -> int:
        """How large the next checkpoint may be, as far as anybody knows."""
        return max(self._estimate_bytes, self._checkpoint_bytes)

    def _set_reserve(self) -> None:
        checkpoints = 2 * self.checkpoint_bytes
        upkeep = checkpoints + COMPACTION_SEGMENTS * self.usable_bytes
        # What compaction gives up is free only after two checkpoints: it must leave room for them, or the first
        # journal that fills up with copies would never be able to use the originals' space again.
        compaction = checkpoints + self.usable_bytes // 2
        self._kept_bytes = (upkeep + MARGIN_SEGMENTS * self.usable_bytes, upkeep, compaction, 0)

    @property
    def reserve_bytes(self) -> int:
        return self._kept_bytes[Claim.PRODUCER]

    def room_base(self, claim: Claim) -> int:
        """Bytes that such a claim may append beyond the active segment; below 0 the reserve reaches
        into the active one. Changes only with the number of free segments and the estimate."""
        free = len(self.free)
        base = (free + self.pending) * self.usable_bytes - self._kept_bytes[claim]
        if self.pending:
            # Not prepared yet cannot be written to; and one that is prepared stays for the others.
            ready = free - (claim == Claim.PRODUCER)
            base = min(base, max(ready, 0) * self.usable_bytes)
        return base

    @property
    def can_grow(self) -> bool:
        return not self.growth_blocked and self.segments < self.segments_max

    @property
    def wants_growth(self) -> bool:
        """Grow ahead of need: by the time producers reach the reserve it is too late."""
        if self.segments >= self.segments_max:
            return False
        ahead = -(-self.reserve_bytes // self.usable_bytes) + limits.SEGMENTS_SPARE
        return self.pending > 0 or self.segments < limits.SEGMENTS_MIN or len(self.free) < ahead

    @property
    def is_low(self) -> bool:
        if self.can_grow or self.pending:
            return False
        return len(self.free) * self.usable_bytes <= self.reserve_bytes

    # --- upkeep -------------------------------------------------------------------------------------

    def checkpoint_helps(self, log_bytes: int) -> bool:
        """Whether a checkpoint now, before its time, would lead to free segments.

        It takes two to move the older one past a segment that has died; so each death pays for at
        most two. Otherwise half a segment of log must have been written, or checkpoints would feed on
        the segments that earlier checkpoints filled. A segment that is worth emptying, and cannot be
        because it is too new, also asks for them: once they are written it is not too new any more.
        """
        if not self.is_low:
            return False
        if self.dead and (self._checkpoints_owed > 0 or log_bytes >= self.segment_bytes // 2):
            return True
        return self.victim() is None and self._sparse_but_new()

    def _sparse_but_new(self) -> bool:
        if self.active is None:
            return False
        limit = VICTIM_LIVE_FRACTION_MAX * self.usable_bytes
        for ordinal in range(self.checkpoints.older // self.segment_bytes, self.active.ordinal):
            segment = self.in_use.get(ordinal)
            if segment is not None and 0 < segment.live_bytes < limit:
                return True
        return False

    def checkpoint_completed(self, begin: int, size_bytes: int = 0) -> None:
        """Until there are two, the older is 0: the log from its first byte stands for it."""
        self.checkpoints = Checkpoints(begin, self.checkpoints.newest)
        self._checkpoint_bytes = size_bytes
        self._set_reserve()
        if self._checkpoints_owed:
            self._checkpoints_owed -= 1

    def capacity_bytes(self) -> int:
        return (self.segments_max if self.can_grow else self.segments) * self.segment_bytes

    def victim(self) -> Victim | None:
        """The segment that is cheapest to empty, if emptying one is worth it now."""
        chosen = self.in_use.get(self._victim)
        if chosen is None or chosen.live_bytes == 0:
            chosen = self._choose_victim()
        if chosen is None:
            return None
        start = chosen.ordinal * self.segment_bytes
        return Victim(start + SEGMENT_HEADER_BYTES, start + self.segment_bytes, chosen.live_bytes)

    def _choose_victim(self) -> Segment | None:
        self._victim = 0
        used = len(self.in_use) * self.usable_bytes
        wasteful = len(self.in_use) >= limits.SEGMENTS_MIN and self.live_bytes * 2 < used
        if not (wasteful or self.is_low):
            return None
        state = (self.live_bytes // SECTOR_BYTES, len(self.in_use), self.checkpoints.older)
        if state == self._no_victim_at:
            return None
        best: Segment | None = None
        for segment in self.in_use.values():
            if not segment.live_bytes or (segment.ordinal + 1) * self.segment_bytes > self.checkpoints.older:
                continue
            if best is None or segment.live_bytes < best.live_bytes:
                best = segment
        if best is None or best.live_bytes >= VICTIM_LIVE_FRACTION_MAX * self.usable_bytes:
            self._no_victim_at = state
            return None
        self._victim = best.ordinal
        return best
