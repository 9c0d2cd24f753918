"""The end of a message manager: what was to be done later is not done when the log is closed (A-05)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clarion import limits
from clarion.core.destination import Destination
from clarion.errors import InternalFault
from clarion.testing.faulty_disk import FaultyDisk
from tests.faults.broker_harness import Broker, settings_for

SEGMENT_BYTES = 128 * limits.KIB
SEGMENTS = 16


async def turn() -> None:
    """Until timers that are due have run."""
    loop = asyncio.get_running_loop()
    due = loop.create_future()
    loop.call_later(0.001, due.set_result, None)
    await due


@pytest.mark.parametrize("how", ["closed", "failed"])
def test_a05_a_timer_after_the_end_does_nothing(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        broker = Broker(settings_for(tmp_path, SEGMENTS * SEGMENT_BYTES), FaultyDisk(SEGMENT_BYTES, SEGMENTS))
        await broker.start()
        manager, made = broker.manager, list[Destination]()
        manager.later(0, lambda: made.append(manager.naming.resolve("queue:before")))
        await turn()
        assert len(made) == 1, "timers work"
        if how == "failed":
            manager.journal.on_failed(InternalFault(detail="as if"))
        else:
            await broker.end()
        manager.later(0, lambda: made.append(manager.naming.resolve("queue:after")))
        await turn()
        assert len(made) == 1
        assert (broker.failure is not None) == (how == "failed")
        if how == "failed":
            await broker.end()

    asyncio.run(scenario())
