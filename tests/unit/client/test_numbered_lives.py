"""Lives of an owner of ids that crashes and forgets, with a broker that fails: nothing lost, nothing doubled (A-08)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from clarion import ids, limits
from clarion.client.numbered import NumberedSender
from clarion.core.producers import Producers, Verdict
from clarion.core.sparse import sequence_runs
from clarion.errors import Blocked, ClarionError
from clarion.protocols.greetings import Welcome
from clarion.wire import frames
from clarion.wire.batch import Batch, Buffer
from clarion.wire.frames import Frame, Type

PRODUCER = 7 << ids.SEQUENCE_BITS
COUNT = 400
BLOCK = 8
"""So many consecutive messages go to the same destination."""


def destination_of(sequence: int) -> str:
    return f"queue:q{sequence // BLOCK % 3}"


class Memory:
    """What survives all lives: the broker's destinations, and what the owner has recorded as confirmed."""

    def __init__(self) -> None:
        self.producers: dict[str, Producers] = {}
        self.stored: Counter[int] = Counter()
        self.recorded: set[int] = set()

    def store(self, floor: int, batch: Batch) -> None:
        """As a message manager does."""
        destination = batch.destination.decode()
        producers = self.producers.setdefault(destination, Producers())
        runs = sequence_runs(batch)
        verdict = producers.judge_runs(PRODUCER, runs, floor, resend=False)
        assert verdict in (Verdict.NEW, Verdict.DOUBLE, Verdict.TORN)
        for low, high in producers.missing_runs(PRODUCER, runs):
            self.stored.update(range(low, high))
            producers.record(PRODUCER, low, high, floor)


class Life:
    """A connection, and an owner on it, until it ends."""

    def __init__(self, memory: Memory, rng: random.Random, settled_below: int, *, sparse: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.welcome = Welcome(1, "test", 10_000, limits.BATCH_BYTES_MAX, limits.PRODUCER_WINDOW_BYTES)
        self.writable = True
        self.scheduled = False
        self.failure: ClarionError | None = None
        self._memory = memory
        self._rng = rng
        self._links = 0
        self._sparse = sparse
        """Half of what is sent has gaps."""
        self.sender = NumberedSender(self, 1, PRODUCER, limits.CLIENT_BUFFER_BYTES, settled_below)

    def write(self) -> None: ...

    def wake(self) -> None:
        self.loop.call_soon(self.sender._turn)

    def register(self, session: object) -> None:
        self._connect()

    def forget(self, channel: int) -> None: ...

    def send(self, kind: int, channel: int, parts: Iterable[Buffer] = (), flags: int = 0) -> None:
        if kind != Type.PUBLISH:
            return
        payload = b"".join(parts)
        batch = Batch.parse(payload[frames.FLOOR.size :])
        first = ids.sequence_of(batch.first_id)
        settled = frames.SETTLED.pack(first, batch.count, 0)
        chance = self._rng.random()
        if chance < 0.2:  # it will never be taken
            error = frames.pack(frames.error_facts(Blocked(destination="q", detail="full")))
            self.loop.call_soon(self._say, self._links, Type.PUBLISH_FAILED, settled + error)
        elif chance < 0.3:  # the connection is lost before it arrives
            self.loop.call_soon(self._lose, self._links)
        else:
            self._memory.store(frames.FLOOR.unpack_from(payload)[0], batch)
            if chance < 0.4:  # and after that
                self.loop.call_soon(self._lose, self._links)
            else:
                self.loop.call_soon(self._say, self._links, Type.PUBLISHED, settled)

    def _say(self, link: int, kind: int, payload: bytes) -> None:
        if link == self._links:
            self.sender._handle(Frame(kind, 0, 1, memoryview(payload)))
            self.sender._turn()

    def _lose(self, link: int) -> None:
        if link == self._links:
            self.sender._detach()
            self._connect()

    def _connect(self) -> None:
        self._links += 1
        self.sender._connect()
        self.loop.call_soon(self._say, self._links, Type.OPENED, b"")

    async def run(self, calls: int) -> None:
        """Send what is not recorded, in pieces of any size, several at a time; record some of what was confirmed."""
        rng, recorded = self._rng, self._memory.recorded
        waiting: set[asyncio.Task[None]] = set()
        for _ in range(calls):
            owed = [sequence for sequence in range(1, COUNT + 1) if sequence not in recorded]
            if not owed:
                break
            first = rng.choice(owed[:60])
            block_end = (first // BLOCK + 1) * BLOCK
            end = rng.randint(first + 1, min(block_end, COUNT + 1))
            sequences: Sequence[int] = range(first, end)
            if self._sparse and rng.random() < 0.5:
                there = [one for one in owed[:60] if one > first and destination_of(one) == destination_of(first)]
                sequences = [first, *sorted(rng.sample(there, rng.randint(0, len(there))))]
            if first >= self.sender._given_up:
                waiting.add(self.loop.create_task(self._send(sequences)))
            if len(waiting) >= 4:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            if rng.random() < 0.1 and not waiting:
                self.sender.forget_below(self.settled)
        if rng.random() < 0.5 and waiting:
            await asyncio.wait(waiting)
        for task in waiting:
            task.cancel()  # a crash: whatever was on its way nobody knows

    @property
    def settled(self) -> int:
        return next(sequence for sequence in range(1, COUNT + 2) if sequence not in self._memory.recorded)

    async def _send(self, sequences: Sequence[int]) -> None:
        count, first = len(sequences), sequences[0]
        said = first if isinstance(sequences, range) else sequences
        try:
            await self.sender.send(destination_of(first), said, [b"x"] * count, [b""] * count)
        except Blocked:
            return
        if self._rng.random() < 0.8:
            self._memory.recorded.update(sequences)


@pytest.mark.parametrize("sparse", [False, True], ids=["ordinary", "sparse"])
@pytest.mark.parametrize("seed", range(25))
def test_a08_over_all_lives_each_message_is_stored_exactly_once(seed: int, sparse: bool) -> None:
    rng = random.Random(seed)
    memory = Memory()

    async def lives() -> None:
        async with asyncio.timeout(60):
            for number in range(200):
                known = next((s for s in range(1, COUNT + 2) if s not in memory.recorded), COUNT + 1)
                life = Life(memory, rng, known if number % 2 else 1, sparse=sparse)
                await life.run(rng.randint(1, 80))
                life._links += 1  # whatever is still under way is lost
                if len(memory.recorded) == COUNT:
                    return
        raise AssertionError(f"{len(memory.recorded)} of {COUNT}")

    asyncio.run(lives())
    assert set(memory.stored) == set(range(1, COUNT + 1)), "lost"
    assert set(memory.stored.values()) == {1}, "doubled"
