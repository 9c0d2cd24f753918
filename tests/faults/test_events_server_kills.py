"""A Clarion server as recipient is killed, and so is who emits: each event comes once to a consumer (A-08, A-12)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

import clarion
from clarion.testing.server import ServerProcess
from tests.faults.events_harness import Nursery, World, until

QUEUE = "queue:events"


async def receive_all(url: str, count: int) -> list[str]:
    """Ids of everything at the server, confirmed; at least `count` of them come."""
    found: list[str] = []
    async with (
        clarion.connect(url) as connection,
        connection.session() as session,
        session.receive(QUEUE) as consumer,
    ):
        while (message := await consumer.receive(timeout=20.0 if len(found) < count else 0.5)) is not None:
            found.append(message.id)
            message.confirm_nowait()
        await session.flush()
    return found


def kill_both(folder: Path, seed: int, kills: int) -> None:
    rng = Random(seed)
    world = World(folder / "world", ("one", "clarion"))
    with Nursery() as nursery, ServerProcess(folder / "data") as server:
        number, pid = 0, 0

        def start() -> int:
            return nursery.start(
                world.life(label=f"p{number:02}", url=server.url, events=-1, pause_s=0.001, end="stays")
            )

        pid = start()
        for _ in range(kills):
            count = len(world.emitted()) + rng.choice((5, 50, 200))
            until(lambda count=count: len(world.emitted()) > count, "events are emitted")  # type: ignore[misc]
            whom = rng.choice(("server", "events", "both"))
            if whom != "events":
                server.kill()
            if whom != "server":
                nursery.kill(pid)
                number += 1
                pid = start()
            if whom != "events":
                server.start()
        nursery.kill(pid)
        world.note_end()
        assert nursery.run(world.life(label="z", url=server.url, events=5)) == 0, world.notes()
        emitted = {one.id for one in world.emitted()}
        world.starts = {"one": []}
        world.check()
        received = asyncio.run(receive_all(server.url, len(emitted)))
        assert len(set(received)) == len(received), "an event came twice"
        assert set(received) == {one.id for one in world.got("one")} >= emitted
        # Within the sections that they come from, they are in order.
        for producer in {identity[:20] for identity in received}:
            mine = [identity for identity in received if identity.startswith(producer)]
            assert mine == sorted(mine)
        assert "fault" not in server.log()


def test_a08_server_and_events_are_killed_and_each_event_comes_once(tmp_path: Path) -> None:
    kill_both(tmp_path, 1, 5)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 10))
def test_a08_server_and_events_are_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    kill_both(tmp_path, seed, 30)
