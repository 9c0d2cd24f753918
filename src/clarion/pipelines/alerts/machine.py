"""What a rule remembers of one key, and when it raises and clears an alert.

Theory of operation
    A rule has one machine for each key. Its stimuli are rows (`row`) and time that has passed (`passed`); both say the
    time, and time never goes back. The answer is a list of alerts. `wake_ms` is the next time at which something
    happens if no row comes; `passed` acts on each such time that it passes, at that time and not later, so that it
    does not matter how often it is called.

        condition begins to hold  →  raised, unless a cooldown runs
        condition ends            →  cleared; the cooldown begins

Rules
    1. Pure: no clock, no Spark, no random numbers. The same stimuli give the same alerts.
    2. Memory is bounded by the rule, not by the number of events: a threshold of 5 remembers five times.
    3. A key that no row has come for is forgotten after `forget`: an open alert is cleared then, and `gone` is set.
       Keys that a rule expects are never forgotten.

Milliseconds since 1970 throughout; -1 is never.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from clarion.pipelines.alerts import rules
from clarion.pipelines.alerts.rules import Rule

EVIDENCE_MAX = 10
"""Ids of events that an alert carries: the newest ones."""
NEVER = -1
FORGOTTEN = "forgotten"


class Row(NamedTuple):
    """An event that matches the rule."""

    time_ms: int
    id: str
    bits: int = 1
    """Of a sequence: which of its selectors match."""
    text: str | None = None
    """The value of the property that the rule looks at."""


class Alert(msgspec.Struct, frozen=True):
    """Raised or cleared. `since_ms` is when it was raised, and names the alert together with rule and key."""

    raised: bool
    time_ms: int
    since_ms: int
    count: int
    first_ms: int
    last_ms: int
    evidence: tuple[str, ...]
    value: str | None = None
    reason: str | None = None


class State(msgspec.Struct, array_like=True, tag=True):
    """What all kinds remember."""

    since_ms: int = NEVER
    """When the alert that is open was raised."""
    quiet_ms: int = NEVER
    """Before this time nothing is raised."""
    first_ms: int = NEVER
    last_ms: int = NEVER
    count: int = 0
    evidence: list[str] = []
    value: str | None = None
    expected: bool = False
    gone: bool = False

    def row(self, rule: Rule, row: Row) -> list[Alert]:
        """An event. The time before it passes first."""
        alerts = self.passed(rule, row.time_ms)
        if self.gone:
            self._begin_again()
        alerts += self._taken(rule, rule.condition, row)
        self.last_ms = row.time_ms
        return alerts

    def passed(self, rule: Rule, now_ms: int) -> list[Alert]:
        """No event has come before this time that was not told."""
        alerts: list[Alert] = []
        while not self.gone and NEVER < (wake_ms := self.wake_ms(rule)) <= now_ms:
            if wake_ms == self._forgotten_ms(rule):
                alerts += self._clear(rule, wake_ms, FORGOTTEN)
                self.gone = True
            else:
                alerts += self._due(rule, rule.condition, wake_ms)
        return alerts

    def wake_ms(self, rule: Rule) -> int:
        """The next time at which something happens by itself, or -1."""
        times = (self._due_ms(rule, rule.condition), self._forgotten_ms(rule))
        return min((time_ms for time_ms in times if time_ms != NEVER), default=NEVER)

    def expect(self, now_ms: int) -> None:
        """The key is known in advance: it counts from now on, and is never forgotten."""
        self.expected = True
        if self.last_ms == NEVER:
            self.last_ms = now_ms

    def abandoned(self, now_ms: int, reason: str) -> list[Alert]:
        """The rule is no longer what it was: an alert that is open is cleared."""
        if not self.is_raised:
            return []
        return [self._cleared(now_ms, self.since_ms, reason)]

    def _taken(self, rule: Rule, condition: Any, row: Row) -> list[Alert]:
        raise NotImplementedError

    def _due(self, rule: Rule, condition: Any, now_ms: int) -> list[Alert]:
        raise NotImplementedError

    def _due_ms(self, rule: Rule, condition: Any) -> int:
        raise NotImplementedError

    def _forgotten_ms(self, rule: Rule) -> int:
        if self.expected or self.last_ms == NEVER:
            return NEVER
        return max(self.last_ms + rule.forget_ms, self.quiet_ms)

    @property
    def is_raised(self) -> bool:
        return self.since_ms != NEVER

    def _begin_again(self) -> None:
        fresh = type(self)()
        for name in self.__struct_fields__:
            setattr(self, name, getattr(fresh, name))

    def _noted(self, row: Row) -> None:
        """One more event of the alert that is open or comes."""
        self.count += 1
        self.evidence = [*self.evidence[1 - EVIDENCE_MAX :], row.id]

    def _raise(self, now_ms: int, count: int, first_ms: int, last_ms: int) -> list[Alert]:
        self.since_ms, self.count, self.first_ms = now_ms, count, first_ms
        return [Alert(True, now_ms, now_ms, count, first_ms, last_ms, tuple(self.evidence[-count:]), self.value)]

    def _clear(self, rule: Rule, now_ms: int, reason: str | None = None) -> list[Alert]:
        if not self.is_raised:
            return []
        since_ms, self.since_ms = self.since_ms, NEVER
        self.quiet_ms = now_ms + rule.cooldown_ms
        return [self._cleared(now_ms, since_ms, reason)] if rule.clear else []

    def _cleared(self, now_ms: int, since_ms: int, reason: str | None) -> Alert:
        evidence = tuple(self.evidence[-self.count :]) if self.count else ()
        return Alert(False, now_ms, since_ms, self.count, self.first_ms, self.last_ms, evidence, self.value, reason)


class _Windowed(State, array_like=True):
    """So many moments within so much time: the newest are kept, and decide."""

    moments_ms: list[int] = []

    def _moment(self, row: Row, needed: int, within_ms: int) -> list[Alert]:
        now_ms = row.time_ms
        self._noted(row)
        self.moments_ms.append(now_ms)
        del self.moments_ms[:-needed]
        if self.is_raised or now_ms < self.quiet_ms:
            return []
        if len(self.moments_ms) < needed or self.moments_ms[0] <= now_ms - within_ms:
            return []
        return self._raise(now_ms, needed, self.moments_ms[0], now_ms)

    def _due(self, rule: Rule, condition: Any, now_ms: int) -> list[Alert]:
        return self._clear(rule, now_ms)

    def _due_ms(self, rule: Rule, condition: rules.Count | rules.Flapping) -> int:
        """When the oldest of the moments that are needed leaves the window."""
        return self.moments_ms[0] + condition.within_ms if self.is_raised else NEVER


class CountState(_Windowed, array_like=True, tag="c"):
    """Kind `threshold` with `count`."""

    def _taken(self, rule: Rule, condition: rules.Count, row: Row) -> list[Alert]:
        return self._moment(row, condition.count, condition.within_ms)


class FlappingState(_Windowed, array_like=True, tag="f"):
    """Kind `flapping`. Events without the property say nothing."""

    def _taken(self, rule: Rule, condition: rules.Flapping, row: Row) -> list[Alert]:
        before, self.value = self.value, row.text if row.text is not None else self.value
        if before is None or self.value == before:
            return []
        return self._moment(row, condition.changes, condition.within_ms)


class ValueState(State, array_like=True, tag="v"):
    """Kind `threshold` with `value`. A report holds until the next one; what is no number is no report."""

    beyond_ms: int = NEVER
    """Since when every report was beyond the limits."""

    def _taken(self, rule: Rule, condition: rules.Value, row: Row) -> list[Alert]:
        number = number_of(row.text)
        if number is None:
            return []
        over, under = condition.over, condition.under
        is_beyond = (over is not None and number > over) or (under is not None and number < under)
        self.value = row.text
        if not is_beyond:
            self._noted(row)
            self.last_ms = row.time_ms
            alerts = self._clear(rule, row.time_ms)
            self.beyond_ms, self.count, self.evidence = NEVER, 0, []
            return alerts
        if self.beyond_ms == NEVER:
            self.beyond_ms = self.first_ms = row.time_ms
        self._noted(row)
        self.last_ms = row.time_ms
        return self.passed(rule, row.time_ms)

    def _due(self, rule: Rule, condition: Any, now_ms: int) -> list[Alert]:
        return self._raise(now_ms, self.count, self.beyond_ms, self.last_ms)

    def _due_ms(self, rule: Rule, condition: rules.Value) -> int:
        if self.is_raised or self.beyond_ms == NEVER:
            return NEVER
        return max(self.beyond_ms + condition.for_ms, self.quiet_ms)


class SilenceState(State, array_like=True, tag="q"):
    """Kind `silence`. Raised one millisecond after `after`; cleared by the next event."""

    def _taken(self, rule: Rule, condition: Any, row: Row) -> list[Alert]:
        self.count, self.evidence = 1, [row.id]
        self.last_ms = row.time_ms
        return self._clear(rule, row.time_ms)

    def _due(self, rule: Rule, condition: Any, now_ms: int) -> list[Alert]:
        return self._raise(now_ms, self.count, self.last_ms, self.last_ms)

    def _due_ms(self, rule: Rule, condition: rules.Silence) -> int:
        if self.is_raised or self.last_ms == NEVER:
            return NEVER
        return max(self.last_ms + condition.after_ms + 1, self.quiet_ms)


def number_of(text: str | None) -> float | None:
    """The number that a property's text is; None if it is none."""
    try:
        number = msgspec.json.decode(text, type=float) if text is not None else None
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return number
