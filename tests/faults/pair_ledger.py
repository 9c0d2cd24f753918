"""What a system of a pair knows of its partner's events, read from a copy of its files while it runs."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from clarion import ids
from clarion.errors import ClarionError
from clarion.events.ledger import Ledger
from clarion.events.memory import Section
from tests.faults.pair_child import Child


def confirmed_for_partner(child: Child, recipient: str) -> list[str]:
    """Ids of the partner's events that this recipient is known to have."""
    with tempfile.TemporaryDirectory(dir=child.folder) as folder:
        try:
            copied = Path(folder) / "ledger"
            shutil.copytree(child.path / "ledger", copied)
            return asyncio.run(_confirmed(child, copied, recipient))
        except (ClarionError, OSError, shutil.Error):
            return []  # it was just changing


class Own(NamedTuple):
    """What a system holds of its own events."""

    initial: set[int]
    """Producers of sections for what is emitted while it initialises."""
    ids: set[str]
    producers: set[int]


def own_events(child: Child) -> Own:
    """Of a system that does not run."""
    found = Own(set(), set(), set())
    for path in (child.path / "sections").glob("*.ring"):
        section = Section.open(path, writable=False)
        try:
            if section.kind == "partner":
                continue
            found.producers.add(section.producer)
            if section.kind == "initialisation":
                found.initial.add(section.producer)
            events = section.read(section.first_sequence, 100_000, 1 << 26)
            found.ids.update(ids.format_id(event.producer + event.sequence) for event in events)
        finally:
            section.close()
    return found


def held_for_partner(child: Child) -> set[str]:
    """Ids of the partner's events that are here."""
    section = Section.open(child.path / "sections" / f"partner-{child.partner_name}.ring", writable=False)
    try:
        events = section.read(section.first_sequence, 100_000, 1 << 26)
        return {ids.format_id(event.producer + event.sequence) for event in events}
    finally:
        section.close()


async def _confirmed(child: Child, copied: Path, recipient: str) -> list[str]:
    section = Section.open(child.path / "sections" / f"partner-{child.partner_name}.ring", writable=False)
    ledger = Ledger.open(copied, asyncio.get_running_loop(), durability="process")
    try:
        slot = ledger.recipient(recipient).slot
        floor, spans = ledger.settled(section.producer, slot)
        events = section.read(section.first_sequence, 100_000, 1 << 26)
        return [
            ids.format_id(event.producer + event.sequence)
            for event in events
            if event.at < floor or any(first <= event.at < end for first, end in spans)
        ]
    finally:
        ledger.close()
        section.close()
