"""Sources one of whose events failed: the event, and what waits behind it.

Rules
    1. While a source is held, none of its events is sent but the head, and that one only when it is due.
    2. A head that failed alone is sent alone from then on: it would take others down with it.
"""

from __future__ import annotations

from collections.abc import Hashable

from pyroaring import BitMap64

from clarion.events.distribution.lane import Lane

Place = tuple[Lane, int]


class Held:
    """One source that waits."""

    __slots__ = ("alone", "attempts", "burying", "due_ms", "followers", "head", "kept", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.head: Place | None = None
        self.attempts = 0
        self.due_ms = 0
        self.alone = False
        self.followers: dict[Lane, BitMap64] = {}
        self.burying: dict[Place, int] = {}
        """Events that are being given up, and how often each has failed; in the order of the source."""
        self.kept: list[Place] = []
        """Those of them for which there was no room among the dead."""

    def follow(self, lane: Lane, at: int) -> None:
        """This event waits behind the head."""
        self.followers.setdefault(lane, BitMap64()).add(at)

    def forget(self, lane: Lane) -> None:
        """The section of this lane is gone."""
        self.followers.pop(lane, None)
        self.kept = [place for place in self.kept if place[0] is not lane]
        self.burying = {place: attempts for place, attempts in self.burying.items() if place[0] is not lane}
        if self.head is not None and self.head[0] is lane:
            self.head = None

    def release(self) -> None:
        """Everything that waited may go."""
        for lane, followers in self.followers.items():
            lane.waiting |= followers
        self.followers = {}

    def settle_kept(self) -> None:
        """Everything that was to be given up is answered for: what was kept is owed again, the first as the head."""
        kept, self.kept = self.kept, []
        if kept and self.head is None:
            self.head = min(kept, key=lambda place: place[1])
            kept.remove(self.head)
        for lane, at in kept:
            self.follow(lane, at)
