"""Transactions that move messages from one queue to two others, and SIGKILL between every two steps (A-05, B-14).

After each death all or nothing has happened, nothing is lost or doubled, what was in doubt is settled by asking
again, and asking once more gives the same answer. Nobody resolves anything by hand.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest

import clarion
from clarion.errors import TransactionRolledBack
from clarion.testing.server import ServerFailed, ServerProcess
from tests.faults.moving import DEATHS, LEFT, RIGHT, SOURCE, Mover, Story
from tests.faults.moving_client import STEPS
from tests.integration.helpers import drain, numbered, run

SMALL_JOURNAL = {"CLARION_JOURNAL_SEGMENT_BYTES": "512KiB", "CLARION_JOURNAL_BYTES_MAX": "12MiB"}
POINTS = {
    "mm.before_publish": 6,
    "mm.before_published": 6,
    "mm.before_outcome": 4,
    "mm.after_outcome": 4,
    "mm.before_prepared": 2,
    "mm.after_prepared": 2,
    "mm.before_confirm": 2,
    "mm.before_confirmed": 2,
    "mm.before_deliver": 1,
    "journal.before_write": 30,
    "journal.after_write": 30,
    "journal.before_sync": 30,
    "journal.after_sync": 30,
    "cm.before_relay": 60,
    "cm.before_reply": 60,
}
"""Test points, and at which passing the server dies at the latest."""


@contextmanager
def server_at(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", environment=SMALL_JOURNAL) as server:
        yield server
    for word in ("fault", "loop_error", "Traceback", "messages_lost"):
        assert word not in server.log(), server.log()[-2000:]


# --- the server dies --------------------------------------------------------------------------------------


def one_life(server: ServerProcess, story: Story, arming: str | None, rounds: int) -> None:
    """Settle and check what earlier lives left, and move until the server dies: by its arming, or by us."""
    with suppress(ServerFailed):  # the point lay in the start itself
        server.start({"CLARION_ARM": arming or ""})
        with suppress(*DEATHS), Mover(server.port, story) as mover:
            mover.begin()
            mover.move(None if arming else rounds)
    if not arming:
        server.kill()
    assert server.wait() == -9, f"{arming}: {server.log()[-1000:]}"


def armings(rng: Random, points: list[str]) -> list[str]:
    return [f"{point}=kill@{rng.randint(1, POINTS[point])}" for point in points]


def move_over(server: ServerProcess, lives: list[str | None], messages: int, rng: Random) -> Story:
    story = Story(numbered(messages))
    with Mover(server.port, story) as mover:
        mover.begin()
        mover.move(3)
    server.kill()
    for arming in lives:
        one_life(server, story, arming, rng.randint(0, 6))
    server.start()
    with Mover(server.port, story) as mover:
        mover.begin()
        mover.move(5)
        mover.check()
    return story


def test_a05_b14_the_server_dies_between_every_two_steps_of_a_transaction(tmp_path: Path) -> None:
    rng = Random(1)
    with server_at(tmp_path) as server:
        story = move_over(server, [*armings(rng, list(POINTS)), None], 1_000, rng)
    assert story.in_doubt >= 3
    assert story.moved


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 7))
def test_a05_b14_the_server_dies_at_random_for_many_rounds(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    lives: list[str | None] = [*armings(rng, 5 * list(POINTS)), *(25 * [None])]
    rng.shuffle(lives)
    with server_at(tmp_path) as server:
        assert move_over(server, lives, 8_000, rng).in_doubt >= 10


# --- the client dies --------------------------------------------------------------------------------------


@contextmanager
def client_process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of `moving_client`; it is killed in the end."""
    command = [sys.executable, "-m", "tests.faults.moving_client", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def walk_to(client: subprocess.Popen[str], steps: list[str]) -> None:
    """Let the client go on from step to step; it stands at the last one."""
    assert client.stdin is not None and client.stdout is not None
    for number, step in enumerate(steps):
        if number:
            client.stdin.write("\n")
            client.stdin.flush()
        assert client.stdout.readline().rstrip() == step


async def contents(url: str) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The three queues, when the server knows of no session but ours."""
    async with clarion.connect(url) as connection, connection.session() as session:
        while (await session.command("status"))["sessions"] > 1:
            pass
        source, left, right = [
            sorted([message.body async for message in session.browse(queue)]) for queue in (SOURCE, LEFT, RIGHT)
        ]
        return source, left, right


def kill_clients(server: ServerProcess, walks: list[list[str]], messages: int) -> None:
    async def prepare() -> None:
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send_many(SOURCE, numbered(messages))
            for queue in (LEFT, RIGHT):
                await connection.command("create", {"destination": queue})

    run(prepare())
    moved = 0
    for steps in walks:
        with client_process("move", server.url) as client:
            walk_to(client, steps)
        source, left, right = run(contents(server.url))
        assert left == right
        assert sorted(source + left) == sorted(numbered(messages))
        done = 2 * steps.count("committed")
        allowed = {moved + done} if steps[-1] != "asked" else {moved + done, moved + done + 2}
        assert len(left) in allowed, f"{steps[-1]}: {len(left)} were moved, not {allowed}"
        moved = len(left)


def test_b14_the_client_dies_between_every_two_of_its_steps(tmp_path: Path) -> None:
    with server_at(tmp_path) as server:
        kill_clients(server, [list(STEPS[: number + 1]) for number in range(len(STEPS))], 40)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_b14_the_client_dies_again_and_again_after_some_transactions(tmp_path: Path) -> None:
    rng = Random(1)
    many = 12 * list(STEPS)
    with server_at(tmp_path) as server:
        kill_clients(server, [many[: rng.randint(1, len(many))] for _ in range(60)], 60 * 24 + 10)


# --- the client library over many deaths of the server ----------------------------------------------------


async def copy(connection: clarion.Connection, total: int) -> int:
    """Move everything; how often a transaction was rolled back."""
    moved = anew = 0
    async with connection.session(transacted=True) as session:
        consumer = session.receive(SOURCE, prefetch_messages=20)
        while moved < total:
            bodies: list[bytes] = []
            try:
                while len(bodies) < 3 and (one := await consumer.receive(timeout=0.05 if bodies else 5.0)) is not None:
                    bodies.append(one.body)
                for target in (LEFT, RIGHT):
                    for body in bodies:
                        session.send_nowait(target, body)
                await session.commit()
                moved += len(bodies)
            except TransactionRolledBack:
                anew += 1
    return anew


def kill_under_copying(server: ServerProcess, kills: int, total: int, seed: int) -> None:
    async def main() -> None:
        rng = Random(seed)
        async with clarion.connect(server.url) as connection, connection.session() as session:
            await session.send_many(SOURCE, numbered(total))
            copying = asyncio.ensure_future(copy(connection, total))
            for _ in range(kills):
                await asyncio.to_thread(server.kill)
                point = rng.choice(list(POINTS))
                try:
                    await asyncio.to_thread(server.start, {"CLARION_ARM": armings(rng, [point])[0]})
                except ServerFailed:  # it died while it recovered
                    continue
                died = asyncio.ensure_future(asyncio.to_thread(server.wait, 60.0))
                await asyncio.wait([copying, died], return_when=asyncio.FIRST_COMPLETED)
                if copying.done():
                    await asyncio.to_thread(server.kill)
                await died
            await asyncio.to_thread(server.start)
            await copying
            for target in (LEFT, RIGHT):
                assert sorted(one.body for one in await drain(session, target)) == sorted(numbered(total))
            assert not await drain(session, SOURCE)

    asyncio.run(asyncio.wait_for(main(), 1_500))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1, 5))
def test_b14_a_copying_client_outlives_many_deaths_of_its_server(tmp_path: Path, seed: int) -> None:
    with server_at(tmp_path) as server:
        kill_under_copying(server, 60, 6_000, seed)
