"""The least host of a participant in two-phase commit, and the groups and transactions that its tests speak of."""

from __future__ import annotations

from clarion.core import two_phase as tp
from clarion.core.two_phase.messages import Entry, Message, ParticipantInstruction
from clarion.core.two_phase.participant import Stimulus
from clarion.core.two_phase.transitions import State

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
