"""Statistics without Spark: lists, dicts and exact percentiles."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GROUPS = ("type", "severity", "source", "destination")
RANKS = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
Key = tuple[Any, ...]


class Event(NamedTuple):
    """A message, as it is sent and read."""

    type: str | None
    severity: str | None
    source: str | None
    destination: str
    sequence: int
    said: str | None
    """The property `time`."""
    said_us: int | None
    """What it means; None if it means nothing."""
    time_us: int
    read_us: int

    @property
    def recognised_us(self) -> int:
        return min(self.time_us if self.said_us is None else self.said_us, self.read_us)

    @property
    def ahead(self) -> bool:
        return (self.time_us if self.said_us is None else self.said_us) > self.read_us


class Confirmation(NamedTuple):
    """A record of the feed."""

    destination: str
    first: int
    end: int
    stored_ms: int | None
    delivered_ms: int | None
    confirmed_ms: int


def moment(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def windows(us: int, window_ms: int, slide_ms: int | None) -> list[tuple[int, int]]:
    """Begin and end, in microseconds, of all windows that a moment is in."""
    slide, length = (slide_ms or window_ms) * 1_000, window_ms * 1_000
    last = us // slide * slide
    return [(begin, begin + length) for begin in range(last, us - length, -slide) if begin <= us < begin + length]


def percentile(weighted: Iterable[tuple[int, int]], rank: float) -> float | None:
    """Exact, interpolated between the neighbours, of values with weights."""
    values = sorted(value for value, weight in weighted for _ in range(weight))
    if not values:
        return None
    at = rank * (len(values) - 1)
    low, high = values[math.floor(at)], values[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))


def summary(name: str, weighted: Sequence[tuple[int, int]]) -> dict[str, float | None]:
    found: dict[str, float | None] = {f"{name}_{label}_ms": percentile(weighted, rank) for label, rank in RANKS.items()}
    return {**found, f"{name}_max_ms": max((value for value, weight in weighted if weight), default=None)}


def passed_ms(begin_us: int | None, end_us: int | None) -> list[int]:
    """One duration, or none if a moment is not known."""
    return [] if begin_us is None or end_us is None else [max(0, (end_us - begin_us) // 1_000)]


def key(begin: int, end: int, row: Any, by: Sequence[str]) -> Key:
    return (moment(begin), moment(end), *(getattr(row, name) if name in by else None for name in GROUPS))


def counts(
    events: Iterable[Event], window_ms: int, slide_ms: int | None, by: Sequence[str]
) -> dict[Key, dict[str, float | None]]:
    """Rows by window and group."""
    grouped: dict[Key, list[Event]] = defaultdict(list)
    for event in events:
        for begin, end in windows(event.recognised_us, window_ms, slide_ms):
            grouped[key(begin, end, event, by)].append(event)
    return {
        where: {
            "events": len(found),
            "per_second": len(found) * 1_000 / window_ms,
            "ahead": sum(event.ahead for event in found),
            **summary("delay", [(ms, 1) for one in found for ms in passed_ms(one.recognised_us, one.read_us)]),
            **summary("sent", [(ms, 1) for one in found for ms in passed_ms(one.recognised_us, one.time_us)]),
        }
        for where, found in grouped.items()
    }


class _Confirmed(NamedTuple):
    type: str | None
    severity: str | None
    source: str | None
    destination: str
    messages: int
    record: Confirmation
    stored_us: int | None


def times(
    records: Iterable[Confirmation], window_ms: int, slide_ms: int | None, by: Sequence[str]
) -> dict[Key, dict[str, float | None]]:
    """Rows of the feed alone."""
    return _times([_of_feed(one) for one in records], window_ms, slide_ms, by)


def times_by_event(
    events: Iterable[Event],
    records: Iterable[Confirmation],
    within_ms: int,
    window_ms: int,
    slide_ms: int | None,
    by: Sequence[str],
) -> dict[Key, dict[str, float | None]]:
    """Rows of the feed joined with events, one by one."""
    found = []
    kept = list(records)
    for event in events:
        for record in kept:
            near = abs(record.confirmed_ms * 1_000 - event.recognised_us) <= within_ms * 1_000
            if near and record.destination == event.destination and record.first <= event.sequence < record.end:
                stored_us = event.time_us if record.stored_ms is None else record.stored_ms * 1_000
                found.append(
                    _Confirmed(event.type, event.severity, event.source, event.destination, 1, record, stored_us)
                )
    return _times(found, window_ms, slide_ms, by)


def _of_feed(record: Confirmation) -> _Confirmed:
    prefix = "topic:events."
    kind = record.destination.removeprefix(prefix) if record.destination.startswith(prefix) else None
    stored_us = None if record.stored_ms is None else record.stored_ms * 1_000
    return _Confirmed(kind, None, None, record.destination, record.end - record.first, record, stored_us)


def _times(
    found: Iterable[_Confirmed], window_ms: int, slide_ms: int | None, by: Sequence[str]
) -> dict[Key, dict[str, float | None]]:
    grouped: dict[Key, list[_Confirmed]] = defaultdict(list)
    for one in found:
        for begin, end in windows(one.record.confirmed_ms * 1_000, window_ms, slide_ms):
            grouped[key(begin, end, one, by)].append(one)
    return {
        where: {
            "messages": sum(one.messages for one in group),
            "per_second": sum(one.messages for one in group) * 1_000 / window_ms,
            **summary("deliver", [(ms, one.messages) for one in group for ms in _passed(one, one.record.delivered_ms)]),
            **summary("confirm", [(ms, one.messages) for one in group for ms in _passed(one, one.record.confirmed_ms)]),
        }
        for where, group in grouped.items()
    }


def _passed(one: _Confirmed, until_ms: int | None) -> list[int]:
    return passed_ms(one.stored_us, None if until_ms is None else until_ms * 1_000)
