"""A log file on a file system that is really full (A-08)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.small_disk import FOREIGN, fill, mounted
from clarion.errors import NotDelivered
from clarion.events.recipients import LogFile, Statistics
from tests.unit.events.recipient_events import events

pytestmark = pytest.mark.root


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """One MiB."""
    with mounted(tmp_path, 1 << 20, "tmpfs") as point:
        yield point


def test_a08_nothing_is_confirmed_nothing_torn_and_nothing_lost(disk: Path) -> None:
    path = disk / "log"

    async def scenario() -> None:
        async with LogFile(path) as log, Statistics(disk / "statistics.json") as statistics:
            await log.deliver(events(1))
            await statistics.deliver(events(1))
            fill(disk)
            confirmed = 1
            with pytest.raises(NotDelivered, match="No space left"):
                while confirmed < 100_000:  # the last page of the file has room for some
                    await log.deliver(events(confirmed + 1, confirmed + 2))
                    confirmed += 2
            with pytest.raises(NotDelivered, match="No space left"):
                await statistics.deliver(events(2))
            lines = path.read_bytes()
            assert lines.endswith(b"\n") and len(lines.splitlines()) == confirmed
            assert json.loads((disk / "statistics.json").read_text())["count"] == 1
            (disk / FOREIGN).unlink()
            await log.deliver(events(confirmed + 1, confirmed + 2, confirmed + 3))
            await statistics.deliver(events(2))
            numbers = [json.loads(line)["data"]["free_bytes"] for line in path.read_text().splitlines()]
            assert numbers == list(range(1, confirmed + 4))
            assert json.loads((disk / "statistics.json").read_text())["count"] == 2

    asyncio.run(scenario())
