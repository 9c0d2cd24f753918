"""The plan of a replay: which groups count, where damage lies between them, where the log is cut.

Guarantees
    See `recovery`: no ghosts, no holes, groups are whole.

Rules
    1. Decided by trailers alone up to D, the highest position that anything calls durable; beyond D
       every record of a group must check, for there a write that never arrived is normal.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from clarion.journal.layout import SEGMENT_HEADER_BYTES, Trailer, ordinal_of_end, walk_group
from clarion.journal.record import parse
from clarion.journal.scan import Scanner


class Stretch(NamedTuple):
    """A group, or (without a trailer) damage, in the order of the log."""

    start: int
    end: int
    trailer: Trailer | None


@dataclass(slots=True, frozen=True)
class Plan:
    stretches: list[Stretch]
    cut: int
    durable: int
    index_last: int
    discarded_bytes: int


class _Groups:
    """All groups found, by where they start; of several the one of the latest incarnation."""

    def __init__(self, scanner: Scanner, start: int) -> None:
        first = start // scanner.segment_bytes
        self.durable = start
        self.index_durable = 0
        self.by_start: dict[int, Trailer] = {}
        for ordinal in sorted(scanner.segments):
            if ordinal < first:
                continue
            for claim in scanner.segments[ordinal].claims:
                if claim.durable > self.durable:
                    self.durable, self.index_durable = claim.durable, claim.index_last
            for trailer in scanner.trailers(ordinal):
                self.durable = max(self.durable, trailer.durable)
                rival = self.by_start.get(trailer.group_start)
                if rival is None or rival.incarnation < trailer.incarnation:
                    self.by_start[trailer.group_start] = trailer
        self._starts = sorted(self.by_start)

    def at(self, position: int, incarnation: int) -> Trailer | None:
        trailer = self.by_start.get(position)
        return trailer if trailer is not None and trailer.incarnation >= incarnation else None

    def after(self, position: int, incarnation: int) -> Trailer | None:
        for at in range(bisect_right(self._starts, position), len(self._starts)):
            trailer = self.by_start[self._starts[at]]
            if trailer.incarnation >= incarnation:
                return trailer
        return None


def plan_log(scanner: Scanner, start: int) -> Plan:
    """Walk from `start` (where a group starts) to the cut."""
    groups = _Groups(scanner, start)
    durable = groups.durable
    stretches: list[Stretch] = []
    position, incarnation, index_last = start, 0, 0
    while True:
        trailer = groups.at(position, incarnation)
        if trailer is None:
            # Perhaps the segment was full: then the next one starts with a group that follows here.
            ordinal = ordinal_of_end(position, scanner.segment_bytes) + 1
            follower = groups.at(ordinal * scanner.segment_bytes + SEGMENT_HEADER_BYTES, incarnation)
            if follower is not None and follower.previous_end == position:
                trailer = follower
        if trailer is not None:
            if trailer.end > durable and not _is_whole(scanner, trailer):
                break
            stretches.append(Stretch(trailer.group_start, trailer.end, trailer))
            position, incarnation, index_last = trailer.end, trailer.incarnation, trailer.index_last
            continue
        if position >= durable:
            break
        following = groups.after(position, incarnation)
        if following is None or following.group_start >= durable:
            end = resume = durable
        else:
            resume = end = following.group_start
            if position < following.previous_end <= following.group_start:
                resume = end = following.previous_end
        stretches.append(Stretch(position, end, None))
        position = resume
    if position <= durable:
        index_last = max(index_last, groups.index_durable)
    discarded = _discarded(scanner, groups, position, incarnation)
    return Plan(stretches, position, min(durable, position), index_last, discarded)


def _is_whole(scanner: Scanner, trailer: Trailer) -> bool:
    ordinal = trailer.group_start // scanner.segment_bytes
    base = ordinal * scanner.segment_bytes
    data = scanner.content(ordinal)
    return walk_group(data, trailer.group_start - base, trailer, ordinal, base) is not None


def _discarded(scanner: Scanner, groups: _Groups, cut: int, incarnation: int) -> int:
    """Bytes of this incarnation that had been written beyond the cut."""
    later = [t for start, t in groups.by_start.items() if start >= cut and t.incarnation >= incarnation]
    total = sum(trailer.end - trailer.group_start for trailer in later)
    ordinal = ordinal_of_end(cut, scanner.segment_bytes)
    offset = cut - ordinal * scanner.segment_bytes
    if cut in groups.by_start or ordinal not in scanner.segments:
        return total
    data = scanner.content(ordinal)
    raw = parse(data, offset, ordinal)
    while raw is not None and raw.incarnation >= incarnation:
        total += raw.end - offset
        offset = raw.end
        raw = parse(data, offset, ordinal)
    return total
