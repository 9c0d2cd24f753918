"""An engine that want of memory left waiting for ever begins anew (A-03, A-08)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from clarion.events.engine import host
from clarion.events.engine.courier import Courier
from tests.integration.events.systems import Keeper, Systems, delivered, until


@pytest.fixture
def systems(tmp_path: Path) -> Iterator[Systems]:
    systems = Systems(tmp_path / "events")
    try:
        yield systems
    finally:
        systems.close()


class Lost:
    """A future whose waiter nobody wakes: not even by cancelling it, as when there was no memory for that."""

    def __init__(self, inner: asyncio.Future[None]) -> None:
        self._inner = inner
        self._asyncio_future_blocking = False

    def __await__(self):  # type: ignore[no-untyped-def]
        while True:
            try:
                yield from self._inner
            except asyncio.CancelledError:
                self._inner = asyncio.get_running_loop().create_future()


@pytest.mark.timeout(60)
def test_a03_an_engine_that_nobody_wakes_begins_anew_when_there_is_memory(
    systems: Systems, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "WATCH_S", 0.05)
    monkeypatch.setattr(host, "STARVED_END_S_MAX", 0.2)
    monkeypatch.setattr("clarion.events.engine.ending.CANCEL_S_MAX", 0.2)
    keeper = Keeper("keeper")
    system = systems.open(keeper)
    ids = [system.emit("a", data=1)]
    delivered(system)
    engine, waits = system._engine, Courier._wait
    lost: list[int] = []

    async def wait(self: Courier) -> None:
        if not lost:
            lost.append(1)
            await Lost(asyncio.get_running_loop().create_future())
        await waits(self)

    monkeypatch.setattr(Courier, "_wait", wait)
    ids.append(system.emit("a", data=2))
    until(lambda: bool(lost), "it waits for ever")
    ids.append(system.emit("a", data=3))
    assert system._thread is not None
    system._thread.starved = True  # somebody has met a MemoryError
    until(lambda: system._engine is not None and system._engine is not engine, "another one")
    delivered(system)
    assert sorted(keeper.ids) == sorted(ids)
