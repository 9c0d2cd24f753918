"""What became of transactions, remembered so that a commit can be repeated and the doubtful can ask.

Bounded by count. When there are too many, the oldest is forgotten: whoever repeats a commit after that is told
that it is not known. Nobody in doubt loses by it: a commit stays out of here until every participant
knows it, and of an abort nothing needs to be known.

Changed only while log entries are applied, in log order: the same log gives the same memory.
"""

from __future__ import annotations

from clarion import limits

from .identity import TransactionId

Remembered = list[tuple[bytes, str | None]]


class Outcomes:
    """Outcomes by transaction, the oldest first."""

    __slots__ = ("_known", "_maximum", "forgotten")

    def __init__(self, maximum: int = limits.TRANSACTION_OUTCOMES_MAX) -> None:
        self._known: dict[bytes, str | None] = {}
        """Why it was aborted; None: it was committed."""
        self._maximum = maximum
        self.forgotten = 0
        """How many were dropped for want of room, ever."""

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, transaction: TransactionId) -> bool:
        return transaction.encode() in self._known

    def committed(self, transaction: TransactionId) -> bool:
        """It is known, and known to be committed."""
        return self._known.get(transaction.encode(), "") is None

    def reason(self, transaction: TransactionId) -> str | None:
        """Why a known one was aborted; None: it was committed. Raises `KeyError`."""
        return self._known[transaction.encode()]

    def record(self, transaction: TransactionId, reason: str | None) -> None:
        """It was aborted for this reason, or committed (None). The first outcome stands."""
        key = transaction.encode()
        if key in self._known:
            return
        if len(self._known) >= self._maximum:
            del self._known[next(iter(self._known))]
            self.forgotten += 1
        self._known[key] = reason

    def dump(self) -> tuple[int, Remembered]:
        """For a checkpoint: in order, so that forgetting goes on the same way."""
        return self.forgotten, list(self._known.items())

    def load(self, forgotten: int, known: Remembered) -> None:
        """The inverse of `dump`."""
        self.forgotten = forgotten
        self._known = dict(known)
