"""Forwarded confirmations that their sender has not said it has heard: they are told again when it is back.

Guarantees
    1. What was added is there until it was heard, as long as there are not too many producers; then the oldest go.
    2. Any thread may call any method.

A recipient's confirmations of one producer are one compressed set, small where events follow each other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import msgspec
from pyroaring import BitMap64

from clarion import limits
from clarion.events.distribution.lane import runs_of

PRODUCERS_MAX = 1_024

Ranges = list[tuple[int, int, int]]
"""(producer, first, end) each."""
_Row = tuple[bytes, str, list[int]]
"""Producer, recipient, and bounds of ranges."""
_decoder = msgspec.msgpack.Decoder(list[_Row])
_encode = msgspec.msgpack.Encoder().encode
_ROWS_BYTES = 8


class Unheard:
    """See the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sets: dict[int, dict[str, BitMap64]] = {}
        """By producer, and by recipient. The producer of whom something came last is the last."""

    def __len__(self) -> int:
        """Producers of whom something was not heard."""
        return len(self._sets)

    def add(self, recipient: str, ranges: Iterable[tuple[int, int, int]]) -> None:
        """These were confirmed."""
        with self._lock:
            for producer, first, end in ranges:
                by_recipient = self._sets.pop(producer, None) or {}
                self._sets[producer] = by_recipient
                by_recipient.setdefault(recipient, BitMap64()).add_range(first, end)
                if len(self._sets) > PRODUCERS_MAX:
                    del self._sets[next(iter(self._sets))]

    def heard(self, recipient: str, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Their sender says so."""
        with self._lock:
            for producer, first, end in ranges:
                by_recipient = self._sets.get(producer, {})
                known = by_recipient.get(recipient)
                if known is not None:
                    known.remove_range(first, end)
                    if not known:
                        del by_recipient[recipient]
                        if not by_recipient:
                            del self._sets[producer]

    def of(self, producer: int) -> list[tuple[str, Ranges]]:
        """What is to be told again, by recipient."""
        with self._lock:
            found = self._sets.get(producer, {})
            return [(name, [(producer, *run) for run in runs_of(known)]) for name, known in found.items()]

    def forget(self, producer: int) -> None:
        """Its sender never says that it has heard anything."""
        with self._lock:
            self._sets.pop(producer, None)

    def dump(self, bytes_max: int = limits.EVENT_VALUE_BYTES_MAX) -> bytes:
        """For a ledger; if not all fit, the newest do."""
        rows: list[bytes] = []
        size = _ROWS_BYTES
        with self._lock:
            for producer in reversed(self._sets):
                for recipient, known in self._sets[producer].items():
                    bounds = [bound for run in runs_of(known) for bound in run]
                    row = _encode((producer.to_bytes(16, "big"), recipient, bounds))
                    if size + len(row) <= bytes_max:
                        rows.append(row)
                        size += len(row)
        return b"\xdd" + len(rows).to_bytes(4, "big") + b"".join(rows)

    def load(self, value: bytes) -> None:
        """What `dump` made, beside what is known. Raises `msgspec.MsgspecError` or `ValueError` for anything else."""
        for identity, recipient, bounds in reversed(_decoder.decode(value)):
            producer = int.from_bytes(identity, "big")
            ranges = zip(bounds[::2], bounds[1::2], strict=True)
            self.add(recipient, [(producer, first, end) for first, end in ranges])
