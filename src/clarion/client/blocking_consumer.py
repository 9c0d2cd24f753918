"""Consumers of the blocking twin: plain iterators.

Guarantees: one visit to the loop per delivered slice, not per message; confirmations without waiting
are handed over once per burst; leaving, also by `break`, gives back what was not handed out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Self

from clarion.client import consumer
from clarion.client.inbox import Ack, Part
from clarion.client.received import Delivered
from clarion.client.runner import Runner
from clarion.errors import ClarionError
from clarion.message import Message
from clarion.wire.frames import Type


class Receiver:
    """What both kinds of consumers share."""

    def __init__(self, session: object, runner: Runner, engine: consumer.Receiver) -> None:
        self._session = session  # keeps its connection open
        self._runner = runner
        self._engine = engine
        self._entered = False
        self._lock = threading.Lock()
        self._fetching = threading.Lock()
        self._part: Part | None = None
        self._index = 0
        self._confirmed: deque[tuple[int, int]] = deque()
        self._posted = False

    @property
    def destination(self) -> str:
        return self._engine.destination

    def __enter__(self) -> Self:
        self._runner.call(self._engine.__aenter__())
        self._entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, delete: bool = False) -> None:
        """Leave: what was prefetched goes back. `delete` also removes a durable subscription."""
        if not self._runner.stopped:
            self._runner.call(self._leave(delete))

    def confirm(self, first: int, end: int) -> None:
        """Confirm the sequences from `first` to before `end`."""
        self._runner.call(self._acknowledge(Type.CONFIRM, first, end))

    def reject(self, first: int, end: int) -> None:
        """Give back the sequences from `first` to before `end`."""
        self._runner.call(self._acknowledge(Type.REJECT, first, end))

    async def _leave(self, delete: bool) -> None:
        with self._lock:
            part, index = self._part, self._index
            self._part = None
        if part is not None:
            part.index = index  # so that the engine knows what was not handed out
        self._drain()
        await self._engine.close(delete=delete)

    async def _acknowledge(self, kind: int, first: int, end: int) -> None:
        self._drain()
        await self._engine._acknowledge(kind, first, end).wait()

    def _confirm_soon(self, first: int, end: int) -> None:
        self._confirmed.append((first, end))
        if not self._posted:
            self._posted = True
            self._runner.post(self._drain)

    def _drain(self) -> None:
        self._posted = False
        confirmed = self._confirmed
        with suppress(ClarionError):  # closed meanwhile: what was not confirmed comes again
            while confirmed:
                self._engine._acknowledge(Type.CONFIRM, *confirmed.popleft())

    def _next(self, idle_s: float | None, whole: bool) -> tuple[Part, int] | None:
        """The place of the next message, or of the next whole part."""
        while True:
            with self._lock:
                part, index = self._part, self._index
                if part is not None and index < part.count:
                    self._index = part.count if whole else index + 1
                    return part, index
            with self._fetching:
                if self._part is part and not self._runner.call(self._fetch(idle_s)):
                    return None

    async def _fetch(self, idle_s: float | None) -> bool:
        taken = self._part
        if taken is not None and taken.credited < taken.count:
            self._engine._inbox.give_credit(taken)
        part = await self._engine._next_part(idle_s)
        if part is None:
            return False
        part.index = part.count
        with self._lock:
            self._part, self._index = part, 0
        return True


class ReceivedMessage(Message):
    """As `clarion.client.ReceivedMessage`, without `await`."""

    __slots__ = ("_consumer",)

    def __init__(self, receiver: Receiver, part: Part, index: int) -> None:
        self._batch = part.batch
        self._index = index
        self._headers = None
        self.sequence = part.first + index
        self.delivery_count = part.delivery_count
        self.redelivered = part.redelivered
        self._consumer = receiver

    def confirm(self) -> None:
        """Confirm it; returns when the confirmation is durable."""
        self._consumer.confirm(self.sequence, self.sequence + 1)

    def confirm_nowait(self) -> None:
        """Confirm it without waiting; `flush` waits."""
        self._consumer._confirm_soon(self.sequence, self.sequence + 1)

    def reject(self, reason: str | None = None) -> None:
        """Give it back: it comes again, with a higher delivery count."""
        self._consumer.reject(self.sequence, self.sequence + 1)

    def _confirm(self) -> Ack:
        return self._consumer._engine._acknowledge(Type.CONFIRM, self.sequence, self.sequence + 1)


class ReceivedBatch(Delivered):
    """As `clarion.client.ReceivedBatch`, without `await`."""

    __slots__ = ("_consumer",)

    def __init__(self, receiver: Receiver, part: Part) -> None:
        super().__init__(part)
        self._consumer = receiver

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return (ReceivedMessage(self._consumer, self._part, index) for index in range(self._part.count))

    def confirm(self) -> None:
        """Confirm all; returns when the confirmation is durable."""
        self._consumer.confirm(self.first_sequence, self.end_sequence)

    def confirm_nowait(self) -> None:
        """Confirm all without waiting; `flush` waits."""
        self._consumer._confirm_soon(self.first_sequence, self.end_sequence)

    def reject(self, reason: str | None = None) -> None:
        """Give all back."""
        self._consumer.reject(self.first_sequence, self.end_sequence)

    def _confirm(self) -> Ack:
        return self._consumer._engine._acknowledge(Type.CONFIRM, self.first_sequence, self.end_sequence)


class Consumer(Receiver):
    """Messages one at a time."""

    def __iter__(self) -> Iterator[ReceivedMessage]:
        try:
            while (message := self.receive(self._engine._timeout)) is not None:
                yield message
        finally:
            if not self._entered:
                with suppress(ClarionError):
                    self.close()

    def receive(self, timeout: float | None = None) -> ReceivedMessage | None:
        """The next message; None when none came within `timeout` seconds, or the consumer is closed."""
        place = self._next(timeout, whole=False)
        return None if place is None else ReceivedMessage(self, *place)


class BatchConsumer(Receiver):
    """Messages as they were delivered, many at a time."""

    def __iter__(self) -> Iterator[ReceivedBatch]:
        try:
            while (batch := self.receive(self._engine._timeout)) is not None:
                yield batch
        finally:
            if not self._entered:
                with suppress(ClarionError):
                    self.close()

    def receive(self, timeout: float | None = None) -> ReceivedBatch | None:
        """The next batch; None when none came within `timeout` seconds, or the consumer is closed."""
        place = self._next(timeout, whole=True)
        return None if place is None else ReceivedBatch(self, place[0])


Confirmable = ReceivedMessage | ReceivedBatch


async def acknowledged(what: Iterable[Confirmable | Iterable[Confirmable]]) -> None:
    """Confirm all of them together, in the loop."""
    acks: dict[Ack, None] = {}
    for item in what:
        for one in (item,) if isinstance(item, ReceivedMessage | ReceivedBatch) else item:
            acks[one._confirm()] = None
    for ack in acks:
        await ack.wait()
