"""An alert as an event of Clarion: its type, properties and body.

    type                  alert.raised or alert.cleared
    properties            source "alerts/<rule>", severity, time; rule; key
    correlation id        the same for an alert that is raised and cleared
    body, JSON            what docs/guide/pipelines/alerts.md lists

A cleared alert has severity `notice`. The same alert has the same bytes, however often it is computed.
"""

from __future__ import annotations

import hashlib
import string
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from clarion.pipelines.alerts.machine import NEVER, Alert
from clarion.pipelines.alerts.rules import Rule

RAISED, CLEARED = "alert.raised", "alert.cleared"
SEVERITY_CLEARED = "notice"
SOURCE = "alerts/"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Event(NamedTuple):
    """The columns of one alert."""

    rule: str
    key: str
    type: str
    source: str
    severity: str
    time: str
    correlation_id: str
    body: str


def event(rule: Rule, key: str, alert: Alert) -> Event:
    """The event of an alert. `key` is JSON, a list as long as `by`."""
    parts: list[str | None] = msgspec.json.decode(key)
    severity = rule.severity if alert.raised else SEVERITY_CLEARED
    identity = hashlib.blake2b(f"{rule.name} {alert.since_ms} {key}".encode(), digest_size=16).hexdigest()
    shown_key = ", ".join("?" if part is None else part for part in parts) or "all"
    body: dict[str, Any] = {
        "rule": rule.name,
        "kind": rule.kind,
        "state": "raised" if alert.raised else "cleared",
        "alert": identity,
        "severity": rule.severity,
        "message": _message(rule, parts, shown_key, alert),
        "key": dict(zip(rule.by, parts, strict=True)),
        "count": alert.count,
        "first": _time(alert.first_ms),
        "last": _time(alert.last_ms),
        "since": _time(alert.since_ms),
        "value": alert.value,
        "reason": alert.reason,
        "evidence": list(alert.evidence),
    }
    return Event(
        rule.name,
        shown_key,
        RAISED if alert.raised else CLEARED,
        SOURCE + rule.name,
        severity,
        _time(alert.time_ms) or "",
        identity,
        msgspec.json.encode({name: value for name, value in body.items() if value is not None}).decode(),
    )


def _message(rule: Rule, parts: list[str | None], key: str, alert: Alert) -> str:
    facts: dict[str, Any] = {
        **dict(zip(rule.by, ("?" if part is None else part for part in parts), strict=True)),
        "rule": rule.name,
        "kind": rule.kind,
        "severity": rule.severity,
        "key": key,
        "count": alert.count,
        "first": _time(alert.first_ms) or "?",
        "last": _time(alert.last_ms) or "?",
        "value": "?" if alert.value is None else alert.value,
    }
    pieces = string.Formatter().parse(rule.message)  # not `format`: a name may have points
    return "".join(literal + ("" if name is None else str(facts[name])) for literal, name, _, _ in pieces)


def _time(time_ms: int) -> str | None:
    """RFC 3339."""
    if time_ms == NEVER:
        return None
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
