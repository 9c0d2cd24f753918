"""Recovery: from what a disk shows after a crash to the log that counts.

Guarantees
    1. No ghosts: a record counts only in the generation its segment has now, and never if its
       incarnation is older than that of a record before it.
    2. No holes: D is the highest position that any trailer or hint calls durable. Damage before D is
       reported as lost, rebuilt from the trailer's second copy as far as that goes, and hides nothing
       behind it. At the first damage or gap at or after D the log is cut.
    3. Groups are whole: a group whose trailer did not arrive never counted, so every record of the
       log has a second copy of its metadata.

Rules
    1. Pure over a `read` callable. It writes nothing: the journal makes the tail durable afterwards.
    2. The newest checkpoint that reads back whole is taken, else the older one; else, only if the
       log is there from its first byte, a replay of everything; else the metadata is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from clarion.errors import MetadataDamaged
from clarion.journal.checkpoint import END_HEAD, PART_HEAD
from clarion.journal.layout import SEGMENT_HEADER_BYTES, Checkpoints, Trailer, parse_mirror, walk_group
from clarion.journal.plan import Plan, Stretch, plan_log
from clarion.journal.record import EMPTY, Kind, Record, is_visible, parse, salvage, span_of, to_record
from clarion.journal.scan import ReadFile, Scanner

FIRST_ORDINAL = 1


class LostRange(NamedTuple):
    """Damage found in what had been durable. Of `records` records the bodies are lost."""

    position_from: int
    position_to: int
    records: int


@dataclass(slots=True)
class Recovery:
    """What the caller starts from. `lost` and `repaired` are complete when `records` is exhausted."""

    checkpoint_parts: list[bytes]
    records: Iterator[Record]
    lost: list[LostRange]
    repaired: list[LostRange]
    """Damage that cost nothing: all of it was rebuilt from the second copies."""
    discarded_bytes: int
    fresh: bool


@dataclass(slots=True)
class _Loaded:
    parts: list[bytes]
    end: int


@dataclass(slots=True)
class Recovered:
    """Everything that recovery found; the journal goes on from here."""

    scanner: Scanner
    plan: Plan
    checkpoints: Checkpoints
    checkpoint_end: int
    parts: list[bytes]
    index_last: int
    fell_back: bool
    """The newest checkpoint is damaged: another is due, for only one (or the whole log) is left."""
    lost: list[LostRange] = field(default_factory=list)
    repaired: list[LostRange] = field(default_factory=list)
    entries: int = 0
    exhausted: bool = False

    @property
    def fresh(self) -> bool:
        return not self.plan.stretches

    def records(self) -> Iterator[Record]:
        """Entries and moved records in the order of the log. Bodies are views of a whole segment:
        whoever keeps one keeps the segment in memory."""
        for stretch in self.plan.stretches:
            for record in self._records_of(stretch):
                if record.index:
                    self.entries += 1
                    self.index_last = max(self.index_last, record.index)
                yield record
        self.scanner.forget()
        self.exhausted = True

    def _records_of(self, stretch: Stretch) -> Iterator[Record]:
        if stretch.trailer is None:
            yield from self._salvage(stretch.start, stretch.end)
            return
        data, ordinal, base = _segment_of(self.scanner, stretch.start)
        raws = walk_group(data, stretch.start - base, stretch.trailer, ordinal, base)
        if raws is None:
            yield from self._rebuild(stretch.trailer, data, ordinal, base)
            return
        for offset, raw in raws:
            if is_visible(raw.kind):
                yield to_record(data, raw, base + offset)

    def _rebuild(self, trailer: Trailer, data: memoryview, ordinal: int, base: int) -> Iterator[Record]:
        """A damaged group, with the second copies of its trailer."""
        own = parse(data, trailer.position - base, ordinal)
        assert own is not None
        for mirror in parse_mirror(data, own, trailer.group_start):
            offset = mirror.position - base
            raw = parse(data, offset, ordinal)
            if raw is not None and raw.incarnation == trailer.incarnation:
                if is_visible(raw.kind):
                    yield to_record(data, raw, mirror.position)
                continue
            span = span_of(len(mirror.head), mirror.body_bytes)
            whole = mirror.body_bytes == 0
            report = self.repaired if whole or not is_visible(mirror.kind) else self.lost
            report.append(LostRange(mirror.position, mirror.position + span, 0 if whole else 1))
            if is_visible(mirror.kind):
                body = EMPTY if whole else None
                yield Record(mirror.kind, mirror.index, mirror.position, span, mirror.head, body)

    def _salvage(self, start: int, end: int) -> Iterator[Record]:
        """Damage that took a trailer: records that check are there, others are lost."""
        segment_bytes = self.scanner.segment_bytes
        while start < end:
            ordinal = start // segment_bytes
            base = ordinal * segment_bytes
            stop = min(end, base + segment_bytes)
            reached = start
            if ordinal in self.scanner.segments:
                data = self.scanner.content(ordinal)[: stop - base]
                for offset, raw in salvage(data, start - base, ordinal):
                    if base + offset > reached:
                        self.lost.append(LostRange(reached, base + offset, 0))
                    reached = base + raw.end
                    if is_visible(raw.kind):
                        yield to_record(data, raw, base + offset)
            if reached < stop:
                self.lost.append(LostRange(reached, stop, 0))
            start = base + segment_bytes + SEGMENT_HEADER_BYTES


def recover(read: ReadFile, files: list[int], segment_bytes: int) -> Recovered:
    """Find the log that counts."""
    scanner = Scanner(read, files, segment_bytes)
    first = FIRST_ORDINAL * segment_bytes + SEGMENT_HEADER_BYTES
    claim = scanner.newest_claim()
    start, checkpoints, loaded = first, Checkpoints(0, 0), _Loaded([], 0)
    if claim is not None and claim.checkpoints.newest:
        for begin in filter(None, claim.checkpoints):
            attempt = _load_checkpoint(scanner, begin)
            if attempt is not None:
                start, loaded = begin, attempt
                # With the newest damaged, the one that was read stands for both: its log is kept.
                older = claim.checkpoints.older if begin == claim.checkpoints.newest else begin
                checkpoints = Checkpoints(begin, older)
                break
    if not loaded.end and scanner.segments and min(scanner.segments) != FIRST_ORDINAL:
        raise MetadataDamaged(detail=f"the log begins in segment {min(scanner.segments)}")
    plan = plan_log(scanner, start)
    fell_back = claim is not None and claim.checkpoints.newest != checkpoints.newest
    return Recovered(scanner, plan, checkpoints, loaded.end, loaded.parts, plan.index_last, fell_back)


def _segment_of(scanner: Scanner, position: int) -> tuple[memoryview, int, int]:
    ordinal = position // scanner.segment_bytes
    return scanner.content(ordinal), ordinal, ordinal * scanner.segment_bytes


def _load_checkpoint(scanner: Scanner, begin: int) -> _Loaded | None:
    """The parts of the checkpoint that began there, or None if it does not read back whole."""
    parts: list[bytes] = []
    ordinal, offset = divmod(begin, scanner.segment_bytes)
    if ordinal not in scanner.segments:
        return None
    raw = parse(scanner.content(ordinal), offset, ordinal)
    if raw is None or raw.kind != Kind.CHECKPOINT_BEGIN:
        return None
    while ordinal in scanner.segments:
        data = scanner.content(ordinal)
        for at, raw in salvage(data, offset, ordinal):
            if raw.kind == Kind.CHECKPOINT_PART:
                if PART_HEAD.unpack(raw.head) == (begin, len(parts)):
                    parts.append(bytes(data[raw.body_from : raw.body_to]))
            elif raw.kind == Kind.CHECKPOINT_END:
                begun, count, checksum, _size = END_HEAD.unpack(raw.head)
                if begun != begin:
                    continue
                found = 0
                for part in parts:
                    found = crc32c(part, found)
                if count != len(parts) or found != checksum:
                    return None
                return _Loaded(parts, ordinal * scanner.segment_bytes + at)
        ordinal, offset = ordinal + 1, SEGMENT_HEADER_BYTES
    return None
