"""Where a streaming query is, and what it reads next: pure.

Theory of operation
    An offset names, for each destination, the incarnation it was read from (`identity`) and the next
    sequence (`next`): everything below is in earlier micro-batches. Spark writes it to its checkpoint as JSON:

        {"source": {…}, "topic:orders": [7, 1001], "topic:payments": [9, 55]}

    A micro-batch is what lies between two offsets. `admit` says how far the next one goes, `split` cuts it into
    partitions, `below` says what may be confirmed once Spark has committed it.

Guarantees
    1. Positions of one incarnation never go back, and never beyond `end` of what the broker has.
    2. A destination that has vanished keeps its position. One that was made again has another identity,
       and is read from its beginning.
    3. With a limit, no destination starves: rows are shared out evenly, and the longest backlog
       gets what is left over.
    4. Nothing new is the same offset, to the letter: Spark compares texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from clarion.errors import BadArgument

SOURCE = "source"
"""The field of an offset that says of whom it is; names of destinations have a colon."""


class Extent(Protocol):
    """What a broker has of one destination; `clarion.client.Readable` is one."""

    @property
    def destination(self) -> str: ...
    @property
    def identity(self) -> int: ...
    @property
    def floor(self) -> int:
        """Everything below is confirmed, or no longer kept."""

    @property
    def end(self) -> int:
        """One more than the last message."""


class Position(NamedTuple):
    """How far one destination is read."""

    identity: int
    next: int


Offsets = dict[str, Position]


class Range(NamedTuple):
    """Messages of one destination: from `first` to before `end`."""

    destination: str
    identity: int
    first: int
    end: int

    @property
    def rows(self) -> int:
        """How many there are at most; some may have expired."""
        return self.end - self.first


def decode(value: Mapping[str, Any]) -> Offsets:
    """The positions in an offset of Spark's. Raises `BadArgument` for what is none."""
    try:
        return {name: Position(int(found[0]), int(found[1])) for name, found in sorted(value.items()) if name != SOURCE}
    except (TypeError, ValueError, LookupError):
        raise BadArgument(argument="offset", detail=f"{str(value)[:200]} was not written by this source") from None


def encode(offsets: Offsets, source: Mapping[str, str | None] | None = None) -> dict[str, Any]:
    """An offset for Spark: sorted, so that equal ones are equal texts."""
    said: dict[str, Any] = {SOURCE: dict(source)} if source else {}
    return said | {name: list(offsets[name]) for name in sorted(offsets)}


def begin(position: Position | None, extent: Extent) -> int:
    """The first sequence that is still to be read."""
    if position is None or position.identity != extent.identity:
        return max(extent.floor, 1)
    return max(extent.floor, position.next)


def initial(extents: Iterable[Extent]) -> Offsets:
    """Where a query begins that has read nothing: at the floors."""
    return {one.destination: Position(one.identity, max(one.floor, 1)) for one in extents}


def admit(start: Offsets, extents: Iterable[Extent], rows_max: int | None = None) -> Offsets:
    """How far a micro-batch goes that begins at `start` and has at most `rows_max` rows."""
    waiting = [(one.end - begin(start.get(one.destination), one), one) for one in extents]
    waiting = sorted((pair for pair in waiting if pair[0] > 0), key=lambda pair: (pair[0], pair[1].destination))
    left = sum(count for count, _ in waiting) if rows_max is None else rows_max
    end = dict(start)
    for index, (count, one) in enumerate(waiting):
        taken = min(count, left // (len(waiting) - index))
        left -= taken
        if taken:
            first = begin(start.get(one.destination), one)
            end[one.destination] = Position(one.identity, first + taken)
    return end


def between(start: Offsets, end: Offsets, floors: Mapping[tuple[str, int], int] | None = None) -> list[Range]:
    """What lies between two offsets, destination by destination; what is below a floor is left out.

    `floors` are by destination and identity.
    """
    ranges = []
    for name, position in sorted(end.items()):
        known = start.get(name)
        first = known.next if known is not None and known.identity == position.identity else 1
        first = max(first, (floors or {}).get((name, position.identity), 1))
        if first < position.next:
            ranges.append(Range(name, position.identity, first, position.next))
    return ranges


def split(ranges: Iterable[Range], partitions: int) -> list[list[Range]]:
    """At most so many parts of nearly equal size; small destinations share one, large ones are cut."""
    ranges = list(ranges)
    total = sum(one.rows for one in ranges)
    if not total:
        return []
    size = -(-total // partitions)
    parts: list[list[Range]] = [[]]
    room = size
    for one in ranges:
        first = one.first
        while first < one.end:
            if not room:
                parts.append([])
                room = size
            taken = min(room, one.end - first)
            parts[-1].append(one._replace(first=first, end=first + taken))
            first += taken
            room -= taken
    return parts


def lag(offsets: Offsets, extents: Iterable[Extent]) -> int:
    """How many messages are not read yet."""
    return sum(max(0, one.end - begin(offsets.get(one.destination), one)) for one in extents)


def below(end: Offsets, extents: Iterable[Extent]) -> dict[str, list[tuple[int, int]]]:
    """What may be confirmed when everything before `end` is done: of the same incarnations only."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for one in extents:
        position = end.get(one.destination)
        if position is not None and position.identity == one.identity and max(one.floor, 1) < position.next:
            ranges[one.destination] = [(max(one.floor, 1), position.next)]
    return ranges
