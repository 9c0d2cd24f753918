"""One key of one rule between two clocks: that of the events, and that of the micro-batches.

Theory of operation
    A machine knows only the times of events. They say how much time has passed as long as events come; when none
    come, the clock of the micro-batches does. So the time of a key is the time of its newest event, plus what the
    clock of the batches has gone on since that event was here. A key whose events are an hour behind has a time that
    is an hour behind: a backlog is no silence, and one source with a wrong clock disturbs no other.

    Rows of a batch are taken in the order of their times. An event may be late by `lateness`: it is taken as of the
    time of its key, because nothing is taken back that was raised. A later one is dropped and counted. Time without
    events is told to the machine only when `lateness` has gone by. With `ordered` the rows wait for so long too, and
    are taken in the exact order of their times.

Rules
    1. Pure. Batches say their time, which Spark writes down before it runs a batch: a batch that is run again
       has the same time, and the same alerts.
    2. A pause of the batches (a stopped pipeline, say) is not time without events: the next batch counts for at most
       half of what a key still waits for, or 20 seconds. So a pipeline that comes back reads first.
    3. An event from the future is taken as of now plus `lateness`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from clarion.pipelines.alerts.machine import NEVER, Alert, Row, State
from clarion.pipelines.alerts.machines import AnyState, new_state
from clarion.pipelines.alerts.rules import Rule

HELD_MAX = 10_000
"""Rows of one key that wait for their order; with more the oldest wait no longer."""
STEP_MS_MIN = 10_000
CHANGED = "rule changed"


class Keyed(msgspec.Struct, array_like=True):
    """All that is remembered of one key."""

    fingerprint: str
    """Of the rule that this was remembered by."""
    state: AnyState
    newest_ms: int = NEVER
    elapsed_ms: int = 0
    """How far the clock of the batches has gone on since the newest event was here."""
    batch_ms: int = NEVER
    """The batch that was counted last."""
    clock_ms: int = NEVER
    """The time that the machine was told last."""
    late: int = 0
    """Events that were dropped."""
    held: list[Row] = []

    def rows(self, rule: Rule, rows: Sequence[Row], batch_ms: int) -> list[Alert]:
        """Events of one batch. Before them no time passes: they were on their way."""
        latest_ms = batch_ms + rule.lateness_ms
        for row in rows:
            if row.time_ms < self.clock_ms - rule.lateness_ms:
                self.late += 1
            else:
                self.held.append(row._replace(time_ms=min(row.time_ms, latest_ms)))
        self.held.sort(key=_time)  # stable: rows of the same time stay in the order in which they were sent
        newest_ms = max((row.time_ms for row in self.held), default=NEVER)
        if newest_ms > self.newest_ms:
            self.newest_ms, self.elapsed_ms, self.batch_ms = newest_ms, 0, batch_ms
        else:
            self._step(rule, batch_ms)
        return self._released(rule)

    def passed(self, rule: Rule, batch_ms: int) -> list[Alert]:
        """A batch without events of this key."""
        self._step(rule, batch_ms)
        return [*self._released(rule), *self._told(rule, self._believed_ms(rule))]

    def wake_ms(self, rule: Rule) -> int:
        """At which time of the batches `passed` is to be called, or -1."""
        missing_ms = self._missing_ms(rule)
        return NEVER if missing_ms == NEVER else self.batch_ms + _paced(missing_ms)

    def expect(self, now_ms: int) -> None:
        """The rule expects this key."""
        self.state.expect(now_ms)
        if self.newest_ms == NEVER:
            self.newest_ms = self.batch_ms = self.clock_ms = now_ms

    @property
    def is_gone(self) -> bool:
        return self.state.gone and not self.held

    def _released(self, rule: Rule) -> list[Alert]:
        """Rows that need not wait."""
        until_ms = self._believed_ms(rule) if rule.ordered else self.newest_ms
        free = sum(row.time_ms <= until_ms for row in self.held)
        free = max(free, len(self.held) - HELD_MAX)
        alerts: list[Alert] = []
        for row in self.held[:free]:
            self.clock_ms = max(self.clock_ms, row.time_ms)
            alerts += self.state.row(rule, row._replace(time_ms=self.clock_ms))
        del self.held[:free]
        return alerts

    def _told(self, rule: Rule, now_ms: int) -> list[Alert]:
        if now_ms <= self.clock_ms:
            return []
        self.clock_ms = now_ms
        return self.state.passed(rule, now_ms)

    def _believed_ms(self, rule: Rule) -> int:
        """No event of an earlier time is still to come."""
        return self.newest_ms + self.elapsed_ms - rule.lateness_ms

    def _missing_ms(self, rule: Rule) -> int:
        """How far the clock of the batches has to go on until something happens."""
        due_ms = self.held[0].time_ms if self.held else self.state.wake_ms(rule)
        return NEVER if due_ms == NEVER else max(due_ms - self._believed_ms(rule), 1)

    def _step(self, rule: Rule, batch_ms: int) -> None:
        gone_on_ms = max(batch_ms - self.batch_ms, 0)
        self.batch_ms = max(batch_ms, self.batch_ms)
        missing_ms = self._missing_ms(rule)
        self.elapsed_ms += gone_on_ms if missing_ms == NEVER else min(gone_on_ms, 2 * _paced(missing_ms))


def _time(row: Row) -> int:
    return row.time_ms


def _paced(missing_ms: int) -> int:
    """After how long to look again, so that a pause of the batches shows as one."""
    return min(missing_ms, max(STEP_MS_MIN, missing_ms // 4))


def new_keyed(rule: Rule) -> Keyed:
    """Of a key that nothing is known of."""
    return Keyed(rule.fingerprint, _typed(new_state(rule)))


def _typed(state: State) -> AnyState:
    assert isinstance(state, AnyState)
    return state


def replaced(rule: Rule, keyed: Keyed, now_ms: int) -> tuple[Keyed, list[Alert]]:
    """The same key under a rule that has changed: an open alert is cleared, and nothing is remembered."""
    alerts = keyed.state.abandoned(now_ms, CHANGED)
    return new_keyed(rule), alerts
