"""The replay engine's account: what was replayed after a start, from which of its three sources (A-09).

Order, for each recipient: what was recorded while initialising, then what was not completely delivered before the
crash, then what a cooperating system left behind while it is not operational; all of it before anything new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Rank(IntEnum):
    """Nothing of a higher rank goes to a recipient before everything of the lower ones is settled."""

    INITIALISATION = 0
    INCOMPLETE = 1
    PARTNER = 2
    NEW = 3


SOURCES = (Rank.INITIALISATION, Rank.INCOMPLETE, Rank.PARTNER)


@dataclass(slots=True)
class ReplayReport:
    """Counts for one start: how much there was to replay, and how much of it each recipient has confirmed."""

    started_ms: int
    found: dict[Rank, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, 0))
    owed: dict[str, dict[Rank, int]] = field(default_factory=dict)
    confirmed: dict[str, dict[Rank, int]] = field(default_factory=dict)
    lost: int = 0
    """Events that were damaged on the disk; each is named in the status of its section."""
    finished_ms: int = 0

    def count(self, kind: dict[str, dict[Rank, int]], recipient: str, rank: Rank, events: int) -> None:
        """`events` more of this rank for a recipient; what is new is not replayed and not counted."""
        if rank != Rank.NEW:
            ranks = kind.setdefault(recipient, dict.fromkeys(SOURCES, 0))
            ranks[rank] += events

    def dump(self) -> dict[str, object]:
        """For operators."""

        def named(counts: dict[Rank, int]) -> dict[str, int]:
            return {rank.name.lower(): counts.get(rank, 0) for rank in SOURCES}

        return {
            "started_ms": self.started_ms,
            "finished_ms": self.finished_ms or None,
            "found": named(self.found),
            "lost": self.lost,
            "recipients": {
                name: {"owed": named(self.owed.get(name, {})), "confirmed": named(self.confirmed.get(name, {}))}
                for name in sorted({*self.owed, *self.confirmed})
            },
        }
