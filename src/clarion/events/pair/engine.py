"""What a pair needs of the engine that delivers events: everything between the two goes through this."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from clarion.events.link.confirmations import Confirmations
from clarion.events.link.sink import ForeignSection


class PairEngine(Protocol):
    """What a pair needs of the engine that delivers events.

    Called by one thread, and each call may take its time, unless it says otherwise."""

    def may_deliver(self, allowed: bool) -> None:
        """Own events may be delivered, or no more. Before each batch `Pair.may_deliver` is asked as well."""
        ...

    def start_replay(self, section: ForeignSection) -> None:
        """Deliver the partner's events, also those that still come. Before each batch `Pair.may_act` is asked."""
        ...

    def stop_replay(self, section: ForeignSection) -> None:
        """Returns when none of them is on its way any more and every confirmation is recorded."""
        ...

    def confirmations(self, section: ForeignSection) -> Confirmations:
        """Which of the partner's events were confirmed to whom, here, and are not forgotten yet."""
        ...

    def forget(self, section: ForeignSection) -> None:
        """The partner has recorded them."""
        ...

    def apply_confirmations(self, confirmations: Confirmations) -> None:
        """Own events that the partner delivered, or that it was told are confirmed. Durable when it returns."""
        ...

    def partner_confirmed(self, confirmations: Confirmations) -> None:
        """The partner says that its own events were confirmed: if we act for it, these are not sent again."""
        ...

    def partner_note(self, note: bytes) -> bytes:
        """Who the recipients of the partner are, for every event of it that is read from now on; what to keep of it.

        Raises `ClarionError` if that cannot be understood. Called by the link's thread, so it must not wait, and more
        than once with the same note."""
        ...

    def own_confirmations(self) -> Confirmations:
        """Which of our own events that are not settled altogether were confirmed to whom."""
        ...

    def held_there(self, held: Sequence[tuple[int, int]]) -> None:
        """The partner says what it holds of us: producers, each up to a sequence. Called in a thread of its own."""
        ...

    def floors(self) -> Iterable[tuple[int, int]]:
        """(producer, floor) of each of our sections: everything below is settled. Also of those that are finished."""
        ...

    def report(self, type_: str, severity: str, data: dict[str, Any]) -> None:
        """Emit an event about the pair."""
        ...
