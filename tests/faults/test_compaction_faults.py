"""Compaction moves what lives; whatever begins or ends beside it, nothing of that is lost (A-05, A-08)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from clarion import limits
from clarion.core.entries import encode_moved
from clarion.errors import JournalFull
from clarion.journal import Kind
from clarion.testing.faulty_disk import FaultyDisk
from clarion.testing.invariants import Ledger
from clarion.wire import batch as wire
from clarion.wire.batch import Batch
from tests.faults.broker_harness import QUEUE, SUBSCRIPTION, TOPIC, WAIT_S, Broker, Client, Story, settings_for

SEGMENT_BYTES = 512 * limits.KIB
SEGMENTS = 10


def test_a05_a08_a_checkpoint_that_begins_beside_every_move(tmp_path: Path) -> None:
    """The state that it writes must name the place that the log keeps, not the one that is given up."""
    asyncio.run(_fill_and_compact(tmp_path, "checkpoint"))


def test_a05_a_destination_dropped_while_its_page_is_being_moved(tmp_path: Path) -> None:
    """What was given up twice would be taken twice; the broker goes on, and the others keep all."""
    asyncio.run(_fill_and_compact(tmp_path, "drop"))


async def _fill_and_compact(data: Path, disturbance: str) -> None:
    disk = FaultyDisk(SEGMENT_BYTES, files_max=SEGMENTS)
    story = Story()
    settings = settings_for(data, SEGMENTS * SEGMENT_BYTES)
    broker = Broker(settings, disk)
    await broker.start()
    client = Client(broker, story)
    topic = await client.subscribe(TOPIC, SUBSCRIPTION)
    queue = await client.subscribe(QUEUE)
    disturbed = _disturb(broker, disturbance)
    rng = Random(1)
    story.ledgers.update({f"queue:doomed-{number}": Ledger() for number in range(8)})
    for number in range(60):
        client.publish("thin", TOPIC, [topic.ledger.new_body("thin", 3000)])
        if disturbance == "drop" and number < 8:
            client.publish("doomed", f"queue:doomed-{number}", [b"." * 3000])
        sizes = [rng.choice((20_000, 40_000)) for _ in range(5)]
        client.publish("busy", QUEUE, [queue.ledger.new_body("busy", size) for size in sizes])
        await client.settled()
        client.confirm(queue, list(queue.open))
        await client.settled()
        await client.upkeep()
        if disturbance == "checkpoint" and disturbed():
            break
    async with asyncio.timeout(WAIT_S):
        while broker.manager.upkeep._compacting or not broker.manager.count("mm.compacted"):
            await client.request("destinations")
    _use_all_space(broker)
    await client.request("destinations")
    assert broker.manager.count("mm.compacted") > 0
    assert disturbed() > 0
    assert broker.failure is None
    assert not client.errors, client.errors
    await broker.end()
    disk.crash(rng, kept=0.0)
    again = Broker(settings, disk)
    await again.start()
    client = Client(again, story)
    topic = await client.subscribe(TOPIC, SUBSCRIPTION)
    queue = await client.subscribe(QUEUE)
    await client.drain(queue, topic)
    status = await client.request("status")
    await again.end()
    story.check(queue, topic)
    assert status["lost_messages"] == 0


def _use_all_space(broker: Broker) -> None:
    """Everything that is free is written to, as it would be sooner or later."""
    head, body = encode_moved(1 << 30, 1, [(1, Batch(wire.encode(b"nowhere", 1, [bytes(100_000)])))])
    with pytest.raises(JournalFull):
        while True:
            broker.manager.journal.append(Kind.MOVED, head, body, reserve=True)


def _disturb(broker: Broker, how: str) -> Callable[[], int]:
    """Do it as soon as a move is in the log, before anything of it is written."""
    manager = broker.manager
    done: list[str] = []

    def checkpoint() -> None:
        if not manager.upkeep._checkpointing and not done:
            done.append("checkpoint")
            manager.upkeep.checkpoint()
            manager.upkeep.checkpoint = lambda: None  # type: ignore[method-assign]

    wait = manager.log.wait

    def waiting(position: int, effect: Callable[[], None]) -> None:
        wait(position, effect)
        checkpoint()

    read = manager.reader.read

    async def reading(destination: int, page: Any) -> Any:
        found = await read(destination, page)
        known = manager.state.destinations.get(destination)
        if known is not None and known.name.startswith("doomed"):
            done.append("drop")
            await manager.requests._drop({"destination": str(known)})
        return found

    if how == "checkpoint":
        manager.log.wait = waiting  # type: ignore[method-assign]
    else:
        manager.reader.read = reading  # type: ignore[method-assign]
    return lambda: len(done)
