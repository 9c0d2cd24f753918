"""A ledger on a disk of the tests, and its state in a form that can be compared."""

from __future__ import annotations

from typing import Any

from clarion.events.ledger import Ledger
from clarion.events.memory.layout import Recorded
from clarion.journal import InlineCommitter, JournalOptions, Store

SEGMENT_BYTES = 32_768
BYTES_MAX = 12 * SEGMENT_BYTES


class Opened:
    """A ledger whose work is done only when `run` or `step` says so."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.committer = InlineCommitter()
        made = JournalOptions(bytes_max=BYTES_MAX, **options)
        self.ledger = Ledger.over(store, self.committer, made)
        self.run()

    def run(self) -> None:
        self.committer.run()


def event(sequence: int, *, body: bytes = b"data", producer: int = 1 << 48) -> Recorded:
    return Recorded(producer, sequence, 1_000 + sequence, 40, 0b1111, 3, 0, b"headers%d" % sequence, body, sequence)


def canonical(ledger: Ledger) -> dict[str, Any]:
    """Everything that must survive; where bytes lie is not part of it."""
    state = ledger._state
    return {
        "epoch": state.epoch,
        "recipients": {slot: repr(row) for slot, row in state.recipients.items()},
        "values": dict(state.values),
        "sections": {
            row.section: (
                row.name,
                row.kind,
                {
                    slot: (settled.floor, list(settled.spans))
                    for slot, settled in row.settled.items()
                    if settled.floor > row.first or settled.spans
                },
                list(row.decided),
            )
            for row in state.sections.values()
        },
        "dead": {number: (one.dead, one.resent_at) for number, one in sorted(state.dead.events.items())},
        "resent": dict(sorted(state.dead.resent.items())),
        "next": (state.dead.number_next, state.dead.resent_next),
    }
