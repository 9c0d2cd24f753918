"""Fragments of large bodies are moved by compaction, and are found where they are after a loss of power (B-12)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from clarion.core.entries import encode_moved
from clarion.core.streams import Stream
from clarion.errors import JournalFull
from clarion.journal import Kind as JournalKind
from clarion.settings import Settings
from clarion.testing.faulty_disk import FaultyDisk
from clarion.wire import batch as wire
from clarion.wire import frames
from clarion.wire.batch import Batch
from clarion.wire.frames import Type
from tests.faults.broker_harness import Broker
from tests.faults.large_story import BUSY, FRAGMENT_BYTES, LARGE, SEGMENT_BYTES, WAIT_S, Courier, Parcel, Story, ground


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
