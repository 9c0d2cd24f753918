"""Filters of Spark made into what a broker can decide: names of destinations, ranges of sequences, a selector. Pure.

Guarantees
    1. What is taken over is decided exactly as Spark would; whatever is not certain stays with Spark.
    2. A selector never grows beyond `limits.SELECTOR_BYTES_MAX`: what does not fit stays with Spark.

One difference is meant: a message whose headers cannot be decoded matches no selector, where Spark sees nulls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from clarion import limits
from clarion.spark.offsets import Range

TEXTS = {"type": "JMSType", "correlation_id": "JMSCorrelationID", "reply_to": "JMSReplyTo", "group_id": "JMSXGroupID"}
"""Columns whose headers a selector knows, and may be null."""
_NEVER_NULL = frozenset({"destination", "sequence", "id", "time", "priority", "body_bytes"})
_COMPARED = {GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<="}
_LIKE = {StringStartsWith: ("", "%"), StringEndsWith: ("%", ""), StringContains: ("%", "%")}
_LONG = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Pushed:
    """What was taken over; all of it must hold."""

    conditions: list[str]
    """Of a selector."""
    names: frozenset[str] | None = None
    """None: any destination."""
    prefixes: list[str] = field(default_factory=list)
    first: int = 1
    end: int = _LONG

    @property
    def selector(self) -> str | None:
        """All conditions together; None: there is none."""
        if len(self.conditions) == 1:
            return self.conditions[0]
        return " AND ".join(f"({condition})" for condition in self.conditions) or None

    def take(self, found: Filter) -> bool:
        """Whether this filter is decided here from now on."""
        column = _column(found)
        if column is None:
            return False
        if isinstance(found, IsNotNull) and column in _NEVER_NULL:
            return True
        if column == "destination":
            return self._take_destination(found)
        if column == "sequence":
            return self._take_sequence(found)
        condition = _condition(column, found)
        return condition is not None and self._take_condition(condition)

    def _take_condition(self, condition: str) -> bool:
        self.conditions.append(condition)
        if len((self.selector or "").encode()) > limits.SELECTOR_BYTES_MAX:
            self.conditions.pop()
            return False
        return True

    def _take_destination(self, found: Filter) -> bool:
        if isinstance(found, StringStartsWith):
            self.prefixes.append(found.value)
            return True
        values = _equals(found)
        if values is None:
            return False
        self.names = frozenset(values) if self.names is None else self.names & frozenset(values)
        return True

    def _take_sequence(self, found: Filter) -> bool:
        values = _equals(found)
        value = values[0] if values is not None and len(values) == 1 else getattr(found, "value", None)
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        if values is not None:
            first, end = value, value + 1
        elif isinstance(found, GreaterThan | GreaterThanOrEqual):
            first, end = value + isinstance(found, GreaterThan), _LONG
        elif isinstance(found, LessThan | LessThanOrEqual):
            first, end = 1, value + isinstance(found, LessThanOrEqual)
        else:
            return False
        self.first, self.end = max(self.first, first), min(self.end, end)
        return True

    def cut(self, ranges: Iterable[Range]) -> list[Range]:
        """What is left of ranges."""
        kept = []
        for one in ranges:
            name = one.destination
            if (self.names is None or name in self.names) and all(map(name.startswith, self.prefixes)):
                cut = one._replace(first=max(one.first, self.first), end=min(one.end, self.end))
                if cut.rows > 0:
                    kept.append(cut)
        return kept


def _column(found: Filter) -> str | None:
    """The column that a filter is about; None if it is a part of one."""
    inner = found.child if isinstance(found, Not) else found
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    return path[0] if len(path) == 1 else None


def _equals(found: Filter) -> list[Any] | None:
    """The values that one of which is wanted."""
    if isinstance(found, EqualTo | EqualNullSafe):
        return None if found.value is None else [found.value]
    if isinstance(found, In):
        return [value for value in found.value if value is not None]
    return None


def _condition(column: str, found: Filter) -> str | None:
    """A filter as a condition of a selector."""
    if isinstance(found, Not):
        return _denied(column, found.child)
    if column in TEXTS:
        return _of_text(TEXTS[column], found)
    values = _equals(found)
    if column == "id" and values is not None:
        return _one_of("JMSMessageID", [f"ID:{value}" for value in values])
    if column == "priority":
        return _of_number("JMSPriority", found)
    if column == "time":
        return _of_time(found)
    return None


def _denied(column: str, child: Filter) -> str | None:
    """NOT of a filter: unknown stays unknown on both sides. Null-safe equality knows no unknown, so it is left."""
    if isinstance(child, EqualNullSafe) or (isinstance(child, In) and None in child.value):
        return None
    condition = _condition(column, child)
    return None if condition is None else f"NOT ({condition})"


def _of_text(name: str, found: Filter) -> str | None:
    values = _equals(found)
    if values is not None:
        return _one_of(name, values)
    if isinstance(found, IsNull):
        return f"{name} IS NULL"
    if isinstance(found, IsNotNull):
        return f"{name} IS NOT NULL"
    around = _LIKE.get(type(found))
    if around is None:
        return None
    value = getattr(found, "value", None)
    if not isinstance(value, str):
        return None
    escaped = value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"{name} LIKE {_quoted(around[0] + escaped + around[1])} ESCAPE '\\'"


def _one_of(name: str, values: list[Any]) -> str | None:
    if not values or not all(isinstance(value, str) for value in values):
        return None
    if len(values) == 1:
        return f"{name} = {_quoted(values[0])}"
    return f"{name} IN ({', '.join(map(_quoted, values))})"


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _of_number(name: str, found: Filter) -> str | None:
    values = _equals(found)
    if values is not None:
        if not values or not all(_is_whole(value) for value in values):
            return None
        conditions = [f"{name} = {value}" for value in values]
        return conditions[0] if len(conditions) == 1 else f"({' OR '.join(conditions)})"
    sign = _COMPARED.get(type(found))
    value = getattr(found, "value", None)
    return f"{name} {sign} {value}" if sign is not None and _is_whole(value) else None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LONG


def _of_time(found: Filter) -> str | None:
    """Times of messages are whole milliseconds, those of Spark microseconds."""
    value = getattr(found, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None or value < _EPOCH:
        return None
    us = (value - _EPOCH) // timedelta(microseconds=1)
    down, up = us // 1000, -(-us // 1000)
    match found:
        case GreaterThan():
            return f"JMSTimestamp > {down}"
        case GreaterThanOrEqual():
            return f"JMSTimestamp >= {up}"
        case LessThan():
            return f"JMSTimestamp < {up}"
        case LessThanOrEqual():
            return f"JMSTimestamp <= {down}"
        case EqualTo() if down == up:
            return f"JMSTimestamp = {down}"
    return None
