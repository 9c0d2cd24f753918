"""A message manager on a disk that fails at every write and every sync of a run, one at a time (A-05, A-08).

The run is a script: producers to a queue and to a topic with a durable subscription, confirmations, rejections,
checkpoints. Whatever happens to the disk, the ledgers must hold after the restart: what was confirmed to producers
is there, what consumers had confirmed does not come again, and nothing is made up, damaged or reported as lost.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from clarion import limits
from clarion.errors import JournalFailed
from clarion.settings import Settings
from clarion.testing.faulty_disk import FaultyDisk, WriteFault
from tests.faults.broker_harness import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    Broker,
    BrokerDead,
    Client,
    Held,
    Story,
    settings_for,
)

PRODUCERS = ("anna", "bert", "cora")


@dataclass(frozen=True)
class Profile:
    """How large things are in a run."""

    name: str
    segment_bytes: int
    segments: int
    rounds: int
    queue_sizes: tuple[int, ...]
    topic_sizes: tuple[int, ...]
    topic_confirmed: float

    @property
    def bytes_max(self) -> int:
        return self.segments * self.segment_bytes

    def new_disk(self) -> FaultyDisk:
        return FaultyDisk(self.segment_bytes, files_max=self.segments)


SMALL = Profile("small", 64 * limits.KIB, 12, 26, (10, 100, 3000), (10, 100, 3000), 0.8)
"""Segments so small that a run goes through all of them."""
THIN = Profile("thin", 512 * limits.KIB, 10, 36, (20_000, 40_000), (500,), 0.0)
"""A topic that nobody confirms, thin between the messages of a busy queue: compaction must move it."""


class Script:
    """The same steps each time: everything comes from the seed."""

    def __init__(self, story: Story, profile: Profile, seed: int, rounds: int = 0) -> None:
        self.story = story
        self.profile = profile
        self.rng = Random(seed)
        self.rounds = rounds or profile.rounds

    async def play(self, broker: Broker) -> None:
        client = Client(broker, self.story)
        topic = await client.subscribe(TOPIC, SUBSCRIPTION)
        queue = await client.subscribe(QUEUE)
        client.resend()
        for number in range(self.rounds):
            self._publish(client)
            if number % 3:
                await client.settled()
            self._acknowledge(client, queue, 0.8)
            self._acknowledge(client, topic, self.profile.topic_confirmed)
            if number % 5 == 4:
                await self._checkpoint(client)
            elif number % 3:
                await client.upkeep()
        await client.settled()
        await client.drain(queue, topic)
        assert not client.errors, client.errors

    def _publish(self, client: Client) -> None:
        for name in PRODUCERS:
            destination = self.rng.choice((QUEUE, TOPIC))
            ledger = self.story.ledgers[destination]
            possible = self.profile.queue_sizes if destination == QUEUE else self.profile.topic_sizes
            sizes = [self.rng.choice(possible) for _ in range(self.rng.randint(1, 4))]
            client.publish(name, destination, [ledger.new_body(name, size) for size in sizes])

    def _acknowledge(self, client: Client, held: Held, part: float) -> None:
        mine = sorted(held.open)
        rejected = {sequence for sequence in mine if self.rng.random() < 0.05}
        client.confirm(held, [n for n in mine if n not in rejected and self.rng.random() < part])
        client.reject(held, rejected)

    async def _checkpoint(self, client: Client) -> None:
        manager = client.broker.manager
        before = manager.count("mm.checkpoints")
        if not manager.upkeep._checkpointing:
            manager.upkeep.checkpoint()
        # Nothing arrives when it is complete; a question and its answer give the loop its turns.
        while manager.count("mm.checkpoints") == before:
            await client.request("destinations")
        await client.upkeep()


@dataclass
class Ground:
    """A profile, its settings, and how many writes and syncs a run has, its start included."""

    profile: Profile
    settings: Settings
    writes: int = 0
    syncs: int = 0


async def live(story: Story, ground: Ground, disk: FaultyDisk, seed: int = 1, rounds: int = 0) -> Broker:
    """One life: it ends in order, or dead."""
    broker = Broker(ground.settings, disk)
    try:
        await broker.start()
    except BrokerDead:
        return broker
    try:
        await Script(story, ground.profile, seed, rounds).play(broker)
    except BrokerDead:
        pass
    finally:
        await broker.end()
    return broker


async def check(story: Story, ground: Ground, disk: FaultyDisk) -> None:
    """A life without faults: all that is owed comes, and nothing is reported as lost."""
    broker = Broker(ground.settings, disk)
    await broker.start()
    try:
        assert broker.recovery is not None
        assert broker.recovery.lost == []
        client = Client(broker, story)
        topic = await client.subscribe(TOPIC, SUBSCRIPTION)
        queue = await client.subscribe(QUEUE)
        client.resend()
        await client.settled()
        await client.drain(queue, topic)
        status = await client.request("status")
        assert status["lost_messages"] == 0
        assert not client.errors, client.errors
    finally:
        await broker.end()
    story.check(queue, topic)


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ground]:
    """Runs without faults must hold too, and show how long they are."""
    return {profile.name: measured(profile, tmp_path_factory.mktemp("data")) for profile in (SMALL, THIN)}


def measured(profile: Profile, data: Path) -> Ground:
    found = Ground(profile, settings_for(data, profile.bytes_max))

    async def whole() -> None:
        disk, story = profile.new_disk(), Story()
        broker = await live(story, found, disk)
        assert not broker.dead
        found.writes, found.syncs = disk.writes, disk.syncs
        assert broker.manager.count("mm.checkpoints") > 2
        if profile is THIN:
            assert broker.manager.count("mm.compacted") > 0
        await check(story, found, disk)

    asyncio.run(whole())
    assert min(found.writes, found.syncs) > 30
    return found


@pytest.fixture
def ground(grounds: dict[str, Ground]) -> Ground:
    return grounds["small"]


@pytest.fixture(params=["small", "thin"])
def each_ground(request: pytest.FixtureRequest, grounds: dict[str, Ground]) -> Ground:
    return grounds[request.param]


def places(ground: Ground, count: int, seed: int) -> range:
    """Every operation of the small run, every fifth of the long one."""
    return range(1, count + 1) if ground.profile is SMALL else range(seed, count + 1, 5)


@pytest.mark.parametrize("fault", ["enospc", "short"])
def test_a05_a_write_that_found_no_space_or_was_short_is_survived(ground: Ground, fault: WriteFault) -> None:
    async def one(number: int) -> None:
        disk, story = ground.profile.new_disk(), Story()
        disk.fail_write(number, fault)
        broker = await live(story, ground, disk)
        assert not broker.dead, f"write {number}"
        disk.crash(Random(number), kept=0.0)
        await check(story, ground, disk)

    for number in range(1, ground.writes + 1):
        asyncio.run(one(number))


def test_a05_an_error_of_a_write_stops_the_broker(ground: Ground) -> None:
    async def one(number: int) -> None:
        disk = ground.profile.new_disk()
        disk.fail_write(number, "eio")
        await stopped(ground, disk, f"write {number}", Random(number))

    for number in range(1, ground.writes + 1):
        asyncio.run(one(number))


def test_a05_an_error_of_a_sync_stops_the_broker(ground: Ground) -> None:
    async def one(number: int) -> None:
        disk = ground.profile.new_disk()
        disk.fail_sync(number, "eio")
        await stopped(ground, disk, f"sync {number}", Random(number))

    for number in range(1, ground.syncs + 1):
        asyncio.run(one(number))


async def stopped(ground: Ground, disk: FaultyDisk, where: str, rng: Random) -> None:
    """The broker stops at once and for good; the next one, after a kill and then a loss of power, has all."""
    story = Story()
    broker = Broker(ground.settings, disk)
    try:
        await broker.start()
    except JournalFailed:
        pass  # so early that nobody was served
    else:
        try:
            with pytest.raises(BrokerDead):
                await Script(story, ground.profile, 1).play(broker)
                await upkeep_after(broker)
        finally:
            await broker.end()
        assert isinstance(broker.failure, JournalFailed), where
        assert broker.bus.sent_after_failure == 0, where
    disk.kill()
    await check(story, ground, disk)
    disk.crash(rng)
    await check(story, ground, disk)


async def upkeep_after(broker: Broker) -> None:
    """The fault is in the very last write, which notes only what is durable: the next commit tells."""
    client = Client(broker, Story())
    await client.request("create", destination="queue:one-more")
    await client.request("create", destination="queue:and-another")


@pytest.mark.parametrize("fault", ["crash", "torn"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a05_a08_loss_of_power_at_every_write(each_ground: Ground, fault: WriteFault, seed: int) -> None:
    async def one(number: int) -> None:
        disk, story = each_ground.profile.new_disk(), Story()
        disk.fail_write(number, fault)
        broker = await live(story, each_ground, disk, seed)
        disk.crash(Random(number * 7 + seed))
        await check(story, each_ground, disk)
        if number < each_ground.writes // 2:
            assert broker.crashed, f"write {number}"

    for number in places(each_ground, each_ground.writes, seed):
        asyncio.run(one(number))


@pytest.mark.parametrize("seed", [1, 2])
def test_a05_a08_loss_of_power_at_every_sync(each_ground: Ground, seed: int) -> None:
    async def one(number: int) -> None:
        disk, story = each_ground.profile.new_disk(), Story()
        disk.fail_sync(number, "crash")
        broker = await live(story, each_ground, disk, seed)
        disk.crash(Random(number * 7 + seed))
        await check(story, each_ground, disk)
        if number < each_ground.syncs // 2:
            assert broker.crashed, f"sync {number}"

    for number in places(each_ground, each_ground.syncs, seed):
        asyncio.run(one(number))


def test_a05_a08_two_crashes_in_a_row(each_ground: Ground) -> None:
    """The second one in the recovery from the first, or soon after it; then both, and a kill between."""

    async def one(number: int) -> None:
        rng = Random(number)
        disk, story = each_ground.profile.new_disk(), Story()
        disk.fail_write(rng.randint(1, each_ground.writes), rng.choice(("crash", "torn")))
        await live(story, each_ground, disk)
        disk.kill() if rng.random() < 0.3 else disk.crash(rng)
        second = rng.choice((1, 2, 3, 4, 5, 8, 13, 21))
        if rng.random() < 0.5:
            disk.fail_write(second, rng.choice(("crash", "torn")))
        else:
            disk.fail_sync(second, "crash")
        await live(story, each_ground, disk, seed=number)
        disk.crash(rng)
        await check(story, each_ground, disk)

    for number in range(40):
        asyncio.run(one(number))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a05_a08_many_crashes_of_long_lives(each_ground: Ground) -> None:
    """Twenty lives each, so long that segments are recycled and compacted, each ended by chance."""

    async def one(number: int) -> None:
        rng = Random(number)
        disk, story = each_ground.profile.new_disk(), Story()
        for life in range(20):
            if rng.random() < 0.5:
                disk.fail_write(rng.randint(1, 400), rng.choice(("crash", "torn")))
            else:
                disk.fail_sync(rng.randint(1, 200), "crash")
            await live(story, each_ground, disk, seed=1000 * number + life, rounds=40)
            disk.kill() if rng.random() < 0.3 else disk.crash(rng)
        await check(story, each_ground, disk)

    for number in range(60):
        asyncio.run(one(number))
