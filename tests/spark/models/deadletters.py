"""Dead messages without Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tests.spark.models.statistics import moment

AGES = ((60, "under 1 min"), (3_600, "under 1 h"), (86_400, "under 1 d"), (604_800, "under 7 d"))


class Dead(NamedTuple):
    """A message of `_DMQ`. Without a reason it has no story that can be read."""

    sequence: int
    reason: str | None
    origin: str | None
    subscription: str | None
    origin_sequence: int | None
    died_ms: int | None
    deliveries: int | None
    history: tuple[tuple[int, str], ...]
    type: str | None
    source: str | None
    severity: str | None
    time_us: int
    body_bytes: int


def told(dead: Dead, at_us: int) -> dict[str, Any]:
    """Its row of `stories`."""
    died_us = None if dead.died_ms is None else dead.died_ms * 1_000
    age_s = None if died_us is None else (at_us - died_us) / 1_000_000
    properties = [(name, getattr(dead, name)) for name in ("source", "severity") if getattr(dead, name) is not None]
    return {
        "sequence": dead.sequence,
        "id": f"{dead.sequence:032x}",
        "reason": dead.reason,
        "origin": dead.origin,
        "subscription": dead.subscription,
        "origin_sequence": dead.origin_sequence,
        "died": None if died_us is None else moment(died_us),
        "deliveries": dead.deliveries,
        "history": None
        if dead.reason is None
        else [{"time": moment(ms * 1_000), "reason": reason} for ms, reason in dead.history],
        "age_s": age_s,
        "age": None if age_s is None else next((word for bound, word in AGES if age_s < bound), "older"),
        "lived_s": None if died_us is None else (died_us - dead.time_us) / 1_000_000,
        "type": dead.type,
        "source": dead.source,
        "severity": dead.severity,
        "time": moment(dead.time_us),
        "priority": 4,
        "properties": properties,
        "body_bytes": dead.body_bytes,
    }


def counts(rows: Iterable[dict[str, Any]], by: Sequence[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows of `counts`, from those of `told`."""
    grouped: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        grouped[tuple(row[name] for name in by)].append(row)
    return {where: facts(group) for where, group in grouped.items()}


def facts(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    died = [row["died"] for row in group if row["died"] is not None]
    return {
        "messages": len(group),
        "bytes": sum(row["body_bytes"] for row in group),
        "first_died": min(died, default=None),
        "last_died": max(died, default=None),
        "deliveries_max": max((row["deliveries"] for row in group if row["deliveries"] is not None), default=None),
        "first_sequence": min(row["sequence"] for row in group),
        "last_sequence": max(row["sequence"] for row in group),
    }


def samples(rows: Iterable[dict[str, Any]], by: Sequence[str], each: int) -> list[int]:
    """The sequences of `samples`, sorted."""
    grouped: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in rows:
        grouped[tuple(row[name] for name in by)].append(row["sequence"])
    return sorted(sequence for group in grouped.values() for sequence in sorted(group)[:each])
