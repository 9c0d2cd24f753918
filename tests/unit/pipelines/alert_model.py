"""What alert rules mean, said as plainly as possible: every millisecond is looked at, everything is counted anew.

Slow on purpose. Memory is the whole list of rows; nothing is kept from one look to the next but whether an alert is
open, until when it is quiet, and what a sequence has used up.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise

from clarion.pipelines.alerts import rules
from clarion.pipelines.alerts.machine import Row
from clarion.pipelines.alerts.rules import Rule

Outcome = tuple[bool, int, int, int, str | None]
"""Raised, when, since when it was open, count, reason."""


class Model:
    """One key of one rule."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.condition = rule.condition
        self.outcomes: list[Outcome] = []
        self.forget()

    def forget(self) -> None:
        self.rows: list[Row] = []
        self.since: int | None = None
        self.quiet = -1
        self.count = 0
        self.pool: list[Row] = []
        self.waiting: int | None = None

    def run(self, rows: list[Row], end: int) -> list[Outcome]:
        """Rows in the order of their times, then time up to `end`."""
        for now in range(end + 1):
            self.time(now)
            for row in (each for each in rows if each.time_ms == now):
                self.rows.append(row)
                self.row(row)
        return self.outcomes

    def time(self, now: int) -> None:
        if self.rows and now >= self.rows[-1].time_ms + self.rule.forget_ms and now >= self.quiet:
            self.clear(now, "forgotten")
            self.forget()
            return
        match self.condition:
            case rules.Count(count, within):
                if self.since is not None and self.within(self.rows, now, within) < count:
                    self.clear(now)
            case rules.Flapping(_, changes, within):
                if self.since is not None and self.within(self.changes(), now, within) < changes:
                    self.clear(now)
            case rules.Storm(within):
                if self.since is not None and now % (within // 10) == 0 and not self.is_storm(now)[0]:
                    self.clear(now)
            case rules.Value():
                self.value(now)
            case rules.Silence(after):
                if self.since is None and self.rows and now - self.rows[-1].time_ms > after and now >= self.quiet:
                    self.open(now, 1)
            case rules.Sequence(steps, within):
                if self.waiting is not None and now - self.waiting > within:
                    self.waiting = None
                    if now >= self.quiet:
                        self.open(now, len(steps) - 1)

    def row(self, row: Row) -> None:
        now = row.time_ms
        match self.condition:
            case rules.Count(count, within):
                self.counted(now, count, self.within(self.rows, now, within) >= count)
            case rules.Flapping(_, changes, within):
                if row in self.changes():
                    self.counted(now, changes, self.within(self.changes(), now, within) >= changes)
            case rules.Storm():
                is_storm, count = self.is_storm(now)
                self.counted(now, count, is_storm)
            case rules.Value():
                if row.text != "no number":
                    self.count += 1
                    if not self.is_beyond(row):
                        self.clear(now)
                    self.value(now)
            case rules.Silence():
                self.count = 1
                self.clear(now)
            case rules.Sequence():
                self.sequence(row)

    def counted(self, now: int, count: int, holds: bool) -> None:
        self.count += 1
        if holds and self.since is None and now >= self.quiet:
            self.open(now, count)

    def open(self, now: int, count: int) -> None:
        self.since, self.count = now, count
        self.outcomes.append((True, now, now, count, None))

    def clear(self, now: int, reason: str | None = None) -> None:
        if self.since is not None:
            if self.rule.clear:
                self.outcomes.append((False, now, self.since, self.count, reason))
            self.since = None
            self.quiet = now + self.rule.cooldown_ms

    def within(self, rows: list[Row], now: int, within: int) -> int:
        return sum(now - within < row.time_ms <= now for row in rows)

    def changes(self) -> list[Row]:
        reports = [row for row in self.rows if row.text is not None]
        return [row for before, row in pairwise(reports) if before.text != row.text]

    def is_beyond(self, row: Row) -> bool:
        assert isinstance(self.condition, rules.Value) and row.text is not None
        over, under = self.condition.over, self.condition.under
        return (over is not None and float(row.text) > over) or (under is not None and float(row.text) < under)

    def value(self, now: int) -> None:
        assert isinstance(self.condition, rules.Value)
        run: list[Row] = []
        for row in (each for each in self.rows if each.text != "no number"):
            run = [*run, row] if self.is_beyond(row) else []
        if run and self.since is None and now >= self.quiet and now - run[0].time_ms >= self.condition.for_ms:
            self.open(now, len(run))

    def is_storm(self, now: int) -> tuple[bool, int]:
        assert isinstance(self.condition, rules.Storm)
        size = self.condition.within_ms // 10
        slices = [row.time_ms // size for row in self.rows]
        first, last = now // size - 9, now // size
        count = sum(first <= each <= last for each in slices)
        known = min(self.condition.baseline_ms // size, first - slices[0])
        if known < 10:
            return False, count
        usual = sum(first - known <= each < first for each in slices) / known * 10
        return count >= self.condition.minimum and count >= self.condition.factor * usual - 1e-9, count

    def sequence(self, row: Row) -> None:
        assert isinstance(self.condition, rules.Sequence)
        steps = [self.step(number) for number in range(len(self.condition.steps))]
        if row.bits >> len(steps) & 1:
            self.pool, self.waiting = [], None
        self.pool.append(row)
        if self.condition.missing_last and steps.pop()(row):
            self.waiting = None
            self.clear(row.time_ms)
        begins = [
            chosen[0].time_ms
            for before in combinations(self.pool[:-1], len(steps) - 1)
            for chosen in [(*before, row)]
            if all(step(each) for step, each in zip(steps, chosen, strict=True))
            and row.time_ms - chosen[0].time_ms <= self.condition.within_ms
        ]
        if not begins:
            return
        self.pool = []
        if self.condition.missing_last:
            if self.waiting is None and self.since is None:
                self.waiting = max(begins)
        elif row.time_ms >= self.quiet:
            self.outcomes.append((True, row.time_ms, row.time_ms, len(steps), None))
            self.quiet = row.time_ms + self.rule.cooldown_ms

    @staticmethod
    def step(number: int) -> Callable[[Row], bool]:
        return lambda row: bool(row.bits >> number & 1)
