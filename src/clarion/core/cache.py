"""The read cache: pages of batches in memory, the least recently used dropped first.

A page is cached whole or not at all. What was just published is there until it is pushed out, so a
consumer that keeps up never causes a read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict

from clarion.wire.batch import Batch

BATCH_OVERHEAD_BYTES = 1_024
"""What a batch object costs beside its bytes (measured: about 900): counts for messages sent one by one."""


class CachedPage:
    """The batches of one page in sequence order; a damaged one is simply not there."""

    __slots__ = ("batches", "firsts", "size")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.batches: list[Batch] = []
        self.size = 0

    def add(self, first: int, batch: Batch) -> None:
        """One more batch, in order."""
        self.firsts.append(first)
        self.batches.append(batch)
        self.size += batch.size + BATCH_OVERHEAD_BYTES

    def find(self, sequence: int) -> tuple[int, Batch] | None:
        """(first sequence, batch) of the batch that holds `sequence`."""
        at = bisect_right(self.firsts, sequence) - 1
        if at < 0 or sequence >= self.firsts[at] + self.batches[at].count:
            return None
        return self.firsts[at], self.batches[at]

    def next_first(self, sequence: int) -> int | None:
        """The first sequence of the next batch after `sequence`."""
        at = bisect_right(self.firsts, sequence)
        return self.firsts[at] if at < len(self.firsts) else None


class PageCache:
    """Pages by (destination, first sequence), bounded in bytes."""

    __slots__ = ("_bytes_max", "_pages", "hits", "misses", "size")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._pages: OrderedDict[tuple[int, int], CachedPage] = OrderedDict()
        self.size = 0
        self.hits = 0
        self.misses = 0

    def get(self, destination: int, first: int) -> CachedPage | None:
        """The page, if it is in memory."""
        page = self._pages.get((destination, first))
        if page is None:
            self.misses += 1
            return None
        self.hits += 1
        self._pages.move_to_end((destination, first))
        return page

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._pages

    def published(self, destination: int, page_first: int, joined: bool, first: int, batch: Batch) -> None:
        """A batch was added to a page: to a new one, or (`joined`) to one that may be here."""
        key = (destination, page_first)
        page = self._pages.get(key)
        if page is None:
            if joined:
                return  # the rest of the page is not here, so the page must not seem to be
            page = self._pages[key] = CachedPage()
        page.add(first, batch)
        self.size += batch.size + BATCH_OVERHEAD_BYTES
        if self.size > self._bytes_max:
            self._shrink()

    def loaded(self, destination: int, page_first: int, page: CachedPage) -> None:
        """A page was read from the journal."""
        self.drop(destination, page_first)
        self._pages[destination, page_first] = page
        self.size += page.size
        self._shrink()

    def drop(self, destination: int, page_first: int) -> None:
        """Nobody needs this page again."""
        page = self._pages.pop((destination, page_first), None)
        if page is not None:
            self.size -= page.size

    def _shrink(self) -> None:
        while self.size > self._bytes_max and len(self._pages) > 1:
            _key, page = self._pages.popitem(last=False)
            self.size -= page.size
