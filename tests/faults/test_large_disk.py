"""Large bodies on a disk that loses power at any write and any sync, and through compaction (B-12).

A run is a script: bodies are sent in fragments between other messages, some of which go and some of which stay;
they are read, confirmed, given up. Whatever the disk does, after the restart the broker has at least what it said it
had; a body goes on from there, arrives whole and once, and nothing is held when all are confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from crc32c import crc32c

from clarion import ids, limits
from clarion.core.entries import encode_moved
from clarion.core.streams import Stream, keyed_id
from clarion.errors import JournalFull
from clarion.journal import Kind as JournalKind
from clarion.message import Headers, encode_headers
from clarion.settings import Settings
from clarion.testing.faulty_disk import FaultyDisk
from clarion.wire import batch as wire
from clarion.wire import commands, frames
from clarion.wire.batch import Batch
from clarion.wire.frames import Type
from tests.faults.broker_harness import Broker, BrokerDead, settings_for

SEGMENT_BYTES = 128 * limits.KIB
SEGMENTS = 16
FRAGMENT_BYTES = 9_000
WINDOW = 3
LARGE, BUSY = "queue:large", "queue:busy"
WAIT_S = 30.0


@dataclass
class Parcel:
    """One body over all lives."""

    key: str
    body: bytes
    sequence: int
    """Of its producer."""
    acked: int = 0
    """What the broker said is durable."""
    sent_bytes: int = 0
    stored: bool = False
    confirming: bool = False
    confirmed: bool = False

    @property
    def identity(self) -> bytes:
        return keyed_id("large", self.key)


@dataclass
class Story:
    """What outlives brokers."""

    rng: Random
    parcels: list[Parcel] = field(default_factory=list)
    lives: int = 0
    busy: int = 0

    def __post_init__(self) -> None:
        self.producer = ids.IdGenerator.begin(0, 1, ids.EPOCH_MS + 1).next_producer()
        for number in range(5):
            body = self.rng.randbytes(self.rng.choice((5_000, 40_000, 100_000)))
            self.parcels.append(Parcel(f"p{number}", body, number + 1))


class Courier:
    """Speaks bus commands for one session of one life."""

    def __init__(self, broker: Broker, story: Story) -> None:
        story.lives += 1
        self.broker = broker
        self.story = story
        self._bus = broker.hub.endpoint()
        generator = ids.IdGenerator.begin(0, 2, ids.EPOCH_MS + 1000 * story.lives)
        self._session = generator.next_producer()
        self._busy_producer = ids.IdGenerator.begin(0, 3, ids.EPOCH_MS + 1000 * story.lives).next_producer()
        self._bus.subscribe(commands.session_channel(self._session), self._receive)
        self._answers: dict[int, Any] = {}
        self._number = 0
        self._published: set[int] = set()
        self._full: set[int] = set()
        self._again: set[int] = set()
        """Ordinary messages that there was no room for, and those for which there is some again."""
        self._stored: dict[bytes, int] = {}
        self.delivered: dict[tuple[int, int], Batch] = {}
        self.unanswered = 0
        self.refused: dict[bytes, int] = {}
        self.going: set[bytes] = set()

    def _receive(self, data: bytes) -> None:
        _kind, _flags, _session, payload = command = commands.decode(data)
        match command.type:
            case Type.REPLY:
                said = frames.unpack(payload)
                self._answers[said["request"]] = said["result"]
            case Type.PUBLISHED:
                for first, count, _zero in frames.SETTLED.iter_unpack(payload):
                    self._published.update(range(first, first + count))
            case Type.FRAGMENT_STORED:
                stream, stored, size, how = frames.STORED.unpack_from(payload)
                self.unanswered -= bool(size)
                if how == frames.STORED_ALL:
                    self._stored[stream] = stored
                elif how == frames.STORED_GO:
                    self.going.add(stream)
                else:
                    self.refused[stream] = how
                    self.going.discard(stream)
            case Type.DELIVER:
                consumer, slices = frames.unpack_deliver(payload)
                for piece in slices:
                    batch = Batch.parse(bytes(piece.batch))
                    for index in range(batch.count):
                        self.delivered[consumer, piece.first + index] = batch
            case Type.REFUSED:
                self._full.add(int.from_bytes(payload[:8], "little"))
            case Type.RESUME:
                self._full.discard(int.from_bytes(payload[:8], "little"))
                self._again.add(int.from_bytes(payload[:8], "little"))
            case kind:
                raise AssertionError(f"unexpected {kind}: {bytes(payload)!r}")
        self.broker.changed.set()

    def _say(self, kind: int, *parts: Any) -> None:
        self._bus.publish(commands.group_channel(0), commands.encode(kind, self._session, list(parts)))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                if self.broker.dead:
                    raise BrokerDead
                self.broker.changed.clear()
                await self.broker.changed.wait()

    async def ask(self, kind: int, wanted: dict[str, Any]) -> Any:
        self._number += 1
        number = self._number
        self._say(kind, frames.pack({"request": number, **wanted}))
        await self.until(lambda: number in self._answers)
        return self._answers.pop(number)

    async def request(self, verb: str, **arguments: Any) -> Any:
        return await self.ask(Type.REQUEST, {"verb": verb, "arguments": arguments})

    async def subscribe(self, number: int, destination: str) -> None:
        credit = {"credit_messages": 1_000_000, "credit_bytes": 64 << 20, "unconfirmed_max": 1_000_000}
        await self.ask(Type.SUBSCRIBE, {"consumer": number, "destination": destination, "held": [], **credit})

    async def confirm(self, consumer: int, sequence: int) -> None:
        self._number += 1
        number = self._number
        self._say(Type.CONFIRM, frames.pack_ack(consumer, number, [(sequence, sequence + 1)]))
        await self.until(lambda: number in self._answers)

    # --- bodies -------------------------------------------------------------------------------------

    async def send(self, parcel: Parcel, *, between: int = 1) -> None:
        """From where the broker is to the end, with other messages between, and the message."""
        said = await self.request("stream", destination=LARGE, stream=parcel.identity, size=len(parcel.body))
        if said["id"] is not None:
            assert said["id"] == ids.format_id(self.story.producer + parcel.sequence)
            parcel.stored = True
            return
        at = said["offset"]
        assert at >= parcel.acked, f"{parcel.acked} bytes were stored, {at} are there"
        assert said["checksum"] == crc32c(parcel.body[:at])
        while at < len(parcel.body):
            data = parcel.body[at : at + FRAGMENT_BYTES]
            self._say(Type.FRAGMENT, *frames.fragment_parts(parcel.identity, at, LARGE.encode(), data))
            self.unanswered += 1
            at += len(data)
            parcel.sent_bytes += len(data)
            await self.until(lambda: self.unanswered < WINDOW)
            parcel.acked = max(parcel.acked, self._stored.get(parcel.identity, 0))
            for _ in range(between):
                await self.busy()
        await self.until(lambda: not self.unanswered)
        assert not self.refused
        parcel.acked = len(parcel.body)
        headers = encode_headers(Headers(large=(parcel.identity, len(parcel.body), crc32c(parcel.body))))
        first = self.story.producer + parcel.sequence
        encoded = wire.encode(LARGE.encode(), first, [b""], [headers], created_ms=ids.EPOCH_MS)
        self._say(Type.PUBLISH_LARGE, frames.LARGE.pack(parcel.identity, 0, parcel.sequence), encoded)
        await self.until(lambda: parcel.sequence in self._published)
        parcel.stored = True

    async def busy(self) -> None:
        """An ordinary message, which goes at once, or as soon as there is room."""
        self.story.busy += 1
        sequence = 1_000_000 + self.story.busy
        encoded = wire.encode(BUSY.encode(), self._busy_producer + sequence, [bytes(4_000)], created_ms=ids.EPOCH_MS)
        while sequence not in self._published:
            self._again.discard(sequence)
            self._say(Type.PUBLISH, frames.FLOOR.pack(sequence), encoded)
            await self.until(lambda: sequence in self._published | self._full | self._again)
            await self._confirm_busy()
            await self.until(lambda: sequence not in self._full)

    async def _confirm_busy(self) -> None:
        """What was delivered of them."""
        for consumer, found in [key for key in self.delivered if key[0] == 2]:
            del self.delivered[consumer, found]
            await self.confirm(consumer, found)

    async def read(self, sequence: int) -> bytes:
        body = b""
        while True:
            said = await self.request("fragment", destination=LARGE, sequence=sequence, offset=len(body), bytes=25_000)
            body += bytes(said["data"])
            if len(body) == said["size"]:
                return body

    async def take(self, wanted: int) -> None:
        """Read and confirm bodies that were delivered until so many are confirmed."""
        by_id = {self.story.producer + parcel.sequence: parcel for parcel in self.story.parcels}
        while sum(parcel.confirmed for parcel in self.story.parcels) < wanted:
            await self.until(lambda: any(key[0] == 1 for key in self.delivered))
            (_, sequence), batch = next(item for item in self.delivered.items() if item[0][0] == 1)
            del self.delivered[1, sequence]
            parcel = by_id[batch.first_id]
            assert not parcel.confirmed, "it comes again after its confirmation was answered"
            assert await self.read(sequence) == parcel.body
            parcel.confirming = True
            await self.confirm(1, sequence)
            parcel.confirmed = True

    async def upkeep(self) -> None:
        upkeep = self.broker.manager.upkeep
        upkeep.step()
        while upkeep._compacting or upkeep._checkpointing:
            await self.request("destinations")

    async def checkpoint(self) -> None:
        manager = self.broker.manager
        before = manager.count("mm.checkpoints")
        if not manager.upkeep._checkpointing:
            manager.upkeep.checkpoint()
        while manager.count("mm.checkpoints") == before:
            await self.request("destinations")
        await self.upkeep()


async def play(broker: Broker, story: Story) -> None:
    courier = Courier(broker, story)
    await courier.subscribe(2, BUSY)
    for number, parcel in enumerate(story.parcels):
        if not parcel.stored:
            await courier.send(parcel)
        await (courier.checkpoint() if number % 2 else courier.upkeep())
        if number == 2:
            await courier.subscribe(1, LARGE)
            await courier.take(1)
    # What was being confirmed when the power went may be confirmed.
    left = [parcel for parcel in story.parcels if not parcel.confirmed]
    surely = [parcel for parcel in left if not parcel.confirming]
    await courier.take(len(story.parcels) - len(left) + len(surely))
    for parcel in left:
        parcel.confirmed = True
    while True:
        for consumer, sequence in list(courier.delivered):
            del courier.delivered[consumer, sequence]
            await courier.confirm(consumer, sequence)
        described = {found["name"]: found for found in await courier.request("destinations")}
        if not described["large"]["depth"]:
            break
    assert (described["large"]["bytes"], described["large"]["streams"]) == (0, []), described["large"]
    assert described["large"]["lost_messages"] == 0
    assert not len(broker.manager.state.streams)


async def live(story: Story, settings: Settings, disk: FaultyDisk) -> Broker:
    broker = Broker(settings, disk)
    try:
        await broker.start()
    except BrokerDead:
        return broker
    try:
        await play(broker, story)
    except BrokerDead:
        pass
    finally:
        await broker.end()
    return broker


def ground(tmp_path: Path) -> tuple[Settings, FaultyDisk]:
    return settings_for(tmp_path, SEGMENTS * SEGMENT_BYTES), FaultyDisk(SEGMENT_BYTES, files_max=SEGMENTS)


async def count_operations(tmp_path: Path) -> tuple[int, int]:
    settings, disk = ground(tmp_path)
    story = Story(Random(5))
    broker = await live(story, settings, disk)
    assert not broker.dead and all(parcel.confirmed for parcel in story.parcels)
    assert all(parcel.sent_bytes == len(parcel.body) for parcel in story.parcels)
    return disk.writes, disk.syncs


async def fail_at(tmp_path: Path, seed: int, fail: Callable[[FaultyDisk], None]) -> bool:
    """Whether the story came so far: bodies rest by the clock, so no two runs have quite as many operations."""
    settings, disk = ground(tmp_path)
    story = Story(Random(5))
    fail(disk)
    broker = await live(story, settings, disk)
    assert broker.failure is None, broker.failure
    crashed = broker.crashed
    disk.crash(Random(seed))
    broker = await live(story, settings, disk)
    assert not broker.dead and all(parcel.confirmed for parcel in story.parcels)
    again = sum(parcel.sent_bytes - len(parcel.body) for parcel in story.parcels)
    assert again <= WINDOW * FRAGMENT_BYTES, f"{again} bytes were sent again"
    return crashed


@pytest.mark.parametrize("part", range(4))
def test_b12_loss_of_power_at_writes_and_syncs(tmp_path: Path, part: int) -> None:
    """Every eighth operation in all; the soak test has every one."""
    asyncio.run(_lose_power(tmp_path, part, 32))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_b12_loss_of_power_at_every_write_and_sync(tmp_path: Path) -> None:
    asyncio.run(_lose_power(tmp_path, 0, 1))


async def _lose_power(tmp_path: Path, part: int, step: int) -> None:
    writes, syncs = await count_operations(tmp_path)
    assert writes > 100 and syncs > 100
    crashes = [
        await fail_at(tmp_path, number, lambda disk, n=number: disk.fail_write(n, "torn"))  # type: ignore[misc]
        for number in range(1 + 8 * part, writes, step)
    ] + [
        await fail_at(tmp_path, number, lambda disk, n=number: disk.fail_sync(n, "crash"))  # type: ignore[misc]
        for number in range(1 + 8 * part, syncs, step)
    ]
    assert crashes.count(True) >= 0.8 * len(crashes)


def use_all_space(broker: Broker) -> None:
    """Everything that is free is written to, as it would be sooner or later: nothing is found where it was before."""
    head, body = encode_moved(1 << 30, 1, [(1, Batch(wire.encode(b"nowhere", 1, [bytes(50_000)])))])
    with pytest.raises(JournalFull):
        while True:
            broker.manager.journal.append(JournalKind.MOVED, head, body, reserve=True)


def test_b12_compaction_moves_fragments_and_a_crash_after_it_finds_them(tmp_path: Path) -> None:
    """A body lies thin between messages that go: complete, and on its way."""

    async def scenario() -> None:
        settings, disk = ground(tmp_path)
        story = Story(Random(5))
        whole, begun = Parcel("whole", story.rng.randbytes(60_000), 1), Parcel("begun", story.rng.randbytes(90_000), 2)
        story.parcels = [whole, begun]
        broker = Broker(settings, disk)
        await broker.start()
        courier = Courier(broker, story)
        await courier.subscribe(2, BUSY)
        await courier.send(whole, between=24)
        half = story.rng.randrange(30_000, 60_000)
        for at in range(0, half, FRAGMENT_BYTES):
            data = begun.body[at : min(at + FRAGMENT_BYTES, half)]
            courier._say(Type.FRAGMENT, *frames.fragment_parts(begun.identity, at, LARGE.encode(), data))
            courier.unanswered += 1
            for _ in range(24):
                await courier.busy()
        await courier.until(lambda: not courier.unanswered)
        begun.acked = begun.sent_bytes = half
        state = broker.manager.state
        before = {stream.number: list(stream) for stream in state.streams}
        assert len(before) == 2

        def moved(stream: Stream) -> bool:
            return any(old.position != new.position for old, new in zip(before[stream.number], stream, strict=True))

        async with asyncio.timeout(WAIT_S):
            while not all(map(moved, state.streams)):
                for _ in range(40):
                    await courier.busy()
                await courier.checkpoint()
        described = {found["name"]: found for found in await courier.request("destinations")}
        live = sum(stream.bytes_live for stream in state.streams)
        assert described["large"]["bytes"] >= live >= 60_000 + half
        use_all_space(broker)
        await courier.request("destinations")
        await broker.end()
        assert broker.failure is None
        disk.crash(Random(3), kept=0.0)
        again = await live_on(settings, disk, story)
        assert not again.dead
        assert begun.sent_bytes == len(begun.body), "it went on behind what was there"

    async def live_on(settings: Settings, disk: FaultyDisk, story: Story) -> Broker:
        broker = Broker(settings, disk)
        await broker.start()
        courier = Courier(broker, story)
        await courier.subscribe(2, BUSY)
        for _ in range(2):
            await courier.checkpoint()  # what was used up above is free after two of them
        await courier.send(story.parcels[1])
        await courier.subscribe(1, LARGE)
        await courier.take(2)
        assert not len(broker.manager.state.streams)
        assert broker.manager.journal.status().bytes_live < SEGMENT_BYTES
        await broker.end()
        return broker

    asyncio.run(scenario())


def test_b12_bodies_that_wait_for_each_other_are_untied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of unknown size, they begin together; nothing but them holds the room, and neither can end."""
    monkeypatch.setattr(limits, "STREAMS_TIED_MS", 0)

    async def scenario() -> None:
        settings, disk = ground(tmp_path)
        broker = Broker(settings, disk)
        await broker.start()
        courier = Courier(broker, Story(Random(5)))
        await courier.request("create", destination=LARGE, quota_bytes=101_000)
        identities = [keyed_id("large", key) for key in ("small", "great", "left")]
        for identity in identities[:2]:
            await courier.request("stream", destination=LARGE, stream=identity)
        stored = dict.fromkeys(identities, 0)

        async def add(identity: bytes) -> bool:
            """One more fragment; whether there was room for it."""
            courier.refused.pop(identity, None)
            data = bytes(FRAGMENT_BYTES)
            payload = frames.fragment_parts(identity, stored[identity], LARGE.encode(), data)
            courier._say(Type.FRAGMENT, *payload)
            courier.unanswered += 1
            await courier.until(lambda: not courier.unanswered)
            taken = identity not in courier.refused
            stored[identity] += FRAGMENT_BYTES * taken
            return taken

        for number in range(11):  # 3 and 7 fragments, and one of a sender that is not there any more
            assert await add(identities[0 if number < 3 else 1 if number < 10 else 2])
        assert not await add(identities[0])
        streaming, streams = broker.manager.streaming, broker.manager.state.streams
        streaming._untie()
        assert len(streams) == 3, "the greater one may go on"
        assert not await add(identities[1])
        streaming._untie()
        assert [stream.identity for stream in streams] == identities[:2], "the one that nobody sends goes first"
        await courier.until(lambda: courier.going >= {identities[0]})
        assert await add(identities[0])
        assert not await add(identities[1]) and not await add(identities[0])
        streaming._untie()
        assert [stream.identity for stream in streams] == identities[1:2], "then the smaller"
        await courier.until(lambda: courier.refused.get(identities[0]) == frames.STORED_FAILED)
        await courier.until(lambda: identities[1] in courier.going)
        for _ in range(4):
            assert await add(identities[1])
        await broker.end()
        assert broker.failure is None

    asyncio.run(scenario())
