"""Large bodies: where their fragments lie in the journal, which of them are complete, and who needs them.

Theory of operation
    A body arrives as fragments, each an entry of the log, in order and without a gap. The first one makes a
    stream and gives it a number that is never used again. When the message itself is stored (entry LARGE), the
    stream is complete: it belongs to every message that names its number, in the destination that it was sent
    to and, if it dies, in `_DMQ`; those keep the numbers (`Destination.large`, `Staged.stream`). A stream whose last
    message is released is gone.

Rules
    1. Pure. What the log says (`append`, `complete`, `drop`) is one function of the log; who holds a stream is
       counted from the destinations after a replay (`count`) and kept up to date by the host afterwards.
    2. A row per fragment in three columns, 20 bytes: a body of 20 GiB takes 1.8 MB here.
    3. A replay keeps streams that nobody holds any more until `count`: entries of destinations that reflect less of the
       log than this table may still name them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from clarion import ids, limits

ID_BYTES = 24
_PRODUCER_BYTES = 16
_KEYED = 1
"""Set in the sequence part of the producer id that an id begins with: no producer has it, so it is of a key."""


def stream_id(producer: int, number: int) -> bytes:
    """The id of a producer's stream of this number."""
    return producer.to_bytes(_PRODUCER_BYTES, "big") + number.to_bytes(ID_BYTES - _PRODUCER_BYTES, "big")


def keyed_id(name: str, key: str) -> bytes:
    """The id that everybody computes from a key: `name` is that of the destination, without its kind."""
    digest = bytearray(blake2b(key.encode(), digest_size=ID_BYTES, person=b"clarion large", salt=_salt(name)).digest())
    digest[_PRODUCER_BYTES - 1] |= _KEYED
    return bytes(digest)


def _salt(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=blake2b.SALT_SIZE).digest()


def producer_of(identity: bytes) -> int:
    """The producer that made this id; 0 if it is of a key."""
    producer = int.from_bytes(identity[:_PRODUCER_BYTES], "big")
    return 0 if ids.sequence_of(producer) else producer


class Piece(NamedTuple):
    """One row: bytes [first, end) of a body in the record at `position`."""

    first: int
    end: int
    position: int
    span: int


class Stream:
    """One large body."""

    __slots__ = (
        "_ends",
        "_positions",
        "_spans",
        "bytes_live",
        "checksum",
        "complete",
        "destination",
        "held",
        "identity",
        "number",
        "size",
        "touched_ms",
        "wanted",
    )

    def __init__(self, number: int, identity: bytes, destination: int) -> None:
        self.number = number
        self.identity = identity
        self.destination = destination
        """Where it was sent to."""
        self._ends: array[int] = array("Q")
        self._positions: array[int] = array("Q")
        self._spans: array[int] = array("I")
        self.size = 0
        """Bytes of the body that are here."""
        self.bytes_live = 0
        """What they take of the journal."""
        self.checksum = 0
        """CRC32C of all of them."""
        self.touched_ms = 0
        """When the last one came."""
        self.complete = False
        self.wanted = 0
        """How many bytes its message says it has; 0 before there is one."""
        self.held: Counter[int] = Counter()
        """How many messages of which destination need it; an incomplete one is its own destination's. Soft."""

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[Piece]:
        return map(self._row, range(len(self._ends)))

    def _row(self, at: int) -> Piece:
        return Piece(self._ends[at - 1] if at else 0, self._ends[at], self._positions[at], self._spans[at])

    def find(self, offset: int) -> Piece | None:
        """The fragment that holds a byte; None beyond the last."""
        at = bisect_right(self._ends, offset)
        return self._row(at) if at < len(self._ends) else None

    def append(self, offset: int, size: int, position: int, span: int, checksum: int, time_ms: int) -> bool:
        """A fragment was logged. One that does not follow the last, or is lost, changes nothing: False."""
        if offset != self.size or not span or self.complete:
            return False
        self.touched_ms = time_ms
        self.checksum = checksum
        self.size += size
        self.bytes_live += span
        self._ends.append(self.size)
        self._positions.append(position)
        self._spans.append(span)
        return True

    def move(self, offset: int, position: int, span: int) -> Piece | None:
        """A fragment was copied elsewhere: its old row, or None if there is none that begins there."""
        at = bisect_right(self._ends, offset)
        if at == len(self._ends) or (self._ends[at - 1] if at else 0) != offset:
            return None
        old = self._row(at)
        self._positions[at], self._spans[at] = position, span
        self.bytes_live += span - old.span
        return old

    def in_segment(self, position_from: int, position_to: int) -> list[Piece]:
        """The fragments that lie in a stretch of the journal: what compaction must move."""
        positions = np.frombuffer(self._positions, np.uint64)
        return [
            self._row(at) for at in np.flatnonzero((positions >= position_from) & (positions < position_to)).tolist()
        ]

    def spaces(self, segment_bytes: int) -> list[tuple[int, int]]:
        """(position, bytes) of what it takes, one for each segment of the journal."""
        if not self._ends:
            return []
        ordinals, at = np.unique(np.frombuffer(self._positions, np.uint64) // segment_bytes, return_inverse=True)
        sums = np.bincount(at.reshape(-1), np.frombuffer(self._spans, np.uint32))
        return [(int(one) * segment_bytes, int(total)) for one, total in zip(ordinals, sums, strict=True)]

    def dump(self) -> list[Any]:
        """For a checkpoint. Fields are only ever added at the end."""
        columns = [column.tobytes() for column in (self._ends, self._positions, self._spans)]
        return [
            self.number, self.identity, self.destination, self.checksum, self.touched_ms,
            self.complete, self.wanted, *columns,
        ]  # fmt: skip

    @classmethod
    def load(cls, dumped: Sequence[Any]) -> Stream:
        """The inverse of `dump`."""
        number, identity, destination, checksum, touched_ms, complete, wanted, ends, positions, spans, *_ = dumped
        stream = cls(number, identity, destination)
        stream.checksum, stream.touched_ms, stream.complete, stream.wanted = checksum, touched_ms, complete, wanted
        for column, data in ((stream._ends, ends), (stream._positions, positions), (stream._spans, spans)):
            column.frombytes(data)
        stream.size = stream._ends[-1] if stream._ends else 0
        stream.bytes_live = sum(stream._spans)
        return stream


class Streams:
    """All large bodies of one message manager."""

    __slots__ = ("_by_identity", "_known", "dropped", "finished", "next_number")

    def __init__(self) -> None:
        self._known: dict[int, Stream] = {}
        self._by_identity: dict[bytes, Stream] = {}
        """The newest of each id."""
        self.next_number = 1
        self.finished: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        """Keys whose message was stored: id → (destination, id of the message). The oldest are forgotten first."""
        self.dropped: list[Stream] = []
        """Dropped by the log, until the host has released their space. Soft."""

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._known.values())

    def get(self, number: int) -> Stream | None:
        """By its number."""
        return self._known.get(number)

    def find(self, identity: bytes) -> Stream | None:
        """The newest with this id."""
        return self._by_identity.get(identity)

    def incomplete(self, destination: int | None = None) -> list[Stream]:
        """Those without a message: of one destination, or all."""
        return [one for one in self if not one.complete and destination in (None, one.destination)]

    @property
    def fragments(self) -> int:
        """Rows, of all of them."""
        return sum(map(len, self))

    # --- applied from the log -------------------------------------------------------------------------

    def append(
        self, number: int, identity: bytes, destination: int, offset: int, size: int, checksum: int, time_ms: int,
        position: int, span: int,
    ) -> None:  # fmt: skip
        """A fragment was stored at `position`; span 0 says that its bytes are lost."""
        stream = self._known.get(number)
        if stream is None:
            self.next_number = max(self.next_number, number + 1)
            if offset:
                return  # its beginning is lost, or it was dropped
            stream = self._known[number] = self._by_identity[identity] = Stream(number, identity, destination)
            stream.held[destination] = 1
        stream.append(offset, size, position, span, checksum, time_ms)

    def complete(self, number: int, message_id: int, wanted: int) -> None:
        """Its message is stored: from now on it lives as long as that."""
        stream = self._known.get(number)
        if stream is None:
            return
        stream.complete, stream.wanted = True, wanted
        if not producer_of(stream.identity):
            self.finished.pop(stream.identity, None)
            self.finished[stream.identity] = (stream.destination, message_id)
            while len(self.finished) > limits.STREAM_KEYS_MAX:
                self.finished.popitem(last=False)

    def drop(self, numbers: Iterable[int]) -> None:
        """They will never be complete: nobody needs them."""
        self.dropped += [stream for number in numbers if (stream := self.take(number)) is not None]

    def drop_destination(self, destination: int) -> None:
        """A destination is gone, and with it what was on its way there."""
        self.drop([stream.number for stream in self.incomplete(destination)])
        for identity in [one for one, (where, _) in self.finished.items() if where == destination]:
            del self.finished[identity]

    # --- who needs them -------------------------------------------------------------------------------

    def take(self, number: int) -> Stream | None:
        """Nobody needs it: it is not known any more."""
        stream = self._known.pop(number, None)
        if stream is not None and self._by_identity.get(stream.identity) is stream:
            del self._by_identity[stream.identity]
        return stream

    def let_go(self, number: int, destination: int) -> Stream | None:
        """A message of a destination needs it no more: the stream, if that was the last one."""
        stream = self._known.get(number)
        if stream is None:
            return None
        stream.held[destination] -= 1
        if stream.held[destination] <= 0:
            del stream.held[destination]
        return None if stream.held else self.take(number)

    def count(self, references: Iterable[tuple[int, int]]) -> None:
        """After a replay: (destination, number) of every message with a large body; what nobody names is gone."""
        self.dropped.clear()
        for stream in self:
            stream.held = Counter() if stream.complete else Counter({stream.destination: 1})
        for destination, number in references:
            stream_ = self._known.get(number)
            if stream_ is not None and stream_.complete:
                stream_.held[destination] += 1
        for stream in list(self):
            if not stream.held:
                self.take(stream.number)

    # --- checkpoints ----------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """For a checkpoint."""
        finished = [(key, where, message.to_bytes(16, "big")) for key, (where, message) in self.finished.items()]
        return [self.next_number, [stream.dump() for stream in self], finished]

    @classmethod
    def load(cls, dumped: Sequence[Any]) -> Streams:
        """The inverse of `dump`."""
        streams = cls()
        streams.next_number, rows, finished, *_ = dumped
        for row in rows:
            stream = Stream.load(row)
            streams._known[stream.number] = streams._by_identity[stream.identity] = stream
            stream.held[stream.destination] = 1
        for key, where, message in finished:
            streams.finished[key] = (where, int.from_bytes(message, "big"))
        return streams
