"""Finding the log again: which segments there are, and which groups and claims are in them.

Guarantees
    Only what checks is believed: segments by header (or, if both copies are damaged, by the first
    record that checks), groups by trailer.

Rules
    1. Pure over a `read` callable.
    2. Of two files that claim the same generation the one of the later incarnation counts: the other
       was cut off by an earlier recovery.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from clarion.journal.layout import (
    HEADER_OFFSETS,
    SECTOR_BYTES,
    SEGMENT_HEADER_BYTES,
    Checkpoints,
    Trailer,
    decode_hints,
    decode_segment_header,
    parse_trailer,
)
from clarion.journal.record import Kind, candidates, parse_any

ReadFile = Callable[[int, int, int], bytes]


@dataclass(slots=True, frozen=True)
class FoundClaim:
    """Somebody wrote that these checkpoints are complete, and up to where the log was durable."""

    incarnation: int
    position: int
    durable: int
    checkpoints: Checkpoints
    index_last: int


@dataclass(slots=True)
class FoundSegment:
    file: int
    ordinal: int
    incarnation: int
    header_damaged: bool
    claims: list[FoundClaim] = field(default_factory=list)


class Scanner:
    """Reads segments; keeps the content of the last one, which is usually asked for again."""

    def __init__(self, read: ReadFile, files: list[int], segment_bytes: int) -> None:
        self._read = read
        self.segment_bytes = segment_bytes
        self.segments: dict[int, FoundSegment] = {}
        self.unused: list[int] = []
        self.stale: list[int] = []
        """Among the unused: files whose generation was given to another one later."""
        self.incarnation_max = 0
        self._cached_ordinal = 0
        self._cached = memoryview(b"")
        for file in files:
            self._identify(file)

    def _identify(self, file: int) -> None:
        page = memoryview(self._read(file, 0, SEGMENT_HEADER_BYTES))
        header = decode_segment_header(page)
        if header is not None:
            found = FoundSegment(file, header.generation, header.incarnation, not _both_copies_agree(page))
            start = header.generation * self.segment_bytes
            found.claims.append(FoundClaim(header.incarnation, start, 0, header.checkpoints, 0))
        elif any(page):
            damaged = self._identify_by_record(file)
            if damaged is None:
                self.unused.append(file)
                return
            found = damaged
        else:
            self.unused.append(file)
            return
        for hint in decode_hints(page, found.ordinal):
            found.claims.append(
                FoundClaim(hint.incarnation, hint.durable, hint.durable, hint.checkpoints, hint.index_last)
            )
        self.incarnation_max = max(self.incarnation_max, *(claim.incarnation for claim in found.claims), 0)
        rival = self.segments.get(found.ordinal)
        if rival is not None and rival.incarnation >= found.incarnation:
            found, rival = rival, found
        if rival is not None:
            self.unused.append(rival.file)
            self.stale.append(rival.file)
        self.segments[found.ordinal] = found

    def _identify_by_record(self, file: int) -> FoundSegment | None:
        data = memoryview(self._read(file, 0, self.segment_bytes))
        for offset in candidates(data, SEGMENT_HEADER_BYTES):
            raw = parse_any(data, offset)
            if raw is not None:
                claim = FoundClaim(raw.incarnation, 0, 0, Checkpoints(0, 0), 0)
                return FoundSegment(file, raw.generation, raw.incarnation, True, [claim])
        return None

    def content(self, ordinal: int) -> memoryview:
        """All bytes of a segment."""
        if self._cached_ordinal != ordinal:
            segment = self.segments[ordinal]
            self._cached = memoryview(self._read(segment.file, 0, self.segment_bytes))
            self._cached_ordinal = ordinal
        return self._cached

    def forget(self) -> None:
        self._cached_ordinal, self._cached = 0, memoryview(b"")

    def trailers(self, ordinal: int) -> list[Trailer]:
        """The trailers of a segment that check, in order of position."""
        if ordinal not in self.segments:
            return []
        data = self.content(ordinal)
        start = ordinal * self.segment_bytes
        found = []
        for offset in candidates(data, SEGMENT_HEADER_BYTES, Kind.TRAILER):
            trailer = parse_trailer(data, offset, ordinal, start)
            if trailer is not None:
                found.append(trailer)
                self.incarnation_max = max(self.incarnation_max, trailer.incarnation)
        return found

    def newest_claim(self) -> FoundClaim | None:
        """The last word on checkpoints. The newest segment that has a trailer has the newest one (every
        start erases what it discards); all headers and hints are read anyway."""
        claims = [claim for segment in self.segments.values() for claim in segment.claims]
        for ordinal in sorted(self.segments, reverse=True):
            trailers = self.trailers(ordinal)
            claims.extend(
                FoundClaim(t.incarnation, t.position, t.durable, t.checkpoints, t.index_last) for t in trailers
            )
            if trailers:
                break
        return max(claims, key=lambda claim: (claim.incarnation, claim.position), default=None)


def _both_copies_agree(page: memoryview) -> bool:
    first, second = (page[offset : offset + SECTOR_BYTES] for offset in HEADER_OFFSETS)
    return first == second
