"""The coordinator of one transaction: lives with a session in a client manager, and may die at any time.

States, and what is said on entering one and repeated, with growing pauses, while it lasts
    OPEN               nothing: the transaction is being filled
    ONE_PHASE          CommitOne to the only participant
    PREPARING          Prepare to those that are not ready
    HELD               nothing: prepared everywhere, an owner outside will decide
    PROPOSING_COMMIT   Decide(commit) to the decision holder
    PROPOSING_ABORT    Decide(abort) to the decision holder
    COMPLETING         Final(commit) to those that have not completed
    RELEASING          Final(abort) to those that have not completed
    COMMITTED          Close to the decision holder, once
    ABORTED            nothing

Rules
    1. Nothing here must survive. Participants learn the outcome from the decision holder; a client that repeats
       its commit elsewhere gets a new coordinator, with the same id and the same participants, also while the
       old one lives: what they find out is the same.
    2. Nobody is told a decision that is not a fact. Facts are what a participant says that it made durable: the
       holder's answer, anybody's Completed, and a Fail, after which nobody can commit.
    3. A commit is reported when every participant has completed, so its messages can be received; an abort as
       soon as it is a fact, for a participant that is away must not delay bad news.
    4. Pure: the time is an argument, in Unix milliseconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from clarion import limits
from clarion.errors import LimitReached

from .identity import Handle, TransactionId
from .messages import (
    NOT_READY,
    Close,
    Commit,
    CommitOne,
    Completed,
    Contradiction,
    CoordinatorInstruction,
    Decide,
    Decision,
    Fail,
    Final,
    Held,
    Hold,
    Message,
    Outcome,
    Prepare,
    Ready,
    Rollback,
    Send,
    Tick,
    ToCoordinator,
)


class State(Enum):
    OPEN = "open"
    ONE_PHASE = "one phase"
    PREPARING = "preparing"
    HELD = "held"
    PROPOSING_COMMIT = "proposing commit"
    PROPOSING_ABORT = "proposing abort"
    COMPLETING = "completing"
    RELEASING = "releasing"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Event(Enum):
    COMMIT_NONE = "commit; nobody takes part"
    COMMIT_ONE = "commit; one participant"
    COMMIT = "commit"
    HOLD = "prepare for an owner outside"
    ROLLBACK_NONE = "rollback; nobody takes part"
    ROLLBACK = "rollback"
    ALL_READY = "all are Ready"
    ALL_READY_HELD = "all are Ready; to be held"
    LEARNED_COMMIT = "Completed(commit)"
    LEARNED_ABORT = "Completed(abort), or Fail"
    ALL_COMPLETED = "all have completed"
    TIME_OUT = "time-out"


_LEARN = {Event.LEARNED_COMMIT: State.COMPLETING, Event.LEARNED_ABORT: State.RELEASING}

TRANSITIONS: dict[State, dict[Event, State]] = {
    State.OPEN: {
        Event.COMMIT_NONE: State.COMPLETING,
        Event.COMMIT_ONE: State.ONE_PHASE,
        Event.COMMIT: State.PREPARING,
        Event.HOLD: State.PREPARING,
        Event.ROLLBACK_NONE: State.RELEASING,
        Event.ROLLBACK: State.PROPOSING_ABORT,
    },
    State.ONE_PHASE: _LEARN,
    State.PREPARING: _LEARN
    | {
        Event.ALL_READY: State.PROPOSING_COMMIT,
        Event.ALL_READY_HELD: State.HELD,
        Event.ROLLBACK: State.PROPOSING_ABORT,
        Event.TIME_OUT: State.PROPOSING_ABORT,
    },
    State.HELD: _LEARN
    | {
        Event.COMMIT_NONE: State.COMPLETING,
        Event.COMMIT_ONE: State.PROPOSING_COMMIT,
        Event.COMMIT: State.PROPOSING_COMMIT,
        Event.ROLLBACK_NONE: State.RELEASING,
        Event.ROLLBACK: State.PROPOSING_ABORT,
    },
    State.PROPOSING_COMMIT: _LEARN,
    State.PROPOSING_ABORT: _LEARN,
    State.COMPLETING: {Event.ALL_COMPLETED: State.COMMITTED},
    State.RELEASING: {Event.ALL_COMPLETED: State.ABORTED},
    State.COMMITTED: {},
    State.ABORTED: {},
}

Stimulus = Commit | Rollback | Hold | Tick | ToCoordinator


class Part(NamedTuple):
    """What one participant has to do with a transaction."""

    work: bytes = b""
    """For the host of the participant: what was consumed, how much was staged, …"""
    handles: tuple[TransactionId, ...] = ()
    """Prepared transactions that this one, a bundle, decides with itself."""


class Coordinator:
    """Commits or undoes one transaction of these participants, by message manager group."""

    def __init__(self, transaction: TransactionId, parts: Mapping[int, Part]) -> None:
        """Raises `LimitReached`."""
        for what, count, limit in (
            ("participants of a transaction", len(parts), limits.TRANSACTION_PARTICIPANTS_MAX),
            (
                "prepared transactions in one commit",
                max((len(part.handles) for part in parts.values()), default=0),
                limits.HANDLES_PER_COMMIT_MAX,
            ),
        ):
            if count > limit:
                raise LimitReached(what=what, limit=limit)
        self.transaction = transaction
        self.state = State.OPEN
        self.participants = tuple(sorted(parts))
        """The first one holds the decision."""
        self._parts = dict(parts)
        self._ready: set[int] = set()
        self._completed: set[int] = set()
        self._expires_at_ms = 0
        self._hold = False
        self._reason = ""
        self._now_ms = 0
        self._time_out_ms = 0
        self._repeat_ms = 0
        self._pause_ms = 0

    @property
    def done(self) -> bool:
        """Everything is over: drop it, or keep it to answer a repeated commit."""
        return self.state in (State.COMMITTED, State.ABORTED)

    @property
    def due_ms(self) -> int | None:
        """When a tick has something to do; None: not before something else is handled."""
        if self.state in (State.OPEN, State.HELD) or self.done:
            return None
        return min(self._repeat_ms, self._time_out_ms) if self.state is State.PREPARING else self._repeat_ms

    def handle(self, stimulus: Stimulus, now_ms: int) -> list[CoordinatorInstruction]:
        """What to do, in this order. Each request of the client is answered by `Outcome` or `Held`, sooner or later."""
        said: list[CoordinatorInstruction] = []
        self._now_ms = now_ms
        match stimulus:
            case Tick():
                if self.state is State.PREPARING and now_ms >= self._time_out_ms:
                    self._step(Event.TIME_OUT, said, NOT_READY)
                elif self.due_ms is not None and now_ms >= self._repeat_ms:
                    said += self._speak()
            case Commit():
                self._hold = False
                self._ask_for((Event.COMMIT_NONE, Event.COMMIT_ONE, Event.COMMIT), said)
            case Rollback(reason=reason):
                self._ask_for((Event.ROLLBACK_NONE, Event.ROLLBACK, Event.ROLLBACK), said, reason)
            case Hold(expires_at_ms=expires_at_ms):
                if self.state is State.OPEN:
                    self._hold = True
                    self._expires_at_ms = min(expires_at_ms, now_ms + limits.PREPARED_MS_MAX)
                self._ask_for((Event.HOLD, Event.HOLD, Event.HOLD), said)
            case Ready(participant=participant):
                self._ready.add(participant)
            case Fail(participant=participant, reason=reason):
                self._learn(Decision.ABORT, participant, reason, said)
            case Completed(participant=participant, decision=decision, reason=reason):
                self._learn(decision, participant, reason, said)
        self._settle(said)
        return said

    def _ask_for(
        self, by_count: tuple[Event, Event, Event], said: list[CoordinatorInstruction], reason: str = ""
    ) -> None:
        """The client wants something: do it, or tell it again what became of the transaction."""
        event = by_count[min(len(self.participants), 2)]
        if event in TRANSITIONS[self.state]:
            self._step(event, said, reason)
        elif self.state in (State.RELEASING, State.COMMITTED, State.ABORTED, State.HELD):
            said.append(self._report())

    def _learn(self, decision: Decision, participant: int, reason: str, said: list[CoordinatorInstruction]) -> None:
        """A participant said what was decided, which is a fact."""
        self._completed.add(participant)
        known = {
            State.COMPLETING: Decision.COMMIT,
            State.COMMITTED: Decision.COMMIT,
            State.RELEASING: Decision.ABORT,
            State.ABORTED: Decision.ABORT,
        }.get(self.state, decision)
        if known is not decision:
            detail = f"group {participant} decided {decision.name}, where the outcome is {known.name}"
            said.append(Contradiction(self.transaction, detail))
        self._step(Event.LEARNED_COMMIT if decision is Decision.COMMIT else Event.LEARNED_ABORT, said, reason)

    def _settle(self, said: list[CoordinatorInstruction]) -> None:
        """Go on where nobody is left to wait for."""
        everybody = set(self.participants)
        if self.state is State.PREPARING and self._ready >= everybody:
            self._step(Event.ALL_READY_HELD if self._hold else Event.ALL_READY, said)
        if self.state in (State.COMPLETING, State.RELEASING) and self._completed >= everybody:
            self._step(Event.ALL_COMPLETED, said)

    def _step(self, event: Event, said: list[CoordinatorInstruction], reason: str = "") -> None:
        state = TRANSITIONS[self.state].get(event)
        if state is None:
            return
        self.state = state
        self._reason = reason or self._reason
        self._pause_ms = limits.TRANSACTION_RETRY_MS_MIN
        if state is State.PREPARING:
            self._time_out_ms = self._now_ms + limits.TRANSACTION_PREPARE_MS_MAX
        said += self._speak()
        if state in (State.HELD, State.COMMITTED, State.RELEASING):
            said.append(self._report())

    def _report(self) -> Held | Outcome:
        if self.state is State.HELD:
            return Held(Handle(self.transaction, self.participants))
        if self.state is State.COMMITTED:
            return Outcome(Decision.COMMIT)
        return Outcome(Decision.ABORT, self._reason)

    def _speak(self) -> list[CoordinatorInstruction]:
        """Say what belongs to the state, and when to say it again."""
        self._repeat_ms = self._now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, limits.TRANSACTION_RETRY_MS_MAX)
        holder = self.participants[:1]
        rest = [one for one in self.participants if one not in self._completed]
        match self.state:
            case State.ONE_PHASE | State.PROPOSING_COMMIT | State.PROPOSING_ABORT:
                to = list(holder)
            case State.PREPARING:
                to = [one for one in self.participants if one not in self._ready]
            case State.COMPLETING | State.RELEASING:
                to = rest
            case State.COMMITTED:
                to = list(holder) if len(self.participants) > 1 else []
            case _:
                to = []
        return [Send(one, self._message(self._parts[one])) for one in to]

    def _message(self, part: Part) -> Message:
        me = self.transaction
        match self.state:
            case State.ONE_PHASE:
                return CommitOne(me, part.work, part.handles)
            case State.PREPARING:
                return Prepare(me, self.participants, part.work, part.handles, self._expires_at_ms)
            case State.PROPOSING_COMMIT:
                return Decide(me, Decision.COMMIT)
            case State.PROPOSING_ABORT:
                return Decide(me, Decision.ABORT, self._reason, part.work)
            case State.COMPLETING:
                return Final(me, Decision.COMMIT)
            case State.RELEASING:
                return Final(me, Decision.ABORT, self._reason, part.work)
            case _:
                return Close(me)
