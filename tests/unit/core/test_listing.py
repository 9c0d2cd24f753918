"""Listing thousands of destinations: every answer fits a frame, and together they are complete (B-17)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from clarion import limits
from clarion.bus import LoopbackHub
from clarion.errors import ClarionError
from clarion.instruments import Registry
from clarion.nodes.message_manager import MessageManager
from clarion.settings import load
from clarion.wire import commands, frames

SESSION = (5 << 64) + (1 << 48)


def test_b17_many_destinations_are_listed_in_answers_that_fit(tmp_path: Path) -> None:
    async def main() -> list[str]:
        failures: list[ClarionError] = []
        hub = LoopbackHub()
        manager = MessageManager(
            hub.endpoint(), load(None, {}, data=str(tmp_path)), Registry(), on_failed=failures.append
        )
        await manager.start()
        client = hub.endpoint()
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        client.subscribe(commands.session_channel(SESSION), answers.put_nowait)
        for number in range(9_000):
            manager.naming.create("queue", f"q{number:05d}")
        names: list[str] = []
        while True:
            asked = {"request": 1, "verb": "destinations", "arguments": {"after": names[-1] if names else None}}
            client.publish(
                commands.group_channel(0), commands.encode(frames.Type.REQUEST, SESSION, [frames.pack(asked)])
            )
            answer = commands.decode(await asyncio.wait_for(answers.get(), 20))
            assert answer.type == frames.Type.REPLY
            assert len(answer.payload) <= limits.FRAME_BYTES_MAX
            page = frames.unpack(answer.payload)["result"]
            if not page:
                break
            names += [found["name"] for found in page]
        await manager.stop()
        assert not failures
        return names

    assert asyncio.run(main()) == [f"q{number:05d}" for number in range(9_000)]
