"""What an engine needs of the system around it: its memory, and its decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from clarion.events.engine.feed import Translate
from clarion.events.memory import Section
from clarion.events.routing import Routes

PARTNER_KIND = "partner"
FOREIGN_KINDS = frozenset({PARTNER_KIND, "multiplex"})
"""Sections whose events were emitted elsewhere, and keep the ids that they have there."""


class Memory(Protocol):
    """The sections of a host, as an engine needs them."""

    unreadable: dict[str, str]
    """Sections that are there and cannot be opened, and why."""

    def found(self) -> list[tuple[Section, bool]]:
        """All sections there are, each with whether this process writes it. The same objects each time."""
        ...

    def is_orphan(self, section: Section) -> bool:
        """Its owner is gone, and nobody will write to it any more."""
        ...

    def remove(self, section: Section) -> bool:
        """An orphan that holds nothing any more; False if it is none."""
        ...


class Rules(Protocol):
    """What the system around an engine decides."""

    def may_deliver(self) -> bool:
        """The system is ready, and it is ours to deliver."""
        ...

    def is_replayed(self, section: Section) -> bool:
        """A partner's section is only delivered while we act for the partner."""
        ...

    def check_recipients(self, filters: Mapping[str, str]) -> None:
        """One is about to join: everybody by name, with its filter. Raises `LimitReached` if there is no room."""
        ...

    def routes_changed(self, routes: Routes) -> None:
        """Tell whoever records, here and in other processes."""
        ...

    def translation(self, section: Section) -> Translate | None:
        """How to read for whom events of another system are; None for our own."""
        ...

    def releasable(self, section: Section, floor: int) -> int:
        """Everybody has settled what is below `floor`: how far it may leave now. `Settling.release` asks again."""
        ...

    def settled(self, section: Section, floor: int) -> None:
        """Everything below `floor` has left a section."""
        ...

    def confirmed(self, section: Section, recipient: str, ranges: list[tuple[int, int]]) -> None:
        """A recipient has confirmed events of a section, durably."""
        ...
