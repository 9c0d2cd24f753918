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
