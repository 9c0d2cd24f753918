"""The transactions of one message manager: which are open, which are prepared, how others ended.

A transaction is open while it has staged batches; it is prepared when an entry says so, and then survives its
session; it ends by an outcome. Outcomes are remembered, so that a commit can be asked for again; so are the
versions of conditional commits, by key. Changed only while log entries are applied; which stages belong to
whom is derived from the destinations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from clarion import limits
from clarion.core.entries import Outcome, Prepared

KEYS_MAX = 100_000
"""Keys of conditional commits. None is ever forgotten by itself: it would let an old version in again."""


class Transactions:
    """The table of transactions."""

    __slots__ = ("keys", "outcomes", "prepared", "stages")

    def __init__(self) -> None:
        self.prepared: dict[bytes, Prepared] = {}
        self.outcomes: dict[bytes, str | None] = {}
        """None: committed. Otherwise why not."""
        self.keys: dict[str, int] = {}
        self.stages: dict[bytes, dict[int, list[int]]] = {}
        """Transaction → destination → numbers of its stages, in their order. Derived."""

    def staged(self, transaction: bytes, destination: int, number: int) -> None:
        """A batch of a transaction is in the wings."""
        self.stages.setdefault(transaction, {}).setdefault(destination, []).append(number)

    def dropped(self, destination: int) -> None:
        """A destination is gone, with all that was in its wings."""
        for transaction, places in list(self.stages.items()):
            places.pop(destination, None)
            if not places:
                del self.stages[transaction]

    def apply_prepared(self, entry: Prepared) -> None:
        """It survives its session from now on."""
        self.prepared[entry.transaction] = entry

    def apply_outcome(self, entry: Outcome) -> None:
        """It is decided."""
        for transaction in entry.transactions:
            self.prepared.pop(transaction, None)
            self.stages.pop(transaction, None)
            self.outcomes.pop(transaction, None)
            self.outcomes[transaction] = None if entry.committed else entry.reason or "rolled back"
        while len(self.outcomes) > limits.TRANSACTION_OUTCOMES_MAX:
            del self.outcomes[next(iter(self.outcomes))]
        if entry.committed and entry.key:
            self.keys[entry.key] = entry.version

    def undecided(self) -> list[bytes]:
        """Those that nobody prepared: they end with their session."""
        return [transaction for transaction in self.stages if transaction not in self.prepared]

    def dump(self) -> list[object]:
        """For a checkpoint."""
        prepared = [entry.encode() for entry in self.prepared.values()]
        return [prepared, list(self.outcomes.items()), list(self.keys.items())]

    @classmethod
    def load(cls, dumped: Sequence[Any]) -> Transactions:
        """The inverse of `dump`."""
        table = cls()
        prepared, outcomes, keys = dumped
        for head in prepared:
            table.apply_prepared(msgspec.msgpack.decode(head, type=Prepared))
        table.outcomes = dict(outcomes)
        table.keys = dict(keys)
        return table
