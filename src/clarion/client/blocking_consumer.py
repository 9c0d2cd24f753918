"""Consumers of the blocking twin: plain iterators.

Guarantees: one visit to the loop per delivered slice, not per message; confirmations without waiting
are handed over once per burst; leaving, also by `break`, gives back what was not handed out.

With `auto` and `dups_ok` each thread comes back for itself: what one thread still works on is not
confirmed because another asks for the next.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Generic, Self, TypeVar

from clarion.client.acknowledging import confirmed, rejected
from clarion.client.bodies import BlockingReader, BodyReader, save, session_of
from clarion.client.inbox import Inbox, Part
from clarion.client.leaving import left_cleanly
from clarion.client.outcome import Outcome
from clarion.client.received import Delivered, delay_ms_of
from clarion.client.receiver import Receiver as Engine
from clarion.client.runner import Runner
from clarion.errors import ClarionError
from clarion.message import Message
from clarion.wire.frames import Type

_Range = tuple[Inbox, int, int]


class Handing:
    """A part that threads take messages from: how far, and no further when the loop says so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.part: Part | None = None
        self._index = 0

    def put(self, part: Part) -> None:
        """The next part."""
        with self._lock:
            self.part, self._index = part, 0

    def next(self, whole: bool) -> tuple[Part, int] | Part | None:
        """The place of the next message, or of the whole part; else the part that is used up."""
        with self._lock:
            part, index = self.part, self._index
            if part is not None and index < part.count:
                self._index = part.count if whole else index + 1
                return part, index
            return part

    def taken(self, part: Part) -> int:
        """How many messages of `part` were handed out."""
        with self._lock:
            return self._index if part is self.part else part.count

    def cut(self, part: Part) -> int:
        """The same; and no more of them are handed out from now on."""
        with self._lock:
            if part is not self.part:
                return part.count
            self.part = None
            return self._index


class Receiver:
    """What both kinds of consumers share."""

    _WHOLE = False

    def __init__(self, session: object, runner: Runner, engine: Engine) -> None:
        self._session = session  # keeps its connection open
        self._runner = runner
        self._engine = engine
        self._entered = False
        self._handing = engine._hand = Handing()
        self._fetching = threading.Lock()
        self._confirmed: deque[_Range] = deque()
        self._posted = False
        self._plain = engine._wanted.ack not in (None, "client")
        """A confirmation is for the messages that it names, so it may be made later."""
        self._follows = engine._following is not None
        self._of_thread = threading.local()

    @property
    def destination(self) -> str:
        return self._engine.destination

    def __enter__(self) -> Self:
        self._runner.call(self._engine.__aenter__())
        self._entered = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(self._last(), clean=kind is None)

    def close(self, *, delete: bool = False) -> None:
        """Leave: what was prefetched goes back. `delete` also removes a durable subscription."""
        self._close(self._last(), clean=True, delete=delete)

    def confirm(self, first: int, end: int) -> None:
        """Confirm the sequences from `first` to before `end`. Not of a pattern."""
        self._confirm(self._engine._only_inbox(), first, end)

    def reject(self, first: int, end: int) -> None:
        """Give back the sequences from `first` to before `end`. Not of a pattern."""
        self._reject(self._engine._only_inbox(), first, end, None, None)

    # --- confirming -------------------------------------------------------------------------------------

    def _confirm(self, inbox: Inbox, first: int, end: int) -> None:
        self._runner.call(self._acknowledge(inbox, first, end))

    async def _acknowledge(self, inbox: Inbox, first: int, end: int) -> None:
        self._drain()
        await inbox.acknowledge(Type.CONFIRM, first, end).wait()

    def _reject(self, inbox: Inbox, first: int, end: int, reason: str | None, delay: float | None) -> None:
        self._runner.call(self._give_back(inbox, first, end, reason, delay_ms_of(delay)))

    async def _give_back(self, inbox: Inbox, first: int, end: int, reason: str | None, delay_ms: int | None) -> None:
        self._drain()
        await inbox.give_back(first, end, reason, delay_ms).wait()

    def _confirm_soon(self, inbox: Inbox, first: int, end: int) -> None:
        if not self._plain:
            self._runner.call(_acknowledged_now(inbox, first, end))
            return
        self._confirmed.append((inbox, first, end))
        if not self._posted:
            self._posted = True
            self._runner.post(self._drain)

    def _drain(self) -> None:
        self._posted = False
        confirmed, following = self._confirmed, self._engine._following
        with suppress(ClarionError):  # closed meanwhile: what was not confirmed comes again
            while confirmed:
                if following is not None and following.lazy:
                    following.gather(*confirmed.popleft())
                else:
                    inbox, first, end = confirmed.popleft()
                    inbox.acknowledge(Type.CONFIRM, first, end)

    # --- taking -----------------------------------------------------------------------------------------

    def _next(self, idle_s: float | None) -> tuple[Part, int] | None:
        """The place of the next message, or of the next whole part."""
        while True:
            found = self._handing.next(self._WHOLE)
            if isinstance(found, tuple):
                return found
            with self._fetching:
                if self._handing.part is found and not self._runner.call(self._fetch(idle_s)):
                    return None

    async def _fetch(self, idle_s: float | None) -> bool:
        taken = self._handing.part
        if taken is not None and taken.credited < taken.count:
            self._engine._give_credit(taken)
        part = await self._engine._next_part(idle_s)
        if part is None:
            return False
        part.index = part.count
        self._handing.put(part)
        return True

    def _range(self, part: Part, index: int) -> _Range:
        """What `_next` gave."""
        first = part.first + index
        return part.inbox, first, part.first + part.count if self._WHOLE else first + 1

    # --- coming back and leaving --------------------------------------------------------------------------

    def _last(self) -> _Range | None:
        """What this thread has in its hands; it lets it go by that."""
        last: _Range | None = getattr(self._of_thread, "last", None)
        self._of_thread.last = None
        return last

    def _came_back(self, last: _Range | None) -> None:
        """What the application was handed last is done. Raises what its confirmation failed with."""
        if last is not None:
            following = self._engine._following
            if following is not None and following.lazy:
                self._confirm_soon(*last)
            else:
                self._runner.call(confirmed(*last))

    def _close(self, last: _Range | None, *, clean: bool, delete: bool = False) -> None:
        if not self._runner.stopped:
            self._runner.call(self._leave(last, clean, delete))

    async def _leave(self, last: _Range | None, clean: bool, delete: bool) -> None:
        self._let_go(last, clean)
        await self._engine.close(delete=delete)

    def _let_go(self, last: _Range | None, clean: bool) -> None:
        self._drain()
        if last is not None:
            if clean:
                last[0].confirm_held(last[1], last[2])
            else:
                rejected(*last)

    def _leave_loop(self, last: _Range | None, *, clean: bool) -> None:
        """A loop is left, by whatever thread drops it."""
        with suppress(ClarionError):
            if self._runner.stopped:
                return
            if threading.current_thread() is self._runner.thread:
                self._let_go(last, clean)
                self._engine._leave_loop()
            elif not self._entered:
                self._close(last, clean=clean)
            elif last is not None:
                self._runner.call(self._let_go_soon(last, clean))

    async def _let_go_soon(self, last: _Range, clean: bool) -> None:
        self._let_go(last, clean)


async def _acknowledged_now(inbox: Inbox, first: int, end: int) -> None:
    inbox.acknowledge(Type.CONFIRM, first, end)


class ReceivedMessage(Message):
    """As `clarion.client.ReceivedMessage`, without `await`."""

    __slots__ = ("_consumer", "_inbox")

    def __init__(self, receiver: Receiver, part: Part, index: int) -> None:
        self._batch = part.batch
        self._index = index
        self._headers = None
        self.sequence = part.first + index
        self.delivery_count = part.delivery_count
        self.redelivered = part.redelivered
        self._consumer = receiver
        self._inbox = part.inbox

    def confirm(self) -> None:
        """Confirm it; returns when the confirmation is durable."""
        self._consumer._confirm(self._inbox, self.sequence, self.sequence + 1)

    def confirm_nowait(self) -> None:
        """Confirm it without waiting; `flush` waits."""
        self._consumer._confirm_soon(self._inbox, self.sequence, self.sequence + 1)

    def reject(self, reason: str | None = None, delay: float | None = None) -> None:
        """Give it back: it comes again, with a higher delivery count, not before `delay` seconds."""
        self._consumer._reject(self._inbox, self.sequence, self.sequence + 1, reason, delay)

    def _confirm(self) -> Outcome:
        return self._inbox.acknowledge(Type.CONFIRM, self.sequence, self.sequence + 1)

    def stream(self, offset: int = 0) -> BlockingReader:
        """The body little by little, from byte `offset` on, however large: until the message is confirmed."""
        reader = BodyReader(session_of(self._inbox), self._inbox.destination, self, offset)
        return BlockingReader(self._consumer._runner, reader)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the body to a file: as `clarion.client.ReceivedMessage.save`."""
        saving = save(session_of(self._inbox), self._inbox.destination, self, path)
        return self._consumer._runner.call(saving)


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
        self._consumer._confirm(self._part.inbox, self.first_sequence, self.end_sequence)

    def confirm_nowait(self) -> None:
        """Confirm all without waiting; `flush` waits."""
        self._consumer._confirm_soon(self._part.inbox, self.first_sequence, self.end_sequence)

    def reject(self, reason: str | None = None, delay: float | None = None) -> None:
        """Give all back."""
        self._consumer._reject(self._part.inbox, self.first_sequence, self.end_sequence, reason, delay)

    def _confirm(self) -> Outcome:
        return self._part.inbox.acknowledge(Type.CONFIRM, self.first_sequence, self.end_sequence)


_Item = TypeVar("_Item", bound=ReceivedMessage | ReceivedBatch, covariant=True)


class _Items(Receiver, Generic[_Item]):
    """The half that is the same whatever the items are."""

    def _made(self, part: Part, index: int) -> _Item:
        raise NotImplementedError

    def __iter__(self) -> Iterator[_Item]:
        return _Iteration(self) if self._follows else self._items()

    def receive(self, timeout: float | None = None) -> _Item | None:
        """The next one; None when none came within `timeout` seconds, or the consumer is closed."""
        if self._follows:
            self._came_back(self._last())
        place = self._next(timeout)
        if place is None:
            return None
        if self._follows:
            self._of_thread.last = self._range(*place)
        return self._made(*place)

    def _items(self) -> Iterator[_Item]:
        try:
            while (item := self.receive(self._engine._timeout)) is not None:
                yield item
        finally:
            self._leave_loop(None, clean=True)


class Consumer(_Items[ReceivedMessage]):
    """Messages one at a time."""

    def _made(self, part: Part, index: int) -> ReceivedMessage:
        return ReceivedMessage(self, part, index)


class BatchConsumer(_Items[ReceivedBatch]):
    """Messages as they were delivered, many at a time."""

    _WHOLE = True

    def _made(self, part: Part, index: int) -> ReceivedBatch:
        return ReceivedBatch(self, part)


class _Iteration(Generic[_Item]):
    """One `for` over a consumer that confirms by itself; tells it how the loop was left."""

    def __init__(self, consumer: _Items[_Item]) -> None:
        self._consumer = consumer
        self._user = 0
        self._last: _Range | None = None
        self._over = False

    def __iter__(self) -> Iterator[_Item]:
        return self

    def __next__(self) -> _Item:
        self._user = id(sys._getframe(1))
        consumer, last, self._last = self._consumer, self._last, None
        try:
            consumer._came_back(last)
            place = consumer._next(consumer._engine._timeout)
        except BaseException:
            self._leave(clean=False)
            raise
        if place is None:
            self._leave(clean=True)
            raise StopIteration
        self._last = consumer._range(*place)
        return consumer._made(*place)

    def _leave(self, *, clean: bool) -> None:
        self._over = True
        self._consumer._leave_loop(self._last, clean=clean)

    def __del__(self) -> None:
        if self._user and not self._over:
            self._leave(clean=left_cleanly(sys._getframe(1), self._user))


Confirmable = ReceivedMessage | ReceivedBatch


async def acknowledged(what: Iterable[Confirmable | Iterable[Confirmable]]) -> None:
    """Confirm all of them together, in the loop."""
    acks: dict[Outcome, None] = {}
    for item in what:
        for one in (item,) if isinstance(item, ReceivedMessage | ReceivedBatch) else item:
            acks[one._confirm()] = None
    for ack in acks:
        await ack.wait()
