"""The law of one transaction at one participant: every state, every event, what it does.

States
    UNKNOWN     nothing is known: never heard of, or so long decided that it is forgotten
    ACTIVE      batches are staged, nothing is promised: it may abort by itself at any time
    PREPARED    it can and will do either; another participant holds the decision
    HOLDING     the same, and the decision is taken here
    JOINED      prepared, and handed to a bundle: it shares the bundle's fate, or comes back
    OWING       committed here, where the decision was taken; others have not said that they know
    COMMITTED   committed, and nobody needs to be told
    ABORTED     aborted; whoever asks is told, and whoever finds nothing takes that for the same

Rules
    1. PREPARED never ends by itself, however long it takes: only the holder's word ends the doubt. HOLDING may
       abort at any time before it commits, because nobody else can have decided otherwise.
    2. A pair of state and event that is not in the table changes nothing and says nothing. No answer means "not
       decided yet", and the other side asks again.
    3. An answer leaves when the entry of its row, and all before it, are durable.
    4. Its time is up: when ACTIVE has lasted too long; when PREPARED or HOLDING was silent for too long, or expired if
       it waits for an owner outside; when OWING was silent for too long; and again, until something changes.
    5. HOLDING does not hear Ask while an owner outside has time left.

`participant` obeys this table, docs/reference/transactions.md shows it, and tests compare all three.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from .messages import Began, Closed, Decided, Entry, Prepared


class State(Enum):
    UNKNOWN = "unknown"
    ACTIVE = "active"
    PREPARED = "prepared"
    HOLDING = "holding"
    JOINED = "joined"
    OWING = "owing"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Event(Enum):
    STAGE = "a batch is staged"
    PREPARE = "Prepare, decided elsewhere"
    PREPARE_HOLDER = "Prepare, decided here"
    PREPARE_BAD = "Prepare, impossible"
    COMMIT_ONE = "CommitOne"
    COMMIT_ONE_BAD = "CommitOne, impossible"
    DECIDE_COMMIT = "Decide(commit)"
    DECIDE_COMMIT_ALONE = "Decide(commit), no other participant"
    DECIDE_ABORT = "Decide(abort)"
    FINAL_COMMIT = "Final(commit)"
    FINAL_ABORT = "Final(abort)"
    ASK = "Ask"
    CLOSE = "Close, or Completed(commit) from the last one"
    DISSENT = "Completed(abort)"
    SESSION_ENDED = "its session ended"
    TIME = "its time is up"
    BUNDLE_PREPARED = "a bundle with it is prepared"
    BUNDLE_COMMITTED = "a bundle with it is committed"
    BUNDLE_ABORTED = "its bundle is aborted, decided elsewhere"
    BUNDLE_ABORTED_HOLDER = "its bundle is aborted, decided here"


class Answer(Enum):
    READY = "Ready"
    FAIL = "Fail"
    COMMITTED = "Completed(commit)"
    ABORTED = "Completed(abort)"
    TELL_COMMIT = "Final(commit)"
    TELL_ABORT = "Final(abort)"
    TELL_OWED = "Final(commit) to those who owe"
    ASK = "Ask to the holder"
    REFUSE = "refusal"
    CONTRADICTION = "contradiction"


class Row(NamedTuple):
    """What an event does in a state: an entry, answers once it is durable, and the next state."""

    log: type[Entry] | None
    answers: tuple[Answer, ...]
    next: State


def _row(log: type[Entry] | None, *rest: Answer | State) -> Row:
    *answers, state = rest
    assert isinstance(state, State)
    return Row(log, tuple(answer for answer in answers if isinstance(answer, Answer)), state)


_E, _A, _S = Event, Answer, State

_UNPREPARED = {
    _E.PREPARE: _row(Prepared, _A.READY, _S.PREPARED),
    _E.PREPARE_HOLDER: _row(Prepared, _A.READY, _S.HOLDING),
    _E.PREPARE_BAD: _row(Decided, _A.FAIL, _S.ABORTED),
    _E.COMMIT_ONE: _row(Decided, _A.COMMITTED, _S.COMMITTED),
    _E.COMMIT_ONE_BAD: _row(Decided, _A.ABORTED, _S.ABORTED),
    _E.DECIDE_COMMIT: _row(Decided, _A.ABORTED, _S.ABORTED),
    _E.DECIDE_ABORT: _row(Decided, _A.ABORTED, _S.ABORTED),
    _E.FINAL_ABORT: _row(Decided, _A.ABORTED, _S.ABORTED),
    _E.ASK: _row(Decided, _A.TELL_ABORT, _S.ABORTED),
}
_DONE = {
    event: _row(None, _A.COMMITTED, _S.COMMITTED)
    for event in (
        _E.PREPARE,
        _E.PREPARE_HOLDER,
        _E.COMMIT_ONE,
        _E.DECIDE_COMMIT,
        _E.DECIDE_ABORT,
        _E.FINAL_COMMIT,
    )
} | {
    _E.STAGE: _row(None, _A.REFUSE, _S.COMMITTED),
    _E.FINAL_ABORT: _row(None, _A.CONTRADICTION, _A.COMMITTED, _S.COMMITTED),
    _E.ASK: _row(None, _A.TELL_COMMIT, _S.COMMITTED),
}

TRANSITIONS: dict[State, dict[Event, Row]] = {
    State.UNKNOWN: _UNPREPARED
    | {
        _E.STAGE: _row(Began, _S.ACTIVE),
        # Only what was ready can be decided so: it was committed here, and that is forgotten.
        _E.FINAL_COMMIT: _row(None, _A.COMMITTED, _S.UNKNOWN),
    },
    State.ACTIVE: _UNPREPARED
    | {
        _E.STAGE: _row(None, _S.ACTIVE),
        _E.FINAL_COMMIT: _row(None, _A.CONTRADICTION, _S.ACTIVE),
        _E.SESSION_ENDED: _row(Decided, _S.ABORTED),
        _E.TIME: _row(Decided, _S.ABORTED),
    },
    State.PREPARED: {
        _E.STAGE: _row(None, _A.REFUSE, _S.PREPARED),
        _E.PREPARE: _row(None, _A.READY, _S.PREPARED),
        _E.FINAL_COMMIT: _row(Decided, _A.COMMITTED, _S.COMMITTED),
        _E.FINAL_ABORT: _row(Decided, _A.ABORTED, _S.ABORTED),
        _E.TIME: _row(None, _A.ASK, _S.PREPARED),
        _E.BUNDLE_PREPARED: _row(None, _S.JOINED),
    },
    State.HOLDING: {
        _E.STAGE: _row(None, _A.REFUSE, _S.HOLDING),
        _E.PREPARE_HOLDER: _row(None, _A.READY, _S.HOLDING),
        _E.DECIDE_COMMIT: _row(Decided, _A.COMMITTED, _S.OWING),
        _E.DECIDE_COMMIT_ALONE: _row(Decided, _A.COMMITTED, _S.COMMITTED),
        _E.DECIDE_ABORT: _row(Decided, _A.ABORTED, _S.ABORTED),
        _E.FINAL_COMMIT: _row(None, _A.CONTRADICTION, _S.HOLDING),
        _E.FINAL_ABORT: _row(Decided, _A.ABORTED, _S.ABORTED),
        _E.ASK: _row(Decided, _A.TELL_ABORT, _S.ABORTED),
        _E.TIME: _row(Decided, _S.ABORTED),
        _E.BUNDLE_PREPARED: _row(None, _S.JOINED),
        _E.BUNDLE_COMMITTED: _row(None, _S.COMMITTED),
    },
    State.JOINED: {
        _E.STAGE: _row(None, _A.REFUSE, _S.JOINED),
        _E.BUNDLE_COMMITTED: _row(None, _S.COMMITTED),
        _E.BUNDLE_ABORTED: _row(None, _S.PREPARED),
        _E.BUNDLE_ABORTED_HOLDER: _row(None, _S.HOLDING),
    },
    State.OWING: {event: row._replace(next=_S.OWING) for event, row in _DONE.items()}
    | {
        _E.CLOSE: _row(Closed, _S.COMMITTED),
        _E.DISSENT: _row(None, _A.CONTRADICTION, _S.OWING),
        _E.TIME: _row(None, _A.TELL_OWED, _S.OWING),
    },
    State.COMMITTED: _DONE,
    State.ABORTED: {
        _E.STAGE: _row(None, _A.REFUSE, _S.ABORTED),
        _E.PREPARE: _row(None, _A.FAIL, _S.ABORTED),
        _E.PREPARE_HOLDER: _row(None, _A.FAIL, _S.ABORTED),
        _E.COMMIT_ONE: _row(None, _A.ABORTED, _S.ABORTED),
        _E.DECIDE_COMMIT: _row(None, _A.ABORTED, _S.ABORTED),
        _E.DECIDE_ABORT: _row(None, _A.ABORTED, _S.ABORTED),
        _E.FINAL_COMMIT: _row(None, _A.CONTRADICTION, _A.ABORTED, _S.ABORTED),
        _E.FINAL_ABORT: _row(None, _A.ABORTED, _S.ABORTED),
        _E.ASK: _row(None, _A.TELL_ABORT, _S.ABORTED),
    },
}
UNPREPARED = (State.UNKNOWN, State.ACTIVE)
"""Where a Prepare or a CommitOne is new, and the host has to look whether it can be done."""
