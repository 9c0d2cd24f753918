"""Cooperating systems while everything fails: thousands of seeds, with and without a witness (A-10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from clarion.events.pair import machine as machines
from clarion.events.pair.machine import Machine
from clarion.events.pair.messages import Policy, Timing
from clarion.events.pair.states import BOND, DUTY, RIGHT, Bond, Duty, Event, Right
from tests.simulation import pair_hosts, pair_world
from tests.simulation.pair_world import Broken, Setup, World, run

SEEDS = 700
SEEDS_SOAK = 20_000
BROKEN_SEEDS = 600

EVERYTHING = {
    Policy.WITNESS: {*Right, *Duty, *Bond},
    Policy.WAIT: {Right.WAITING, Right.HOLDING, Right.FENCED, Right.RETURNING} | {*Duty, *Bond} - {Duty.TAKING_OVER},
    Policy.REPLAY: {Right.WAITING, Right.HOLDING, Right.RETURNING} | {*Duty, *Bond} - {Duty.TAKING_OVER},
}


@pytest.mark.parametrize("policy", Policy)
def test_a10_whatever_fails_nothing_is_lost_and_nobody_is_in_the_others_way(policy: Policy) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen.update(run(seed, policy).seen)
    assert set(seen) == EVERYTHING[policy]  # a simulation in which nothing happens proves nothing
    assert min(seen.values()) >= SEEDS // 20, seen


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("policy", Policy)
def test_a10_whatever_fails_for_a_long_time(policy: Policy) -> None:
    for seed in range(SEEDS, SEEDS + SEEDS_SOAK):
        run(seed, policy)


KINDS = ("crash", "pause", "cut", "deaf", "witness")
TWO_FAULTS = [(first, second, whom) for first in KINDS for second in KINDS for whom in ("same", "other")]


@pytest.mark.parametrize(("first", "second", "whom"), TWO_FAULTS)
@pytest.mark.parametrize("policy", Policy)
def test_a10_every_combination_of_two_faults(policy: Policy, first: str, second: str, whom: str) -> None:
    for gap_ms in (500, 3_600):
        faults = [(10_000, first, "a", 8_000), (10_000 + gap_ms, second, "a" if whom == "same" else "b", 8_000)]
        run(0, policy, Setup(policy, faults=faults))


def test_a10_what_was_done_after_giving_back_is_not_done_again() -> None:
    """b acts, its lease runs out, it gives back; a goes on by its word alone, is paused, and b acts again, and dies."""
    faults = [
        (5_000, "pause", "a", 4_500),
        (9_000, "cut", "a", 4_000),
        (9_000, "witness", "a", 8_000),
        (14_500, "pause", "a", 6_000),
        (20_400, "crash", "b", 5_000),
    ]
    for seed in range(30):
        run(seed, Policy.WITNESS, Setup(Policy.WITNESS, faults=faults, emits=400))


# --- the simulation is able to find what it looks for -------------------------------------------------


def _first_broken(policy: Policy = Policy.WITNESS) -> str:
    for seed in range(BROKEN_SEEDS):
        try:
            World(seed, policy).run()
        except Broken:
            with pytest.raises(Broken) as told:
                run(seed, policy)
            assert f"run({seed}, Policy.{policy.name})" in str(told.value)
            return str(told.value).splitlines()[-2]
    raise AssertionError(f"{BROKEN_SEEDS} worlds with a broken rule, and nobody noticed")


def _keeps_a_right_too_long(patch: pytest.MonkeyPatch) -> None:
    timing = Timing.of(3_000)
    fields = {name: getattr(timing, name) for name in timing.__struct_fields__}
    patch.setattr(pair_hosts, "TIMING", Timing(**{**fields, "margin_ms": -1_000}))


def _without_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Machine, "may_deliver", lambda self, now_ms: self.right is Right.HOLDING)


def _acts_when_heard(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(DUTY[Duty.TAKING_OVER], Event.HEARD)


def _acts_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Machine, "may_act", lambda self, now_ms: self.duty is Duty.ACTING)
    patch.delitem(DUTY[Duty.ACTING], Event.LAPSED)


def _believes_old_words(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machines, "BEATS_KEPT", 1 << 20)
    original = Machine.heartbeat

    def heartbeat(self: Machine, now_ms: int) -> object:
        said = original(self, now_ms)
        self._beats = dict.fromkeys(self._beats, now_ms)
        return said

    patch.setattr(Machine, "heartbeat", heartbeat)


def _forgets_that_it_is_owed(patch: pytest.MonkeyPatch) -> None:
    for state in (Right.WAITING, Right.FENCED, Right.RETURNING):
        patch.setitem(RIGHT[state], Event.OWED, Right.HOLDING)


def _believes_that_recipients_are_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Machine, "recipients_are_known", True)


def _does_not_see_recipients_change(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(BOND[Bond.PAIRED], Event.UNTOLD)


@pytest.mark.parametrize(
    ("break_it", "promise"),
    [
        (_keeps_a_right_too_long, "at the same time"),
        (_without_fence, "at the same time"),
        (_acts_when_heard, "not at rest"),
        (_believes_old_words, "at the same time"),
        (_forgets_that_it_is_owed, "handled again by"),
        (_believes_that_recipients_are_known, "is paired, but"),
        (_does_not_see_recipients_change, "is paired, but"),
    ],
)
def test_a10_a_broken_rule_is_noticed(
    break_it: Callable[[pytest.MonkeyPatch], None], promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    assert promise in _first_broken()


def test_a10_a_system_that_acts_for_ever_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut off for so long that the other goes on without knowing what it did."""
    monkeypatch.setattr(pair_world, "CHAOS_MS", 60_000)
    setup = Setup(Policy.WITNESS, faults=[(5_000, "crash", "a", 6_000), (9_500, "alone", "b", 50_000)])
    run(0, Policy.WITNESS, setup)
    _acts_for_ever(monkeypatch)
    with pytest.raises(Broken, match="at the same time"):
        run(0, Policy.WITNESS, setup)


@pytest.mark.parametrize("state", [Right.WAITING, Right.RETURNING])
def test_a10_a_system_that_never_gets_its_right_is_noticed(state: Right, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RIGHT[state], Event.ALLOWED)
    monkeypatch.setattr(pair_world, "REST_MS", 30_000)
    assert "never handled" in _first_broken() or "not at rest" in _first_broken()


def test_a10_a_paused_system_under_wait_that_goes_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_fence(monkeypatch)
    monkeypatch.delitem(RIGHT[Right.HOLDING], Event.LAPSED)
    assert "at the same time" in _first_broken(Policy.WAIT)
