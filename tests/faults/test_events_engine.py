"""Whatever stops an engine, it starts again by itself and delivers (A-03, A-08)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clarion.errors import JournalFailed
from clarion.events.control import ControlServer
from clarion.events.distribution import Pipeline
from clarion.events.engine.adopting import Adopting
from clarion.events.engine.courier import Courier
from clarion.events.engine.engine import Engine
from clarion.events.engine.feed import Feed
from clarion.events.engine.pages import Pages
from clarion.events.engine.settling import Settling
from clarion.events.event import Event
from clarion.events.host_memory import HostMemory
from clarion.events.ledger import Ledger
from clarion.events.memory import Section
from tests.faults.events_harness import log_ids
from tests.integration.events.systems import Keeper, Systems, delivered, delivering, until

PLACES: list[tuple[type, str]] = [
    (Feed, "take"),
    (Pages, "events"),
    (Pages, "put"),
    (Pipeline, "next_batch"),
    (Pipeline, "delivered"),
    (Pipeline, "recorded"),
    (Pipeline, "offer_runs"),
    (Event, "from_recorded"),
    (Courier, "_wait"),
    (Courier, "_next"),
    (Settling, "_release"),
    (Engine, "wake"),
    (Ledger, "confirm"),
    (Section, "release"),
    (HostMemory, "found"),
]
STARTING: list[tuple[type, str]] = [
    (ControlServer, "open"),
    (ControlServer, "close"),
    (Ledger, "open"),
    (Ledger, "close"),
    (Ledger, "add_recipient"),
    (Adopting, "find"),
    (Engine, "_add_pipeline"),
    (Engine, "_start_courier"),
]


@pytest.fixture
def systems(tmp_path: Path) -> Iterator[Systems]:
    systems = Systems(tmp_path / "events")
    try:
        yield systems
    finally:
        systems.close()


class Failing:
    """A method that fails some times, from a moment on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: type, name: str) -> None:
        self.left = 0
        self.failed = 0
        found = next(base.__dict__[name] for base in where.__mro__ if name in base.__dict__)
        original: Any = found.__func__ if isinstance(found, classmethod) else found

        def failing(*arguments: Any, **options: Any) -> Any:
            if self.left > 0 and threading.current_thread().name == "clarion-events":
                self.left -= 1
                self.failed += 1
                raise MemoryError
            return original(*arguments, **options)

        monkeypatch.setattr(where, name, classmethod(failing) if isinstance(found, classmethod) else failing)


def place_id(place: tuple[type, str]) -> str:
    return f"{place[0].__name__}.{place[1]}"


@pytest.mark.parametrize("place", PLACES, ids=place_id)
def test_a08_no_memory_inside_of_the_engine(
    systems: Systems, monkeypatch: pytest.MonkeyPatch, place: tuple[type, str]
) -> None:
    failing = Failing(monkeypatch, *place)
    one, two = Keeper("one", batch_events_max=4), Keeper("two", "JMSType = 'a'", batch_events_max=4)
    system = systems.open(one, two)
    ids = [system.emit("a", source=f"s{number % 3}", data=number) for number in range(20)]
    delivered(system)
    failing.left = 2
    ids += [system.emit("a", source=f"s{number % 3}", data=number) for number in range(20)]
    until(lambda: not failing.left, "it failed twice")
    delivered(system)
    for keeper in (one, two):
        assert set(keeper.ids) == set(ids)
        assert sorted(dict.fromkeys(keeper.ids)) == list(dict.fromkeys(keeper.ids)), "order"


@pytest.mark.parametrize("place", STARTING, ids=place_id)
def test_a08_no_memory_while_the_engine_starts(
    systems: Systems, monkeypatch: pytest.MonkeyPatch, place: tuple[type, str]
) -> None:
    failing = Failing(monkeypatch, *place)
    keeper = Keeper("keeper", batch_events_max=4)
    system = systems.open(keeper)
    delivering(system)
    engine, thread = system._engine, system._thread
    assert engine is not None and thread is not None and thread.loop is not None
    failing.left = 2
    thread.loop.call_soon_threadsafe(engine.fail, RuntimeError("a fault of ours"))
    until(lambda: system._engine is not engine, "it stops")
    ids = [system.emit("a", source="s", data=number) for number in range(20)]
    if place[1] == "close":
        failing.left = min(failing.left, 1)
    until(lambda: failing.failed, "it failed")
    delivered(system)
    assert keeper.ids == ids


def test_a08_an_engine_whose_ledger_failed_starts_again(systems: Systems) -> None:
    keeper = Keeper("keeper")
    system = systems.open(keeper)
    ids = [system.emit("a", data=number) for number in range(5)]
    delivered(system)
    engine, thread = system._engine, system._thread
    assert engine is not None and thread is not None and thread.loop is not None
    error = JournalFailed(operation="sync", detail="for this test")
    thread.loop.call_soon_threadsafe(engine.ledger._log._failed, error)
    until(lambda: system._engine is not engine, "it stops")
    ids += [system.emit("a", data=number) for number in range(5)]
    delivered(system)
    assert keeper.ids == ids and system.problem == ""


def test_a08_a_recipient_that_cannot_be_opened_delays_nobody(systems: Systems) -> None:
    class Closed(Keeper):
        opened = 0

        async def open(self) -> None:
            self.opened += 1
            if self.opened < 3:
                raise OSError("not there yet")

    closed, keeper = Closed("closed"), Keeper("keeper")
    system = systems.open(closed, keeper)
    ids = [system.emit("a", data=number) for number in range(5)]
    until(lambda: keeper.ids == ids, "the other one has all")
    delivered(system)
    assert closed.ids == ids


@pytest.mark.parametrize("pressure", ["descriptors", "memory"])
def test_a03_an_engine_that_stops_under_pressure_delivers_afterwards(tmp_path: Path, pressure: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.events_pressure_child", str(tmp_path), pressure, "500"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    result = json.loads(ended.stdout)
    assert result["delivered"] and result["restarted"] and not result["missing"], result
    assert result["recorded"] + result["refused"] == 1501
    assert not result["failed"] or pressure == "memory", result
    logged = log_ids(tmp_path / "log")
    assert len(set(logged)) == len(logged) >= result["recorded"]
