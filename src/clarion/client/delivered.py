"""Batches that their sender wants to see delivered: which messages were, and how.

Guarantees
    1. The answers may come in any order, cut anywhere, and again: the first one for a message counts.
    2. Finding the batches that an answer covers is a bisection; nothing here loops over messages,
       except over those that somebody waits for.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from clarion.client.outcome import again
from clarion.errors import ClarionError
from clarion.wire import frames

if TYPE_CHECKING:
    from clarion.client.outbox import OutBatch

How = Literal["confirmed", "unwanted", "expired", "dead"]
HOW: dict[int, How] = {
    frames.CONFIRMED: "confirmed",
    frames.UNWANTED: "unwanted",
    frames.EXPIRED: "expired",
    frames.DEAD: "dead",
}
_UNKNOWN = 0xFF
_UNKNOWN_BYTE = bytes([_UNKNOWN])
_COMPACT_MIN = 64


class Delivery:
    """The messages of one batch by their index."""

    __slots__ = ("_how", "_waiters", "error", "left")

    def __init__(self, count: int) -> None:
        self._how = bytearray(_UNKNOWN_BYTE) * count
        self._waiters: dict[int, list[asyncio.Future[None]]] | None = None
        self.left = count
        """How many are not known yet."""
        self.error: ClarionError | None = None
        """Why the rest never will be."""

    def how(self, index: int) -> How | None:
        """How one message was delivered; None while that is not known."""
        return HOW.get(self._how[index])

    def known(self, index: int) -> bool:
        """There is nothing to wait for."""
        return self.error is not None or self._how[index] != _UNKNOWN

    def note(self, first: int, end: int, how: int) -> None:
        """The messages [first, end), as far as they are in this batch, were delivered."""
        first, end = max(first, 0), max(end, 0)
        segment = self._how[first:end]
        unknown = segment.count(_UNKNOWN)
        if unknown:
            self.left -= unknown
            self._how[first:end] = segment.replace(_UNKNOWN_BYTE, bytes([how]))
            self._wake(first, end)

    def fail(self, error: ClarionError) -> None:
        """What is not known never will be."""
        if self.error is None and self.left:
            self.error = error
            self._wake(0, len(self._how))

    async def wait(self, index: int) -> None:
        """Return when one message is delivered, however. Raises what it failed with."""
        if not self.known(index):
            waiter = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = {}
            self._waiters.setdefault(index, []).append(waiter)
            await waiter
        if self._how[index] == _UNKNOWN:
            assert self.error is not None
            raise again(self.error)

    async def wait_all(self, first: int, end: int) -> None:
        """Return when all of [first, end) are delivered, however."""
        while (index := self._how.find(_UNKNOWN_BYTE, first, end)) >= 0:
            await self.wait(index)

    def _wake(self, first: int, end: int) -> None:
        waiters = self._waiters
        if waiters is None:
            return
        if end - first < len(waiters):
            woken = [index for index in range(first, end) if index in waiters]
        else:
            woken = [index for index in waiters if first <= index < end]
        for index in woken:
            for waiter in waiters.pop(index):
                if not waiter.done():
                    waiter.set_result(None)


class Deliveries:
    """Sealed batches that wait for their delivery, in the order of their sequences."""

    __slots__ = ("_batches", "_firsts", "_over")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._batches: list[OutBatch] = []
        self._over = 0
        """How many of them wait no more: they are taken out together, when they are the greater part."""

    def __len__(self) -> int:
        return len(self._batches) - self._over

    def __iter__(self) -> Iterator[OutBatch]:
        """Those that still wait."""
        return iter([batch for batch in self._batches if _waits(batch)])

    def add(self, batch: OutBatch) -> None:
        """Its sequences follow all that were added before."""
        self._firsts.append(batch.first)
        self._batches.append(batch)

    def covered(self, first: int, end: int) -> Iterator[OutBatch]:
        """Those with messages of the sequences [first, end)."""
        at = max(0, bisect_right(self._firsts, first) - 1)
        last = bisect_right(self._firsts, end - 1)
        return iter([batch for batch in self._batches[at:last] if _waits(batch) and first < batch.first + batch.count])

    def over(self) -> None:
        """A batch that was in here waits no more: it was delivered to the last message, or failed."""
        self._over += 1
        if self._over * 2 > len(self._batches) and (self._over >= _COMPACT_MIN or not len(self)):
            self._batches = [batch for batch in self._batches if _waits(batch)]
            self._firsts = [batch.first for batch in self._batches]
            self._over = 0


def _waits(batch: OutBatch) -> bool:
    delivery = batch.delivery
    return delivery is not None and delivery.left > 0 and delivery.error is None
