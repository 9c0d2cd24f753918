"""The machines that remember more than moments: storms and sequences. And which machine a rule has.

See `machine` for what all have in common.
"""

from __future__ import annotations

from typing import Any

import msgspec

from clarion.pipelines.alerts import rules
from clarion.pipelines.alerts.machine import (
    NEVER,
    Alert,
    CountState,
    FlappingState,
    Row,
    SilenceState,
    State,
    ValueState,
)
from clarion.pipelines.alerts.rules import SLICES, Rule


class StormState(State, array_like=True, tag="s"):
    """Kind `storm`: counts in slices of a tenth of `within`.

    The last ten slices, with the one that runs, are compared to the average of the slices of the baseline before them;
    of these only the ones since the key was first seen count. With fewer than ten of them there is no
    storm, because nothing is known yet. Raised by an event; looked at again at the end of each slice.
    """

    slices: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """Number of a slice, and how many events it has; ascending."""
    begun: int = NEVER
    """Slice in which the key was first seen."""
    looked: int = NEVER
    """Slice of the last look."""

    def _taken(self, rule: Rule, condition: rules.Storm, row: Row) -> list[Alert]:
        now = row.time_ms // _slice_ms(condition)
        if self.begun == NEVER:
            self.begun = now
        if self.slices and self.slices[-1][0] == now:
            self.slices[-1] = (now, self.slices[-1][1] + 1)
        else:
            oldest = now - SLICES - condition.baseline_ms // _slice_ms(condition)
            self.slices = [*(each for each in self.slices if each[0] > oldest), (now, 1)]
        self._noted(row)
        self.looked = now
        if self.is_raised or row.time_ms < self.quiet_ms or self.count < condition.minimum:
            return []  # `count` is of all that came, so at least of those that are looked at
        count, usual = self._look(condition, now)
        if usual is None or not _is_storm(condition, count, usual):
            return []
        self.value = f"{usual:.1f}"
        first_ms = next(number for number, _ in self.slices if number > now - SLICES) * _slice_ms(condition)
        return self._raise(row.time_ms, count, first_ms, row.time_ms)

    def _look(self, condition: rules.Storm, now: int) -> tuple[int, float | None]:
        """Events of the last ten slices, and how many are usual; None if there can be no storm."""
        length = condition.baseline_ms // _slice_ms(condition)
        known = min(length, now - SLICES + 1 - self.begun)
        count = sum(events for number, events in self.slices[-SLICES:] if number > now - SLICES)
        if known < SLICES or count < condition.minimum:
            return count, None
        before = sum(events for number, events in self.slices if now - SLICES - length < number <= now - SLICES)
        return count, before * SLICES / known

    def _due(self, rule: Rule, condition: rules.Storm, now_ms: int) -> list[Alert]:
        self.looked = now_ms // _slice_ms(condition)
        count, usual = self._look(condition, self.looked)
        return [] if usual is not None and _is_storm(condition, count, usual) else self._clear(rule, now_ms)

    def _due_ms(self, rule: Rule, condition: rules.Storm) -> int:
        return (self.looked + 1) * _slice_ms(condition) if self.is_raised else NEVER


def _slice_ms(condition: rules.Storm) -> int:
    return condition.within_ms // SLICES


def _is_storm(condition: rules.Storm, count: int, usual: float) -> bool:
    return count >= condition.minimum and count >= condition.factor * usual


class Partial(msgspec.Struct, array_like=True):
    """The first steps of a sequence, with the latest beginning that they can have."""

    begin_ms: int
    ids: list[str]


class SequenceState(State, array_like=True, tag="n"):
    """Kind `sequence`.

    Of all ways to have come as far as step n only that with the latest beginning is kept: whatever completes
    another one in time completes that one too. An event is one step of a sequence at most; a complete sequence
    uses up what came before it. An event that matches `without` ends all that has begun.

    With `missing_last` the alert is raised when the last step has not come in time, and cleared when it comes. The
    first that waits decides; another beginning meanwhile changes nothing.
    """

    partial: list[Partial | None] = msgspec.field(default_factory=list)
    waiting: Partial | None = None

    def _taken(self, rule: Rule, condition: rules.Sequence, row: Row) -> list[Alert]:
        steps = len(condition.steps)
        if row.bits >> steps & 1:
            self.partial, self.waiting = [], None
        alerts: list[Alert] = []
        last = steps - 1
        if condition.missing_last:
            last -= 1
            if row.bits >> (steps - 1) & 1:
                self.waiting = None
                self.last_ms = row.time_ms
                alerts = self._clear(rule, row.time_ms)
        complete = self._advanced(condition, row, last)
        if complete is None:
            return alerts
        self.partial = []
        if condition.missing_last:
            if self.waiting is None and not self.is_raised:
                self.waiting = complete
            return alerts
        return alerts if row.time_ms < self.quiet_ms else [*alerts, *self._momentary(rule, row.time_ms, complete)]

    def _advanced(self, condition: rules.Sequence, row: Row, last: int) -> Partial | None:
        """Take the event as a step, later ones first, so that it is not two steps of one sequence."""
        self.partial += [None] * (last + 1 - len(self.partial))
        for step in range(last, 0, -1):
            before = self.partial[step - 1]
            if before is not None and row.bits >> step & 1 and row.time_ms - before.begin_ms <= condition.within_ms:
                taken = self.partial[step]
                if taken is None or taken.begin_ms < before.begin_ms:
                    self.partial[step] = Partial(before.begin_ms, [*before.ids, row.id])
        if row.bits & 1:
            self.partial[0] = Partial(row.time_ms, [row.id])
        return self.partial[last]

    def _momentary(self, rule: Rule, now_ms: int, complete: Partial) -> list[Alert]:
        """A complete sequence is over as soon as it is seen: nothing is cleared later."""
        self.quiet_ms = now_ms + rule.cooldown_ms
        ids = tuple(complete.ids)
        return [Alert(True, now_ms, now_ms, len(ids), complete.begin_ms, now_ms, ids)]

    def _due(self, rule: Rule, condition: Any, now_ms: int) -> list[Alert]:
        waiting, self.waiting = self.waiting, None
        if waiting is None or now_ms < self.quiet_ms:
            return []
        self.evidence = waiting.ids
        return self._raise(now_ms, len(waiting.ids), waiting.begin_ms, self.last_ms)

    def _due_ms(self, rule: Rule, condition: rules.Sequence) -> int:
        return NEVER if self.waiting is None else self.waiting.begin_ms + condition.within_ms + 1


_STATES: dict[type[Any], type[State]] = {
    rules.Count: CountState,
    rules.Value: ValueState,
    rules.Storm: StormState,
    rules.Silence: SilenceState,
    rules.Flapping: FlappingState,
    rules.Sequence: SequenceState,
}

AnyState = CountState | ValueState | StormState | SilenceState | FlappingState | SequenceState


def new_state(rule: Rule) -> State:
    """The machine of a key that nothing is known of."""
    return _STATES[type(rule.condition)]()
