"""Reading pages from the journal, off the event loop, into the cache.

Rules
    1. A page is read only when all of it is durable, and is taken over only if it did not grow or
       move meanwhile: a cached page is whole, so what is missing in it is damaged on disk.
    2. One read per page at a time, a bounded number at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from clarion import limits
from clarion.core.cache import CachedPage, PageCache
from clarion.core.destination import Destination
from clarion.core.entries import STAGED_PAGE, Kind, Publish, decode_moved, decode_moved_fragment
from clarion.core.pages import Page
from clarion.journal import Journal
from clarion.journal import Kind as JournalKind
from clarion.wire.batch import Batch

READERS = 2


class PageReader:
    """Loads pages for whoever waits for them."""

    def __init__(
        self,
        journal: Journal,
        cache: PageCache,
        loop: asyncio.AbstractEventLoop,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._journal = journal
        self._cache = cache
        self._loop = loop
        self._on_fault = on_fault
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="clarion-read")
        self._loading: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def want(self, destination: Destination, page: Page, then: Callable[[], None] | None = None) -> None:
        """Load a page, and call `then` when it is in the cache (or can no longer be)."""
        key = (destination.identity, page.first)
        waiting = self._loading.get(key)
        if waiting is None:
            self._loading[key] = [then] if then else []
            task = self._loop.create_task(self._load(destination, page, key))
            self._tasks.add(task)
            task.add_done_callback(self._done)
        elif then:
            waiting.append(then)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fault(error)  # whoever waits for the page would wait for ever

    def ahead(self, destination: Destination, sequence: int) -> None:
        """Load the pages after the one that is being delivered."""
        for page in destination.pages.following(sequence, limits.READ_AHEAD_PAGES):
            if (destination.identity, page.first) not in self._cache and self.is_durable(page):
                self.want(destination, page)

    def is_durable(self, page: Page) -> bool:
        """Only then is it all on disk to be read."""
        return page.position + page.span <= self._journal.durable

    async def read(self, destination: int, page: Page) -> CachedPage:
        """The batches of one page, straight from the journal."""
        return await self._loop.run_in_executor(self._pool, self._read, destination, page)

    async def fetch(self, destination: Destination, sequence: int) -> tuple[Page, CachedPage] | None:
        """The page that holds a sequence, from the cache or the journal; None if it is not stored any more."""
        while (page := destination.pages.find(sequence)) is not None:
            cached = self._cache.get(destination.identity, page.first)
            if cached is not None:
                return page, cached
            loaded = asyncio.Event()
            self.want(destination, page, loaded.set)
            await loaded.wait()
        return None

    async def batch(self, destination: Destination, sequence: int) -> tuple[int, Batch] | None:
        """(first sequence, batch) of the batch that holds a sequence; None if it is not stored any more, or damaged."""
        found = await self.fetch(destination, sequence)
        return None if found is None else found[1].find(sequence)

    async def _load(self, destination: Destination, page: Page, key: tuple[int, int]) -> None:
        while self.is_durable(page):
            loaded = await self.read(destination.identity, page)
            now = destination.pages.find(page.first)
            if now == page:
                self._cache.loaded(destination.identity, page.first, loaded)
                break
            if now is None:
                break
            page = now
        for then in self._loading.pop(key):
            then()

    def _read(self, destination: int, page: Page) -> CachedPage:
        """On a reader thread."""
        cached = CachedPage()
        for record in self._journal.read(page.position, page.span):
            if record.body is None:
                continue
            if record.kind == Kind.PUBLISH:
                entry = Publish.decode(record.head)
                if entry.destination == destination and page.first <= entry.first < page.end:
                    cached.add(entry.first, Batch(record.body))
            elif record.kind in (Kind.STAGE, Kind.TRANSFER, Kind.LARGE):
                # These records do not tell, or only to their journal, where their batch stands: the page does.
                if record.position == page.position:
                    cached.add(page.first, Batch(record.body))
            elif record.kind == JournalKind.MOVED and decode_moved_fragment(record.head) is None:
                moved, first, batches = decode_moved(record.head, record.body)
                if moved == destination and first == page.first:
                    for batch_first, batch in batches:
                        cached.add(batch_first, Batch(batch))
                elif first & STAGED_PAGE and record.position == page.position:
                    cached.add(page.first, Batch(batches[0][1]))
        return cached

    async def read_staged(self, page: Page) -> Batch | None:
        """The batch of a record that is not visible yet, straight from the journal; None if it is damaged."""
        cached = await self._loop.run_in_executor(self._pool, self._read, 0, page)
        return cached.batches[0] if cached.batches else None

    async def close(self) -> None:
        """No read is under way afterwards."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.shutdown(wait=True)
