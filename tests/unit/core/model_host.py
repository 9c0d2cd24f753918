"""The smallest host of the real state: a log in a list, a journal that reuses space, durability when it is told to.

It does with entries what a message manager does: append, apply, and hold every effect until the entry is durable. Two
checkpoints are kept, made part by part while entries go on; what nothing needs any more is wiped, so that whatever is
freed too early is found missing. The naive model is fed beside it: `live` at once, `durable` with the effects.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from clarion.core.cache import CachedPage, PageCache
from clarion.core.destination import Destination
from clarion.core.entries import STAGED_PAGE, Kind, Publish, decode_moved, encode_moved
from clarion.core.pages import Page
from clarion.core.stages import Staged
from clarion.core.state import State
from clarion.wire.batch import Batch
from tests.unit.core.model import Message, ModelState

MOVED = 8
"""A record that is no entry."""
_RECORD_BYTES = 64


class Record:
    """One record of the log; `body` is None when it is damaged or was wiped."""

    __slots__ = ("body", "entry", "head", "index", "kind", "messages", "position", "span")

    def __init__(
        self, index: int, kind: int, head: bytes, entry: Any, messages: Sequence[Message], body: bytes
    ) -> None:
        self.index = index
        self.kind = kind
        self.head = head
        self.entry = entry
        self.messages = messages
        self.body: bytes | None = body
        self.span = _RECORD_BYTES + len(head) + len(body)
        self.position = 0


class Checkpoint:
    """Parts, and where the log goes on."""

    def __init__(self, at: int, position: int, making: Iterator[bytes]) -> None:
        self.at = at
        self.position = position
        self.making = making
        self.parts: list[bytes] = []


class Host:
    """One message manager without sockets, threads and clocks."""

    def __init__(self, segment_bytes: int, cache_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self._cache_bytes = cache_bytes
        self.state = State(segment_bytes)
        self.cache = PageCache(cache_bytes)
        self.live, self.durable = ModelState(), ModelState()
        self.log: list[Record] = []
        self._positions: list[int] = []
        self.durable_count = 0
        self._index = 0
        self._effects: deque[tuple[int, Callable[[], None]]] = deque()
        self._bytes_live: dict[int, int] = {}
        empty = Checkpoint(0, 0, iter(()))
        self.older, self.newest = empty, empty
        self.making: Checkpoint | None = None
        self.now_ms = 10_000
        self.touched: set[int] = set()
        """Destinations that something happened to since they were last compared with the model."""

    # --- the log --------------------------------------------------------------------------------------

    def write(self, kind: int, entry: Any, body: bytes = b"", messages: Sequence[Message] = ()) -> Record:
        """Append and apply one entry, to the real state and to the model."""
        self._index += 1
        record = Record(self._index, kind, entry.encode(), entry, messages, body)
        self._append(record)
        self.state.apply(record.index, kind, record.head, record.position, record.span)
        self.live.apply(record.index, kind, entry, messages)
        if body:
            self.retain(record.position, record.span)
        return record

    def _append(self, record: Record) -> None:
        position = self._positions[-1] + self.log[-1].span if self.log else 64
        if position % self.segment_bytes + record.span > self.segment_bytes:  # a record lies inside one segment
            position = (position // self.segment_bytes + 1) * self.segment_bytes + 64
        assert record.span <= self.segment_bytes - 64
        record.position = position
        self.log.append(record)
        self._positions.append(position)

    def after(self, effect: Callable[[], None]) -> None:
        """Run `effect` when everything written so far is durable."""
        if self.durable_count == len(self.log):
            effect()
        else:
            self._effects.append((len(self.log), effect))

    def sync(self, count: int | None = None) -> None:
        """So many records are durable, or all of them: their effects run."""
        count = len(self.log) if count is None else count
        for record in self.log[self.durable_count : count]:
            if record.kind != MOVED:
                self.durable.apply(record.index, record.kind, record.entry, record.messages)
        self.durable_count = max(count, self.durable_count)
        while self._effects and self._effects[0][0] <= self.durable_count:
            self._effects.popleft()[1]()

    @property
    def is_synced(self) -> bool:
        return self.durable_count == len(self.log) and not self._effects

    # --- space ----------------------------------------------------------------------------------------

    def retain(self, position: int, size: int) -> None:
        segment = position // self.segment_bytes
        self._bytes_live[segment] = self._bytes_live.get(segment, 0) + size

    def release(self, position: int, size: int) -> None:
        segment = position // self.segment_bytes
        self._bytes_live[segment] -= size
        assert self._bytes_live[segment] >= 0, "more was released than is there"

    def bytes_live(self) -> int:
        return sum(self._bytes_live.values())

    def free(self, destination: Destination, ranges: Sequence[tuple[int, int]] = ()) -> None:
        """Free what nobody needs."""
        self.touched.add(destination.identity)
        freed = destination.release(ranges)
        for page in freed:
            self.cache.drop(destination.identity, page.first)
        self.after(lambda: self._release_pages(freed))  # what says that nobody needs them may be newer than `ranges`

    def _release_pages(self, pages: Sequence[Page]) -> None:
        for page in pages:
            self.release(page.position, page.live)

    def _wipe(self) -> None:
        """Segments before the older checkpoint in which nothing lives are used again."""
        limit = self.older.position // self.segment_bytes * self.segment_bytes
        for record in self.log:
            if record.position >= limit:
                break
            if record.body and not self._bytes_live.get(record.position // self.segment_bytes):
                record.body = None

    # --- pages ----------------------------------------------------------------------------------------

    def is_durable(self, page: Page) -> bool:
        if self.durable_count == len(self.log):
            return True
        return page.position + page.span <= self._positions[self.durable_count]

    def read(self, destination: int, page: Page) -> CachedPage:
        """As a reader does: what of a stretch of the log belongs to a page."""
        cached = CachedPage()
        at = bisect_left(self._positions, page.position)
        while at < len(self.log) and self._positions[at] < page.position + page.span:
            record = self.log[at]
            at += 1
            if not record.body:
                continue
            if record.kind == Kind.PUBLISH:
                entry = Publish.decode(record.head)
                if entry.destination == destination and page.first <= entry.first < page.end:
                    cached.add(entry.first, Batch(record.body))
            elif record.kind in (Kind.STAGE, Kind.TRANSFER):
                if record.position == page.position:
                    cached.add(page.first, Batch(record.body))
            elif record.kind == MOVED:
                moved, first, batches = decode_moved(record.head, memoryview(record.body))
                if moved == destination and first == page.first:
                    for batch_first, batch in batches:
                        cached.add(batch_first, Batch(batch))
                elif first & STAGED_PAGE and record.position == page.position:
                    cached.add(page.first, Batch(batches[0][1]))
        return cached

    def fetch(self, destination: Destination, sequence: int) -> tuple[int, Batch] | None:
        """The batch that holds a sequence, from the cache or the log."""
        page = destination.pages.find(sequence)
        if page is None:
            return None
        cached = self.cache.get(destination.identity, page.first) or self.read(destination.identity, page)
        return cached.find(sequence)

    def move(self, destination: Destination, page: Page) -> None:
        """Compaction of one page, if it is old enough to be chosen."""
        if not self.is_old(page.position):
            return
        copy = self.read(destination.identity, page)
        owed = [
            (run_first, batch.sliced(run_first - first, run_end - first))
            for first, batch in zip(copy.firsts, copy.batches, strict=True)
            for run_first, run_end in destination.owed(first, first + batch.count)
        ]
        if owed:
            record = self._moved(*encode_moved(destination.identity, page.first, owed))
            destination.pages.move(page.first, record.position, record.span)
            self.after(lambda: self.release(page.position, page.live))

    def move_staged(self, destination: Destination, staged: Staged) -> None:
        """Compaction of a batch in the wings."""
        if not staged.span or not self.is_old(staged.position):
            return
        page = Page(0, 1, staged.position, staged.span, staged.span)
        batch = self.read(0, page).batches
        if batch:
            head, body = encode_moved(destination.identity, STAGED_PAGE | staged.number, [(0, batch[0])])
            record = self._moved(head, body)
            destination.stages.move(staged.number, record.position, record.span)
            self.after(lambda: self.release(page.position, page.live))

    def is_old(self, position: int) -> bool:
        return (position // self.segment_bytes + 1) * self.segment_bytes <= self.older.position

    def _moved(self, head: bytes, body: bytes) -> Record:
        record = Record(0, MOVED, head, None, (), body)
        self._append(record)
        self.retain(record.position, record.span)
        return record

    # --- checkpoints and crashes ----------------------------------------------------------------------

    def checkpoint(self, parts: int) -> None:
        """Make a few more parts of a checkpoint; the first call begins one."""
        if self.making is None:
            position = self._positions[-1] + self.log[-1].span
            self.making = Checkpoint(len(self.log), position, self.state.dump())
        making = self.making
        for _ in range(parts):
            part = next(making.making, None)
            if part is None:
                self.making = None
                self.after(lambda: self._complete(making))
                return
            making.parts.append(part)

    def _complete(self, made: Checkpoint) -> None:
        self.older, self.newest = self.newest, made
        self._wipe()

    def crash(self, use_older: bool, damaged: Callable[[list[Record]], list[Record]]) -> None:
        """Everything that is not durable is gone; the state is made from a checkpoint and the log."""
        used = self.older if use_older else self.newest
        self.newest = used
        del self.log[self.durable_count :], self._positions[self.durable_count :]
        self._index = next((record.index for record in reversed(self.log) if record.index), 0)
        self._effects.clear()
        self.making = None
        self.state = State(self.segment_bytes)
        self.state.load(used.parts)
        replayed = self.log[used.at :]
        bodies = [record for record in replayed if record.body != b"" and self._is_news(record)]
        for record in damaged(bodies):
            record.body = None
        for record in bodies:
            if record.body is None:
                self.durable.lose(record.index)
        for record in replayed:
            if record.kind == MOVED:
                self._replay_moved(record)
            else:
                span = 0 if record.body is None else record.span
                self.state.apply(record.index, record.kind, record.head, record.position, span)
        self.state.recovered()
        self.live = self.durable.copy()
        for destination in self.live.destinations.values():
            for subscription in destination.subscriptions.values():
                subscription.recovered(destination.tail)
        self.cache = PageCache(self._cache_bytes)
        self._bytes_live.clear()
        for real in self.state.destinations.values():
            for page in real.pages:
                self.retain(page.position, page.live)
            for staged in real.stages:
                self.retain(staged.position, staged.span)

    def _is_news(self, record: Record) -> bool:
        """Does a replay look at the body of this record?"""
        if record.kind == MOVED:
            return False
        entry = record.entry
        destination = self.state.destinations.get(
            entry.batch.destination if record.kind == Kind.STAGE else entry.destination
        )
        return destination is None or record.index > destination.applied

    def rot(self, record: Record) -> None:
        """A body is damaged on the disk; nobody knows yet."""
        record.body = None
        self.live.rotten.add(record.index)
        self.durable.rotten.add(record.index)
        self.cache = PageCache(self._cache_bytes)

    def _replay_moved(self, record: Record) -> None:
        assert record.body is not None
        identity, first, _ = decode_moved(record.head, memoryview(record.body))
        destination = self.state.destinations.get(identity)
        if destination is None:
            return
        if first & STAGED_PAGE:
            destination.stages.move(first & ~STAGED_PAGE, record.position, record.span)
        else:
            destination.pages.move(first, record.position, record.span)
