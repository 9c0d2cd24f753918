"""Large bodies and what is known of each over all lives of a broker, and the courier that sends and takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from crc32c import crc32c

from clarion import ids, limits
from clarion.core.streams import keyed_id
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


def ground(tmp_path: Path) -> tuple[Settings, FaultyDisk]:
    return settings_for(tmp_path, SEGMENTS * SEGMENT_BYTES), FaultyDisk(SEGMENT_BYTES, files_max=SEGMENTS)
