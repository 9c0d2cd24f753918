"""A journal with an owner that remembers everything, to compare with what a recovery finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from crc32c import crc32c

from clarion.errors import ClarionError, JournalFull
from clarion.journal import InlineCommitter, Journal, JournalOptions, Location, LostRange, Recovery, Store
from clarion.journal.options import Probe
from clarion.journal.record import ALIGN_BYTES, CHECKSUM, FIELDS, MAGIC

ENTRY = 40
SEGMENT_BYTES = 16_384


def encode(kind: int, generation: int, incarnation: int, index: int, head: bytes, body: bytes) -> bytes:
    """One record as docs/formats/journal.md describes it, the plain way: what hot code makes is compared with it."""
    fields = FIELDS.pack(MAGIC, kind, 0, generation, incarnation, len(head), len(body), index)
    record = CHECKSUM.pack(crc32c(fields + head + body)) + fields + head + body
    return record + bytes(-len(record) % ALIGN_BYTES)


@dataclass
class Found:
    """What a recovery gave: per entry (index, head, body or None)."""

    parts: list[bytes]
    entries: list[tuple[int, bytes, bytes | None]]
    lost: list[LostRange]
    recovery: Recovery


@dataclass
class Owner:
    """Appends entries, knows which were reported durable, and can make a checkpoint of all of them."""

    journal: Journal
    committer: InlineCommitter
    found: Found
    appended: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    locations: list[Location] = field(default_factory=list)
    durable_count: int = 0
    failures: list[ClarionError] = field(default_factory=list)
    checkpoints: int = 0

    def append(self, body: bytes, head: bytes = b"", *, reserve: bool = False) -> Location:
        location = self.journal.append(ENTRY, head, body, reserve=reserve)
        self.appended.append((location.index, head, body))
        self.ends.append(location.position + location.span)
        self.locations.append(location)
        return location

    def on_durable(self, position: int) -> None:
        while self.durable_count < len(self.ends) and self.ends[self.durable_count] <= position:
            self.durable_count += 1

    @property
    def durable(self) -> list[tuple[int, bytes, bytes]]:
        return self.appended[: self.durable_count]

    def checkpoint(self, parts: list[bytes]) -> None:
        def done() -> None:
            self.checkpoints += 1

        self.journal.checkpoint(iter(parts), done)


def open_owner(store: Store, probe: Probe | None = None, *, waits_here: bool = False, **options: int | str) -> Owner:
    """Open, replay, start. The owner retains nothing."""
    committer = InlineCommitter(waits_here=waits_here)
    made = JournalOptions(**options)  # type: ignore[arg-type]
    journal, recovery = Journal.open(store, made, committer, probe)
    entries = [
        (record.index, record.head, None if record.body is None else bytes(record.body)) for record in recovery.records
    ]
    found = Found(recovery.checkpoint_parts, entries, recovery.lost, recovery)
    owner = Owner(journal, committer, found)
    journal.on_durable = owner.on_durable
    journal.may_wait = lambda: True
    journal.on_failed = owner.failures.append
    journal.start()
    committer.run()
    return owner


def body_of(rng: Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 30, 200, 1_000, 3_000, 6_000)))


def fill(owner: Owner, *, reserve: bool = False, body: bytes = bytes(1_500)) -> int:
    """Append until refused."""
    count = 0
    while True:
        try:
            owner.append(body, reserve=reserve)
        except JournalFull:
            return count
        count += 1
        owner.committer.run()
