"""Statistics as a recipient: how many events of each type, severity and source there were, and how many a second.

    statistics = Statistics("/var/lib/events/statistics.json")
    statistics.report()["types"]["disk.full"]        # {"count": 3, "per_s_1min": 0.05, …}

Guarantees
    1. With a `path`: what is confirmed is counted in the file, which is written as a whole, synced, and put in the
       place of the old one. After a crash counting goes on from there.
    2. An event counts once, however often it comes: the ids of the last events are kept beside the counts.
    3. Bounded: of types and of sources the first `limits.EVENT_STATISTICS_KEYS_MAX` are counted apart, later ones
       together under `(other)`.

Rates go by the time of events, are kept for ten minutes and only in memory: after a restart they begin anew.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from clarion import limits
from clarion.errors import NotDelivered
from clarion.events.event import format_time
from clarion.events.recipients.base import Blocking
from clarion.events.recipients.recent import RecentIds

if TYPE_CHECKING:
    from clarion.events.event import Event

OTHER = "(other)"
_VERSION = 1
_STEP_S = 10
_STEPS = 60
_log = logging.getLogger("clarion.events")


class _Tally(msgspec.Struct):
    """What is counted of one type, severity or source."""

    count: int = 0
    first_ns: int = 0
    last_ns: int = 0


class _Snapshot(msgspec.Struct):
    """The file."""

    version: int
    count: int
    types: dict[str, _Tally]
    severities: dict[str, _Tally]
    sources: dict[str, _Tally]
    recent: list[tuple[str, int, int]]
    """Runs of the ids that were counted last: the first 20 digits (the producer), and the sequences from and to."""
    recent_other: list[str] = []
    """Those that are no ids of ours."""


class Statistics(Blocking):
    """Counts events, with a `path` durably."""

    def __init__(
        self,
        path: Path | str | None = None,
        *,
        name: str = "statistics",
        filter: str = "",
        batch_events_max: int = 4 * limits.EVENT_BATCH_EVENTS_DEFAULT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name, filter, batch_events_max)
        self.path = Path(path) if path is not None else None
        self._clock = clock
        self._lock = threading.Lock()
        self._loaded = False
        self._recent = RecentIds(maximum=self._ids_max)
        self._count = 0
        self._tallies: tuple[dict[str, _Tally], dict[str, _Tally], dict[str, _Tally]] = ({}, {}, {})
        self._rates: tuple[dict[str, dict[int, int]], ...] = ({}, {}, {})

    @property
    def _ids_max(self) -> int:
        return max(limits.EVENT_IDS_REMEMBERED, 4 * self.batch_events_max)

    @property
    def count(self) -> int:
        """All events so far."""
        return self._count

    def report(self) -> dict[str, Any]:
        """Everything, for people and programs: `count`, and `types`, `severities`, `sources` with counts and rates."""
        with self._lock:
            now = int(self._clock()) // _STEP_S
            named = zip(("types", "severities", "sources"), self._tallies, self._rates, strict=True)
            return {
                "count": self._count,
                **{
                    title: {key: _shown(tally, rates.get(key, {}), now) for key, tally in tallies.items()}
                    for title, tallies, rates in named
                },
            }

    # --- in the recipient's own thread ----------------------------------------------------------------

    def process(self, events: Sequence[Event]) -> None:
        try:
            self._load()
            with self._lock:
                self._take(events)
            # Also if nothing is new: the last attempt may have counted, and not written.
            self._save()
        except OSError as error:
            raise NotDelivered(reason=f"{self.path}: {error.strerror or error}") from error

    def _take(self, events: Sequence[Event]) -> None:
        now = int(self._clock()) // _STEP_S
        for event in events:
            if self._recent.add(event.id):
                self._count += 1
                step = event.time_ns // (_STEP_S * 1_000_000_000)
                keys = (event.type, event.severity.text, event.source)
                for key, tallies, rates in zip(keys, self._tallies, self._rates, strict=True):
                    if key not in tallies and len(tallies) >= limits.EVENT_STATISTICS_KEYS_MAX:
                        key = OTHER
                    tally = tallies.setdefault(key, _Tally(first_ns=event.time_ns))
                    tally.count += 1
                    tally.last_ns = max(tally.last_ns, event.time_ns)
                    if now - _STEPS <= step <= now + 1:
                        _add(rates.setdefault(key, {}), step, now)

    def _load(self) -> None:
        """What was counted before; tried again with the next delivery if the disk is not there."""
        if self._loaded or self.path is None:
            return
        try:
            snapshot = msgspec.json.decode(self.path.read_bytes(), type=_Snapshot)
        except FileNotFoundError:
            self._loaded = True
            return
        except (msgspec.MsgspecError, ValueError) as error:
            # It was written as a whole: damage, or not ours. Counting must go on, and nothing is thrown away.
            aside = self.path.with_name(f"{self.path.name}.damaged")
            self.path.rename(aside)
            _log.warning("%s cannot be read (%s), and is now %s; counting begins anew", self.path, error, aside.name)
            self._loaded = True
            return
        if snapshot.version > _VERSION:
            raise NotDelivered(
                reason=f"{self.path} has format version {snapshot.version}; this program writes {_VERSION}"
            )
        with self._lock:
            self._count = snapshot.count
            self._tallies = (snapshot.types, snapshot.severities, snapshot.sources)
            runs = (
                f"{high}{number:012x}" for high, first, last in snapshot.recent for number in range(first, last + 1)
            )
            self._recent = RecentIds([*snapshot.recent_other, *runs], self._ids_max)
        self._loaded = True

    def _save(self) -> None:
        if self.path is None:
            return
        with self._lock:
            runs, others = _runs(self._recent)
            types, severities, sources = self._tallies
            encoded = msgspec.json.encode(_Snapshot(_VERSION, self._count, types, severities, sources, runs, others))
        pending = self.path.with_name(f"{self.path.name}.pending")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(pending, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            rest = memoryview(encoded)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        pending.replace(self.path)
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _add(steps: dict[int, int], step: int, now: int) -> None:
    steps[step] = steps.get(step, 0) + 1
    if len(steps) > _STEPS + 2:
        for old in [each for each in steps if each < now - _STEPS]:
            del steps[old]


def _shown(tally: _Tally, steps: dict[int, int], now: int) -> dict[str, Any]:
    def per_s(count: int) -> float:
        """Over whole steps that are past, so that a rate does not fall at the beginning of each."""
        return round(sum(steps.get(step, 0) for step in range(now - count, now)) / (count * _STEP_S), 6)

    return {
        "count": tally.count,
        "first": format_time(tally.first_ns),
        "last": format_time(tally.last_ns),
        "per_s_1min": per_s(60 // _STEP_S),
        "per_s_10min": per_s(_STEPS),
    }


def _runs(recent: RecentIds) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Ids as runs, oldest first: those of one section follow each other, so a few numbers stand for thousands."""
    runs: list[tuple[str, int, int]] = []
    others: list[str] = []
    high, first, last = "", 0, -1
    for identity in recent:
        try:
            number = int(identity[20:], 16)
        except ValueError:
            number = -1
        if number < 0 or f"{number:012x}" != identity[20:]:
            others.append(identity)
            continue
        if identity[:20] == high and number == last + 1:
            last = number
            continue
        if high:
            runs.append((high, first, last))
        high, first, last = identity[:20], number, number
    if high:
        runs.append((high, first, last))
    return runs, others
