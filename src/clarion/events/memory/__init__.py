"""Persistent memory: events in sections, recorded whatever happens."""

from clarion.events.memory.directory import Directory, SectionOptions
from clarion.events.memory.layout import (
    FLAG_REPLAYED,
    FLAG_UNDECIDED,
    Recorded,
    records_of,
    ring_bytes_for,
)
from clarion.events.memory.ring import Section
from clarion.events.memory.writing import Mirror

__all__ = [
    "FLAG_REPLAYED",
    "FLAG_UNDECIDED",
    "Directory",
    "Mirror",
    "Recorded",
    "Section",
    "SectionOptions",
    "records_of",
    "ring_bytes_for",
]
