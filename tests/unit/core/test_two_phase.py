"""Two-phase commit: the tables are what the code does and what the page says; time, memory, bundles (B-14)."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from clarion import limits
from clarion.core import two_phase as tp
from clarion.core.two_phase import coordinator, transitions
from clarion.core.two_phase.messages import (
    EXPIRED,
    NOT_PREPARED,
    ROLLED_BACK,
    SESSION_ENDED,
    SILENT,
    TOO_LONG,
    Entry,
    Message,
    ParticipantInstruction,
)
from clarion.core.two_phase.participant import Stimulus
from clarion.core.two_phase.participants import OR_FORGOTTEN
from clarion.core.two_phase.transitions import TRANSITIONS, Answer, Event, State

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/transactions.md"
HERE, BEFORE, AFTER = 5, 3, 7
"""The group under test, one that holds decisions if it takes part, and one that never does."""
T, BUNDLE, OTHER = (tp.TransactionId.of(producer, 1) for producer in (1, 2, 3))
NOW_MS = 1_000_000
ABORT, COMMIT = tp.Decision.ABORT, tp.Decision.COMMIT


class Host:
    """The least that a message manager does: entries are applied, and instructions kept."""

    def __init__(self, *entries: Entry, group: int = HERE, outcomes_max: int = 1_000) -> None:
        self.participants = tp.Participants(group, outcomes_max)
        self.log: list[Entry] = []
        for entry in entries:
            self.write(entry)

    def write(self, entry: Entry) -> None:
        self.log.append(entry)
        self.participants.apply(entry)

    def tell(self, stimulus: Stimulus, now_ms: int = NOW_MS, problem: str = "") -> list[ParticipantInstruction]:
        said = self.participants.handle(stimulus, now_ms, problem)
        for one in said:
            if isinstance(one, tp.Log):
                self.write(one.entry)
        return said

    def answers(self, stimulus: Stimulus, now_ms: int = NOW_MS, problem: str = "") -> list[tuple[Message, int | None]]:
        said = self.tell(stimulus, now_ms, problem)
        return [(one.message, one.to) for one in said if isinstance(one, tp.AfterDurable)]

    def state(self, transaction: tp.TransactionId = T) -> State:
        return self.participants.state_of(transaction)


# --- the table of participants ------------------------------------------------------------------------

_STATES: dict[State, list[Entry]] = {
    State.UNKNOWN: [],
    State.ACTIVE: [tp.Began(T)],
    State.PREPARED: [tp.Began(T), tp.Prepared(T, (BEFORE, HERE))],
    State.HOLDING: [tp.Began(T), tp.Prepared(T, (HERE, AFTER))],
    State.JOINED: [tp.Prepared(T, (HERE, AFTER), (), 1), tp.Prepared(BUNDLE, (BEFORE, HERE, AFTER), (T,))],
    State.OWING: [tp.Prepared(T, (HERE, AFTER)), tp.Decided((T,), COMMIT)],
    State.COMMITTED: [tp.Began(T), tp.Decided((T,), COMMIT)],
    State.ABORTED: [tp.Began(T), tp.Decided((T,), ABORT, "why")],
}
_STIMULI: dict[Event, Stimulus] = {
    Event.STAGE: tp.Stage(T),
    Event.PREPARE: tp.Prepare(T, (BEFORE, HERE)),
    Event.PREPARE_HOLDER: tp.Prepare(T, (HERE, AFTER)),
    Event.PREPARE_BAD: tp.Prepare(T, (HERE, AFTER)),
    Event.COMMIT_ONE: tp.CommitOne(T),
    Event.COMMIT_ONE_BAD: tp.CommitOne(T),
    Event.DECIDE_COMMIT: tp.Decide(T, COMMIT),
    Event.DECIDE_COMMIT_ALONE: tp.Decide(T, COMMIT),
    Event.DECIDE_ABORT: tp.Decide(T, ABORT, "why"),
    Event.FINAL_COMMIT: tp.Final(T, COMMIT),
    Event.FINAL_ABORT: tp.Final(T, ABORT, "why"),
    Event.ASK: tp.Ask(T, AFTER),
    Event.CLOSE: tp.Close(T),
    Event.DISSENT: tp.Completed(T, AFTER, ABORT),
    Event.SESSION_ENDED: tp.SessionEnded(T.producer),
    Event.TIME: tp.Tick(),
}
_ENTRIES: dict[Event, Entry] = {
    Event.BUNDLE_PREPARED: tp.Prepared(BUNDLE, (BEFORE, HERE, AFTER), (T,)),
    Event.BUNDLE_COMMITTED: tp.Decided((BUNDLE, T), COMMIT),
    Event.BUNDLE_ABORTED: tp.Decided((BUNDLE,), ABORT, "why"),
    Event.BUNDLE_ABORTED_HOLDER: tp.Decided((BUNDLE,), ABORT, "why"),
}
_SAID: dict[Answer, tuple[type[object], object]] = {
    Answer.READY: (tp.Ready, None),
    Answer.FAIL: (tp.Fail, None),
    Answer.COMMITTED: (tp.Completed, COMMIT),
    Answer.ABORTED: (tp.Completed, ABORT),
    Answer.TELL_COMMIT: (tp.Final, COMMIT),
    Answer.TELL_ABORT: (tp.Final, ABORT),
    Answer.TELL_OWED: (tp.Final, COMMIT),
    Answer.ASK: (tp.Ask, None),
    Answer.REFUSE: (tp.Refuse, None),
    Answer.CONTRADICTION: (tp.Contradiction, None),
}


def _in_state(state: State, event: Event) -> Host:
    entries = _STATES[state]
    if event in (Event.DECIDE_COMMIT_ALONE, Event.BUNDLE_COMMITTED) and state is State.HOLDING:
        entries = [tp.Prepared(T, (HERE,))]
    if event is Event.BUNDLE_ABORTED:
        entries = [tp.Prepared(T, (BEFORE, HERE), (), 1), tp.Prepared(BUNDLE, (BEFORE, HERE), (T,))]
    host = Host(*entries)
    host.tell(tp.Tick(), NOW_MS)  # from here on time runs
    assert host.state() is state
    return host


@pytest.mark.parametrize("event", _STIMULI, ids=lambda event: event.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_b14_participants_obey_their_table(state: State, event: Event) -> None:
    host = _in_state(state, event)
    row = TRANSITIONS[state].get(event)
    if event in (Event.PREPARE_BAD, Event.COMMIT_ONE_BAD) and state not in tp.UNPREPARED:
        assert row is None
        return  # what is prepared or decided is not looked at again: the event does not come about
    if event is Event.DECIDE_COMMIT_ALONE and state is not State.HOLDING:
        assert row is None
        return  # only what is prepared knows who takes part
    bad = "cannot be done" if event in (Event.PREPARE_BAD, Event.COMMIT_ONE_BAD) else ""
    late_ms = NOW_MS + 10 * limits.TRANSACTION_MS_DEFAULT if event is Event.TIME else NOW_MS
    before = len(host.log)
    said = [one for one in host.tell(_STIMULI[event], late_ms, bad) if str(BUNDLE) not in str(one)]
    if row is None:
        assert said == []
        assert host.state() is state
        return
    assert [type(entry) for entry in host.log[before:]] == ([row.log] if row.log else [])
    spoken = [one.message if isinstance(one, tp.AfterDurable) else one for one in said if not isinstance(one, tp.Log)]
    assert [(type(one), getattr(one, "decision", None)) for one in spoken] == [_SAID[one] for one in row.answers]
    assert host.state() is row.next
    for one in spoken:
        if isinstance(one, tp.Fail) or getattr(one, "decision", None) is ABORT:
            wanted = {Event.ASK: (NOT_PREPARED, SILENT, "why"), Event.DECIDE_COMMIT: (NOT_PREPARED, "why")}
            assert getattr(one, "reason", "") in wanted.get(event, (bad or "why", "why"))


@pytest.mark.parametrize("event", _ENTRIES, ids=lambda event: event.name)
@pytest.mark.parametrize("state", [State.PREPARED, State.HOLDING, State.JOINED], ids=lambda state: state.name)
def test_b14_what_is_in_a_bundle_obeys_the_table(state: State, event: Event) -> None:
    row = TRANSITIONS[state].get(event)
    if row is None:
        return  # the entry is not written in this state
    host = _in_state(state, event)
    host.write(_ENTRIES[event])
    assert host.state() is row.next


def test_b14_every_state_can_come_about_and_every_event_does_something() -> None:
    reached, todo = {State.UNKNOWN}, [State.UNKNOWN]
    for state in todo:
        fresh = {row.next for row in TRANSITIONS[state].values()} - reached
        reached |= fresh
        todo += sorted(fresh, key=list(State).index)
    assert reached == set(State)
    assert {event for rows in TRANSITIONS.values() for event in rows} == set(Event)
    assert set(TRANSITIONS) == set(State)


# --- the page -----------------------------------------------------------------------------------------


def _participant_table() -> str:
    lines = ["| state | event | entry | answer, once it is durable | next |", "|---|---|---|---|---|"]
    for state, rows in TRANSITIONS.items():
        grouped: dict[transitions.Row, list[str]] = {}
        for event in Event:
            if event in rows:
                grouped.setdefault(rows[event], []).append(event.value)
        for row, events in grouped.items():
            entry = row.log.__name__ if row.log else ""
            answers = ", ".join(answer.value for answer in row.answers)
            lines.append(f"| {state.value} | {' · '.join(events)} | {entry} | {answers} | {row.next.value} |")
    return "\n".join(lines)


def _coordinator_table() -> str:
    lines = ["| state | event | next |", "|---|---|---|"]
    for state, rows in coordinator.TRANSITIONS.items():
        grouped: dict[coordinator.State, list[str]] = {}
        for event in coordinator.Event:
            if event in rows:
                grouped.setdefault(rows[event], []).append(event.value)
        lines += [
            f"| {state.value} | {' · '.join(events)} | {following.value} |" for following, events in grouped.items()
        ]
    return "\n".join(lines)


@pytest.mark.parametrize("table", [_participant_table(), _coordinator_table()], ids=["participants", "coordinators"])
def test_b14_the_page_shows_the_tables_of_the_code(table: str) -> None:
    assert table in PAGE.read_text(), f"docs/reference/transactions.md should have\n{table}"


def test_b14_the_page_has_the_limits_of_the_code() -> None:
    page = PAGE.read_text()
    for said in (
        f"{limits.TRANSACTION_OUTCOMES_MAX:,} outcomes",
        f"an hour of {limits.TRANSACTION_OUTCOMES_MAX // 3_600} transactions a second",
        f"within {limits.TRANSACTION_PREPARE_MS_MAX // 1_000} seconds",
        f"hears nothing for {limits.TRANSACTION_SILENCE_MS_MAX // 1_000} seconds",
        f"{limits.TRANSACTION_RETRY_MS_MIN} ms at first and {limits.TRANSACTION_RETRY_MS_MAX // 1_000} seconds at last",
        f"its time limit ({limits.TRANSACTION_MS_DEFAULT // 60_000} minutes)",
    ):
        assert said in re.sub(r"\s+", " ", page)


# --- time ---------------------------------------------------------------------------------------------


def test_b14_a_prepared_participant_asks_with_growing_pauses_until_it_is_answered() -> None:
    host = Host(tp.Prepared(T, (BEFORE, HERE)))
    host.tell(tp.Tick(), NOW_MS)
    asked: list[int] = []
    now_ms = NOW_MS
    while len(asked) < 10:
        due_ms = host.participants.due_ms
        assert due_ms is not None
        now_ms = max(now_ms, due_ms)
        asked += [now_ms for answer in host.answers(tp.Tick(), now_ms) if answer == (tp.Ask(T, HERE), BEFORE)]
    assert asked[0] == NOW_MS + limits.TRANSACTION_SILENCE_MS_MAX
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses[0] == limits.TRANSACTION_RETRY_MS_MIN
    assert pauses == sorted(pauses)
    assert pauses[-1] == limits.TRANSACTION_RETRY_MS_MAX
    assert host.answers(tp.Final(T, COMMIT), now_ms) == [(tp.Completed(T, HERE, COMMIT), None)]
    assert host.answers(tp.Tick(), now_ms + 10**9) == []
    assert len(host.participants) == 0


def test_b14_a_coordinator_that_speaks_is_not_taken_for_silent() -> None:
    host = Host(tp.Prepared(T, (HERE, AFTER)))
    host.tell(tp.Tick(), NOW_MS)
    almost_ms = NOW_MS + limits.TRANSACTION_SILENCE_MS_MAX - 1
    assert host.answers(tp.Prepare(T, (HERE, AFTER)), almost_ms) == [(tp.Ready(T, HERE), None)]
    assert host.tell(tp.Tick(), almost_ms + limits.TRANSACTION_SILENCE_MS_MAX - 1) == []
    host.tell(tp.Tick(), almost_ms + limits.TRANSACTION_SILENCE_MS_MAX)
    assert host.log[-1] == tp.Decided((T,), ABORT, SILENT)


def test_b14_an_unprepared_transaction_ends_with_its_time_and_with_its_session() -> None:
    host = Host()
    for transaction in (T, BUNDLE, OTHER):
        assert host.tell(tp.Stage(transaction)) == [tp.Log(tp.Began(transaction))]
        assert host.tell(tp.Stage(transaction)) == []
    host.tell(tp.Prepare(OTHER, (BEFORE, HERE)))
    assert host.tell(tp.SessionEnded(OTHER.producer)) == []  # it is prepared: that is not the session's any more
    assert host.tell(tp.SessionEnded(T.producer)) == [tp.Log(tp.Decided((T,), ABORT, SESSION_ENDED))]
    assert host.tell(tp.SessionEnded(T.producer)) == []
    assert host.tell(tp.Stage(T)) == [tp.Refuse(SESSION_ENDED)]
    late = host.tell(tp.Tick(), NOW_MS + limits.TRANSACTION_MS_DEFAULT)
    assert tp.Log(tp.Decided((BUNDLE,), ABORT, TOO_LONG)) in late
    assert host.state(OTHER) is State.PREPARED


def test_b14_a_held_transaction_waits_for_its_owner_until_it_expires() -> None:
    expires_at_ms = NOW_MS + 3_600_000
    holder, other = Host(group=HERE), Host(group=AFTER)
    prepare = tp.Prepare(T, (HERE, AFTER), expires_at_ms=expires_at_ms)
    for host in (holder, other):
        host.tell(prepare)
        assert host.participants.held() == [(tp.Handle(T, (HERE, AFTER)), expires_at_ms)]
        assert host.tell(tp.Tick(), expires_at_ms - 1) == []
    assert holder.tell(tp.Ask(T, AFTER), expires_at_ms - 1) == []  # the other clock is ahead
    ask = other.answers(tp.Tick(), expires_at_ms)
    assert ask == [(tp.Ask(T, AFTER), HERE)]
    told = holder.answers(ask[0][0], expires_at_ms)  # type: ignore[arg-type]
    assert told == [(tp.Final(T, ABORT, EXPIRED), None)]
    other.tell(told[0][0], expires_at_ms)  # type: ignore[arg-type]
    assert (holder.state(), other.state()) == (State.ABORTED, State.ABORTED)
    assert holder.participants.held() == []


def test_b14_a_holder_that_committed_tells_the_others_until_all_have_completed() -> None:
    host = Host(tp.Prepared(T, (HERE, AFTER, 9)), tp.Decided((T,), COMMIT))
    host.tell(tp.Tick(), NOW_MS)
    late_ms = NOW_MS + limits.TRANSACTION_SILENCE_MS_MAX
    assert host.answers(tp.Tick(), late_ms) == [(tp.Final(T, COMMIT), AFTER), (tp.Final(T, COMMIT), 9)]
    assert host.tell(tp.Completed(T, 9, COMMIT), late_ms) == []
    late_ms += limits.TRANSACTION_RETRY_MS_MAX
    assert host.answers(tp.Tick(), late_ms) == [(tp.Final(T, COMMIT), AFTER)]
    assert host.tell(tp.Completed(T, AFTER, COMMIT), late_ms) == [tp.Log(tp.Closed(T))]
    assert host.state() is State.COMMITTED
    assert len(host.participants) == 0


def test_b14_one_tick_does_a_bounded_amount_of_work() -> None:
    host = Host(*(tp.Began(tp.TransactionId.of(number, 1)) for number in range(2_500)))
    host.tell(tp.Tick(), NOW_MS)
    late_ms = NOW_MS + limits.TRANSACTION_MS_DEFAULT
    ended = [len(host.tell(tp.Tick(), late_ms)) for _ in range(4)]
    assert ended == [1_000, 1_000, 500, 0]


# --- durability ---------------------------------------------------------------------------------------


def test_b14_an_entry_that_cannot_be_written_changes_nothing() -> None:
    host = Host(tp.Began(T))
    before = host.participants.dump()
    stimuli: list[Stimulus] = [tp.Prepare(T, (HERE, AFTER)), tp.CommitOne(T), tp.Ask(T, AFTER), tp.Final(T, ABORT)]
    stimuli += [tp.SessionEnded(T.producer), tp.Stage(OTHER), tp.Tick()]
    for stimulus in stimuli:  # nothing that is said is carried out
        host.participants.handle(stimulus, NOW_MS + 10 * limits.TRANSACTION_MS_DEFAULT)
        assert host.participants.dump() == before
    assert host.answers(tp.CommitOne(T)) == [(tp.Completed(T, HERE, COMMIT), None)]


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_b14_a_checkpoint_holds_everything(state: State) -> None:
    host = Host(*_STATES[state], tp.Decided((OTHER,), ABORT, "why"))
    loaded = tp.Participants(HERE)
    loaded.load(host.participants.dump())
    assert loaded.dump() == host.participants.dump()
    assert loaded.state_of(T) is state
    for stimulus in _STIMULI.values():
        late_ms = NOW_MS + 10 * limits.TRANSACTION_MS_DEFAULT
        assert loaded.handle(stimulus, late_ms) == host.participants.handle(stimulus, late_ms)


# --- memory -------------------------------------------------------------------------------------------


def _number(number: int) -> tp.TransactionId:
    return tp.TransactionId.of(99, number)


def test_b14_a_repeated_commit_gets_the_same_answer_until_it_is_forgotten() -> None:
    host = Host(outcomes_max=3)
    for number in range(4):
        assert host.answers(tp.CommitOne(_number(number))) == [(tp.Completed(_number(number), HERE, COMMIT), None)]
    assert (len(host.participants.outcomes), host.participants.outcomes.forgotten) == (3, 1)
    for number in (1, 2, 3):  # the work is gone, the outcome is not
        assert host.answers(tp.CommitOne(_number(number)), problem="staged batches are missing") == [
            (tp.Completed(_number(number), HERE, COMMIT), None)
        ]
    ((told, _),) = host.answers(tp.CommitOne(_number(0)), problem="staged batches are missing")
    assert told == tp.Completed(_number(0), HERE, ABORT, f"staged batches are missing, {OR_FORGOTTEN}")


def test_b14_a_commit_that_somebody_may_still_ask_for_is_not_forgotten() -> None:
    host = Host(tp.Prepared(T, (HERE, AFTER)), tp.Decided((T,), COMMIT), outcomes_max=2)
    for number in range(10):
        host.tell(tp.CommitOne(_number(number)))
    assert host.answers(tp.Ask(T, AFTER)) == [(tp.Final(T, COMMIT), None)]
    host.tell(tp.Close(T))
    for number in range(10, 20):
        host.tell(tp.CommitOne(_number(number)))
    assert host.state() is State.UNKNOWN
    # Only what was prepared is told so, and a repetition finds what was done long ago.
    assert host.answers(tp.Final(T, COMMIT)) == [(tp.Completed(T, HERE, COMMIT), None)]


def test_b14_there_is_a_limit_to_open_transactions() -> None:
    host = Host()
    host.participants = tp.Participants(HERE, open_max=2)
    for number in range(2):
        host.tell(tp.Stage(_number(number)))
    (refused,) = host.tell(tp.Stage(T))
    assert isinstance(refused, tp.Refuse)
    ((failed, _),) = host.answers(tp.Prepare(T, (BEFORE, HERE)))
    assert isinstance(failed, tp.Fail)
    assert host.answers(tp.Prepare(_number(0), (BEFORE, HERE))) == [(tp.Ready(_number(0), HERE), None)]
    assert host.answers(tp.CommitOne(OTHER)) == [(tp.Completed(OTHER, HERE, COMMIT), None)]  # leaves nothing open


# --- bundles ------------------------------------------------------------------------------------------

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


def test_b14_a_decision_that_comes_late_cannot_commit() -> None:
    """The holder was asked before its Prepare arrived: it must not become ready after that."""
    holder, other = Host(group=1), Host(group=2)
    prepare = tp.Prepare(T, (1, 2))
    other.tell(prepare)
    ((told, _),) = holder.answers(tp.Ask(T, 2))
    assert holder.answers(prepare) == [(tp.Fail(T, 1, NOT_PREPARED), None)]
    assert holder.answers(tp.Decide(T, COMMIT)) == [(tp.Completed(T, 1, ABORT, NOT_PREPARED), None)]
    assert isinstance(told, tp.Final)
    other.tell(told)
    assert (holder.state(), other.state()) == (State.ABORTED, State.ABORTED)
