"""One transaction at one participant: a machine that obeys `transitions`.

Rules
    1. `handle` changes nothing that must survive: it says what to log and what to send after that is
       durable. The methods named after entries change the state, and decide nothing. An entry that could not be
       written leaves the participant as it was, and whoever wants an answer asks again.
    2. Pure: the time is an argument.
"""

from __future__ import annotations

from clarion import limits

from .identity import TransactionId
from .messages import (
    EXPIRED,
    NOT_PREPARED,
    SESSION_ENDED,
    SILENT,
    TOO_LONG,
    AfterDurable,
    Ask,
    Began,
    Close,
    Closed,
    CommitOne,
    Completed,
    Contradiction,
    Decide,
    Decided,
    Decision,
    Fail,
    Final,
    Log,
    ParticipantInstruction,
    Prepare,
    Prepared,
    Ready,
    Refuse,
    SessionEnded,
    Stage,
    Tick,
    ToParticipant,
)
from .transitions import TRANSITIONS, UNPREPARED, Answer, Event, State

Stimulus = ToParticipant | Stage | SessionEnded | Tick


class Participant:
    """A transaction at the message manager group `group`."""

    __slots__ = (
        "armed_ms",
        "bundle",
        "due_ms",
        "expires_at_ms",
        "group",
        "handles",
        "owed",
        "participants",
        "reason",
        "retry_ms",
        "state",
        "transaction",
    )

    def __init__(self, transaction: TransactionId, group: int, state: State = State.UNKNOWN, reason: str = "") -> None:
        self.transaction = transaction
        self.group = group
        self.state = state
        self.reason = reason
        """Why it was aborted."""
        self.participants: tuple[int, ...] = ()
        self.handles: tuple[TransactionId, ...] = ()
        self.expires_at_ms = 0
        self.bundle: TransactionId | None = None
        """Whose fate it shares in JOINED."""
        # Soft from here on.
        self.owed: set[int] = set()
        self.due_ms = 0
        """When its time is up; 0: not known yet, or never."""
        self.armed_ms = 0
        """When its owner looks at it; 0: that is not arranged."""
        self.retry_ms = limits.TRANSACTION_RETRY_MS_MIN

    @property
    def holds_decision(self) -> bool:
        return self.participants[:1] == (self.group,)

    # --- stimuli --------------------------------------------------------------------------------------

    def handle(self, stimulus: Stimulus, now_ms: int, problem: str = "") -> list[ParticipantInstruction]:
        """What to do about a stimulus. `problem`: why what a Prepare or CommitOne asks for cannot be done."""
        event = self._event(stimulus, now_ms, problem if self.state in UNPREPARED else "")
        row = TRANSITIONS[self.state].get(event) if event is not None else None
        if isinstance(stimulus, Tick):
            self.due_ms = now_ms + self.retry_ms
            self.retry_ms = min(2 * self.retry_ms, limits.TRANSACTION_RETRY_MS_MAX)
        if row is None or event is None:
            return []
        said: list[ParticipantInstruction] = []
        reason = self.reason
        if row.log is Began:
            said.append(Log(Began(self.transaction)))
        elif row.log is Closed:
            said.append(Log(Closed(self.transaction)))
        elif row.log is Prepared:
            assert isinstance(stimulus, Prepare)
            said.append(
                Log(Prepared(self.transaction, stimulus.participants, stimulus.handles, stimulus.expires_at_ms))
            )
        elif row.log is Decided:
            if row.next is State.ABORTED:
                reason = problem or self._why(event, stimulus)
                said.append(Log(Decided((self.transaction,), Decision.ABORT, reason)))
            else:
                handles = stimulus.handles if isinstance(stimulus, CommitOne) else self.handles
                said.append(Log(Decided((self.transaction, *handles), Decision.COMMIT)))
        for answer in row.answers:
            said += self._say(answer, stimulus, reason)
        return said

    def _event(self, stimulus: Stimulus, now_ms: int, problem: str) -> Event | None:
        match stimulus:
            case Stage():
                return Event.STAGE
            case Prepare(participants=participants):
                if problem:
                    return Event.PREPARE_BAD
                return Event.PREPARE_HOLDER if participants[0] == self.group else Event.PREPARE
            case CommitOne():
                return Event.COMMIT_ONE_BAD if problem else Event.COMMIT_ONE
            case Decide(decision=Decision.COMMIT):
                alone = self.participants == (self.group,)
                return Event.DECIDE_COMMIT_ALONE if alone else Event.DECIDE_COMMIT
            case Decide():
                return Event.DECIDE_ABORT
            case Final(decision=decision):
                return Event.FINAL_COMMIT if decision is Decision.COMMIT else Event.FINAL_ABORT
            case Ask():
                undecided = self.state is State.HOLDING and self.expires_at_ms > now_ms
                return None if undecided else Event.ASK
            case Close():
                return Event.CLOSE
            case Completed(participant=participant, decision=decision):
                self.owed.discard(participant)
                if decision is Decision.ABORT:
                    return Event.DISSENT
                return None if self.owed else Event.CLOSE
            case SessionEnded():
                return Event.SESSION_ENDED
            case Tick():
                return Event.CLOSE if self.state is State.OWING and not self.owed else Event.TIME

    def _why(self, event: Event, stimulus: Stimulus) -> str:
        """The reason for an abort that the host gave none for."""
        if isinstance(stimulus, (Decide, Final)) and stimulus.decision is Decision.ABORT:
            return stimulus.reason
        if event is Event.SESSION_ENDED:
            return SESSION_ENDED
        if self.state is State.HOLDING:
            return EXPIRED if self.expires_at_ms else SILENT
        return TOO_LONG if event is Event.TIME else NOT_PREPARED

    def _say(self, answer: Answer, stimulus: Stimulus, reason: str) -> list[ParticipantInstruction]:
        me, group = self.transaction, self.group
        match answer:
            case Answer.READY:
                return [AfterDurable(Ready(me, group))]
            case Answer.FAIL:
                return [AfterDurable(Fail(me, group, reason))]
            case Answer.COMMITTED:
                return [AfterDurable(Completed(me, group, Decision.COMMIT))]
            case Answer.ABORTED:
                return [AfterDurable(Completed(me, group, Decision.ABORT, reason))]
            case Answer.TELL_COMMIT:
                return [AfterDurable(Final(me, Decision.COMMIT))]
            case Answer.TELL_ABORT:
                return [AfterDurable(Final(me, Decision.ABORT, reason))]
            case Answer.TELL_OWED:
                return [AfterDurable(Final(me, Decision.COMMIT), to=other) for other in sorted(self.owed)]
            case Answer.ASK:
                return [AfterDurable(Ask(me, group), to=self.participants[0])]
            case Answer.REFUSE:
                return [Refuse(reason or f"the transaction is {self.state.value}")]
            case Answer.CONTRADICTION:
                return [Contradiction(me, f"{stimulus} at group {group}, where it is {self.state.value}")]

    # --- entries --------------------------------------------------------------------------------------

    def began(self) -> None:
        self._enter(State.ACTIVE)

    def prepared(self, entry: Prepared) -> None:
        self.participants = entry.participants
        self.handles = entry.handles
        self.expires_at_ms = entry.expires_at_ms
        self._enter(State.HOLDING if self.holds_decision else State.PREPARED)

    def joined(self, bundle: TransactionId) -> None:
        self.bundle = bundle
        self._enter(State.JOINED)

    def released(self) -> None:
        self.bundle = None
        self._enter(State.HOLDING if self.holds_decision else State.PREPARED)

    def committed(self) -> None:
        """Where the decision was taken, OWING until everybody knows."""
        decided_here = self.state is State.HOLDING
        self.owed = set(self.participants) - {self.group} if decided_here else set()
        self._enter(State.OWING if self.owed else State.COMMITTED)

    def _enter(self, state: State) -> None:
        self.state = state
        self.due_ms = 0
        self.retry_ms = limits.TRANSACTION_RETRY_MS_MIN

    def first_due_ms(self, now_ms: int, active_ms_max: int) -> int:
        """When its time is up, if nothing is heard from now on; 0: never."""
        match self.state:
            case State.ACTIVE:
                return now_ms + active_ms_max
            case State.PREPARED | State.HOLDING:
                return self.expires_at_ms or now_ms + limits.TRANSACTION_SILENCE_MS_MAX
            case State.OWING:
                return now_ms + limits.TRANSACTION_SILENCE_MS_MAX
            case _:
                return 0
