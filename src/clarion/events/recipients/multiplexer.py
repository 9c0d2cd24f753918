"""A multiplexer as a recipient: one that stands for many (A-11).

    Multiplexing("collector.example:7790", filter="severity_level >= 30")

Guarantees
    1. Events keep their ids: the multiplexer knows what it has when it is sent again. Those that came from elsewhere
       (a partner, a multiplexer) go on under the ids of where they were emitted, so that multiplexers can be chained.
    2. A multiplexer that confirms early has what is confirmed in its persistent memory. With one that does not, an
       event is confirmed when all recipients behind it have it; meanwhile others follow it, up to `window_events`.
       Whatever is missed by a broken connection or a restart on either side is asked for again.
    3. `on_confirmation(recipient, ranges)` hears of each confirmation that a multiplexer forwards, once while this
       process runs: what was lost with a connection is told again. A range is (producer, first sequence, end). Behind
       two multiplexers a name has a `/`. A multiplexer whose recipient this is says that it has heard one when that
       will be passed on whatever happens to it.
    4. Storing takes at most `timeout_s`; then a delivery fails, visibly, and the engine tries again. A full memory
       at the other end is waited for within that time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from clarion import limits
from clarion.errors import (
    BadArgument,
    Blocked,
    ClarionError,
    ConnectionFailed,
    ConnectionLost,
    EventTooLarge,
    MessageTooLarge,
    NotDelivered,
    Timeout,
)
from clarion.events.distribution.lane import runs_of
from clarion.events.recipients.awaited import Awaited
from clarion.events.recipients.base import Later, Named, Partly
from clarion.settings import parse_address

if TYPE_CHECKING:
    from clarion.events.link.asynchronous import AsyncLink
    from clarion.events.link.frames import Frame
    from clarion.events.memory.layout import Recorded

CONNECT_S_MAX = 10.0
FULL_S_MIN = 0.02
FULL_S_MAX = 0.5
AGAIN_S_MIN = 0.1
AGAIN_S_MAX = 5.0
ASK_S = 10.0
"""What is awaited for long is asked for, in case that what was said of it got lost."""
RECIPIENTS_MAX = 1_024
WINDOW_EVENTS = 65_536
FLOORS_MAX = 10_000
PRODUCERS_MAX = 1_024

_logger = logging.getLogger("clarion.events")
Ranges = list[tuple[int, int, int]]
OnConfirmation = Callable[[str, Ranges], None]
Relay = Callable[[str, Ranges, Callable[[], None]], None]
"""Passes on who has confirmed what, and calls back when that cannot be lost any more."""


class Multiplexing(Named):
    """Sends to the multiplexer at `address`, HOST:PORT."""

    wants_records = True
    window_events = WINDOW_EVENTS

    def __init__(
        self,
        address: str,
        *,
        name: str = "multiplexer",
        filter: str = "",
        timeout_s: float = 30.0,
        batch_events_max: int = limits.EVENT_BATCH_EVENTS_DEFAULT,
        on_confirmation: OnConfirmation | None = None,
    ) -> None:
        super().__init__(name, filter, batch_events_max)
        try:
            parsed = parse_address(address)
            if not parsed.port:
                raise ValueError(f"{address!r} has no port")
        except ValueError as error:
            raise BadArgument(argument="address", detail=str(error)) from None
        if not timeout_s > 0:
            raise BadArgument(argument="timeout_s", detail=f"{timeout_s} is not more than 0")
        self._address = parsed.host, parsed.port
        self._timeout_s = timeout_s
        way = f"{socket.gethostname()} {name}".encode()
        self._way = int.from_bytes(hashlib.blake2b(way, digest_size=16).digest(), "big")
        self.on_confirmation = on_confirmation
        self.relay: Relay | None = None
        """For the multiplexer whose recipient this is."""
        self._expecting = False
        """There may be confirmations that an earlier process of this system did not hear."""
        self.confirmations_by_recipient: dict[str, int] = {}
        """How many confirmations of each recipient behind the multiplexer were forwarded."""
        self._heard: dict[tuple[str, int], BitMap64] = {}
        """By recipient and producer: what was forwarded."""
        self._producers: dict[int, None] = {}
        """Whose events went there, the newest last, if it forwards."""
        self._forwards = False
        """The multiplexer forwards confirmations, also when nothing is awaited."""
        self._link: AsyncLink | None = None
        self._connecting: asyncio.Lock | None = None
        self._awaited = Awaited()
        self._floors: dict[int, int] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def open(self) -> None:
        self._connecting = asyncio.Lock()
        self._news = asyncio.Event()
        self._keeping = asyncio.ensure_future(self._keep_asking())

    async def close(self) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._awaited = Awaited()

    def settled(self, producer: int, below: int) -> None:
        """No event of this producer with a lower sequence will be delivered here again."""
        if len(self._floors) < FLOORS_MAX or producer in self._floors:
            self._floors[producer] = below

    def expect(self, producers: Iterable[int]) -> None:
        """Events of these went there before, perhaps: whatever became of them is to be told, to this process now."""
        for producer in producers:
            self._note_producer(producer)
        self._expecting = bool(self._producers)
        self._news.set()

    # --- delivering -----------------------------------------------------------------------------------

    async def deliver(self, records: Sequence[Recorded]) -> Later | None:
        from clarion.events.multiplex.signals import CONFIRMS_EARLY

        later = Later()
        progress = _Progress()
        try:
            async with asyncio.timeout(self._timeout_s):
                link = await self._connected()
                early = bool(link.welcome.epoch & CONFIRMS_EARLY)
                if self._forwards:
                    for producer in {record.producer for record in records}:
                        self._note_producer(producer)
                if not early:
                    self._awaited.add(records, later)
                await self._store(link, records, progress)
        except (TimeoutError, ClarionError) as error:
            self._awaited.drop(later)
            refused: BaseException = error
            if isinstance(error, TimeoutError):
                refused = progress.refused or Timeout(
                    limit_ms=round(self._timeout_s * 1000), detail=f"{self.name}: the multiplexer does not answer"
                )
            elif isinstance(error, EventTooLarge | MessageTooLarge):
                refused = NotDelivered(reason=str(error), permanent=True)
            if progress.stored and progress.early:
                raise Partly(progress.stored, refused) from None
            raise refused from None
        except BaseException:
            self._awaited.drop(later)
            raise
        return None if early else later

    def _note_producer(self, producer: int) -> None:
        if producer not in self._producers:
            self._producers[producer] = None
            if len(self._producers) > PRODUCERS_MAX:
                del self._producers[next(iter(self._producers))]

    async def _store(self, link: AsyncLink, records: Sequence[Recorded], progress: _Progress) -> None:
        """All of them, or what refused one. A memory that is full is waited for."""
        from clarion.events.link import frames
        from clarion.events.multiplex.signals import CONFIRMS_EARLY

        progress.early = bool(link.welcome.epoch & CONFIRMS_EARLY)
        floors, self._floors = self._floors, {}
        for producer, floor in floors.items():
            link.send(frames.Type.RELEASED, frames.pack_released(producer, floor))
        pause_s = FULL_S_MIN
        while progress.stored < len(records):
            stored, refused = await link.put(records[0].producer, records[progress.stored :])
            progress.stored += stored
            if refused is None:
                return
            if not isinstance(refused, Blocked):
                raise refused
            progress.refused = refused
            pause_s = FULL_S_MIN if stored else min(2 * pause_s, FULL_S_MAX)
            await asyncio.sleep(pause_s)

    # --- the connection -------------------------------------------------------------------------------

    async def _connected(self) -> AsyncLink:
        from clarion.events.link.asynchronous import AsyncLink
        from clarion.events.link.frames import Hello, Role
        from clarion.events.multiplex.signals import HEARS, TELLS_AGAIN

        if self._connecting is None:
            await self.open()
        assert self._connecting is not None
        async with self._connecting:
            link = self._link
            if link is None or link.broken:
                # Each connection has a name of its own: what is said to one is not said to another.
                name = f"{socket.gethostname()[:64]}-{self.name[:64]}-{secrets.token_hex(8)}"
                hello = Hello(name, Role.MULTIPLEX, HEARS, memory=self._way)
                timeout_s = min(self._timeout_s, CONNECT_S_MAX)
                link = self._link = await AsyncLink.connect(
                    self._address, timeout_s, hello=hello, unasked=self._unasked, lost=self._news.set
                )
                self._forwards, self._expecting = bool(link.welcome.epoch & TELLS_AGAIN), False
                self._ask(link)
                self._want_news(link)
            return link

    def _ask(self, link: AsyncLink) -> None:
        """How is it with everything that is awaited?"""
        from clarion.events.link.frames import Type
        from clarion.events.multiplex.signals import ASKED, OF_ALL, payloads

        if self._awaited.count:
            for payload in payloads(ASKED, self._awaited.ranges(), OF_ALL):
                link.send(Type.NOTE, payload)

    def _want_news(self, link: AsyncLink) -> None:
        """What becomes of the events that went there is to be told over this connection."""
        from clarion.events.link.frames import Type
        from clarion.events.multiplex.signals import ASKED, TELL, payloads

        if self._forwards and self._producers:
            for payload in payloads(ASKED, [(producer, 1, 2) for producer in self._producers], TELL):
                link.send(Type.NOTE, payload)

    @property
    def _listens(self) -> bool:
        return bool(self._awaited.count) or self._forwards or self._expecting

    async def _keep_asking(self) -> None:
        """While something is awaited, or forwarded, be connected, and ask now and then."""
        pause_s = AGAIN_S_MIN
        while True:
            self._news.clear()
            link = self._link
            with suppress(TimeoutError):
                waits = self._listens and (link is None or link.broken)
                async with asyncio.timeout(pause_s if waits else ASK_S):
                    await self._news.wait()
            if not self._listens:
                continue
            try:
                if self._link is not None and self._link is link and not link.broken:
                    self._ask(link)
                else:
                    await self._connected()
                pause_s = AGAIN_S_MIN
            except (ConnectionFailed, ConnectionLost):
                pause_s = min(2 * pause_s, AGAIN_S_MAX)

    # --- what the multiplexer says by itself ------------------------------------------------------------

    def _unasked(self, frame: Frame) -> None:
        """Raises `ProtocolError` for what makes no sense."""
        from clarion.events.link.confirmations import unpack_confirmations
        from clarion.events.link.frames import Type
        from clarion.events.multiplex.signals import OF_ALL, OF_RECIPIENT, UNKNOWN

        if frame.type != Type.CONFIRMED:
            return
        _, token, confirmations = unpack_confirmations(frame.payload)
        for recipient, ranges in confirmations:
            if token == OF_RECIPIENT:
                self._forwarded(recipient, ranges)
            elif token in (OF_ALL, UNKNOWN):
                for one in ranges:
                    for later, indexes in self._awaited.take(*one):
                        (later.confirm if token == OF_ALL else later.again)(indexes)

    def _say_heard(self, recipient: str, ranges: Ranges) -> None:
        from clarion.events.link.frames import Type
        from clarion.events.multiplex.signals import HEARD, payloads

        link = self._link
        if self._forwards and link is not None and not link.broken:
            for payload in payloads(recipient, ranges, HEARD):
                link.send(Type.NOTE, payload)

    def _fresh(self, recipient: str, ranges: Ranges) -> Ranges:
        """Without what was heard before. Of more recipients and producers than are kept, everything."""
        found: Ranges = []
        for producer, first, end in ranges:
            if (recipient, producer) not in self._heard and len(self._heard) >= FLOORS_MAX:
                found.append((producer, first, end))
                continue
            known = self._heard.setdefault((recipient, producer), BitMap64())
            fresh = BitMap64()
            fresh.add_range(first, end)
            fresh -= known
            known |= fresh
            self._heard[recipient, producer] = known
            found += [(producer, *run) for run in runs_of(fresh)]
        return found

    def _forwarded(self, recipient: str, ranges: Ranges) -> None:
        fresh = self._fresh(recipient, ranges)
        if fresh:
            counts = self.confirmations_by_recipient
            if recipient in counts or len(counts) < RECIPIENTS_MAX:
                counts[recipient] = counts.get(recipient, 0) + sum(end - first for _, first, end in fresh)
            if self.on_confirmation is not None:
                try:
                    self.on_confirmation(recipient, fresh)
                except Exception:  # somebody's code must not cost the connection
                    _logger.exception("%s: a confirmation was not taken", self.name)
        if self.relay is None:
            self._say_heard(recipient, ranges)
        else:  # also of what is told again: perhaps it can still be lost
            self.relay(recipient, fresh, partial(self._say_heard, recipient, ranges))


class _Progress:
    """How far a delivery came."""

    __slots__ = ("early", "refused", "stored")

    def __init__(self) -> None:
        self.stored = 0
        self.early = False
        self.refused: ClarionError | None = None
