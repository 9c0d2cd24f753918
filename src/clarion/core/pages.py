"""Where the messages of a destination lie in the journal: one row per page, never per message.

A page is a stretch of the journal, inside one segment, that holds consecutive sequences of this
destination: one batch, or a run of small ones (records of others may lie between and are skipped
when it is read). So ten million messages sent one by one are some ten thousand rows.

Rows are kept in sequence order; freed rows become tombstones until everything before them is freed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from clarion import limits


class Page(NamedTuple):
    """One row: sequences [first, end) in `span` bytes of journal at `position`, `live` of them ours."""

    first: int
    end: int
    position: int
    span: int
    live: int
    stored_ms: int = 0
    """When its first message was stored."""


class Pages:
    """The index of one destination."""

    __slots__ = (
        "_ends",
        "_firsts",
        "_head",
        "_lives",
        "_positions",
        "_segment_bytes",
        "_spans",
        "_times",
        "bytes_live",
    )

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._firsts: array[int] = array("Q")
        self._ends: array[int] = array("Q")
        self._positions: array[int] = array("Q")
        self._spans: array[int] = array("I")
        self._lives: array[int] = array("I")
        self._times: array[int] = array("q")
        self._head = 0
        self.bytes_live = 0
        """What the pages hold of the journal."""

    def __len__(self) -> int:
        return len(self._firsts) - self._head

    def __iter__(self) -> Iterator[Page]:
        """All pages that are not freed."""
        for at in range(self._head, len(self._firsts)):
            if self._lives[at]:
                yield self._row(at)

    def _row(self, at: int) -> Page:
        return Page(
            self._firsts[at], self._ends[at], self._positions[at], self._spans[at], self._lives[at], self._times[at]
        )

    def append(
        self, first: int, count: int, position: int, span: int, stored_ms: int = 0, *, alone: bool = False
    ) -> bool:
        """A batch was logged; True if it joined the last page.

        `alone` for a batch whose record does not tell its sequence: it begins a page, which does.
        """
        self.bytes_live += span
        last = len(self._firsts) - 1
        if last >= self._head and not alone:
            start = self._positions[last]
            if (
                self._ends[last] == first
                and self._lives[last]
                and 0 < position + span - start <= limits.PAGE_SPAN_BYTES_MAX
                and position // self._segment_bytes == start // self._segment_bytes
            ):
                self._ends[last] = first + count
                self._spans[last] = position + span - start
                self._lives[last] += span
                return True
        self._firsts.append(first)
        self._ends.append(first + count)
        self._positions.append(position)
        self._spans.append(span)
        self._lives.append(span)
        self._times.append(stored_ms)
        return False

    @property
    def last(self) -> Page:
        """The newest page; there must be one."""
        return self._row(len(self._firsts) - 1)

    @property
    def last_first(self) -> int:
        """The first sequence of the newest page; there must be one."""
        return self._firsts[-1]

    def find(self, sequence: int) -> Page | None:
        """The page that holds a sequence."""
        at = self._at(sequence)
        return None if at is None else self._row(at)

    def _at(self, sequence: int) -> int | None:
        at = bisect_right(self._firsts, sequence, self._head) - 1
        if at < self._head or sequence >= self._ends[at] or not self._lives[at]:
            return None
        return at

    def following(self, sequence: int, count: int) -> list[Page]:
        """The next `count` pages after the one that holds `sequence`, freed ones passed over."""
        at = bisect_right(self._firsts, sequence, self._head)
        found: list[Page] = []
        while at < len(self._firsts) and len(found) < count:
            if self._lives[at]:
                found.append(self._row(at))
            at += 1
        return found

    def overlapping(self, first: int, end: int) -> list[Page]:
        """The pages that share a sequence with [first, end)."""
        at = max(self._head, bisect_right(self._firsts, first, self._head) - 1)
        found: list[Page] = []
        while at < len(self._firsts) and self._firsts[at] < end:
            if self._lives[at] and self._ends[at] > first:
                found.append(self._row(at))
            at += 1
        return found

    def since(self, time_ms: int) -> int | None:
        """The first sequence of the first page that may hold something stored at `time_ms` or later."""
        for at in range(self._head, len(self._firsts)):
            following = at + 1
            if self._lives[at] and (following == len(self._firsts) or self._times[following] >= time_ms):
                return self._firsts[at]
        return None

    def ending_below(self, sequence: int) -> list[Page]:
        """The pages that end at or below `sequence`."""
        found: list[Page] = []
        for at in range(self._head, len(self._firsts)):
            if self._ends[at] > sequence:
                break
            if self._lives[at]:
                found.append(self._row(at))
        return found

    def move(self, first: int, position: int, span: int) -> Page | None:
        """A page was copied elsewhere: its old row, or None if it was freed.

        Copies go to the tail, so a replay may meet one that a page has already moved to, or beyond; and since then
        the page may have grown.
        """
        at = self._at(first)
        if at is None or self._firsts[at] != first or position <= self._positions[at]:
            return None
        old = self._row(at)
        self._positions[at] = position
        self._spans[at] = span
        self._lives[at] = span
        self.bytes_live += span - old.live
        return old

    def shrink(self, page: Page, live: int) -> None:
        """Less of a page is needed than it was: what counts as live, at least one byte."""
        at = self._at(page.first)
        if at is not None and 0 < live < self._lives[at]:
            self.bytes_live -= self._lives[at] - live
            self._lives[at] = live

    def free(self, page: Page) -> None:
        """Nobody needs this page any more."""
        at = self._at(page.first)
        if at is None:
            return
        self.bytes_live -= self._lives[at]
        self._lives[at] = 0
        self._trim()

    def free_below(self, sequence: int) -> list[Page]:
        """Free all pages that end at or below `sequence`; these pages."""
        freed: list[Page] = []
        at = self._head
        while at < len(self._firsts) and self._ends[at] <= sequence:
            if self._lives[at]:
                freed.append(self._row(at))
                self.bytes_live -= self._lives[at]
                self._lives[at] = 0
            at += 1
        self._trim()
        return freed

    def _trim(self) -> None:
        while self._head < len(self._firsts) and not self._lives[self._head]:
            self._head += 1
        if self._head > 1024 and self._head * 2 > len(self._firsts):
            for column in (self._firsts, self._ends, self._positions, self._spans, self._lives, self._times):
                del column[: self._head]
            self._head = 0

    def in_segment(self, position_from: int, position_to: int) -> list[Page]:
        """The pages that lie in a stretch of the journal: what compaction must move."""
        if not len(self):
            return []
        positions = np.frombuffer(self._positions, np.uint64)[self._head :]
        rows = np.flatnonzero((positions >= position_from) & (positions < position_to)) + self._head
        return [self._row(at) for at in rows.tolist() if self._lives[at]]

    def dump(self) -> list[bytes]:
        """For a checkpoint: the columns of what is not freed."""
        live = [at for at in range(self._head, len(self._firsts)) if self._lives[at]]
        whole = len(live) == len(self)
        columns = (self._firsts, self._ends, self._positions, self._spans, self._lives, self._times)
        if whole:
            return [column[self._head :].tobytes() for column in columns]
        return [array(column.typecode, [column[at] for at in live]).tobytes() for column in columns]

    @classmethod
    def load(cls, segment_bytes: int, dumped: list[bytes]) -> Pages:
        """The inverse of `dump`."""
        pages = cls(segment_bytes)
        columns = (pages._firsts, pages._ends, pages._positions, pages._spans, pages._lives, pages._times)
        for column, data in zip(columns, dumped, strict=False):
            column.frombytes(data)
        if len(dumped) < len(columns):  # the first dumps had no times
            pages._times.extend([0] * len(pages._firsts))
        pages.bytes_live = sum(pages._lives)
        return pages
