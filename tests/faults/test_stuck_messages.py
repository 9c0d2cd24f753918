"""A few messages that nobody confirms hold their own space and no more (A-08)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import clarion
from clarion.testing.server import ServerProcess

BODY = b"x" * 30_000
MESSAGES = 2_000
STUCK_EVERY = 40
SMALL = {"CLARION_JOURNAL_BYTES_MAX": "8 MiB", "CLARION_JOURNAL_SEGMENT_BYTES": "512 KiB"}


def test_a08_stuck_messages_do_not_hold_the_space_of_their_neighbours(tmp_path: Path) -> None:
    """Sixty megabytes pass through a journal of eight while one message in forty stays unconfirmed."""

    async def main(url: str) -> list[int]:
        async with clarion.connect(url) as connection, connection.session() as session:
            stuck: list[int] = []

            async def consume() -> None:
                got = 0
                async with session.receive("q", prefetch_messages=50) as messages:
                    async for message in messages:
                        got += 1
                        if got % STUCK_EVERY:
                            message.confirm_nowait()
                        else:
                            stuck.append(message.sequence)
                        if got == MESSAGES:
                            return

            consumer = asyncio.create_task(consume())
            async with asyncio.timeout(60):
                for number in range(MESSAGES):
                    session.send_nowait("q", BODY)
                    if number % 50 == 0:
                        await session.flush()
                await session.flush()
                await consumer
            return stuck

    async def rest(url: str) -> list[int]:
        async with clarion.connect(url) as connection, connection.session() as session:
            left: list[int] = []
            async for message in session.receive("q", timeout=1.0):
                left.append(message.sequence)
                assert message.body == BODY
                await message.confirm()
            return left

    with ServerProcess(tmp_path / "data", environment=SMALL) as server:
        stuck = asyncio.run(main(server.url))
        assert len(stuck) == MESSAGES // STUCK_EVERY
        server.kill()
        server.start()
        assert asyncio.run(rest(server.url)) == stuck
