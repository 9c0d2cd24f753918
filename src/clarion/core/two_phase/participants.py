"""All transactions of one message manager group: which there are, what became of the others, whose time is up.

Guarantees
    1. The durable state is a function of the entries given to `apply`, in their order; `dump` and `load` carry it
       through a checkpoint.
    2. Bounded: transactions that are open, outcomes that are remembered, and the work of one tick.
    3. Pure: the time is an argument, in Unix milliseconds of a clock that never goes back.
    4. A bundle and the prepared transactions in it are committed by one entry. If the bundle is aborted they are
       prepared as before, and wait for their owner until they expire.
"""

from __future__ import annotations

import heapq

import msgspec

from clarion import limits

from .identity import Handle, TransactionId
from .messages import (
    Began,
    Closed,
    CommitOne,
    Decided,
    Decision,
    Entry,
    ParticipantInstruction,
    Prepare,
    Prepared,
    Refuse,
    SessionEnded,
    Stage,
    Tick,
)
from .outcomes import Outcomes, Remembered
from .participant import Participant, Stimulus
from .transitions import UNPREPARED, State

DUE_PER_TICK_MAX = 1_000
"""Then other work has its turn; the rest is due at the next tick."""
OR_FORGOTTEN = "or it was decided so long ago that this is forgotten"
TOO_MANY = f"the message manager has its maximum of {limits.TRANSACTIONS_OPEN_MAX} transactions"


class _Dumped(msgspec.Struct, array_like=True):
    transaction: TransactionId
    state: str
    participants: tuple[int, ...]
    handles: tuple[TransactionId, ...]
    expires_at_ms: int
    bundle: TransactionId | None


class Participants:
    """The transactions of the message manager group `group`."""

    def __init__(
        self,
        group: int,
        outcomes_max: int = limits.TRANSACTION_OUTCOMES_MAX,
        open_max: int = limits.TRANSACTIONS_OPEN_MAX,
        active_ms_max: int = limits.TRANSACTION_MS_DEFAULT,
    ) -> None:
        self.group = group
        self.outcomes = Outcomes(outcomes_max)
        self._open_max = open_max
        self._active_ms_max = active_ms_max
        self._open: dict[TransactionId, Participant] = {}
        self._active: dict[bytes, set[TransactionId]] = {}
        """Of each producer those in ACTIVE: they end with its session."""
        self._now_ms = 0
        self._untimed: list[Participant] = []
        """Their time runs from the next stimulus on: entries know no time."""
        self._heap: list[tuple[int, TransactionId]] = []
        """An item whose time is not its participant's `armed_ms` is stale and passed over."""

    def __len__(self) -> int:
        """How many are open: not decided, or not known by everybody to be."""
        return len(self._open)

    def state_of(self, transaction: TransactionId) -> State:
        """In UNPREPARED a Prepare or CommitOne is new, and its problems are to be looked for."""
        return self._find(transaction).state

    def held(self) -> list[tuple[Handle, int]]:
        """Prepared transactions that wait for an owner outside, and when they expire."""
        return [
            (Handle(one.transaction, one.participants), one.expires_at_ms)
            for one in self._open.values()
            if one.expires_at_ms and one.state in (State.PREPARED, State.HOLDING, State.JOINED)
        ]

    @property
    def due_ms(self) -> int | None:
        """When a tick has something to do, at the earliest; None: not before something else is handled."""
        if self._untimed:
            return self._now_ms
        return self._heap[0][0] if self._heap else None

    # --- stimuli --------------------------------------------------------------------------------------

    def handle(self, stimulus: Stimulus, now_ms: int, problem: str = "") -> list[ParticipantInstruction]:
        """What to do, in this order. `problem`: why what a Prepare or CommitOne asks for cannot be done."""
        self._now_ms = now_ms
        self._begin_times(now_ms)
        match stimulus:
            case Tick():
                return self._tick(now_ms)
            case SessionEnded(producer=producer):
                active = sorted(self._active.get(producer, ()))
                return [said for one in active for said in self._open[one].handle(stimulus, now_ms)]
        participant = self._find(stimulus.transaction)
        if participant.state in UNPREPARED:
            full = participant.state is State.UNKNOWN and len(self._open) >= self._open_max
            if full and isinstance(stimulus, Stage):
                return [Refuse(TOO_MANY)]
            if isinstance(stimulus, (Prepare, CommitOne)):
                problem = problem or (TOO_MANY if full and isinstance(stimulus, Prepare) else "")
                if not problem and stimulus.handles:
                    bundled = self._bundle(stimulus)
                    if bundled is None:
                        return []
                    stimulus, problem = bundled
                if problem and participant.state is State.UNKNOWN and self.outcomes.forgotten:
                    problem = f"{problem}, {OR_FORGOTTEN}"
        if participant.due_ms and isinstance(stimulus, Prepare):  # its coordinator is there
            participant.due_ms = participant.first_due_ms(now_ms, self._active_ms_max)
        return participant.handle(stimulus, now_ms, problem)

    def _bundle(self, stimulus: Prepare | CommitOne) -> tuple[Prepare | CommitOne, str] | None:
        """The stimulus with the handles that are left to decide, and what is wrong with them.

        None: one belongs to another bundle, and nobody knows yet how that ends.
        """
        participants = stimulus.participants if isinstance(stimulus, Prepare) else (self.group,)
        left: list[TransactionId] = []
        for handle in stimulus.handles:
            if self.outcomes.committed(handle):
                continue
            one = self._find(handle)
            if one.state is State.OWING:
                continue
            if one.state is State.JOINED:
                return None
            held = one.state in (State.PREPARED, State.HOLDING) and one.expires_at_ms
            if not held or not set(one.participants) <= set(participants):
                return stimulus, f"there is no prepared transaction {handle} to decide"
            left.append(handle)
        return msgspec.structs.replace(stimulus, handles=tuple(left)), ""

    def _begin_times(self, now_ms: int) -> None:
        untimed, self._untimed = self._untimed, []
        for participant in untimed:
            if not participant.due_ms and self._open.get(participant.transaction) is participant:
                participant.due_ms = participant.first_due_ms(now_ms, self._active_ms_max)
                self._arm(participant)

    def _tick(self, now_ms: int) -> list[ParticipantInstruction]:
        said: list[ParticipantInstruction] = []
        for _ in range(DUE_PER_TICK_MAX):
            if not self._heap or self._heap[0][0] > now_ms:
                break
            due_ms, transaction = heapq.heappop(self._heap)
            due = self._open.get(transaction)
            if due is None or due.armed_ms != due_ms:
                continue
            due.armed_ms = 0
            if due.due_ms and due.due_ms <= now_ms:
                said += due.handle(Tick(), now_ms)
            self._arm(due)
        return said

    def _arm(self, participant: Participant) -> None:
        """Look at it when it is due, at the latest: one that is put off is looked at, and armed again."""
        due_ms = participant.due_ms
        if due_ms and not 0 < participant.armed_ms <= due_ms:
            participant.armed_ms = due_ms
            heapq.heappush(self._heap, (due_ms, participant.transaction))

    def _find(self, transaction: TransactionId) -> Participant:
        """The open one, or a stand-in for what is remembered."""
        participant = self._open.get(transaction)
        if participant is not None:
            return participant
        if transaction not in self.outcomes:
            return Participant(transaction, self.group)
        reason = self.outcomes.reason(transaction)
        if reason is None:
            return Participant(transaction, self.group, State.COMMITTED)
        return Participant(transaction, self.group, State.ABORTED, reason)

    # --- entries --------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """The one door through which what must survive changes, in live operation and in replay alike."""
        match entry:
            case Began(transaction=transaction):
                if self.state_of(transaction) is State.UNKNOWN:
                    self._admit(transaction).began()
                    self._active.setdefault(transaction.producer, set()).add(transaction)
            case Prepared(transaction=transaction):
                if self.state_of(transaction) in UNPREPARED:
                    participant = self._admit(transaction)
                    self._not_active(transaction)
                    participant.prepared(entry)
                    for handle in entry.handles:
                        if handle in self._open:
                            self._admit(handle).joined(transaction)
            case Decided(transactions=transactions, decision=decision):
                for transaction in transactions:
                    self._decided(transaction, None if decision is Decision.COMMIT else entry.reason)
            case Closed(transaction=transaction):
                if self._open.pop(transaction, None) is not None:
                    self.outcomes.record(transaction, None)

    def _admit(self, transaction: TransactionId) -> Participant:
        """The open one, made if need be; its time begins anew."""
        participant = self._open.get(transaction)
        if participant is None:
            participant = self._open[transaction] = Participant(transaction, self.group)
        self._untimed.append(participant)
        return participant

    def _decided(self, transaction: TransactionId, reason: str | None) -> None:
        participant = self._open.get(transaction)
        if participant is None:
            self.outcomes.record(transaction, reason)
            return
        if participant.owed:
            return
        self._not_active(transaction)
        if reason is None:
            participant.committed()
            if participant.owed:
                self._untimed.append(participant)
                return
        else:
            for handle in participant.handles:
                joined = self._open.get(handle)
                if joined is not None and joined.bundle == transaction:
                    self._admit(handle).released()
        del self._open[transaction]
        self.outcomes.record(transaction, reason)

    def _not_active(self, transaction: TransactionId) -> None:
        active = self._active.get(transaction.producer)
        if active is not None:
            active.discard(transaction)
            if not active:
                del self._active[transaction.producer]

    # --- checkpoints ----------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """Everything that must survive."""
        dumped = [
            _Dumped(one.transaction, one.state.value, one.participants, one.handles, one.expires_at_ms, one.bundle)
            for one in self._open.values()
        ]
        return msgspec.msgpack.encode((*self.outcomes.dump(), dumped))

    def load(self, data: bytes) -> None:
        """The inverse of `dump`, into a new one, before the entries that follow."""
        kind = tuple[int, Remembered, list[_Dumped]]
        forgotten, known, dumped = msgspec.msgpack.decode(data, type=kind)
        self.outcomes.load(forgotten, known)
        for one in dumped:
            participant = self._admit(one.transaction)
            participant.participants, participant.handles = one.participants, one.handles
            participant.expires_at_ms, participant.bundle = one.expires_at_ms, one.bundle
            participant.state = State(one.state)
            if participant.state is State.OWING:
                participant.owed = set(one.participants) - {self.group}
            if participant.state is State.ACTIVE:
                self._active.setdefault(one.transaction.producer, set()).add(one.transaction)
