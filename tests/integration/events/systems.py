"""Event systems for tests: small, closed at the end, and recipients that remember."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clarion.events import Event, EventSystem, RetryPolicy
from clarion.events.control import ask

WAIT_S = 30.0
FAST = RetryPolicy(first_ms=5, max_ms=50)
SMALL: dict[str, Any] = {
    "capacity": 200,
    "initialisation_capacity": 50,
    "event_bytes": 256,
    "event_bytes_max": 1024,
    "durability": "process",
}


def until(condition: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
    """Ask again until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.005)


class Keeper:
    """A recipient that remembers; `closed` makes it refuse, `stuck` makes it wait."""

    def __init__(self, name: str, filter: str = "", batch_events_max: int = 256) -> None:
        self.name = name
        self.filter = filter
        self.batch_events_max = batch_events_max
        self.events: list[Event] = []
        self.tried = 0
        self.closed = False
        self.refuses: Callable[[Event], bool] = lambda _event: False

    async def deliver(self, events: Sequence[Event]) -> None:
        self.tried += 1
        if self.closed or any(map(self.refuses, events)):
            raise RuntimeError(f"{self.name} is closed")
        self.events += events

    @property
    def ids(self) -> list[str]:
        return [event.id for event in self.events]

    @property
    def data(self) -> list[Any]:
        return [event.data for event in self.events]


class Systems:
    """Opens event systems of one directory, closes them all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: list[EventSystem] = []

    def open(self, *recipients: Any, ready: bool = True, **options: Any) -> EventSystem:
        system = EventSystem.open(self.path, recipients, **{**SMALL, "retry": FAST, **options})
        self._open.append(system)
        if ready:
            system.ready()
        return system

    def close(self) -> None:
        while self._open:
            self._open.pop().close()
        assert not [one.name for one in threading.enumerate() if one.name.startswith(("clarion-events", "recipient-"))]


def delivered(system: EventSystem) -> None:
    assert system.wait_until_delivered(WAIT_S), system.status()


def delivering(system: EventSystem) -> None:
    """It answers, and has all sections and recipients."""
    until(lambda: system.is_delivering and system._engine is not None and system._engine.is_running, "delivering")


def recipient_status(system: EventSystem, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [one for one in ask(system.path, "status")["recipients"] if one["name"] == name]
    assert len(found) == 1
    return found[0]
