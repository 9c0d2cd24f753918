"""Recorded events that are about to be delivered, read once for all recipients.

Recipients go through a section more or less together, so what the first one needs the others need soon. Bounded
in bytes; what is not here is read again.

Rule: a page says from where to where it was read. An event that is not in it is lost only if it lies within that; what
was dropped to make room, or came before the page was begun, is none of its business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from clarion import limits
from clarion.events.memory import Recorded, Section

PAGE_EVENTS = 512
OVERHEAD_BYTES = 200
"""What an event takes beside its headers and body."""


class _Page:
    """Events of [first, end) by sequence: those that can be read."""

    __slots__ = ("end", "events", "first", "size")

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end
        self.events: dict[int, Recorded] = {}
        self.size = 0

    def add(self, events: list[Recorded]) -> None:
        """More of them, in order. At once: this is done for every event that is delivered."""
        self.events.update({event.at: event for event in events})
        self.size += sum([len(event.headers) + len(event.body) for event in events]) + OVERHEAD_BYTES * len(events)
        self.end = max(self.end, events[-1].at + 1)


class Pages:
    """The events of all sections in pages of `PAGE_EVENTS` sequences, the longest unused one dropped first."""

    def __init__(self, bytes_max: int = limits.EVENT_CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pages: OrderedDict[tuple[int, int], _Page] = OrderedDict()

    def events(self, section: Section, runs: Iterable[tuple[int, int]]) -> list[Recorded]:
        """The events of these runs, in order; those that the disk lost are left out."""
        found: list[Recorded] = []
        for first, end in runs:
            while first < end:
                number = first // PAGE_EVENTS
                until = min(end, (number + 1) * PAGE_EVENTS)
                page = self._page(section, number, first, until).events
                found.extend([page[at] for at in range(first, until) if at in page])
                first = until
        return found

    def put(self, section: Section, events: list[Recorded]) -> None:
        """Events that were just read, in order."""
        start = 0
        while start < len(events):
            number = events[start].at // PAGE_EVENTS
            end = start
            while end < len(events) and events[end].at // PAGE_EVENTS == number:
                end += 1
            page = self._take((section.producer, number))
            if page is None or page.end != events[start].at:
                page = _Page(events[start].at, events[start].at)
            page.add(events[start:end])
            self._keep((section.producer, number), page)
            start = end

    def drop(self, section: int, below: int) -> None:
        """Everything of a section below this sequence is handled."""
        for key in [key for key in self._pages if key[0] == section and (key[1] + 1) * PAGE_EVENTS <= below]:
            self._take(key)

    def _page(self, section: Section, number: int, first: int, until: int) -> _Page:
        """One that was read from `first` to `until`, or as far as the section goes."""
        key = section.producer, number
        page = self._pages.get(key)
        if page is not None and page.first <= first and until <= page.end:
            self._pages.move_to_end(key)
            return page
        self._take(key)
        at = max(number * PAGE_EVENTS, min(first, section.first_sequence))
        end = min((number + 1) * PAGE_EVENTS, section.next_sequence)
        page = _Page(at, max(at, end))
        while at < end:
            events = section.read(at, end - at, limits.EVENT_CACHE_BYTES_MAX)
            if not events or events[-1].at < at:
                break
            at = events[-1].at + 1
            if at > end:  # damage was skipped, and what comes behind it belongs to a later page
                events = [event for event in events if event.at < end]
            if events:
                page.add(events)
        self._keep(key, page)
        return page

    def _take(self, key: tuple[int, int]) -> _Page | None:
        page = self._pages.pop(key, None)
        if page is not None:
            self._bytes -= page.size
        return page

    def _keep(self, key: tuple[int, int], page: _Page) -> None:
        self._pages[key] = page
        self._bytes += page.size
        while self._bytes > self._bytes_max and len(self._pages) > 1:
            self._bytes -= self._pages.popitem(last=False)[1].size
