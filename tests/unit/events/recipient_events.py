"""Events for the tests of recipients."""

from __future__ import annotations

from typing import Any

from clarion.events.event import Event, event_id

PRODUCER = 7 << 118 | 3 << 104 | 123_456 << 64 | 1 << 48
TIME_NS = 1_767_225_600_000_000_000
"""2026-01-01T00:00:00Z."""


def event(sequence: int = 1, **fields: Any) -> Event:
    """Number `sequence` of one producer, one second after the one before it."""
    given = {
        "time_ns": TIME_NS + sequence * 1_000_000_000,
        "source": "volume/7",
        "type": "disk.full",
        "severity": "error",
        "data": {"free_bytes": sequence},
        **fields,
    }
    return Event(event_id(given.pop("producer", PRODUCER), sequence), **given)


def events(*sequences: int, **fields: Any) -> list[Event]:
    return [event(sequence, **fields) for sequence in sequences]
