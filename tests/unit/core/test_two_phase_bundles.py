"""Bundles: prepared transactions that are committed together, or given back together (B-14)."""

from __future__ import annotations

import pytest

from clarion.core import two_phase as tp
from clarion.core.two_phase.messages import ROLLED_BACK, Entry
from clarion.core.two_phase.transitions import State
from tests.unit.core.participant_host import ABORT, AFTER, BUNDLE, COMMIT, HERE, OTHER, Host, T

_HELD: list[Entry] = [tp.Prepared(T, (HERE, AFTER), (), 10**15), tp.Prepared(OTHER, (HERE,), (), 10**15)]


def test_b14_a_bundle_commits_its_handles_in_one_entry() -> None:
    host = Host(*_HELD)
    assert host.answers(tp.Prepare(BUNDLE, (HERE, AFTER), handles=(T, OTHER))) == [(tp.Ready(BUNDLE, HERE), None)]
    assert (host.state(T), host.state(OTHER)) == (State.JOINED, State.JOINED)
    host.tell(tp.Decide(BUNDLE, COMMIT))
    assert host.log[-1] == tp.Decided((BUNDLE, T, OTHER), COMMIT)
    assert [host.state(one) for one in (BUNDLE, T, OTHER)] == [State.OWING, State.COMMITTED, State.COMMITTED]


def test_b14_a_bundle_of_one_group_needs_one_phase() -> None:
    host = Host(*_HELD)
    assert host.answers(tp.CommitOne(BUNDLE, handles=(OTHER,))) == [(tp.Completed(BUNDLE, HERE, COMMIT), None)]
    assert host.log[-1] == tp.Decided((BUNDLE, OTHER), COMMIT)
    assert host.state(OTHER) is State.COMMITTED


def test_b14_an_aborted_bundle_gives_its_handles_back() -> None:
    host = Host(*_HELD)
    host.tell(tp.Prepare(BUNDLE, (HERE, AFTER), handles=(T, OTHER)))
    assert host.tell(tp.Decide(T, ABORT)) == []  # not while the bundle is undecided
    host.tell(tp.Decide(BUNDLE, ABORT, ROLLED_BACK))
    assert (host.state(T), host.state(OTHER)) == (State.HOLDING, State.HOLDING)
    assert len(host.participants.held()) == 2
    host.tell(tp.Tick(), 10**15)
    assert (host.state(T), host.state(OTHER)) == (State.ABORTED, State.ABORTED)


def test_b14_a_second_bundle_waits_for_the_first() -> None:
    host = Host(*_HELD)
    second = tp.TransactionId.of(4, 1)
    host.tell(tp.Prepare(BUNDLE, (HERE, AFTER), handles=(T,)))
    assert host.tell(tp.Prepare(second, (HERE, AFTER), handles=(T, OTHER))) == []
    host.tell(tp.Decide(BUNDLE, COMMIT))
    host.tell(tp.Prepare(second, (HERE, AFTER), handles=(T, OTHER)))
    assert host.log[-1] == tp.Prepared(second, (HERE, AFTER), (OTHER,))  # the first is done, and is not done again


@pytest.mark.parametrize(
    ("participants", "handles"),
    [
        ((HERE, AFTER), (T, tp.TransactionId.of(77, 7))),  # never heard of
        ((HERE, 9), (T,)),  # another group has a part in it and none in the bundle
        ((HERE, AFTER), (tp.TransactionId.of(8, 8),)),  # prepared, but not for an owner outside
    ],
)
def test_b14_a_bundle_that_cannot_have_all_of_its_handles_takes_none(
    participants: tuple[int, ...], handles: tuple[tp.TransactionId, ...]
) -> None:
    host = Host(*_HELD, tp.Prepared(tp.TransactionId.of(8, 8), (HERE, AFTER)))
    ((failed, _),) = host.answers(tp.Prepare(BUNDLE, participants, handles=handles))
    assert isinstance(failed, tp.Fail)
    assert "there is no prepared transaction" in failed.reason
    assert host.state(T) is State.HOLDING
    ((completed, _),) = host.answers(tp.CommitOne(tp.TransactionId.of(5, 5), handles=(T,)))
    assert isinstance(completed, tp.Completed)
    assert completed.decision is ABORT  # it has two participants: one phase cannot decide it
