"""From the text of a file of rules to rules; see `rules` for what is guaranteed."""

from __future__ import annotations

import re
import string
import tomllib
from collections.abc import Callable
from typing import Any

from clarion.errors import BadSetting
from clarion.events.event import Severity
from clarion.pipelines.alerts import rules
from clarion.pipelines.alerts.places import Place, scan
from clarion.pipelines.alerts.rules import Condition, Rule
from clarion.pipelines.alerts.table import Table, at
from clarion.units import shown

_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_SEVERITIES = tuple(severity.text for severity in Severity)
_SPAN_MS_MAX = rules.SPAN_MS_MAX
FACTS = ("rule", "kind", "severity", "key", "count", "first", "last", "value")
"""What a message may name besides the names in `by`."""


def parse(text: str, file: str = "rules") -> tuple[Rule, ...]:
    """The rules that a text of TOML says. Raises `BadSetting`, which knows line and column."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number with thousands of digits is a ValueError without a place
        raise _not_toml(text, file, str(error)) from None
    places = scan(text)
    for key in tables:
        if key != "rule":
            raise at(file, places.key(key), f"{key}: there are only tables [[rule]]")
    found = tables.get("rule", [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise at(file, places.key("rule"), "rule: each rule is a table [[rule]]")
    if not found:
        raise at(file, Place(1, 1), "there is no [[rule]]")
    if len(found) > rules.RULES_MAX:
        raise at(file, places.key("rule", rules.RULES_MAX), f"there are more than {rules.RULES_MAX} rules")
    made: dict[str, Rule] = {}
    for number, values in enumerate(found):
        table = Table(values, number, places, file)
        rule = _rule(table)
        if rule.name in made:
            table.fail("name", "another rule has this name")
        made[rule.name] = rule
    return tuple(made.values())


def _not_toml(text: str, file: str, detail: str) -> BadSetting:
    match = _TOML_PLACE.search(detail)
    place = Place(1, 1)
    if match is not None:
        detail = detail[: match.start()]
        lines = text.split("\n")
        place = Place(int(match[1]), int(match[2])) if match[1] else Place(len(lines), len(lines[-1]) + 1)
    return at(file, place, f"this is no TOML: {detail}")


def _rule(table: Table) -> Rule:
    name = table.text("name")
    if not _NAME.fullmatch(name):
        table.fail("name", f"it is 1 to 100 letters, digits, '-' and '_', not {shown(name)}")
    kind = table.text("kind")
    if kind not in _KINDS:
        table.fail("kind", f"it is one of {', '.join(_KINDS)}, not {shown(kind)}")
    by = _by(table)
    condition = _KINDS[kind](table)
    if isinstance(condition, rules.Silence):
        condition = rules.Silence(condition.after_ms, _expected(table, len(by)))
    severity = table.text("severity", "warning")
    if severity not in _SEVERITIES:
        table.fail("severity", f"it is one of {', '.join(_SEVERITIES)}, not {shown(severity)}")
    lateness_ms = table.duration("lateness", 0, rules.DAY_MS, 5_000)
    cooldown_ms = table.duration("cooldown", 0, _SPAN_MS_MAX, 0)
    needed_ms = max(condition.horizon_ms, cooldown_ms) + 1
    rule = Rule(
        name=name,
        condition=condition,
        where=table.selector("where", ""),
        by=by,
        severity=severity,
        message=_message(table, condition, by),
        lateness_ms=lateness_ms,
        ordered=table.flag("ordered", False),
        cooldown_ms=cooldown_ms,
        clear=table.flag("clear", True),
        forget_ms=table.duration("forget", needed_ms, 2 * _SPAN_MS_MAX, max(rules.DAY_MS, 2 * needed_ms)),
    )
    table.finish(kind)
    return rule


def _by(table: Table) -> tuple[str, ...]:
    names = table.texts("by", ["source"])
    if len(names) > rules.BY_MAX:
        table.fail("by", f"there are {len(names)} names, {rules.BY_MAX} are allowed")
    for number, name in enumerate(names):
        if not name or name in names[:number]:
            table.fail("by", "a name is not empty, and stands here once", number)
    return tuple(names)


def _threshold(table: Table) -> Condition:
    if not table.has("value"):
        count = table.whole("count", 1, rules.COUNT_MAX)
        return rules.Count(count, table.duration("within", 1, _SPAN_MS_MAX))
    name = table.text("value")
    over = table.number("over") if table.has("over") else None
    under = table.number("under") if table.has("under") else None
    if over is None and under is None:
        table.fail("value", "it needs a limit: over, or under, or both")
    if over is not None and under is not None and under > over:
        table.fail("under", "it is not above over: then every number would be wrong")
    return rules.Value(name, over, under, table.duration("for", 0, _SPAN_MS_MAX, 0))


def _storm(table: Table) -> Condition:
    within_ms = table.duration("within", 1_000, _SPAN_MS_MAX // (rules.BASELINE_MAX + 1))
    baseline_ms = table.duration("baseline", within_ms, rules.BASELINE_MAX * within_ms, 10 * within_ms)
    factor = table.number("factor")
    if factor <= 1:
        table.fail("factor", f"it is more than 1, not {shown(factor)}")
    return rules.Storm(within_ms, baseline_ms, factor, table.whole("minimum", 1, 1_000_000_000, 10))


def _silence(table: Table) -> Condition:
    return rules.Silence(table.duration("after", 1, _SPAN_MS_MAX))


def _expected(table: Table, names: int) -> tuple[tuple[str, ...], ...]:
    """Keys that are known in advance: texts if `by` has one name, else lists of texts."""
    keys = table.list("expect", [])
    if len(keys) > rules.EXPECTED_MAX:
        table.fail("expect", f"there are {len(keys)} keys, {rules.EXPECTED_MAX} are allowed")
    made: list[tuple[str, ...]] = []
    for number, key in enumerate(keys):
        parts = [key] if isinstance(key, str) else key
        if not isinstance(parts, list) or len(parts) != names or not all(isinstance(part, str) for part in parts):
            wanted = "a text" if names == 1 else f"a list of {names} texts, as `by` has {names} names"
            table.fail("expect", f"a key is {wanted}, not {shown(key)}", number)
        made.append(tuple(parts))
    return tuple(dict.fromkeys(made))


def _flapping(table: Table) -> Condition:
    name = table.text("value")
    return rules.Flapping(name, table.whole("changes", 1, rules.COUNT_MAX), table.duration("within", 1, _SPAN_MS_MAX))


def _sequence(table: Table) -> Condition:
    steps = table.selectors("steps")
    if not 2 <= len(steps) <= rules.STEPS_MAX:
        table.fail("steps", f"there are {len(steps)} steps, 2 to {rules.STEPS_MAX} are allowed")
    without = table.selector("without") if table.has("without") else None
    within_ms = table.duration("within", 1, _SPAN_MS_MAX)
    return rules.Sequence(steps, within_ms, without, table.flag("missing_last", False))


_KINDS: dict[str, Callable[[Table], Condition]] = {
    "threshold": _threshold,
    "storm": _storm,
    "silence": _silence,
    "flapping": _flapping,
    "sequence": _sequence,
}


_MESSAGES: dict[type[Any], str] = {
    rules.Count: "{count} events from {key}",
    rules.Value: "{value} reported by {key}",
    rules.Storm: "{count} events from {key}, where {value} are usual",
    rules.Silence: "nothing from {key} since {last}",
    rules.Flapping: "{key} changed {count} times",
    rules.Sequence: "sequence of {count} events from {key}",
}


def _message(table: Table, condition: Condition, by: tuple[str, ...]) -> str:
    text = table.text("message", _MESSAGES[type(condition)])
    known = (*FACTS, *by)
    try:
        for _, name, form, conversion in string.Formatter().parse(text):
            if name is None:
                continue
            index = max(text.find("{" + name), 0)
            if form or conversion:
                table.fail_inside("message", index, "a name stands alone in its braces")
            if name not in known:
                table.fail_inside("message", index, f"there is no {{{name}}}; there are {', '.join(known)}")
    except ValueError as error:
        table.fail("message", f"a brace is written twice where it is no name: {error}")
    return text
