"""A section of persistent memory: a ring of events in one file.

    section = Section.create(path, name="normal", kind="normal", producer=id, bytes_=64 << 20,
                             event_bytes_max=16384, durability="power")
    section.record("disk.full", "volume/7", Severity.ERROR, time_ns, {"free_bytes": 0}, bits=0b11, epoch=3)
    for event in section.read(section.first_sequence, 100, 1 << 20): ...
    section.release(event.at + 1)

Guarantees
    1. `append` and `record` return when the event is durable, as the section's durability says it.
    2. They need no memory, no descriptor, no space on the disk and no thread that was not there when the section was
       opened. `record` encodes too; it is what an emitter calls.
    3. Full: `Blocked`, at once or after a time. Nothing is ever written over that was not released.
    4. After a kill or a loss of power `open` finds every event that `append` returned for.

Rules
    1. One process writes; any other opens it read-only, and only one of all moves the head (`release`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from clarion import limits
from clarion.errors import EventTooLarge, JournalFailed, SectionDamaged, SectionInUse
from clarion.events.encoding import Encoder
from clarion.events.memory import layout
from clarion.events.memory.ballast import Ballast, keep, of_process
from clarion.events.memory.committing import SyncedWriter
from clarion.events.memory.files import MappedFile, RingFile
from clarion.events.memory.layout import (
    FIRST_LAP,
    FOREIGN_BYTES,
    HEADER_OFFSETS,
    MARK_DURABLE,
    MARK_RELEASED_CHECK,
    MARK_RELEASED_POSITION,
    MARK_RELEASED_SEQUENCE,
    PAGE_BYTES,
    RING_OFFSET,
    STATE_OFFSETS,
    Header,
    Range,
    Recorded,
    State,
    aligned,
    decode_header,
    decode_state,
    encode_header,
    encode_state,
    released_check,
    ring_bytes_min,
    salt_of,
    span_max,
)
from clarion.events.memory.mapping import MappedWriter
from clarion.events.memory.reading import Reader
from clarion.events.memory.recording import Recording
from clarion.events.memory.recovery import Ring
from clarion.events.memory.restart import restart
from clarion.journal.options import Durability

_NO_BALLAST = Ballast(0)
"""Of sections that are only read."""


class Section(Recording):
    """Made by `create`, `open` or `attach`."""

    def __init__(self, name: str, file: RingFile, header: Header, *, writable: bool) -> None:
        self.name = name
        self.kind = header.kind
        self.producer = header.producer
        self.durability: Durability = header.durability
        self.event_bytes_max = header.event_bytes_max
        self.owner = header.owner_pid, header.owner_start
        """Process id and start time of who writes, or wrote, it."""
        self.created_ms = header.created_ms
        self.lost: list[Range] = []
        """[first, end) that were durable and are damaged."""
        self.torn: list[Range] = []
        """[first, end) that were being written when the power went: nobody was told that they are durable."""
        self.recovered_to = 0
        """What lies below was there when this process began to write it; 0 if it only reads."""
        self.file = file
        self._salt = salt_of(header.producer)
        self._ring = Ring(file.view[RING_OFFSET:], self._salt, aligned=header.durability == "power")
        self._marks = file.marks
        self._writer = None
        if writable:
            self._start_writing(header)
        else:
            self._ballast = _NO_BALLAST
            state = decode_state(file.view) or State(0, 1, FIRST_LAP * self._ring.bytes)
            mark = self._released_mark()
            head = max((state.sequence, state.position), mark or (0, 0))
            self._reader = Reader(self._ring, self.producer, head, self.lost, self.torn)

    def _start_writing(self, header: Header) -> None:
        found = restart(self.file, self._ring, header, self._released_mark())
        self.lost.extend(found.lost)
        self.torn.extend(found.torn)
        self.recovered_to = found.next_sequence
        head = found.head_sequence, found.head_position
        self._reader = Reader(self._ring, self.producer, head, self.lost, self.torn)
        self._publish_head(*head)
        self._ballast = of_process()
        record_max = FOREIGN_BYTES + header.event_bytes_max
        state = decode_state(self.file.view) or State(0, *head)
        common = (
            self.name,
            self.file,
            self._salt,
            header.incarnation,
            state,
            found.next_sequence,
            found.tail,
            record_max,
        )
        if self.durability == "power":
            gather = max(span_max(header.event_bytes_max), min(limits.EVENT_GROUP_BYTES_MAX, self._ring.bytes // 4))
            self._writer = SyncedWriter(*common, aligned(gather, PAGE_BYTES), self._ballast)
        else:
            self._writer = MappedWriter(*common)
        self._encoder = Encoder(header.event_bytes_max)

    # --- making -------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, path: Path, *, name: str, kind: str, producer: int, bytes_: int, event_bytes_max: int,
        durability: Durability,
    ) -> Section:  # fmt: skip
        """A new section with its space. Raises `NoSpace`, `FileExistsError`."""
        header, pages = new_pages(kind, producer, bytes_, event_bytes_max, durability)
        file = MappedFile.create(path, header.ring_bytes, pages)
        return cls._over(name, file, header, writable=True)

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> Section:
        """`writable` takes the lock and recovers. Raises `SectionInUse`, `SectionDamaged`, `FileNotFoundError`."""
        try:
            file = MappedFile.open(path, locked=writable)
        except BlockingIOError:
            raise SectionInUse(section=path.stem) from None
        return cls.attach(path.stem, file, writable=writable)

    @classmethod
    def attach(cls, name: str, file: RingFile, *, writable: bool) -> Section:
        """A section over any file; closes it if it is none."""
        try:
            header = decode_header(file.view, name)
            if header is None:
                raise SectionDamaged(path=name, detail="no copy of its header checks")
            if len(file.view) < RING_OFFSET + header.ring_bytes:
                raise SectionDamaged(path=name, detail=f"it has {len(file.view)} bytes and should have more")
        except BaseException:
            file.close()
            raise
        if writable:
            start = process_start()
            header = header._replace(incarnation=header.incarnation + 1, owner_pid=os.getpid(), owner_start=start)
        return cls._over(name, file, header, writable=writable)

    @classmethod
    def _over(cls, name: str, file: RingFile, header: Header, *, writable: bool) -> Section:
        try:
            return cls(name, file, header, writable=writable)
        except BaseException:
            file.close()
            raise

    def take_over(self, name: str) -> None:
        """This process, a fork of the one that opened it, writes from now on. It must have been empty."""
        writer = self.writer
        self.name = writer.name = name
        writer.adopt_process()
        self.owner = os.getpid(), self.owner[1]

    # --- reading ------------------------------------------------------------------------------------

    @property
    def next_sequence(self) -> int:
        """Everything below is durable and readable, or damaged."""
        return self._marks[MARK_DURABLE] + 1

    @property
    def first_sequence(self) -> int:
        """The oldest that is not released."""
        return self._reader.head[0]

    def read(self, first: int, count_max: int, bytes_max: int) -> list[Recorded]:
        """Events from `first` on, in order, without damaged ones; at least one if there is one."""
        return self._reader.read(first, self.next_sequence, count_max, bytes_max)

    @property
    def ring_bytes(self) -> int:
        """What the ring has room for."""
        return self._ring.bytes

    def used_bytes(self) -> int:
        """What is recorded and not released takes so much of it."""
        end = self.next_sequence
        return self._reader.position_of(end, end) - self._reader.head[1]

    def release(self, sequence: int) -> None:
        """Everything below is not needed any more."""
        sequence = min(sequence, self.next_sequence)
        if sequence <= self._reader.head[0]:
            return
        position = self._reader.position_of(sequence, self.next_sequence)
        self._reader.release(sequence, position)
        self._publish_head(sequence, position)

    def follow(self) -> None:
        """For a reader beside the one that releases: take over what that has released."""
        released = self._released_mark()
        if released is not None and released[0] > self._reader.head[0]:
            self._reader.release(*released)

    def _publish_head(self, sequence: int, position: int) -> None:
        marks = self._marks
        marks[MARK_RELEASED_SEQUENCE] = sequence
        marks[MARK_RELEASED_POSITION] = position
        marks[MARK_RELEASED_CHECK] = released_check(sequence, position, self._salt)

    def _released_mark(self) -> Range | None:
        sequence, position = self._marks[MARK_RELEASED_SEQUENCE], self._marks[MARK_RELEASED_POSITION]
        check = released_check(sequence, position, self._salt)
        return (sequence, position) if self._marks[MARK_RELEASED_CHECK] == check else None

    def close(self) -> None:
        """Write what waits, and let the file go. Twice is once."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None and not writer.failed:
                writer.check()
                writer.flush()
                writer.save_state()
        except JournalFailed:
            pass
        finally:
            self._ring.view.release()
            self.file.close()


def new_pages(
    kind: str, producer: int, bytes_: int, event_bytes_max: int, durability: Durability
) -> tuple[Header, bytes]:
    """The header of a new section, and the pages before its ring."""
    if event_bytes_max > limits.EVENT_BYTES_MAX_MAX:
        raise EventTooLarge(size=event_bytes_max, limit=limits.EVENT_BYTES_MAX_MAX)
    ring_bytes = max(aligned(bytes_, PAGE_BYTES), ring_bytes_min(event_bytes_max))
    created_ms = time.time_ns() // 1_000_000
    header = Header(
        kind, durability, producer, ring_bytes, event_bytes_max, 1, os.getpid(), process_start(), created_ms
    )
    pages = bytearray(RING_OFFSET)
    for offset in HEADER_OFFSETS:
        sector = encode_header(header)
        pages[offset : offset + len(sector)] = sector
    sector = encode_state(State(0, 1, FIRST_LAP * ring_bytes))
    pages[STATE_OFFSETS[0] : STATE_OFFSETS[0] + len(sector)] = sector
    return header, bytes(pages)


def process_start() -> int:
    """When this process was started, in ticks since the machine was: with its id, who a process is."""
    with Path("/proc/self/stat").open("rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


keep(Section, MappedFile, layout)
