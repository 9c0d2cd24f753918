"""Large bodies that hold each other's room are untied: one of them is given up, and another goes on (B-12)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from clarion import limits
from clarion.core.streams import keyed_id
from clarion.wire import frames
from clarion.wire.frames import Type
from tests.faults.broker_harness import Broker
from tests.faults.large_story import FRAGMENT_BYTES, LARGE, Courier, Story, ground


def test_b12_bodies_that_wait_for_each_other_are_untied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of unknown size, they begin together; nothing but them holds the room, and neither can end."""
    monkeypatch.setattr(limits, "STREAMS_TIED_MS", 0)

    async def scenario() -> None:
        settings, disk = ground(tmp_path)
        broker = Broker(settings, disk)
        await broker.start()
        courier = Courier(broker, Story(Random(5)))
        await courier.request("create", destination=LARGE, quota_bytes=101_000)
        identities = [keyed_id("large", key) for key in ("small", "great", "left")]
        for identity in identities[:2]:
            await courier.request("stream", destination=LARGE, stream=identity)
        stored = dict.fromkeys(identities, 0)

        async def add(identity: bytes) -> bool:
            """One more fragment; whether there was room for it."""
            courier.refused.pop(identity, None)
            data = bytes(FRAGMENT_BYTES)
            payload = frames.fragment_parts(identity, stored[identity], LARGE.encode(), data)
            courier._say(Type.FRAGMENT, *payload)
            courier.unanswered += 1
            await courier.until(lambda: not courier.unanswered)
            taken = identity not in courier.refused
            stored[identity] += FRAGMENT_BYTES * taken
            return taken

        for number in range(11):  # 3 and 7 fragments, and one of a sender that is not there any more
            assert await add(identities[0 if number < 3 else 1 if number < 10 else 2])
        assert not await add(identities[0])
        streaming, streams = broker.manager.streaming, broker.manager.state.streams
        streaming._untie()
        assert len(streams) == 3, "the greater one may go on"
        assert not await add(identities[1])
        streaming._untie()
        assert [stream.identity for stream in streams] == identities[:2], "the one that nobody sends goes first"
        await courier.until(lambda: courier.going >= {identities[0]})
        assert await add(identities[0])
        assert not await add(identities[1]) and not await add(identities[0])
        streaming._untie()
        assert [stream.identity for stream in streams] == identities[1:2], "then the smaller"
        await courier.until(lambda: courier.refused.get(identities[0]) == frames.STORED_FAILED)
        await courier.until(lambda: identities[1] in courier.going)
        for _ in range(4):
            assert await add(identities[1])
        await broker.end()
        assert broker.failure is None

    asyncio.run(scenario())
