"""The promises, written once, and checked wherever something is broken on purpose.

A `Ledger` hears what producers and consumers saw. It knows nothing of brokers: whatever happened between,
these must hold in the end:

    1. every message whose sending was confirmed is received                       (nothing is lost)
    2. none is received after its own confirmation returned                        (nothing comes again)
    3. nothing is received that was never sent, and no body is changed             (nothing is made up)
    4. the first receipts of one producer's messages are in its order              (order per producer)
    5. without redelivery flags, none is received twice                            (flags tell the truth)
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Ledger:
    """What was seen from outside, by body: bodies must be unique."""

    sent: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    stored: set[bytes] = field(default_factory=set)
    received: dict[bytes, int] = field(default_factory=dict)
    confirmed: set[bytes] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    _next: dict[str, int] = field(default_factory=dict)
    _order: dict[str, int] = field(default_factory=dict)

    def new_body(self, producer: str, padding: int = 0) -> bytes:
        """The next body of a producer; it counts as sent."""
        number = self._next.get(producer, 0)
        self._next[producer] = number + 1
        body = f"{producer}:{number:09d}:".encode() + b"." * padding
        self.sent[body] = (producer, number)
        return body

    def on_stored(self, body: bytes) -> None:
        """`send` returned."""
        self.stored.add(body)

    def on_received(self, body: bytes, redelivered: bool = False) -> None:
        """A consumer got it."""
        origin = self.sent.get(body)
        if origin is None:
            self.faults.append(f"received, but never sent: {body[:60]!r}")
            return
        if body in self.confirmed:
            self.faults.append(f"came again after its confirmation had returned: {body[:60]!r}")
        times = self.received.get(body, 0)
        self.received[body] = times + 1
        if times and not redelivered:
            self.faults.append(f"came a second time without the flag: {body[:60]!r}")
        if not times:
            producer, number = origin
            if number < self._order.get(producer, -1):
                self.faults.append(f"out of order: {body[:60]!r} after number {self._order[producer]}")
            self._order[producer] = max(number, self._order.get(producer, -1))

    def on_confirmed(self, body: bytes) -> None:
        """`confirm` returned."""
        self.confirmed.add(body)

    def check(self) -> None:
        """Raises `AssertionError` with the first faults unless every promise held."""
        missing = sorted(self.stored - self.received.keys())
        faults = list(self.faults)
        if missing:
            faults.append(f"{len(missing)} stored messages were never received, the first is {missing[0][:60]!r}")
        if faults:
            raise AssertionError(f"{len(faults)} broken promises:\n" + "\n".join(faults[:10]))


@dataclass
class Handling:
    """Who handled which event of cooperating systems (A-10), as seen from outside. It must hold in the end:

    1. every event whose recording returned is handled                             (nothing is lost)
    2. where it is promised, no two have the right to handle one system's events   (the fence holds)
    3. where it is promised, what one has recorded as done for the other, the other does not do again
                                                                                   (nothing is done by both)
    4. nothing is handled that was never emitted                                   (nothing is made up)
    """

    exclusive: bool = True
    doubles: bool = False
    """It was said aloud that something may be done again: then 3 is no promise any more, but 2 still is."""
    recorded: set[object] = field(default_factory=set)
    emitted: set[object] = field(default_factory=set)
    handled: dict[object, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    _done: dict[object, str] = field(default_factory=dict)

    def on_recorded(self, event: object) -> None:
        """`emit` was called: from now on it may be handled."""
        self.recorded.add(event)

    def on_emitted(self, event: object) -> None:
        """`emit` returned: from now on it must be."""
        self.emitted.add(event)

    def on_rights(self, owner: str, holders: list[str]) -> None:
        """Who may handle the events of `owner` at this moment."""
        if self.exclusive and len(holders) > 1:
            self.faults.append(f"{' and '.join(holders)} may handle the events of {owner} at the same time")

    def on_handled(self, event: object, by: str) -> None:
        """A recipient was given it."""
        if event not in self.recorded:
            self.faults.append(f"handled, but never emitted: {event!r}")
        if self.exclusive and not self.doubles and self._done.get(event, by) != by:
            self.faults.append(f"{event!r} was done by {self._done[event]}, and handled again by {by}")
        self.handled.setdefault(event, []).append(by)

    def on_done_for_partner(self, event: object, by: str) -> None:
        """`by` has recorded that it is confirmed; it was its partner's."""
        self._done[event] = by

    def check(self) -> None:
        """Raises `AssertionError` with the first faults unless every promise held."""
        missing = [event for event in self.emitted if event not in self.handled]
        faults = list(self.faults)
        if missing:
            faults.append(f"{len(missing)} events were never handled, one is {missing[0]!r}")
        if faults:
            raise AssertionError(f"{len(faults)} broken promises:\n" + "\n".join(faults[:10]))
