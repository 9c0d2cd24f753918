"""Commits across groups while everything fails: thousands of seeds, and a crash between any two steps (B-14)."""

from __future__ import annotations

from collections import Counter

import pytest

from clarion.core import two_phase as tp
from clarion.core.two_phase import coordinator, transitions
from clarion.core.two_phase.messages import EXPIRED, SESSION_ENDED, SILENT, TOO_LONG
from clarion.core.two_phase.transitions import Answer, Event, Row, State
from tests.simulation.two_phase_hosts import Group, Node
from tests.simulation.two_phase_world import Broken, Setup, World, run

SEEDS = 2_000
BLOCKS = 4


@pytest.mark.parametrize("block", range(BLOCKS))
def test_b14_whatever_fails_a_transaction_ends_the_same_everywhere(block: int) -> None:
    seen: Counter[object] = Counter()
    for seed in range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS):
        world = run(seed)
        for transaction, (decision, participants) in world.told.items():
            seen[decision, min(len(participants), 2), transaction in world.bundles] += 1
        seen.update(entry.reason for group in world.groups for entry in group.log if isinstance(entry, tp.Decided))
    # A simulation in which nothing happens proves nothing.
    for decision in tp.Decision:
        for groups in (1, 2):
            for bundled in (False, True):
                assert seen[decision, groups, bundled] > 5, (decision, groups, bundled)
    assert all(seen[reason] > 5 for reason in (EXPIRED, SESSION_ENDED, SILENT, TOO_LONG))


@pytest.mark.soak
def test_b14_a_hundred_thousand_more_seeds() -> None:
    for seed in range(1_000_000, 1_100_000):
        run(seed)


SCENARIOS: dict[str, Setup] = {
    "one phase": Setup(1, [("commit", {1: 2})]),
    "two phases": Setup(2, [("commit", {1: 1, 2: 1})]),
    "three groups": Setup(3, [("commit", {1: 1, 2: 0, 3: 1})]),
    "rollback": Setup(2, [("rollback", {1: 1, 2: 1})]),
    "held": Setup(2, [("hold", {1: 1, 2: 1})]),
    "bundle": Setup(2, [("hold", {1: 1, 2: 1}), ("hold", {2: 1}), ("own", {})]),
}


def _with_crashes(name: str, crashes: dict[int, Node], survives: slice, away_ms: int) -> Setup:
    scenario = SCENARIOS[name]
    return Setup(scenario.groups, scenario.clients, crashes_after=crashes, survives=survives, away_ms=(away_ms,))


def _calm(name: str) -> tuple[int, list[Node]]:
    """How many steps a scenario takes when nothing goes wrong, and who is there."""
    world = World(0, SCENARIOS[name])
    world.run()
    for client in world.clients:
        assert client.answer is not None
    nodes = [one.node for one in world.groups] + [one.node for one in world.managers]
    return world.steps, nodes + [one.node for one in world.clients]


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("survives", [slice(0, 1), slice(-1, None)], ids=["loses the tail", "keeps the tail"])
def test_b14_a_crash_between_any_two_steps(name: str, survives: slice) -> None:
    steps, nodes = _calm(name)
    for step in range(1, steps + 1):
        for victim in nodes:
            run(0, _with_crashes(name, {step: victim}, survives, away_ms=500))


@pytest.mark.parametrize("away_ms", [1, 45_000])
def test_b14_two_crashes_between_any_two_steps(away_ms: int) -> None:
    steps, nodes = _calm("two phases")
    victims = [node for node in nodes if node.kind != "client"]
    for first in range(1, steps + 1):
        for second in range(first + 1, steps + 1, 3):
            crashes = {first: victims[first % len(victims)], second: victims[second % len(victims)]}
            run(0, _with_crashes("two phases", crashes, slice(0, 1), away_ms))


# --- the simulation is able to find what it looks for -------------------------------------------------


def _first_broken() -> str:
    for seed in range(400):
        try:
            World(seed).run()
        except Broken:
            with pytest.raises(Broken) as told:
                run(seed)
            with pytest.raises(Broken) as again:
                run(seed)
            assert str(told.value) == str(again.value)
            assert f"two_phase_world.run({seed})" in str(told.value)
            return str(told.value)
    raise AssertionError("400 worlds with a broken rule, and nobody noticed")


_BROKEN: list[tuple[State, Event, Row | None]] = [
    (State.PREPARED, Event.TIME, Row(tp.Decided, (), State.ABORTED)),
    (State.PREPARED, Event.TIME, None),
    (State.OWING, Event.TIME, None),
    (State.ABORTED, Event.PREPARE, Row(None, (Answer.READY,), State.ABORTED)),
    (State.JOINED, Event.DECIDE_ABORT, Row(tp.Decided, (Answer.ABORTED,), State.ABORTED)),
]


@pytest.mark.parametrize(("state", "event", "row"), _BROKEN)
def test_b14_a_broken_rule_of_participants_is_noticed(
    state: State, event: Event, row: Row | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if row is None:
        monkeypatch.delitem(transitions.TRANSITIONS[state], event)
    else:
        monkeypatch.setitem(transitions.TRANSITIONS[state], event, row)
    assert " logs Prepared" in _first_broken()


def test_b14_a_coordinator_that_takes_its_wish_for_a_fact_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = coordinator.TRANSITIONS[coordinator.State.PREPARING]
    monkeypatch.setitem(rows, coordinator.Event.TIME_OUT, coordinator.State.RELEASING)
    assert "Final" in _first_broken()


def test_b14_an_answer_before_its_entry_is_durable_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "send_after_durable", lambda self, to, payload: self.world.send(self.node, to, payload))
    assert "before it was durable" in _first_broken()


def test_b14_a_bundle_that_takes_what_belongs_to_another_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tp.Participants, "_bundle", lambda self, stimulus: (stimulus, ""))
    assert "handles=" in _first_broken()
