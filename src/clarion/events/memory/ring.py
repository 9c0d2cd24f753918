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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clarion import limits
from clarion.errors import Blocked, EventTooLarge, JournalFailed, SectionDamaged, SectionInUse
from clarion.events import event as events
from clarion.events.encoding import Attributes, Encoded, Encoder
from clarion.events.memory import layout
from clarion.events.memory.ballast import (
    NO_MEMORY,
    STILL_NO_MEMORY,
    Ballast,
    apart,
    keep,
    of_process,
)
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
from clarion.events.memory.reading import Reader
from clarion.events.memory.recovery import Ring
from clarion.events.memory.restart import restart
from clarion.events.memory.writing import BUSY, FULL, MappedWriter, Mirror, Origin, Writer
from clarion.events.small_pieces import SmallPieces
from clarion.journal.options import Durability

_WAIT_S_MIN = 0.0005
_sleep = time.sleep
_WAIT_S_MAX = 0.02


class _Wait:
    """For room, a bounded time."""

    def __init__(self, wait_s: float | None) -> None:
        self._deadline = None if wait_s is None else time.monotonic() + wait_s
        self._pause_s = _WAIT_S_MIN

    def pause(self, writer: Writer) -> None:
        """Raises `Blocked` when the time is over."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            writer.refused += 1
            raise Blocked(destination=writer.name, detail="persistent memory is full")
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _WAIT_S_MAX)


_NO_BALLAST = Ballast(0)
"""Of sections that are only read."""


class Section:
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
        self.file = file
        self._salt = salt_of(header.producer)
        self._ring = Ring(file.view[RING_OFFSET:], self._salt, aligned=header.durability == "power")
        self._marks = file.marks
        self._writer: SyncedWriter | MappedWriter | None = None
        self._ballast: Ballast
        self._encoder: Encoder
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

    # --- writing ------------------------------------------------------------------------------------

    @property
    def writer(self) -> SyncedWriter | MappedWriter:
        if self._writer is None:
            raise Blocked(destination=self.name, detail="it was opened to be read")
        return self._writer

    def held_here(self) -> bool:
        """This thread is recording an event in it at this moment: a signal handler must use another section."""
        return self._writer is not None and self._writer.held_here()

    @property
    def ballast(self) -> Ballast:
        """Memory for whoever writes here when there is no other; refilled before a write to the disk."""
        return self._ballast

    @property
    def encoder(self) -> Encoder:
        """Makes what `append` takes."""
        return self._encoder

    @property
    def mirror(self) -> Mirror | None:
        """Gets a copy of every group before `append` returns."""
        return self.writer.mirror

    @mirror.setter
    def mirror(self, mirror: Mirror | None) -> None:
        self.writer.attach(mirror)

    @property
    def refused(self) -> int:
        """Events that found no room."""
        return self._writer.refused if self._writer is not None else 0

    @property
    def failed(self) -> str:
        """Why nothing can be recorded any more; empty while it can."""
        return self._writer.failed if self._writer is not None else ""

    def record(
        self, type_: str, source: str, severity: int, time_ns: int, data: Any = None,
        attributes: Attributes | None = None, content_type: str = "", *, bits: int = 0, epoch: int = 0, flags: int = 0,
        wait_s: float | None = 0.0,
    ) -> int:  # fmt: skip
        """Encode and append an event, with or without memory; its sequence. Raises what `append` and `Encoder` do."""
        ballast = self._ballast
        while True:
            try:
                arguments = (type_, source, severity, time_ns, data, attributes, content_type)
                if not ballast.missing or ballast.wanted[1] is ballast.wanted[1][1]:
                    return self._insist_on(None, arguments, bits, epoch, flags, wait_s, None)
                # Whoever waits for the interpreter begins to wait anew: it is not passed on for some milliseconds.
                ballast.refill()
                _sleep(0)
                ballast.wanted = ballast.blocks = ballast.wanted[1][1]
                ballast.resize(*ballast.blocks[0])
                return self._insist_apart(None, arguments, bits, epoch, flags, wait_s, None)
            except NO_MEMORY as error:
                # Nothing has happened yet; unless that comes from inside, where all was tried.
                if error is ballast.final:
                    raise
                if ballast.scraps is not None:
                    ballast.scraps = None
                elif ballast.whole is not None:
                    ballast.whole = ballast.whole[1]
                    ballast.blocks = ballast.blocks[1]
                    ballast.resize(*ballast.blocks[0])
                else:
                    raise
                ballast.missing = True
            finally:
                if ballast.wanted is not ballast.wanted[2]:
                    try:  # both at once, before anybody else runs
                        ballast.resize(*ballast.wanted[2][2][0])
                        ballast.wanted = ballast.blocks = ballast.wanted[2][2]
                    except STILL_NO_MEMORY:
                        pass

    def append(
        self,
        event: Encoded,
        bits: int,
        epoch: int,
        flags: int = 0,
        *,
        wait_s: float | None = 0.0,
        origin: Origin | None = None,
    ) -> int:
        """The sequence of the event, which is durable. `wait_s` None waits for room without end.

        Raises `Blocked`, `EventTooLarge`, `JournalFailed`, `WrongProcess`.
        """
        ballast = self._ballast
        while True:
            try:
                if not ballast.missing or ballast.wanted[1] is ballast.wanted[1][1]:
                    return self._insist_on(event, (), bits, epoch, flags, wait_s, origin)
                # Whoever waits for the interpreter begins to wait anew: it is not passed on for some milliseconds.
                ballast.refill()
                _sleep(0)
                ballast.wanted = ballast.blocks = ballast.wanted[1][1]
                ballast.resize(*ballast.blocks[0])
                return self._insist_apart(event, (), bits, epoch, flags, wait_s, origin)
            except NO_MEMORY as error:
                if error is ballast.final:
                    raise
                if ballast.scraps is not None:
                    ballast.scraps = None
                elif ballast.whole is not None:
                    ballast.whole = ballast.whole[1]
                    ballast.blocks = ballast.blocks[1]
                    ballast.resize(*ballast.blocks[0])
                else:
                    raise
                ballast.missing = True
            finally:
                if ballast.wanted is not ballast.wanted[2]:
                    try:  # both at once, before anybody else runs
                        ballast.resize(*ballast.wanted[2][2][0])
                        ballast.wanted = ballast.blocks = ballast.wanted[2][2]
                    except STILL_NO_MEMORY:
                        pass

    def _insist_on(
        self,
        event: Encoded | None,
        arguments: tuple[Any, ...],
        bits: int,
        epoch: int,
        flags: int,
        wait_s: float | None,
        origin: Origin | None,
    ) -> int:
        """Encode, stage, commit: each step again and again until the memory of the ballast is used up.

        All in one function: what was done is in its variables, and to look at them needs no memory.
        """
        writer, encoder, ballast = self.writer, self._encoder, self._ballast
        sequence = BUSY
        wait: _Wait | None = None
        without_memory = mine = entered = False
        ballast.final = None
        try:
            while True:
                try:
                    if event is None:
                        if not without_memory and not ballast.missing:
                            without_memory = True  # unless this succeeds
                            event = encoder.encode(*arguments)
                            without_memory = False
                        else:
                            if not mine:
                                if encoder.owned():
                                    raise _reentered(self.name)
                                mine = True
                                encoder.lock.acquire()
                            event = encoder.encode_without_memory(*arguments)
                    if sequence <= 0:
                        writer.check()
                        entered = True
                        sequence = writer.stage(event, bits, epoch, flags, origin)
                        if sequence <= 0:
                            if sequence == BUSY:
                                writer.flush()
                            else:
                                wait = wait or _Wait(wait_s)
                                wait.pause(writer)
                            continue
                    writer.commit(sequence)
                    return sequence
                except NO_MEMORY as error:
                    if entered:  # to leave a `with` by an error needs memory, too: else its lock was not let go
                        while writer._owned():
                            writer._lock.release()
                        while writer._leading():
                            writer._committing.release()
                    if ballast.scraps is not None:
                        ballast.scraps = None
                    elif ballast.whole is not None:
                        ballast.whole = ballast.whole[1]
                        ballast.blocks = ballast.blocks[1]
                        ballast.resize(*ballast.blocks[0])
                    else:
                        ballast.final = error
                        raise
                    ballast.missing = True
        finally:
            event = wait = None  # what is freed after the refill is taken by others
            if mine and encoder.owned():
                encoder.lock.release()
            if ballast.missing:
                self._refill()

    _insist_apart = apart(_insist_on)

    def _refill(self) -> None:
        try:
            self._ballast.refill()
        except NO_MEMORY:
            pass

    def append_many(
        self, events: Sequence[Encoded], bits: int | Sequence[int], epoch: int, flags: int = 0, *,
        wait_s: float | None = 0.0, origins: Sequence[Origin] | None = None,
    ) -> range:  # fmt: skip
        """Append all events, one after the other, with as few syncs as possible; or none of them, and `Blocked`."""
        writer = self.writer
        each = [bits] * len(events) if isinstance(bits, int) else bits
        writer.check()
        needed = writer.bytes_needed(events, origins)
        wait = _Wait(wait_s)
        while True:
            first = writer.stage_run(events, each, epoch, flags, origins, needed, self._insist)
            if first != FULL:
                break
            wait.pause(writer)
        self._insist(writer.commit, first + len(events) - 1)
        return range(first, first + len(events))

    def put(self, recorded: Recorded, *, wait_s: float | None = 0.0) -> int:
        """Append an event that was emitted elsewhere, under its own id; its sequence here."""
        origin = recorded.producer.to_bytes(16, "big"), recorded.sequence
        event = Encoded(recorded.time_ns, recorded.severity, recorded.headers, recorded.body)
        return self.append(event, recorded.bits, recorded.epoch, recorded.flags, wait_s=wait_s, origin=origin)

    def put_many(self, recorded: Sequence[Recorded], *, wait_s: float | None = 0.0) -> range:
        """`put` all of them, or none; they have the epoch and the flags of the first."""
        if not recorded:
            return range(self.next_sequence, self.next_sequence)
        events = [Encoded(each.time_ns, each.severity, each.headers, each.body) for each in recorded]
        origins = [(each.producer.to_bytes(16, "big"), each.sequence) for each in recorded]
        bits = [each.bits for each in recorded]
        epoch, flags = recorded[0].epoch, recorded[0].flags
        return self.append_many(events, bits, epoch, flags, wait_s=wait_s, origins=origins)

    def _insist(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do it, if there is no memory with what the ballast has."""
        ballast = self._ballast
        while True:
            try:
                return work(*arguments)
            except NO_MEMORY:
                if ballast.scraps is not None:
                    ballast.scraps = None
                elif ballast.whole is not None:
                    ballast.whole = ballast.whole[1]
                    ballast.blocks = ballast.blocks[1]
                    ballast.resize(*ballast.blocks[0])
                else:
                    raise
                ballast.missing = True
            finally:
                if ballast.missing:
                    self._refill()

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


def _reentered(name: str) -> Blocked:
    return Blocked(destination=name, detail="the same thread is recording an event in it")


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


keep(Section, _Wait, Ballast, Writer, MappedWriter, SyncedWriter, Encoder, SmallPieces, MappedFile, layout, events)
