"""Upkeep: checkpoints, compaction, resuming producers, rates.

Rules
    1. A checkpoint is made in the background, one destination at a time, while entries go on.
    2. Compaction copies what still lives in a nearly empty segment to the tail, a page at a time,
       and lets a page's old place go only when its copy is durable.
    3. Nothing here ever holds up a command for longer than one step.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from clarion import limits
from clarion.core.destination import Destination
from clarion.core.entries import STAGED_PAGE, encode_moved
from clarion.core.pages import Page
from clarion.core.stages import Staged
from clarion.errors import JournalFull
from clarion.journal import Kind as JournalKind
from clarion.journal import Location
from clarion.nodes.logging import WARNING, event

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

TICK_S = 0.1
RATE_TICKS = 100
_MEASURE_TICKS = 10
"""Rates are over the last ten seconds."""
_SURVEYED_MAX = 1_500
"""Destinations that are measured in one tick, and looked through for compaction in one turn: some milliseconds."""
_log = logging.getLogger("clarion.mm")


class Upkeep:
    """What a message manager does beside its commands."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._checkpointing = False
        self._postponed = False
        self._compacting = False
        self._ticks = 0
        self._stepped_at = 0
        self.capacity_bytes = 0
        """What the journal could hold if it grew as far as the file system and its bound allow."""
        self.large_bytes_max = 0
        """What of it messages can have: the largest body that can ever be here."""
        self._survey: Iterator[None] | None = None
        self._samples: deque[tuple[float, int, int]] = deque(maxlen=RATE_TICKS)
        registry = host.registry
        self._checkpoints = registry.counter("mm.checkpoints", unit="checkpoints", meaning="checkpoints completed")
        self._moved = registry.counter("mm.compacted", unit="bytes", meaning="bytes moved by compaction")

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.step()
            self._samples.append((loop.time(), *self._counts()))
            self._ticks += 1
            if self._survey is not None and next(self._survey, self) is self:
                self._survey = None
            if self._ticks % _MEASURE_TICKS == 0:
                self._measure_capacity()
                self._survey = self._survey or self._surveying()
                self._host.retention.step()
                self._host.slow.step()
                self._host.streaming.step()
            await asyncio.sleep(TICK_S)

    def measure(self) -> None:
        """How large things are: the capacity for quotas, the next checkpoint for the reserve."""
        self._measure_capacity()
        for _ in self._surveying():
            pass

    def _measure_capacity(self) -> None:
        host = self._host
        settings = host.settings
        journal = host.journal.status()
        self.capacity_bytes = journal.bytes_total
        if not journal.growth_blocked:
            free = os.statvfs(settings.node.data_path)
            possible = journal.bytes_total + free.f_bavail * free.f_frsize
            self.capacity_bytes = max(journal.bytes_total, min(settings.journal.bytes_max, possible))
        # A fragment does not go over the end of a segment.
        fragments = (journal.segment_bytes - 8 * limits.KIB) // (limits.FRAGMENT_BYTES_MAX + limits.KIB)
        usable_bytes = max(fragments * limits.FRAGMENT_BYTES_MAX, journal.segment_bytes // 2)
        self.large_bytes_max = (self.capacity_bytes - journal.bytes_reserve) // journal.segment_bytes * usable_bytes

    def _surveying(self) -> Iterator[None]:
        """Estimate the next checkpoint, and free parts of pages where room is short: so many destinations a step."""
        host = self._host
        destinations = list(host.state.destinations.values())
        rows = producers = 0
        for at in range(0, len(destinations), _SURVEYED_MAX):
            if at:
                yield
            journal = host.journal.status()
            short = host.room.waiting or journal.room < 2 * journal.segment_bytes
            for destination in destinations[at : at + _SURVEYED_MAX]:
                if host.state.destinations.get(destination.identity) is not destination:
                    continue  # dropped meanwhile
                if short and (gone := destination.refine()):
                    host.log.after(partial(self._let_go, gone))
                rows += len(destination.pages) + 2 * len(destination.stages)
                producers += len(destination.producers) + destination.producers.spans // 2
        streams = 20 * host.state.streams.fragments + 128 * len(host.state.streams)
        fixed = 1024 * len(host.state.destinations) + 640 * len(host.state.leases) + 4096
        host.journal.checkpoint_estimate_bytes = 64 * rows + 64 * producers + streams + fixed

    def _let_go(self, gone: list[tuple[int, int]]) -> None:
        for position, size in gone:
            self._host.journal.release(position, size)

    def committed(self) -> None:
        """After a commit: look after things whenever a part of a segment was written, not every time."""
        journal = self._host.journal
        if journal.tail - self._stepped_at >= self._host.state.segment_bytes // 8:
            self.step()

    def step(self) -> None:
        """Begin what is due."""
        host = self._host
        self._stepped_at = host.journal.tail
        if not self._checkpointing and host.journal.checkpoint_due:
            self.checkpoint()
        if not self._compacting and host.journal.compaction_victim() is not None:
            self._compacting = True
            host.spawn(self._compact())
        host.room.resume()
        host.streaming.reading.pump()
        host.ranging.pump()

    def checkpoint(self) -> None:
        """Begin a checkpoint now; without room for its first record, at a later step."""
        self._checkpointing = True
        try:
            self._host.journal.checkpoint(self._host.state.dump(), self._checkpointed)
        except JournalFull as error:
            self._checkpointing = False
            if not self._postponed:
                self._postponed = True
                event(_log, WARNING, "checkpoint_postponed", reason=str(error))

    def _checkpointed(self) -> None:
        self._checkpointing = self._postponed = False
        self._checkpoints.add()

    # --- compaction -----------------------------------------------------------------------------------

    async def _compact(self) -> None:
        host = self._host
        try:
            victim = host.journal.compaction_victim()
            if victim is None:
                return
            for number, destination in enumerate(list(host.state.destinations.values()), 1):
                if number % _SURVEYED_MAX == 0:
                    await asyncio.sleep(0)
                for page in destination.pages.in_segment(victim.position_from, victim.position_to):
                    await self._move(destination, page)
                for staged in destination.stages.in_segment(victim.position_from, victim.position_to):
                    await self._move_staged(destination, staged)
            await host.streaming.space.compact(victim)
        except JournalFull as error:
            event(_log, WARNING, "compaction_stopped", reason=str(error))
        finally:
            self._compacting = False

    async def _move(self, destination: Destination, page: Page) -> None:
        """Copy one page to the tail; a page that was freed or grew meanwhile is left alone."""
        host = self._host
        if not host.reader.is_durable(page):
            return
        copy = await host.reader.read(destination.identity, page)
        if host.state.destinations.get(destination.identity) is not destination:
            return  # dropped meanwhile: its pages are given up by that
        if destination.pages.find(page.first) != page:
            return
        if not copy.batches:  # nothing can be copied, and its segment would be chosen for ever
            await host.delivery.give_up(destination, (page.first, page.end))
            return
        owed = [
            (run_first, batch.sliced(run_first - first, run_end - first))
            for first, batch in zip(copy.firsts, copy.batches, strict=True)
            for run_first, run_end in destination.owed(first, first + batch.count)
        ]
        if not owed:
            return  # its last confirmation is on its way to the disk, and frees the page
        head, body = encode_moved(destination.identity, page.first, owed)
        location = host.journal.append(JournalKind.MOVED, head, body, reserve=True)
        host.journal.retain(location.position, location.span)
        # At once, as in a replay: a checkpoint that begins after this record must not name the old place, because
        # the replay that follows it does not see the record, and by then the old place may be used again.
        destination.pages.move(page.first, location.position, location.span)
        await self.moved_away(page.position, page.live, location)

    async def moved_away(self, position: int, span: int, location: Location) -> None:
        """Wait until a copy is durable, and let the old place go."""
        durable = asyncio.get_running_loop().create_future()

        def moved() -> None:
            self._host.journal.release(position, span)
            self._moved.add(location.span)
            if not durable.done():
                durable.set_result(None)

        self._host.log.wait(location.position, moved)
        await durable

    async def _move_staged(self, destination: Destination, staged: Staged) -> None:
        """Copy a batch that is in the wings."""
        host = self._host
        page = Page(0, 1, staged.position, staged.span, staged.span)
        if not staged.span or not host.reader.is_durable(page):
            return
        batch = await host.reader.read_staged(page)
        if batch is None or destination.stages.get(staged.number) is not staged or staged.position != page.position:
            return
        head, body = encode_moved(destination.identity, STAGED_PAGE | staged.number, [(0, batch)])
        location = host.journal.append(JournalKind.MOVED, head, body, reserve=True)
        host.journal.retain(location.position, location.span)
        destination.stages.move(staged.number, location.position, location.span)
        await self.moved_away(page.position, page.live, location)

    # --- rates ----------------------------------------------------------------------------------------

    def _counts(self) -> tuple[int, int]:
        host = self._host
        return host.count("mm.published"), host.count("mm.confirmed")

    def rates(self) -> tuple[float, float]:
        """Messages published and confirmed each second, over the last seconds."""
        if len(self._samples) < 2:
            return 0.0, 0.0
        then, now = self._samples[0], self._samples[-1]
        seconds = max(now[0] - then[0], 1e-9)
        return (now[1] - then[1]) / seconds, (now[2] - then[2]) / seconds
