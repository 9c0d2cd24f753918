"""Transactions that move messages from one queue to two others, spoken frame by frame over any number of lives.

Theory of operation
    A `Story` outlives servers: what was moved, what was taken away by an ordinary confirmation, and the one
    transaction whose outcome nobody has heard. `Mover` is one connection to one life. It first asks how the open
    question was answered, and again how earlier ones were; looks at all three queues; and goes on moving until
    the server dies.

Rules
    1. Nothing waits by time: the end of the connection is the only sign of a death.
    2. What was answered once is answered alike for ever; what was never asked has never happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from clarion.errors import NoSuchDestination, TransactionRolledBack, from_code
from clarion.wire import batch, frames
from clarion.wire.batch import Batch
from clarion.wire.frames import Type
from tests.hostile.raw import Disconnected, RawClient

SOURCE, LEFT, RIGHT = "queue:in", "queue:left", "queue:right"
DEATHS = (Disconnected, ConnectionError)
_REMEMBERED = 4
_TOGETHER = 2
"""Messages of one transaction."""


@dataclass
class Transaction:
    """What one round does: `commit`, `prepare` (and then commit), `rollback`, or an ordinary `confirm`."""

    number: int
    kind: str
    sequences: list[int]
    bodies: list[bytes]
    asked: bool = False
    handle: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        return {"transaction": self.number, "consumed": [(1, [(one, one + 1) for one in self.sequences])]}


@dataclass
class Story:
    """What must hold over all lives."""

    everything: list[bytes]
    producer: int = 0
    sequence: int = 1
    number: int = 0
    moved: set[bytes] = field(default_factory=set)
    taken: set[bytes] = field(default_factory=set)
    open: Transaction | None = None
    answered: list[tuple[Transaction, bool]] = field(default_factory=list)
    kinds: Iterator[str] = field(default_factory=lambda: cycle(("commit", "prepare", "commit", "rollback", "confirm")))
    in_doubt: int = 0
    """How often a life ended between a question and its answer."""


class Mover(RawClient):
    """One connection of the story's producer."""

    def __init__(self, port: int, story: Story) -> None:
        super().__init__(port)
        self.story = story
        self._deliveries: dict[int, bytes] = {}
        self._stored = 0
        self._request = 0

    def begin(self) -> None:
        """Open with the producer of earlier lives, settle what they left, and check. The first one fills the queue."""
        self.hello()
        known = self.story.producer.to_bytes(16, "big") if self.story.producer else None
        self.story.producer = self.open(producer=known)
        if self.story.sequence == 1:
            self._fill()
        self.settle()
        self.check()

    def _fill(self) -> None:
        """The messages that are moved."""
        story, first = self.story, self.story.sequence
        story.sequence += len(story.everything)
        self.publish(story.producer, first, SOURCE, *story.everything)
        self._until_stored(len(story.everything))

    # --- hearing --------------------------------------------------------------------------------------

    def _hear(self) -> frames.Frame | None:
        """One frame; an answer is returned, all else is written down."""
        frame = self.frame()
        if frame.type in (Type.REPLY, Type.ERROR):
            return frame
        if frame.type == Type.PUBLISHED:
            self._stored += sum(count for _, count, _ in frames.SETTLED.iter_unpack(frame.payload))
        else:
            assert frame.type == Type.DELIVER, f"{Type(frame.type).name} {bytes(frame.payload)[:300]!r}"
            for first, _count, _redelivered, data in frames.unpack_deliver(frame.payload)[1]:
                for index, body in enumerate(_bodies(data)):
                    self._deliveries[first + index] = body
        return None

    def _answer(self, request: int) -> Any:
        while (frame := self._hear()) is None:
            pass
        said = frames.unpack(frame.payload)
        assert said["request"] == request
        if frame.type == Type.ERROR:
            raise from_code(said["code"], said["facts"])
        return said["result"]

    def ask(self, verb: str, **arguments: Any) -> Any:
        self._request += 1
        return self.request(verb, request=self._request, **arguments)

    def _until_stored(self, count: int) -> None:
        while self._stored < count:
            assert self._hear() is None
        self._stored -= count

    # --- moving ---------------------------------------------------------------------------------------

    def move(self, rounds: int | None = None) -> None:
        """Round after round, until the server dies or so many are done."""
        self._request += 1
        self.subscribe(SOURCE, request=self._request)
        while rounds is None or rounds > 0:
            self._round()
            rounds = None if rounds is None else rounds - 1

    def _round(self) -> None:
        story = self.story
        kind = next(story.kinds)
        wanted = 1 if kind == "confirm" else _TOGETHER
        while len(self._deliveries) < wanted:
            assert self._hear() is None
        sequences = sorted(self._deliveries)[:wanted]
        story.number += 1
        bodies = [self._deliveries.pop(sequence) for sequence in sequences]
        mine = story.open = Transaction(story.number, kind, sequences, bodies)
        if kind == "confirm":
            mine.asked = True
            self._request += 1
            ranges = [(sequence, sequence + 1) for sequence in sequences]
            self.send(Type.CONFIRM, 1, frames.pack_ack(1, self._request, ranges))
            self._answer(self._request)
            story.taken.update(bodies)
            story.open = None
            return
        self._stage(mine)
        if kind == "rollback":
            self.ask("rollback", **mine.arguments)
            self._close(mine, committed=False)
        else:
            assert self._decide(mine)
            self._close(mine, committed=True)

    def _stage(self, mine: Transaction) -> None:
        story = self.story
        for target in (LEFT, RIGHT):
            first = story.sequence
            story.sequence += len(mine.bodies)
            encoded = batch.encode(target.encode(), story.producer + first, mine.bodies)
            self.send(Type.STAGE, 1, frames.STAGED.pack(mine.number, first), encoded)
        self._until_stored(2 * len(mine.bodies))

    def _decide(self, mine: Transaction) -> bool:
        """Ask how it ends, or how it ended."""
        mine.asked = True
        try:
            if mine.kind == "prepare":
                if mine.handle is None:
                    mine.handle = self.ask("prepare", expires_ms=600_000, **mine.arguments)["handle"]
                assert self.ask("commit_prepared", handles=[mine.handle])["committed"]
            else:
                self.ask("commit", **mine.arguments)
        except TransactionRolledBack:
            assert mine.handle is None, "a prepared transaction was lost"
            return False
        return True

    def _close(self, mine: Transaction, *, committed: bool) -> None:
        story = self.story
        if committed:
            story.moved.update(mine.bodies)
        story.open = None
        story.answered = [*story.answered, (mine, committed)][-_REMEMBERED:]

    # --- after a death --------------------------------------------------------------------------------

    def settle(self) -> None:
        """How did it end that was open; and does the server still say so, of it and of those before it?"""
        story, mine = self.story, self.story.open
        if mine is not None and mine.kind == "confirm":
            if not set(mine.bodies) & set(self.look(SOURCE)):
                story.taken.update(mine.bodies)
            story.open = None
        elif mine is not None:
            asked = mine.asked
            committed = self._decide(mine)
            assert asked or not committed, "it was committed, and nobody had asked"
            story.in_doubt += asked
            self._close(mine, committed=committed)
        for earlier, committed in story.answered:
            assert self._decide(earlier) == committed, f"transaction {earlier.number} was answered otherwise before"

    def check(self) -> None:
        """All or nothing, nothing lost, nothing doubled, nobody in between."""
        moved = sorted(self.story.moved)
        assert sorted(self.look(LEFT)) == moved
        assert sorted(self.look(RIGHT)) == moved
        assert sorted(self.look(SOURCE)) == sorted(set(self.story.everything) - self.story.moved - self.story.taken)
        assert not self.ask("prepared")

    def look(self, destination: str) -> list[bytes]:
        """What is in a queue, delivered or not."""
        found: list[bytes] = []
        at: int | None = 1
        with suppress(NoSuchDestination):  # nothing was ever sent there
            while at is not None:
                page = self.ask("browse", destination=destination, **{"from": at})
                found += [body for *_, data in page["slices"] for body in _bodies(data)]
                at = page["next"]
        return found


def _bodies(data: bytes | memoryview) -> list[bytes]:
    found = Batch(data)
    return [bytes(found.record(index)[1]) for index in range(found.count)]
