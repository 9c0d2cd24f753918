"""What an application receives: messages that can be confirmed, and whole batches of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from clarion.client.bodies import BodyReader, save, session_of
from clarion.client.inbox import Part
from clarion.client.outcome import Outcome
from clarion.client.subscription import duration_ms
from clarion.message import Message
from clarion.wire.bodies import bodies_of
from clarion.wire.frames import Type

if TYPE_CHECKING:
    import pyarrow


class ReceivedMessage(Message):
    """A message from a consumer: in flight until it is confirmed, rejected, or the session ends."""

    __slots__ = ("_inbox",)

    def __init__(self, part: Part, index: int) -> None:
        # Instead of, not after, the base's: one call less per message.
        self._batch = part.batch
        self._index = index
        self._headers = None
        self.sequence = part.first + index
        self.delivery_count = part.delivery_count
        self.redelivered = part.redelivered
        self._inbox = part.inbox

    async def confirm(self) -> None:
        """Confirm it; returns when the confirmation is durable.

        With `ack="client"`: it, and everything else that its session has received so far in this mode.
        """
        await self._confirm().wait()

    def confirm_nowait(self) -> None:
        """Confirm it without waiting; `flush` waits, and tells a failure."""
        self._confirm()

    def _confirm(self) -> Outcome:
        return self._inbox.acknowledge(Type.CONFIRM, self.sequence, self.sequence + 1)

    async def reject(self, reason: str | None = None, delay: float | None = None) -> None:
        """Give it back: it comes again, to anybody, with a higher delivery count, not before `delay` seconds.

        The reason is kept with it, and is shown if it becomes a dead message.
        """
        await self._reject(reason, delay).wait()

    def _reject(self, reason: str | None, delay: float | None) -> Outcome:
        return self._inbox.give_back(self.sequence, self.sequence + 1, reason, delay_ms_of(delay))

    def stream(self, offset: int = 0) -> BodyReader:
        """The body little by little, from byte `offset` on, however large: until the message is confirmed."""
        return BodyReader(session_of(self._inbox), self._inbox.destination, self, offset)

    async def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the body to a file; returns when it is on disk.

        It is written beside it, under the name with `.part`, and gets its name at the end. What an interrupted
        `save` of the same message left there is not read again.
        """
        return await save(session_of(self._inbox), self._inbox.destination, self, path)


class Delivered:
    """Consecutive messages as they were delivered: one buffer, decoded only where it is looked at."""

    __slots__ = ("_part",)

    def __init__(self, part: Part) -> None:
        self._part = part

    def __len__(self) -> int:
        return self._part.count

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} from {self.first_sequence} of {self.destination}>"

    @property
    def first_sequence(self) -> int:
        """The sequence of its first message; the others follow one by one."""
        return self._part.first

    @property
    def end_sequence(self) -> int:
        """One more than the sequence of its last message."""
        return self._part.first + self._part.count

    @property
    def destination(self) -> str:
        return self._part.batch.destination.decode()

    @property
    def redelivered(self) -> bool:
        return self._part.redelivered

    @property
    def delivery_count(self) -> int:
        return self._part.delivery_count

    def bodies(self) -> list[bytes]:
        """All bodies, copied; 0.02 µs a message where all have one size, 0.1 µs where not."""
        return bodies_of(self._part.batch)

    def to_arrow(self) -> pyarrow.Table:
        """Columns `sequence` (int64), `body` (binary) and `timestamp_ms` (int64). Raises `MissingExtra`."""
        from clarion.client.arrow import table

        return table(self._part.batch, self._part.first)


class ReceivedBatch(Delivered):
    """A batch from a consumer: in flight until it is confirmed, rejected, or the session ends."""

    __slots__ = ()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        part = self._part
        return (ReceivedMessage(part, index) for index in range(part.count))

    async def confirm(self) -> None:
        """Confirm all; returns when the confirmation is durable. As `ReceivedMessage.confirm`."""
        await self._confirm().wait()

    def confirm_nowait(self) -> None:
        """Confirm all without waiting; `flush` waits, and tells a failure."""
        self._confirm()

    def _confirm(self) -> Outcome:
        return self._part.inbox.acknowledge(Type.CONFIRM, self.first_sequence, self.end_sequence)

    async def reject(self, reason: str | None = None, delay: float | None = None) -> None:
        """Give all back, as `ReceivedMessage.reject`."""
        await self._reject(reason, delay).wait()

    def _reject(self, reason: str | None, delay: float | None) -> Outcome:
        return self._part.inbox.give_back(self.first_sequence, self.end_sequence, reason, delay_ms_of(delay))


def delay_ms_of(delay: float | None) -> int | None:
    """The delay of a rejection. Raises `BadArgument`."""
    return None if delay is None else duration_ms("delay", delay)


Confirmable = ReceivedMessage | ReceivedBatch


def each(item: Confirmable | Iterable[Confirmable]) -> Iterable[Confirmable]:
    """One, or every one of several."""
    return (item,) if isinstance(item, ReceivedMessage | ReceivedBatch) else item
