"""Large bodies on a disk that loses power at any write and any sync (B-12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from clarion.settings import Settings
from clarion.testing.faulty_disk import FaultyDisk
from tests.faults.broker_harness import Broker, BrokerDead
from tests.faults.large_story import BUSY, FRAGMENT_BYTES, LARGE, WINDOW, Courier, Story, ground


async def play(broker: Broker, story: Story) -> None:
    """A run is a script: bodies are sent in fragments between other messages, some of which go and some of which stay;
    they are read, confirmed, given up. Whatever the disk does, after the restart the broker has at least what it said
    it had; a body goes on from there, arrives whole and once, and nothing is held when all are confirmed.
    """
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
