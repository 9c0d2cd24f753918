"""Every order of everything that can happen to a transaction of two groups, without exception (B-14).

The network is a set to which messages are only added: each may be delivered at any time, any number of times, or
never. So loss, doubling, delay and reordering are all in it, and so are coordinators that were given up and go
on: whatever they would say, a new one that hears the same old answers says too. A coordinator may be replaced by
a new one, time may be up, and sessions may end, at any moment. Logs are durable at once: a crash that loses
entries takes a group back to before messages that nobody has had an answer to, as if they were still on their way.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import msgspec
import pytest

from clarion.core import two_phase as tp
from clarion.core.two_phase import coordinator, transitions
from clarion.core.two_phase.coordinator import Stimulus as CoordinatorStimulus
from clarion.core.two_phase.messages import Message
from clarion.core.two_phase.participant import Participant, Stimulus
from clarion.core.two_phase.transitions import Answer, Event, Row, State

TRANSACTION = tp.TransactionId.of(1, 1)
GROUPS = (1, 2)
MANAGER = 0
EARLY_MS, EXPIRES_AT_MS, LATE_MS = 1, 1_000, 1_000_000
COMMITTED = {State.COMMITTED, State.OWING}


class Here(NamedTuple):
    """A participant, as far as it matters."""

    state: State = State.UNKNOWN
    owed: frozenset[int] = frozenset()
    expires_at_ms: int = 0


class There(NamedTuple):
    """A coordinator, as far as it matters."""

    state: coordinator.State = coordinator.State.OPEN
    ready: frozenset[int] = frozenset()
    completed: frozenset[int] = frozenset()
    held: bool = False
    expires_at_ms: int = 0


class Moment(NamedTuple):
    groups: tuple[Here, ...]
    manager: There
    network: frozenset[tuple[int, Message]]


class Wrong(AssertionError):
    pass


def _plain(message: Message) -> Message:
    """Reasons are for people: they would only multiply the moments."""
    known = {"reason": "", "work": b""}
    return msgspec.structs.replace(message, **{name: value for name, value in known.items() if hasattr(message, name)})


def _participant(group: int, here: Here) -> Participant:
    participant = Participant(TRANSACTION, group, here.state)
    if here.state in (State.PREPARED, State.HOLDING, State.OWING):
        participant.participants = GROUPS
    participant.owed = set(here.owed)
    participant.expires_at_ms = here.expires_at_ms
    return participant


@cache
def _step_group(
    group: int, here: Here, stimulus: Stimulus, now_ms: int, problem: str
) -> tuple[Here, frozenset[tuple[int, Message]]]:
    participant = _participant(group, here)
    sent: set[tuple[int, Message]] = set()
    for said in participant.handle(stimulus, now_ms, problem):
        match said:
            case tp.Log(tp.Began()):
                participant.began()
            case tp.Log(tp.Prepared() as entry):
                participant.prepared(entry)
            case tp.Log(tp.Decided(decision=tp.Decision.COMMIT)):
                participant.committed()
            case tp.Log(tp.Decided()):
                participant = Participant(TRANSACTION, group, State.ABORTED)
            case tp.Log(tp.Closed()):
                participant = Participant(TRANSACTION, group, State.COMMITTED)
            case tp.AfterDurable(message, to):
                asker = stimulus.participant if isinstance(stimulus, tp.Ask) else None
                # A Completed may go to the holder, if that is who said Final.
                for one in {to or asker or MANAGER} | ({1} if isinstance(message, tp.Completed) else set()):
                    sent.add((one, _plain(message)))
            case tp.Contradiction():
                raise Wrong(f"{said}")
    expires_at_ms = participant.expires_at_ms if participant.state in (State.PREPARED, State.HOLDING) else 0
    return Here(participant.state, frozenset(participant.owed), expires_at_ms), frozenset(sent)


@cache
def _step_manager(there: There, stimulus: CoordinatorStimulus) -> tuple[There, frozenset[tuple[int, Message]]]:
    machine = tp.Coordinator(TRANSACTION, {group: tp.Part() for group in GROUPS})
    machine.state, machine._hold, machine._expires_at_ms = there.state, there.held, there.expires_at_ms
    machine._ready, machine._completed = set(there.ready), set(there.completed)
    sent: set[tuple[int, Message]] = set()
    for said in machine.handle(stimulus, EARLY_MS):  # PREPARING has its time-out behind it at once
        match said:
            case tp.Send(to, message):
                sent.add((to, _plain(message)))
            case tp.Contradiction():
                raise Wrong(f"{said}")
    ready, completed = frozenset(machine._ready), frozenset(machine._completed)
    return There(machine.state, ready, completed, machine._hold, machine._expires_at_ms), frozenset(sent)


What = tuple[object, ...]
"""For the story, made into text only if it is told."""


def _after(moment: Moment, held: bool) -> Iterator[tuple[What, Moment]]:
    """Everything that can happen next."""
    groups, manager, network = moment

    def at_group(group: int, stimulus: Stimulus, now_ms: int = LATE_MS, problem: str = "") -> tuple[What, Moment]:
        here, sent = _step_group(group, groups[group - 1], stimulus, now_ms, problem)
        changed = tuple(here if one == group else groups[one - 1] for one in GROUPS)
        return ("group", group, stimulus, problem), Moment(changed, manager, network | sent)

    def at_manager(stimulus: CoordinatorStimulus) -> tuple[What, Moment]:
        there, sent = _step_manager(manager, stimulus)
        return ("manager", stimulus), Moment(groups, there, network | sent)

    for to, message in network:
        if to == MANAGER:
            assert isinstance(message, (tp.Ready, tp.Fail, tp.Completed))
            yield at_manager(message)
            continue
        assert not isinstance(message, (tp.Ready, tp.Fail))
        yield at_group(to, message)
        if isinstance(message, tp.Prepare) and groups[to - 1].state in tp.UNPREPARED:
            yield at_group(to, message, problem="cannot be done")
        if isinstance(message, tp.Ask):
            yield at_group(to, message, EARLY_MS)
    for group in GROUPS:
        yield at_group(group, tp.Stage(TRANSACTION))
        yield at_group(group, tp.SessionEnded(TRANSACTION.producer))
        yield at_group(group, tp.Tick())
    yield at_manager(tp.Hold(EXPIRES_AT_MS) if held and manager.state is coordinator.State.OPEN else tp.Commit())
    yield at_manager(tp.Rollback())
    yield at_manager(tp.Tick())
    yield ("manager", "is replaced"), Moment(groups, There(), network)


def _check(moment: Moment) -> None:
    states = {here.state for here in moment.groups}
    committed = states & COMMITTED
    if committed and State.ABORTED in states:
        raise Wrong("committed here and aborted there")
    if moment.manager.state is coordinator.State.COMMITTED and not states <= COMMITTED:
        raise Wrong("told to be committed, and is not everywhere")
    if moment.manager.state in (coordinator.State.RELEASING, coordinator.State.ABORTED) and committed:
        raise Wrong("told to be aborted, and is committed")


def explore(held: bool) -> set[Moment]:
    """All moments that can come about; raises `Wrong`, with the way there, if one must not."""
    _step_group.cache_clear()
    _step_manager.cache_clear()
    first = Moment((Here(), Here()), There(), frozenset())
    before: dict[Moment, tuple[What, Moment] | None] = {first: None}
    todo = [first]
    for moment in todo:  # grows while it is walked: the shortest way to everything comes first
        try:
            for what, following in _after(moment, held):
                if following not in before:
                    before[following] = (what, moment)
                    _check(following)
                    todo.append(following)
        except Wrong as wrong:
            way: list[str] = []
            at = moment
            while (step := before[at]) is not None:
                way.append(" ".join(map(str, step[0])))
                at = step[1]
            raise Wrong("\n".join([*reversed(way), str(wrong)])) from None
    return set(before)


@pytest.mark.parametrize("held", [False, True], ids=["committed", "held"])
def test_b14_in_every_order_of_events_it_is_all_or_nothing(held: bool) -> None:
    moments = explore(held)
    assert len(moments) > 10_000
    seen = {here.state for moment in moments for here in moment.groups}
    assert seen == set(State) - {State.JOINED}  # bundles are for the simulation
    ends = {moment.manager.state for moment in moments}
    assert ends == set(coordinator.State) - {coordinator.State.ONE_PHASE, *([] if held else [coordinator.State.HELD])}


_WRITE = transitions.TRANSITIONS
_BROKEN: list[tuple[State, Event, Row]] = [
    (State.UNKNOWN, Event.ASK, Row(None, (Answer.TELL_ABORT,), State.UNKNOWN)),
    (State.ACTIVE, Event.ASK, Row(None, (Answer.TELL_ABORT,), State.ACTIVE)),
    (State.HOLDING, Event.ASK, Row(None, (Answer.TELL_ABORT,), State.HOLDING)),
    (State.UNKNOWN, Event.PREPARE_BAD, Row(None, (Answer.FAIL,), State.UNKNOWN)),
    (State.UNKNOWN, Event.DECIDE_ABORT, Row(None, (Answer.ABORTED,), State.UNKNOWN)),
    (State.ACTIVE, Event.DECIDE_ABORT, Row(None, (Answer.ABORTED,), State.ACTIVE)),
    (State.PREPARED, Event.TIME, Row(tp.Decided, (), State.ABORTED)),
    (State.ABORTED, Event.PREPARE, Row(None, (Answer.READY,), State.ABORTED)),
    (State.ABORTED, Event.PREPARE_HOLDER, Row(tp.Prepared, (Answer.READY,), State.HOLDING)),
]


@pytest.mark.parametrize(("state", "event", "row"), _BROKEN, ids=lambda value: getattr(value, "name", ""))
def test_b14_a_rule_that_is_broken_is_found_with_the_way_there(
    state: State, event: Event, row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_WRITE[state], event, row)
    with pytest.raises(Wrong) as found:
        explore(held=False)
    assert "manager Commit()" in str(found.value)
