"""Recording an event in a ring, with memory or without: the half of a section that an emitter calls.

Theory of operation
    What an event needs is done in steps: encode, stage, commit. Each is tried again where there was no memory for it,
    with a unit of the ballast more, until that is used up. What was done is in variables of the function that tries,
    and to look at them needs no memory.

Guarantees
    1. `append` and `record` return when the event is durable, as the section's durability says it.
    2. They need no memory, no descriptor, no space on the disk and no thread that was not there when the section was
       opened. `record` encodes too; it is what an emitter calls.
    3. What raises has recorded nothing, unless the disk failed.

Rules
    1. To take from the ballast is written out wherever it is done: a function would need memory for its frame.
    2. A function in which memory may be missing is short (rule 3 of `writing`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from clarion.errors import Blocked
from clarion.events import encoding
from clarion.events import event as events
from clarion.events.encoding import Attributes, Encoded, Encoder
from clarion.events.memory.ballast import NO_MEMORY, STILL_NO_MEMORY, Ballast, apart, keep
from clarion.events.memory.committing import SyncedWriter
from clarion.events.memory.layout import MARK_REFUSED, Recorded
from clarion.events.memory.mapping import MappedWriter
from clarion.events.memory.writing import BUSY, FULL, Mirror, Origin, Writer
from clarion.events.small_pieces import SmallPieces

_WAIT_S_MIN = 0.0005
_WAIT_S_MAX = 0.02
_sleep = time.sleep


class _Wait:
    """For room, a bounded time."""

    def __init__(self, wait_s: float | None) -> None:
        self._deadline = None if wait_s is None else time.monotonic() + wait_s
        self._pause_s = _WAIT_S_MIN

    def pause(self, writer: Writer) -> None:
        """Raises `Blocked` when the time is over."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            writer.refuse()
            raise Blocked(destination=writer.name, detail="persistent memory is full")
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _WAIT_S_MAX)


class Recording:
    """Of `Section`, which sets what is declared here."""

    name: str
    _writer: SyncedWriter | MappedWriter | None
    _ballast: Ballast
    _encoder: Encoder
    _marks: memoryview

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
        """Events that found no room, in any process that wrote it."""
        return self._marks[MARK_REFUSED]

    @property
    def failed(self) -> str:
        """Why nothing can be recorded any more; empty while it can."""
        return self._writer.failed if self._writer is not None else ""

    # --- one event ----------------------------------------------------------------------------------

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
                if ballast.missing:
                    return self._in_want(None, arguments, bits, epoch, flags, wait_s, None)
                return self._insist_on(None, arguments, bits, epoch, flags, wait_s, None)
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
                if ballast.missing:
                    return self._in_want(event, (), bits, epoch, flags, wait_s, origin)
                return self._insist_on(event, (), bits, epoch, flags, wait_s, origin)
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

    def _in_want(
        self,
        event: Encoded | None,
        arguments: tuple[Any, ...],
        bits: int,
        epoch: int,
        flags: int,
        wait_s: float | None,
        origin: Origin | None,
    ) -> int:
        """`_insist_on` when memory was missing before; afterwards the ballast has the blocks again."""
        ballast = self._ballast
        try:
            sequence = self._in_a_block(event, arguments, bits, epoch, flags, wait_s, origin)
        finally:
            try:  # both at once, before anybody else runs
                ballast.resize(*ballast.wanted[2][2][0])
                ballast.wanted = ballast.blocks = ballast.wanted[2][2]
            except STILL_NO_MEMORY:
                pass
        return sequence

    def _in_a_block(
        self,
        event: Encoded | None,
        arguments: tuple[Any, ...],
        bits: int,
        epoch: int,
        flags: int,
        wait_s: float | None,
        origin: Origin | None,
    ) -> int:
        """Of its own, while there is one."""
        ballast = self._ballast
        if ballast.wanted[1] is ballast.wanted[1][1]:
            return self._insist_on(event, arguments, bits, epoch, flags, wait_s, origin)
        # Whoever waits for the interpreter begins to wait anew: it is not passed on for some milliseconds.
        ballast.refill()
        _sleep(0)
        ballast.wanted = ballast.blocks = ballast.wanted[1][1]
        ballast.resize(*ballast.blocks[0])
        return self._insist_apart(event, arguments, bits, epoch, flags, wait_s, origin)

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
        """Encode what is not encoded yet, and write it."""
        ballast = self._ballast
        ballast.final = None
        try:
            writer = self.writer
            writer.check()
            if event is None and not ballast.missing:
                event = self._encoded(arguments)
            if event is not None:
                sequence = self._write(writer, event, bits, epoch, flags, wait_s, origin)
            else:
                sequence = self._encode_and_write(writer, arguments, bits, epoch, flags, wait_s)
        finally:
            event = None  # what is freed after the refill is taken by others
            if ballast.missing:
                try:
                    ballast.refill()
                except NO_MEMORY:
                    pass
        return sequence

    _insist_apart = apart(_insist_on)

    def _encoded(self, arguments: tuple[Any, ...]) -> Encoded | None:
        """None if there was no memory. Not tried again: if there is enough for all else, that would not end."""
        try:
            return self._encoder.encode(*arguments)
        except NO_MEMORY:
            return None

    def _encode_and_write(
        self,
        writer: SyncedWriter | MappedWriter,
        arguments: tuple[Any, ...],
        bits: int,
        epoch: int,
        flags: int,
        wait_s: float | None,
    ) -> int:
        """Without memory: the encoder's only buffer is ours until the event is written."""
        encoder = self._encoder
        if encoder.owned():
            raise Blocked(destination=self.name, detail="the same thread is recording an event in it")
        try:
            encoder.lock.acquire()
            event = self._encode(encoder, arguments)
            return self._write(writer, event, bits, epoch, flags, wait_s, None)
        finally:
            if encoder.owned():
                encoder.lock.release()

    def _encode(self, encoder: Encoder, arguments: tuple[Any, ...]) -> Encoded:
        ballast = self._ballast
        while True:
            try:
                return encoder.encode_without_memory(*arguments)
            except NO_MEMORY as error:
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

    def _write(
        self,
        writer: SyncedWriter | MappedWriter,
        event: Encoded,
        bits: int,
        epoch: int,
        flags: int,
        wait_s: float | None,
        origin: Origin | None,
    ) -> int:
        ballast = self._ballast
        sequence = BUSY
        wait: _Wait | None = None
        while True:
            try:
                if sequence <= 0:
                    sequence = writer.stage(event, bits, epoch, flags, origin)
                if sequence > 0:
                    writer.commit(sequence)
                    return sequence
                wait = _make_way(writer, sequence, wait, wait_s)
            except NO_MEMORY as error:
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

    # --- events from elsewhere, and many ------------------------------------------------------------

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
            following = self.writer.durable + 1
            return range(following, following)
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
                    ballast.refill()


def _make_way(writer: Writer, found: int, wait: _Wait | None, wait_s: float | None) -> _Wait | None:
    """After `stage` found it busy, or no room."""
    if found == BUSY:
        writer.flush()
        return wait
    if wait is None:
        wait = _Wait(wait_s)
    wait.pause(writer)
    writer.check()
    return wait


keep(Recording, _Wait, Ballast, Writer, MappedWriter, SyncedWriter, Encoder, encoding, SmallPieces, events)
