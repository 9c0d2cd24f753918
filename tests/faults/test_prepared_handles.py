"""Prepared transactions of many processes, committed by another one: all or none, whatever dies (B-14).

Each handle stands for one message to either of two queues. Whoever looks sees none of them before the one decision
that makes all of them visible, and all of them afterwards: over kills of the server at every step of that decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

import clarion
from clarion.errors import NoSuchHandle
from clarion.testing.server import ServerFailed, ServerProcess
from tests.faults.moving import LEFT, RIGHT
from tests.faults.test_transaction_kills import client_process
from tests.integration.helpers import drain, run, until

BEFORE = ("mm.before_outcome", "journal.before_write")
"""Test points at which nothing is decided yet."""
AFTER = ("mm.after_outcome",)
BETWEEN = ("journal.after_write", "journal.before_sync", "journal.after_sync")
"""Where it may be decided or not: what is written may also be the server's own."""
PASSINGS_MAX = 30
PREPARING = ("mm.before_prepared", "mm.after_prepared")


@contextmanager
def server_at(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", environment={"CLARION_JOURNAL_SEGMENT_BYTES": "2MiB"}) as server:
        yield server
    for word in ("fault", "loop_error", "Traceback", "messages_lost"):
        assert word not in server.log(), server.log()[-2000:]


@asynccontextmanager
async def session_at(server: ServerProcess) -> AsyncIterator[clarion.Session]:
    async with clarion.connect(server.url) as connection, connection.session() as session:
        yield session


def prepare_by_processes(url: str, label: str, processes: int, each: int) -> list[str]:
    """Handles of so many processes, which work at the same time and are gone afterwards."""
    handles: list[str] = []
    with ExitStack() as stack:
        started = [
            stack.enter_context(client_process("prepare", url, f"{label}-{number}", str(each)))
            for number in range(processes)
        ]
        for process in started:
            printed, _ = process.communicate(timeout=120)
            assert process.returncode == 0
            handles += printed.split()
    assert len(set(handles)) == processes * each
    return handles


def expected(label: str, processes: int, each: int) -> list[bytes]:
    return sorted(f"{label}-{number}-{one}".encode() for number in range(processes) for one in range(each))


async def visible(session: clarion.Session) -> tuple[list[bytes], list[bytes]]:
    """What anybody can see in either queue."""
    left, right = [sorted([one.body async for one in session.browse(queue)]) for queue in (LEFT, RIGHT)]
    return left, right


async def commit_and_die(server: ServerProcess, handles: list[str], point: str, key: str, version: int) -> None:
    """One who asks, and a server that dies at its point; he never hears of it."""
    await asyncio.to_thread(server.kill)
    for passing in range(1, PASSINGS_MAX):
        try:
            await asyncio.to_thread(server.start, {"CLARION_ARM": f"{point}=kill@{passing}"})
        except ServerFailed:
            continue  # a start writes, too: the next passing
        break
    died = asyncio.ensure_future(asyncio.to_thread(server.wait, 60.0))
    async with clarion.connect(server.url) as connection:
        asking = asyncio.ensure_future(connection.commit(handles, key=key, version=version))
        assert await died == -9, point
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await asyncio.to_thread(server.start)


async def decide_over_deaths(
    server: ServerProcess, handles: list[str], points: list[str], key: str, version: int, bodies: list[bytes]
) -> None:
    """All or none after every death; in the end, all, and each once."""
    decided = False
    for point in points:
        if not decided:
            await commit_and_die(server, handles, point, key, version)
        async with session_at(server) as session:
            left, right = await visible(session)
            waiting = {one.handle for one in await session.prepared()}
            assert left == right
            assert (left, waiting & set(handles)) in (([], set(handles)), (bodies, set()))
            decided = not waiting
            assert not decided or point not in BEFORE
            assert decided or point not in AFTER
    async with session_at(server) as session:
        assert await session.commit(handles, key=key, version=version) != decided
        assert not await session.commit(handles, key=key, version=version)  # an equal version does nothing
        assert not await session.commit(handles, key=key, version=version - 1)
        for queue in (LEFT, RIGHT):
            assert sorted(one.body for one in await drain(session, queue)) == bodies


def test_b14_handles_of_four_processes_are_committed_by_a_fifth_over_two_deaths(tmp_path: Path) -> None:
    with server_at(tmp_path) as server:
        handles = prepare_by_processes(server.url, "a", 4, 10)
        points = [BEFORE[0], AFTER[0]]
        run(decide_over_deaths(server, handles, points, "release", 7, expected("a", 4, 10)))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_b14_a_thousand_handles_of_eight_processes_killed_at_every_step_twice(tmp_path: Path) -> None:
    with server_at(tmp_path) as server:
        for turn in range(2):
            for number, last in enumerate((*BETWEEN, *AFTER)):
                label = f"t{turn}-{number}"
                handles = prepare_by_processes(server.url, label, 8, 125)
                bodies = expected(label, 8, 125)
                version = 10 * turn + number + 1
                points = [*BEFORE, last, AFTER[0]]
                asyncio.run(decide_over_deaths(server, handles, points, "release", version, bodies))


def test_b14_versions_missing_handles_listing_resolving_and_restarts(tmp_path: Path) -> None:
    async def prepare(session: clarion.Session, label: str, expires: float = 600) -> clarion.PreparedHandle:
        for queue in (LEFT, RIGHT):
            session.send_nowait(queue, label)
        return await session.prepare(expires=expires)

    async def before(server: ServerProcess) -> list[clarion.PreparedHandle]:
        async with clarion.connect(server.url) as connection, connection.session(transacted=True) as session:
            handles = [await prepare(session, label) for label in "abcdef"]
            await prepare(session, "late", expires=0.05)

            async def expired() -> bool:
                return len(await session.prepared()) == len(handles)

            await until(expired, "one has expired")
            return handles

    async def after(server: ServerProcess, handles: list[clarion.PreparedHandle]) -> None:
        a, b, c, d, e, f = handles
        async with session_at(server) as session:
            listed = {one.handle: one for one in await session.prepared()}
            assert set(listed) == set(handles)
            assert all(one.messages == 2 and sorted(one.destinations) == [LEFT, RIGHT] for one in listed.values())
            await session.resolve(a, commit=True)
            await session.resolve(b, commit=False)
            assert await visible(session) == ([b"a"], [b"a"])
            for gone in (a, b):
                with pytest.raises(NoSuchHandle):
                    await session.resolve(gone, commit=True)
            with pytest.raises(NoSuchHandle):
                await session.commit([c, b, d], key="k", version=9)  # one is missing: nothing, and no version either
            assert {one.handle for one in await session.prepared()} == {c, d, e, f}
            assert await session.commit([c], key="k", version=5)
            assert not await session.commit([d], key="k", version=5)
            assert not await session.commit([d], key="k", version=4)
            assert await session.commit([d], key="other", version=4)
            assert await session.commit([e], key="k", version=6)
            assert await session.commit([f])
            assert await session.commit([f])  # done, and asked again
            bodies = [b"a", b"c", b"d", b"e", b"f"]
            assert await visible(session) == (bodies, bodies)
            assert not await session.prepared()

    async def again(server: ServerProcess) -> None:
        async with clarion.connect(server.url) as connection, connection.session(transacted=True) as session:
            new = await prepare(session, "g")
            assert not await session.commit([new], key="k", version=6)  # versions are remembered
            assert await session.commit([new], key="k", version=7)
        async with session_at(server) as session:
            for queue in (LEFT, RIGHT):
                assert sorted(one.body for one in await drain(session, queue)) == [b"a", b"c", b"d", b"e", b"f", b"g"]

    with server_at(tmp_path) as server:
        handles = run(before(server))
        server.kill()
        server.start()
        run(after(server, handles))
        assert server.stop() == 0
        server.start()
        run(again(server))


@pytest.mark.parametrize("point", PREPARING)
def test_b14_a_prepare_in_doubt_is_answered_when_it_is_asked_again(tmp_path: Path, point: str) -> None:
    async def main(server: ServerProcess) -> None:
        died = asyncio.ensure_future(asyncio.to_thread(server.wait, 60.0))
        async with clarion.connect(server.url) as connection, connection.session(transacted=True) as session:
            for queue in (LEFT, RIGHT):
                session.send_nowait(queue, b"x")
            preparing = asyncio.ensure_future(session.prepare(expires=600))
            assert await died == -9
            await asyncio.to_thread(server.start, {"CLARION_ARM": ""})
            if point == "mm.after_prepared":
                assert [one.handle for one in await connection.prepared()] == [await preparing]
                assert await connection.commit([preparing.result()])
            else:
                with pytest.raises(clarion.TransactionRolledBack):
                    await preparing
                assert not await connection.prepared()
        async with session_at(server) as session:
            wanted = [b"x"] if point == "mm.after_prepared" else []
            assert await visible(session) == (wanted, wanted)

    with ServerProcess(tmp_path / "data", environment={"CLARION_ARM": f"{point}=kill"}) as server:
        run(main(server))


@pytest.mark.parametrize("point", [BEFORE[0], AFTER[0]])
@pytest.mark.parametrize("commit", [True, False])
def test_b14_deciding_by_hand_over_the_death_of_the_server_is_answered(
    tmp_path: Path, point: str, *, commit: bool
) -> None:
    async def main(server: ServerProcess) -> None:
        died = asyncio.ensure_future(asyncio.to_thread(server.wait, 60.0))
        async with clarion.connect(server.url) as connection, connection.session(transacted=True) as session:
            for queue in (LEFT, RIGHT):
                session.send_nowait(queue, b"x")
            handle = await session.prepare(expires=600)
            deciding = asyncio.ensure_future(connection.resolve(handle, commit=commit))
            assert await died == -9
            await asyncio.to_thread(server.start, {"CLARION_ARM": ""})
            await deciding
            for other in (True, False):
                with pytest.raises(NoSuchHandle):
                    await connection.resolve(handle, commit=other)  # that is another question
        async with session_at(server) as session:
            wanted = [b"x"] if commit else []
            assert await visible(session) == (wanted, wanted)

    with ServerProcess(tmp_path / "data", environment={"CLARION_ARM": f"{point}=kill"}) as server:
        run(main(server))
