"""What the parts of a ledger share."""

from __future__ import annotations

from collections.abc import Callable

from clarion.events.ledger.durable import Durable
from clarion.events.ledger.log import LedgerLog
from clarion.events.ledger.state import Settled, State

Done = Callable[[], None]


class Part:
    """The state, and the log that makes it durable."""

    def __init__(self, log: LedgerLog, state: State) -> None:
        self._log = log
        self._state = state

    def _written(self) -> Durable:
        """Everything that was written so far."""
        durable = Durable()
        self._log.complete(durable)
        return durable

    def _advance_after(self, moved: list[tuple[Settled, int]]) -> None:
        """When what was written is durable, the floors that it made count."""

        def advance() -> None:
            for settled, floor in moved:
                settled.durable_floor = max(settled.durable_floor, floor)

        if moved:
            self._log.after(advance)
