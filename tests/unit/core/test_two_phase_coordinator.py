"""The coordinator of a transaction: what it says to whom, and when it says it again (B-14)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from clarion import limits
from clarion.core import two_phase as tp
from clarion.core.two_phase import coordinator
from clarion.core.two_phase.messages import EXPIRED, NOT_READY, ROLLED_BACK, CoordinatorInstruction
from clarion.errors import LimitReached

T, OTHER = tp.TransactionId.of(1, 1), tp.TransactionId.of(3, 1)
NOW_MS = 1_000_000
ABORT, COMMIT = tp.Decision.ABORT, tp.Decision.COMMIT


class Driver:
    """A coordinator with participants that are played by the test."""

    def __init__(self, *groups: int) -> None:
        self.coordinator = tp.Coordinator(T, {group: tp.Part(b"%d" % group) for group in groups})
        self.now_ms = NOW_MS

    def tell(self, stimulus: coordinator.Stimulus) -> list[CoordinatorInstruction]:
        return self.coordinator.handle(stimulus, self.now_ms)

    @property
    def state(self) -> coordinator.State:
        return self.coordinator.state


def test_b14_one_participant_needs_one_phase() -> None:
    driver = Driver(4)
    assert driver.tell(tp.Commit()) == [tp.Send(4, tp.CommitOne(T, b"4"))]
    assert driver.tell(tp.Commit()) == []  # it is being done
    assert driver.tell(tp.Completed(T, 4, COMMIT)) == [tp.Outcome(COMMIT)]
    assert driver.tell(tp.Commit()) == [tp.Outcome(COMMIT)]
    assert driver.coordinator.done


def test_b14_several_participants_need_two_phases_and_the_first_decides() -> None:
    driver = Driver(7, 2, 5)
    assert driver.tell(tp.Commit()) == [tp.Send(to, tp.Prepare(T, (2, 5, 7), b"%d" % to)) for to in (2, 5, 7)]
    assert driver.tell(tp.Ready(T, 7)) == driver.tell(tp.Ready(T, 2)) == driver.tell(tp.Ready(T, 2)) == []
    assert driver.tell(tp.Ready(T, 5)) == [tp.Send(2, tp.Decide(T, COMMIT))]
    assert driver.tell(tp.Rollback()) == []  # too late to say
    assert driver.tell(tp.Completed(T, 2, COMMIT)) == [tp.Send(to, tp.Final(T, COMMIT)) for to in (5, 7)]
    assert driver.tell(tp.Completed(T, 5, COMMIT)) == []
    assert driver.tell(tp.Completed(T, 7, COMMIT)) == [tp.Send(2, tp.Close(T)), tp.Outcome(COMMIT)]
    assert driver.tell(tp.Completed(T, 7, COMMIT)) == []
    assert driver.tell(tp.Rollback()) == [tp.Outcome(COMMIT)]


def test_b14_a_fail_is_told_to_everybody_else_and_to_the_client_at_once() -> None:
    driver = Driver(1, 2, 3)
    driver.tell(tp.Commit())
    driver.tell(tp.Ready(T, 1))
    assert driver.tell(tp.Fail(T, 3, "no")) == [
        tp.Send(1, tp.Final(T, ABORT, "no", b"1")),
        tp.Send(2, tp.Final(T, ABORT, "no", b"2")),
        tp.Outcome(ABORT, "no"),
    ]
    assert driver.tell(tp.Commit()) == [tp.Outcome(ABORT, "no")]
    driver.tell(tp.Completed(T, 1, ABORT))
    driver.tell(tp.Completed(T, 2, ABORT))
    assert driver.state is coordinator.State.ABORTED


@pytest.mark.parametrize("why", ["rollback", "time-out"])
def test_b14_a_rollback_is_what_the_holder_says_and_not_what_was_asked(why: str) -> None:
    driver = Driver(1, 2)
    driver.tell(tp.Commit())
    if why == "rollback":
        said = driver.tell(tp.Rollback())
    else:
        driver.now_ms += limits.TRANSACTION_PREPARE_MS_MAX
        said = driver.tell(tp.Tick())
    assert said == [tp.Send(1, tp.Decide(T, ABORT, ROLLED_BACK if why == "rollback" else NOT_READY, b"1"))]
    # Another coordinator of this transaction was faster, and the holder has committed.
    assert driver.tell(tp.Completed(T, 1, COMMIT)) == [tp.Send(2, tp.Final(T, COMMIT))]
    assert driver.tell(tp.Completed(T, 2, COMMIT))[-1] == tp.Outcome(COMMIT)


def test_b14_what_has_no_answer_is_said_again_with_growing_pauses() -> None:
    driver = Driver(1, 2)
    driver.tell(tp.Commit())
    driver.tell(tp.Ready(T, 1))
    said_at: list[int] = []
    while driver.state is coordinator.State.PREPARING:
        due_ms = driver.coordinator.due_ms
        assert due_ms is not None
        assert driver.tell(tp.Tick()) == []  # not before it is due
        driver.now_ms = due_ms
        said = driver.tell(tp.Tick())
        if driver.state is coordinator.State.PREPARING:
            assert said == [tp.Send(2, tp.Prepare(T, (1, 2), b"2"))]
            said_at.append(due_ms)
    assert driver.state is coordinator.State.PROPOSING_ABORT
    pauses = [later - earlier for earlier, later in pairwise([NOW_MS, *said_at])]
    assert pauses[:3] == [limits.TRANSACTION_RETRY_MS_MIN * factor for factor in (1, 2, 4)]
    assert pauses[-1] == limits.TRANSACTION_RETRY_MS_MAX
    for _ in range(50):  # the decision is awaited for as long as it takes
        driver.now_ms += limits.TRANSACTION_RETRY_MS_MAX
        assert driver.tell(tp.Tick()) == [tp.Send(1, tp.Decide(T, ABORT, NOT_READY, b"1"))]


def test_b14_a_held_transaction_is_prepared_and_left_to_its_owner() -> None:
    driver = Driver(1)
    assert driver.tell(tp.Hold(NOW_MS + 5)) == [tp.Send(1, tp.Prepare(T, (1,), b"1", (), NOW_MS + 5))]
    held = tp.Held(tp.Handle(T, (1,)))
    assert driver.tell(tp.Ready(T, 1)) == [held]
    assert driver.tell(tp.Hold(NOW_MS + 9)) == [held]
    assert driver.coordinator.due_ms is None
    driver.now_ms += 10**9
    assert driver.tell(tp.Tick()) == []
    assert driver.tell(tp.Commit()) == [tp.Send(1, tp.Decide(T, COMMIT))]
    assert driver.tell(tp.Completed(T, 1, ABORT, EXPIRED)) == [tp.Outcome(ABORT, EXPIRED)]
    assert driver.state is coordinator.State.ABORTED


def test_b14_nobody_is_held_for_ever() -> None:
    driver = Driver(1)
    (said,) = driver.tell(tp.Hold(1 << 62))
    assert isinstance(said, tp.Send)
    assert isinstance(said.message, tp.Prepare)
    assert said.message.expires_at_ms == NOW_MS + limits.PREPARED_MS_MAX


def test_b14_a_transaction_without_participants_is_what_was_asked_for() -> None:
    assert Driver().tell(tp.Commit()) == [tp.Outcome(COMMIT)]
    assert Driver().tell(tp.Rollback()) == [tp.Outcome(ABORT, ROLLED_BACK)]
    assert Driver().tell(tp.Hold(NOW_MS + 5)) == [tp.Held(tp.Handle(T, ()))]


def test_b14_an_open_transaction_that_waited_long_for_its_commit_has_all_its_time() -> None:
    driver = Driver(1, 2)
    driver.now_ms += 10**9
    driver.tell(tp.Commit())
    assert driver.tell(tp.Tick()) == []
    assert driver.state is coordinator.State.PREPARING


def test_b14_somebody_who_decided_otherwise_is_reported() -> None:
    driver = Driver(1, 2)
    driver.tell(tp.Commit())
    driver.tell(tp.Completed(T, 1, COMMIT))
    (said,) = driver.tell(tp.Fail(T, 2, "no"))[:1]
    assert isinstance(said, tp.Contradiction)


def test_b14_too_many_participants_or_handles_are_refused() -> None:
    with pytest.raises(LimitReached):
        tp.Coordinator(T, {group: tp.Part() for group in range(limits.TRANSACTION_PARTICIPANTS_MAX + 1)})
    with pytest.raises(LimitReached):
        tp.Coordinator(T, {1: tp.Part(handles=(OTHER,) * (limits.HANDLES_PER_COMMIT_MAX + 1))})


@pytest.mark.parametrize("state", coordinator.State, ids=lambda state: state.name)
def test_b14_coordinators_obey_their_table(state: coordinator.State) -> None:
    """Every stimulus in every state leads where the table says, through events that the table has."""
    stimuli: list[tuple[coordinator.Event, coordinator.Stimulus]] = [
        (coordinator.Event.COMMIT, tp.Commit()),
        (coordinator.Event.ROLLBACK, tp.Rollback()),
        (coordinator.Event.HOLD, tp.Hold(NOW_MS + 5)),
        (coordinator.Event.TIME_OUT, tp.Tick()),
        (coordinator.Event.LEARNED_COMMIT, tp.Completed(T, 1, COMMIT)),
        (coordinator.Event.LEARNED_ABORT, tp.Completed(T, 1, ABORT)),
        (coordinator.Event.LEARNED_ABORT, tp.Fail(T, 1, "no")),
        (coordinator.Event.ALL_READY, tp.Ready(T, 2)),
    ]
    for event, stimulus in stimuli:
        driver = Driver(1, 2)
        driver.coordinator.state = state
        driver.coordinator._ready.add(1)
        driver.tell(stimulus)
        assert driver.state is coordinator.TRANSITIONS[state].get(event, state), (state, event)
    driver = Driver(1, 2)
    driver.coordinator.state = state
    driver.coordinator._completed.update((1, 2))
    driver.tell(tp.Ready(T, 1))
    assert driver.state is coordinator.TRANSITIONS[state].get(coordinator.Event.ALL_COMPLETED, state)
    assert {event for rows in coordinator.TRANSITIONS.values() for event in rows} == set(coordinator.Event)
