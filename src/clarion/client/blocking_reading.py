"""The blocking twin of reading by sequences, and of batches that are sent encoded.

No logic of its own: each call hands a coroutine of `clarion.client` to the loop and waits for it. While the caller
works on one answer, those behind it arrive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Self

import msgspec

from clarion import client
from clarion.client import outbox, reading
from clarion.client.prepacked import Packed
from clarion.client.reading import Ranges, Readable, Slices, Wanted, range_wanted
from clarion.client.runner import Runner
from clarion.errors import TransactionRolledBack
from clarion.wire.batch import Batch


class BatchTicket(msgspec.Struct, gc=False, eq=False):
    """A batch given to `send_packed`."""

    _ticket: outbox.BatchTicket
    _runner: Runner

    @property
    def done(self) -> bool:
        """It is answered, well or not."""
        return self._ticket.done

    @property
    def count(self) -> int:
        """How many messages it has."""
        return self._ticket.count

    def result(self, timeout: float | None = None) -> str:
        """Wait until the batch is durable; return the id of its first message. Raises `Timeout`."""
        return self._runner.call(_awaited(self._ticket), timeout)


async def _awaited(ticket: outbox.BatchTicket) -> str:
    return await ticket


class Reader:
    """As `clarion.client.reading.Reader`, without `await`."""

    def __init__(self, runner: Runner, reader: reading.Reader) -> None:
        self._runner = runner
        self._reader = reader

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def opened(self) -> bool:
        """It has the right to its subscription, as far as is known here."""
        return self._reader.opened

    def open(self) -> list[Readable]:
        """Make the subscription if it is not there, and be its only user until `close`: what can be read now."""
        return self._runner.call(self._reader.open())

    def look(self) -> list[Readable]:
        """What can be read now."""
        return self._runner.call(self._reader.look())

    def confirm(self, ranges: Ranges, *, identities: Mapping[str, int] | None = None) -> None:
        """Confirm [first, end) of destinations; returns when that is durable."""
        self._runner.call(self._reader.confirm(ranges, identities=identities))

    def close(self) -> None:
        """Others may use the subscription."""
        if not self._runner.stopped:
            self._runner.call(self._reader.close())


class ReadingSession(ABC):
    """What a blocking session offers for reading by sequences, and for sending encoded batches."""

    _runner: Runner
    _session: client.Session

    @abstractmethod
    def _told(self) -> None:
        """A thread of the application was told that its transaction was rolled back."""

    def send_packed(self, destination: str, packed: Packed) -> BatchTicket:
        """Queue a batch whose messages are encoded already: as of `clarion.client.Session`."""
        try:
            with self._session.lock:
                ticket = self._session.send_packed(destination, packed)
        except TransactionRolledBack:
            self._told()
            raise
        return BatchTicket(ticket, self._runner)

    def reader(
        self,
        destination: str,
        *,
        subscription: str | None = None,
        selector: str | None = None,
        start: int | None = None,
        start_time: datetime | float | None = None,
    ) -> Reader:
        """A reader of a destination, or of every topic that a pattern matches: as of `clarion.client.Session`."""
        made = self._session.reader(
            destination, subscription=subscription, selector=selector, start=start, start_time=start_time
        )
        return Reader(self._runner, made)

    def read(
        self,
        destination: str,
        first: int,
        end: int,
        *,
        selector: str | None = None,
        subscription: str | None = None,
        identity: int | None = None,
    ) -> Iterator[tuple[int, Batch]]:
        """Slices of what is kept of the sequences [first, end), ascending: as of `clarion.client.Session`."""
        wanted = range_wanted(destination, first, end, selector, subscription, identity)
        return slices(self._runner, self._session, wanted)


def slices(runner: Runner, session: client.Session, wanted: Wanted) -> Iterator[tuple[int, Batch]]:
    """The slices of a range, in order."""
    found = reading.answers(session, wanted)

    async def following() -> Slices | None:
        return await anext(found, None)

    try:
        while (some := runner.call(following())) is not None:
            yield from some
    finally:
        if not runner.stopped:
            runner.call(found.aclose())
