"""What a ledger knows, in memory: made of entries, and nothing else. Pure.

Rules
    1. `apply` never fails and never decides. What names a section that is gone changes nothing.
    2. A checkpoint is the entries that make this state: the small part at once, the dead page by page.

Epochs: every change of the recipients begins a new one. A record carries the epoch of the table that decided for whom
it is: bit n of it means whoever had slot n in that epoch. A slot is given to somebody else only when no section can
hold a record of an epoch in which its last holder was there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from clarion import limits
from clarion.core.spans import Spans
from clarion.events.ledger.dead import DeadTable
from clarion.events.ledger.entries import (
    KIND_OF,
    RANGES_PER_ENTRY_MAX,
    Added,
    Adopted,
    Confirmed,
    Counters,
    DeadAgain,
    DeadAt,
    Decided,
    Entry,
    Finished,
    Kind,
    Purged,
    Recipient,
    Removed,
    Resent,
    Value,
    decode,
    encode,
    id_bytes,
    id_of,
)

_ROW = struct.Struct("<BI")
_PART_BYTES = limits.CHECKPOINT_PART_BYTES_MAX - 8 * limits.KIB


class RecipientRow(msgspec.Struct):
    """A recipient; a removed one stays until its slot is free."""

    slot: int
    name: str
    since: int
    """The epoch in which it came."""
    filters: list[tuple[int, str]]
    """(epoch, filter), the newest last: what is undecided is decided as of the epoch of its record."""
    removed: int = 0
    """The epoch from which on it is gone; 0 while it is there."""
    owed: int = 0
    """What it had not confirmed when it was removed."""
    removed_ms: int = 0

    @property
    def filter(self) -> str:
        return self.filters[-1][1]

    def filter_at(self, epoch: int) -> str | None:
        """What it wanted in an epoch; None if it was not there."""
        if self.removed and epoch >= self.removed:
            return None
        found = None
        for since, text in self.filters:
            if since <= epoch:
                found = text
        return found if self.since <= epoch else None


class Settled:
    """What one recipient has settled of one section: everything below the floor, and spans above it."""

    __slots__ = ("durable_floor", "floor", "spans")

    def __init__(self, floor: int) -> None:
        self.floor = self.durable_floor = floor
        self.spans = Spans()

    def add(self, first: int, end: int) -> None:
        if end <= self.floor:
            return
        spans = self.spans
        if first <= self.floor and not spans:  # the usual case
            self.floor = end
            return
        spans.put(max(first, self.floor), end)
        for span_first, span_end, _ in spans:
            if span_first <= self.floor:
                self.floor = span_end
            break
        spans.cut_below(self.floor)


class SectionRow(msgspec.Struct):
    """A section that is not finished."""

    section: int
    name: str
    kind: str
    first: int
    """Everything below is settled for everybody."""
    oldest_epoch: int
    settled: dict[int, Settled] = msgspec.field(default_factory=dict)
    decided: Spans = msgspec.field(default_factory=Spans)

    def of(self, slot: int) -> Settled:
        found = self.settled.get(slot)
        if found is None:
            found = self.settled[slot] = Settled(self.first)
        return found

    def release(self, first: int) -> None:
        """Everything below `first` is gone from the section."""
        if first > self.first:
            self.first = first
            self.decided.cut_below(first)
            for settled in self.settled.values():
                settled.add(0, first)
                settled.durable_floor = max(settled.durable_floor, first)


class State:
    """See the module."""

    def __init__(self) -> None:
        self.epoch = 0
        self.recipients: dict[int, RecipientRow] = {}
        self.sections: dict[int, SectionRow] = {}
        self.values: dict[str, bytes] = {}
        self.dead = DeadTable()

    # --- questions ------------------------------------------------------------------------------------

    def by_name(self, name: str) -> RecipientRow | None:
        """A recipient that is there."""
        for row in self.recipients.values():
            if row.name == name and not row.removed:
                return row
        return None

    def free_slot(self) -> int | None:
        """A slot that no record can mean for somebody else: a new one if there is one."""
        for slot in range(limits.EVENT_RECIPIENTS_MAX):
            if slot not in self.recipients:
                return slot
        oldest = self.oldest_epoch()
        reusable = [row for row in self.recipients.values() if row.removed and row.removed <= oldest]
        return min(reusable, key=lambda row: row.removed).slot if reusable else None

    def oldest_epoch(self) -> int:
        """No record of any section is of an older one."""
        return min((row.oldest_epoch for row in self.sections.values()), default=self.epoch)

    # --- entries --------------------------------------------------------------------------------------

    def apply(self, kind: int, head: bytes, position: int = 0, span: int = 0) -> None:
        """An entry of the log, or a row of a checkpoint; `position` and `span` are where its body is."""
        entry: Any = decode(kind, head)
        if kind == Kind.DEAD:
            self.dead.put(entry, position, span)
            self._settle(id_of(entry.section), entry.slot, [entry.at, entry.at + 1])
        else:
            _APPLY[kind](self, entry)

    def _settle(self, section: int, slot: int, bounds: list[int]) -> None:
        row = self.sections.get(section)
        if row is not None:
            settled = row.of(slot)
            for first, end in zip(bounds[::2], bounds[1::2], strict=True):
                settled.add(first, end)

    def _confirmed(self, entry: Confirmed) -> None:
        self._settle(id_of(entry.section), entry.slot, entry.bounds)

    def _added(self, entry: Added) -> None:
        self.epoch = max(self.epoch, entry.epoch)
        row = self.recipients.get(entry.slot)
        if row is not None and not row.removed:
            oldest = self.oldest_epoch()
            while len(row.filters) > 1 and row.filters[1][0] <= oldest:
                del row.filters[0]  # no record can ask for it
            row.filters.append((entry.epoch, entry.filter))
            return
        for section in self.sections.values():
            section.settled.pop(entry.slot, None)  # somebody else's
        self.recipients[entry.slot] = RecipientRow(
            entry.slot, entry.name, entry.epoch, [(entry.epoch, entry.filter)]
        )  # fmt: skip

    def _removed(self, entry: Removed) -> None:
        self.epoch = max(self.epoch, entry.epoch)
        row = self.recipients[entry.slot]
        row.removed, row.owed, row.removed_ms = entry.epoch, entry.owed, entry.time_ms

    def _adopted(self, entry: Adopted) -> None:
        section = id_of(entry.section)
        if section not in self.sections:
            self.sections[section] = SectionRow(section, entry.name, entry.kind, entry.first, entry.oldest_epoch)

    def _finished(self, entry: Finished) -> None:
        self.sections.pop(id_of(entry.section), None)

    def _decided(self, entry: Decided) -> None:
        row = self.sections.get(id_of(entry.section))
        if row is not None:
            runs = entry.runs
            for first, end, bits in zip(runs[::3], runs[1::3], runs[2::3], strict=True):
                row.decided.put(first, end, bits)

    def _purged(self, entry: Purged) -> None:
        for number in entry.numbers:
            self.dead.discard(number)

    def _resent(self, entry: Resent) -> None:
        self.dead.send_again(entry)

    def _dead_again(self, entry: DeadAgain) -> None:
        self.dead.give_up_again(entry)

    def _value(self, entry: Value) -> None:
        if entry.value is None:
            self.values.pop(entry.name, None)
        else:
            self.values[entry.name] = entry.value

    def _recipient(self, entry: Recipient) -> None:
        self.recipients[entry.slot] = RecipientRow(
            entry.slot, entry.name, entry.since, list(entry.filters), entry.removed, entry.owed, entry.removed_ms
        )

    def _counters(self, entry: Counters) -> None:
        self.epoch = entry.epoch
        self.dead.number_next, self.dead.resent_next = entry.number_next, entry.resent_next

    def _dead_at(self, entry: DeadAt) -> None:
        self.dead.put(entry.dead, entry.position, entry.span, entry.resent_at)

    # --- checkpoints ----------------------------------------------------------------------------------

    def dump(self) -> Iterator[bytes]:
        """The parts of a checkpoint: what is small as it is now, the dead as they are when their turn comes."""
        small = list(_packed(self._entries()))

        def parts() -> Iterator[bytes]:
            yield from small
            for page in self.dead.pages():
                rows = b"".join(_ROW.pack(Kind.DEAD_AT, len(head)) + head for head in page)
                for start in _cuts(page):
                    yield rows[slice(*start)]

        return parts()

    def _entries(self) -> Iterator[Entry]:
        yield Counters(self.epoch, self.dead.number_next, self.dead.resent_next)
        for one in self.recipients.values():
            yield Recipient(one.slot, one.name, one.since, one.removed, one.owed, one.removed_ms, one.filters)
        for name, value in self.values.items():
            yield Value(name, value)
        for row in self.sections.values():
            section = id_bytes(row.section)
            yield Adopted(section, row.name, row.kind, row.first, row.oldest_epoch)
            for slot, settled in row.settled.items():
                bounds = [row.first, settled.floor] if settled.floor > row.first else []
                bounds += [bound for first, end, _ in settled.spans for bound in (first, end)]
                for start in range(0, len(bounds), 2 * RANGES_PER_ENTRY_MAX):
                    yield Confirmed(section, slot, bounds[start : start + 2 * RANGES_PER_ENTRY_MAX])
            runs = [part for run in row.decided for part in run]
            for start in range(0, len(runs), 3 * RANGES_PER_ENTRY_MAX):
                yield Decided(section, runs[start : start + 3 * RANGES_PER_ENTRY_MAX])

    def load(self, parts: list[bytes]) -> None:
        """A checkpoint; entries of the log come after it."""
        for part in parts:
            at = 0
            while at < len(part):
                kind, size = _ROW.unpack_from(part, at)
                at += _ROW.size
                self.apply(kind, part[at : at + size])
                at += size

    @property
    def checkpoint_bytes(self) -> int:
        """About what a checkpoint takes."""
        spans = sum(
            2 * len(row.decided) + sum(1 + len(settled.spans) for settled in row.settled.values())
            for row in self.sections.values()
        )
        values = sum(64 + len(value) for value in self.values.values())
        rows = 512 * (len(self.recipients) + len(self.sections))
        return 4 * limits.KIB + rows + 32 * spans + values + self.dead.checkpoint_bytes


def _packed(entries: Iterator[Entry]) -> Iterator[bytes]:
    """Entries as rows, in parts that fit."""
    rows: list[bytes] = []
    size = 0
    for entry in entries:
        head = encode(entry)
        if rows and size + len(head) > _PART_BYTES:
            yield b"".join(rows)
            rows, size = [], 0
        rows.append(_ROW.pack(KIND_OF[type(entry)], len(head)) + head)
        size += len(rows[-1])
    if rows:
        yield b"".join(rows)


def _cuts(page: list[bytes]) -> Iterator[tuple[int, int]]:
    """Where to cut the rows of a page, so that each part fits."""
    start = end = 0
    for head in page:
        size = _ROW.size + len(head)
        if end + size - start > _PART_BYTES:
            yield start, end
            start = end
        end += size
    if end > start:
        yield start, end


_APPLY: dict[int, Any] = {
    Kind.ADDED: State._added,
    Kind.REMOVED: State._removed,
    Kind.ADOPTED: State._adopted,
    Kind.FINISHED: State._finished,
    Kind.CONFIRMED: State._confirmed,
    Kind.DECIDED: State._decided,
    Kind.PURGED: State._purged,
    Kind.RESENT: State._resent,
    Kind.DEAD_AGAIN: State._dead_again,
    Kind.VALUE: State._value,
    Kind.RECIPIENT: State._recipient,
    Kind.COUNTERS: State._counters,
    Kind.DEAD_AT: State._dead_at,
}
