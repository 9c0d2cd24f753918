"""Two-phase commit: the tables are what the code does, also from a checkpoint, and what the page says (B-14)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clarion import limits
from clarion.core import two_phase as tp
from clarion.core.two_phase import coordinator, transitions
from clarion.core.two_phase.messages import NOT_PREPARED, SILENT, Entry
from clarion.core.two_phase.participant import Stimulus
from clarion.core.two_phase.transitions import TRANSITIONS, Answer, Event, State
from tests.unit.core.participant_host import ABORT, AFTER, BEFORE, BUNDLE, COMMIT, HERE, NOW_MS, OTHER, Host, T

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/transactions.md"

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
