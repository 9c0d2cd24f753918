"""What was read for one recipient, section by section, and how far it is settled.

Rules
    1. `_lanes` is sorted by rank; a section has one or two lanes, one after the other, of different ranks or of one.
    2. Room is counted for each rank with those below it, so that what must go first always finds some.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyroaring import BitMap64

from clarion.core.spans import Spans
from clarion.errors import InternalFault
from clarion.events.distribution.batch import Confirm
from clarion.events.distribution.lane import Lane, Range

_NOTHING = Spans()


class Reading:
    """The sections of a pipeline."""

    def __init__(self, window_events: int) -> None:
        self._window_events = window_events
        self._sections: dict[int, list[Lane]] = {}
        self._lanes: list[Lane] = []
        self._confirmed: dict[int, Spans] = {}

    def load(self, section: int, floor: int, spans: Iterable[Range]) -> None:
        """What the ledger has recorded as settled: all below `floor`, and `spans`. Before anything is offered."""
        confirmed = Spans()
        if floor > 0:
            confirmed.put(0, floor, 1)
        for first, end in spans:
            confirmed.put(first, end, 1)
        self._confirmed[section] = confirmed

    def add_section(self, section: int, rank: int, first: int, end: int | None = None, *, exact: bool = False) -> None:
        """Sequences [first, end) of a section. With an `end`, higher ranks wait until it was read so far.

        A section may be added again from the `end` it had: what was there before the start and what is new.
        `exact`: confirmations name what was delivered, and not what lies beside it and is for others.
        """
        lanes = self._sections.setdefault(section, [])
        if lanes and lanes[-1].end != first:
            raise InternalFault(detail=f"section {section:x} goes on at {lanes[-1].end}, not at {first}")
        lane = Lane(section, rank, first, end, exact=exact)
        lanes.append(lane)
        self._lanes.append(lane)
        self._lanes.sort(key=lambda one: one.rank)

    def _forget_section(self, section: int) -> list[Lane]:
        """Its lanes, which are no longer here; a batch in flight may still name them."""
        self._confirmed.pop(section, None)
        lanes = self._sections.pop(section, [])
        for lane in lanes:
            lane.removed = True
            self._lanes.remove(lane)
        return lanes

    def cursor(self, section: int) -> int:
        """The next sequence to be offered, or passed over."""
        return self._reading(section).cursor

    def room(self, section: int) -> int:
        """How many events of the section may be offered now. 0 also while a lower rank is not read."""
        return self._room(self._reading(section))

    def _reading(self, section: int) -> Lane:
        lanes = self._sections[section]
        for lane in lanes:
            if lane.end is None or lane.cursor < lane.end:
                return lane
        return lanes[-1]

    def _room(self, reading: Lane) -> int:
        used = 0
        for lane in self._lanes:
            if lane.rank > reading.rank:
                break
            if lane.rank < reading.rank and lane.unread:
                return 0
            used += len(lane.unrecorded)
        return max(0, self._window_events - used)

    def offer_runs(self, section: int, runs: Sequence[Range], read_to: int) -> int:
        """Everything of the section below `read_to` was read, and of it `runs` (ascending) are owed.

        Takes as much as there is room for: go on at `cursor`. Returns how many events were taken. What lies below
        the cursor is known already and passed over.
        """
        lane = self._reading(section)
        confirmed = self._confirmed.get(section) or _NOTHING
        taken = lane.offer(runs, read_to, confirmed, self._room(lane))
        while lane.end is not None and lane.cursor == lane.end < read_to:
            following = self._reading(section)
            if following is lane:
                break
            lane = following
            taken += lane.offer(runs, read_to, confirmed, self._room(lane))
        confirmed.cut_below(lane.cursor)
        return taken

    def settled_floor(self, section: int) -> int:
        """Everything below is durably settled for this recipient, or was never owed to it."""
        for lane in self._sections[section]:
            if lane.unrecorded or lane.unread:
                return lane.floor
        return self._sections[section][-1].floor

    def recorded(self, confirm: Confirm) -> None:
        """The ledger has it durably."""
        for lane in self._sections.get(confirm.section, ()):
            lane.record(confirm.ranges)

    def open_in(self, section: int) -> BitMap64:
        """Events of a section that were offered and whose end is not durable."""
        found = BitMap64()
        for lane in self._sections.get(section, ()):
            found |= lane.unrecorded
        return found

    @property
    def owed(self) -> int:
        """Events offered that are neither delivered nor given up."""
        return sum(len(lane.unsettled) for lane in self._lanes)

    @property
    def unrecorded(self) -> int:
        """Events offered whose end is not durable."""
        return sum(len(lane.unrecorded) for lane in self._lanes)

    def _active(self) -> list[Lane]:
        """The lanes that may be sent from: the lowest rank that is not done with, old events before new."""
        for lane in self._lanes:
            if lane.blocking:
                return [one for one in self._lanes if one.rank == lane.rank and not self._is_behind(one)]
        return []

    def _is_behind(self, lane: Lane) -> bool:
        """A section may have two lanes of one rank, old events and new: its order holds over both."""
        first = self._sections[lane.section][0]
        return first is not lane and first.rank == lane.rank and first.blocking

    def _lane_of(self, section: int, at: int) -> Lane:
        for lane in self._sections[section]:
            if lane.end is None or at < lane.end:
                return lane
        raise InternalFault(detail=f"section {section:x} has no {at}")
