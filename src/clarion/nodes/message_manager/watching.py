"""Who wants to know that a message was confirmed: producers that asked, and the feed `_CONFIRMATIONS`.

Rules
    1. A producer that sent with UNTIL_ANY or UNTIL_EVERY gets DELIVERED for each message once, when a confirmation
       that answers it is durable; for a message that nobody is to have, at once.
    2. What is watched is soft. After a reconnection the client sends the batch again, and is watched again, or
       told at once; also of what expired or died since the start of this process, before it came back.
    3. The feed costs nothing unless somebody is subscribed to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from clarion.core.destination import Destination
from clarion.core.entries import UNTIL_EVERY, Publish, Transfer
from clarion.core.spans import Spans
from clarion.core.subscription import Range
from clarion.core.turn import DeliverySlice
from clarion.core.wellknown import CONFIRMATIONS
from clarion.errors import JournalFull
from clarion.ids import sequence_of
from clarion.wire import batch as wire
from clarion.wire import frames
from clarion.wire.batch import Batch

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_FEED_RECORDS_MAX = 1_000
_ENDS_MAX = 4_096
"""Runs of messages that expired or died, and are remembered for producers that come back."""
_COUNT = 7
"""Which field of a batch's header is the number of messages."""


class _Watch:
    __slots__ = ("end", "first", "open", "producer_first", "session", "until")

    def __init__(self, session: int, first: int, end: int, producer_first: int, until: int) -> None:
        self.session = session
        self.first = first
        self.end = end
        self.producer_first = producer_first
        self.until = until
        self.open = Spans([(first, end, 0)])
        """What is not answered."""


class Watching:
    """Confirmations that are reported on."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._watches: dict[int, dict[int, _Watch]] = {}
        """By destination and first sequence."""
        self._expected: dict[int, int] = {}
        """First id of a batch in the wings → session."""
        self._ends: dict[int, Spans] = {}
        """By destination: how messages ended that were not confirmed, where producers may come back and ask."""
        self._stored: dict[int, Spans] = {}
        self._delivered: dict[int, Spans] = {}

    # --- producers ------------------------------------------------------------------------------------

    def watch(self, session: int, destination: Destination, entry: Publish) -> None:
        """A batch is durable whose producer wants to know."""
        first, end = entry.first, entry.first + entry.messages
        producer_first = sequence_of(entry.first_id)
        if not destination.subscriptions:
            self._tell(session, [(producer_first, entry.messages, frames.UNWANTED)])
            return
        watch = _Watch(session, first, end, producer_first, entry.until)
        self._watches.setdefault(destination.identity, {})[first] = watch
        self._look(destination, watch, [(first, end)], frames.CONFIRMED)

    def again(self, session: int, destination: Destination, batch: Batch) -> None:
        """A batch came again: it was stored before, and perhaps confirmed."""
        producer_first = sequence_of(batch.first_id)
        if any(staged.batch.first_id == batch.first_id for staged in destination.stages):
            self.expect(session, batch.first_id)
            return
        known = destination.awaited.get(batch.first_id)
        if known is None or not destination.subscriptions:
            self._host.log.after(lambda: self._tell(session, [(producer_first, batch.count, frames.CONFIRMED)]))
            return
        first, messages, until = known
        watch = _Watch(session, first, first + messages, producer_first, until)
        self._watches.setdefault(destination.identity, {})[first] = watch
        self._host.log.after(lambda: self._look_back(destination, watch))

    def _look_back(self, destination: Destination, watch: _Watch) -> None:
        """Tell what was answered before it was watched."""
        ends = self._ends.get(destination.identity) or Spans()
        for first, end, how in list(ends.pieces(watch.first, watch.end, frames.CONFIRMED)):
            self._look(destination, watch, [(first, end)], how)

    def _note_end(self, destination: Destination, ranges: list[Range], how: int) -> None:
        """These expired, or died. As many are remembered as the bound allows, the latest destinations longest."""
        ends = self._ends.pop(destination.identity, None) or Spans()
        for first, end in ranges:
            ends.put(first, end, how)
        self._ends[destination.identity] = ends
        while sum(map(len, self._ends.values())) > _ENDS_MAX:
            del self._ends[next(iter(self._ends))]

    def expect(self, session: int, first_id: int) -> None:
        """A batch went to the wings whose producer wants to know: it is watched from when it is visible."""
        self._expected[first_id] = session

    def shown(self, destination: Destination, first: int) -> None:
        """Messages from `first` on became visible."""
        if self._expected:
            for first_id, (at, messages, until) in list(destination.awaited.items()):
                if at >= first and (session := self._expected.pop(first_id, None)) is not None:
                    self.watch(session, destination, Publish(0, messages, at, 0, first_id, until=until))

    def confirmed(self, destination: Destination, ranges: list[Range], how: int = frames.CONFIRMED) -> None:
        """Confirmations of a destination became durable."""
        if how != frames.CONFIRMED and destination.awaited:
            self._note_end(destination, ranges, how)
        watches = self._watches.get(destination.identity)
        if watches:
            for watch in list(watches.values()):
                touched = [(max(f, watch.first), min(e, watch.end)) for f, e in ranges]
                self._look(destination, watch, [(f, e) for f, e in touched if f < e], how, fresh=True)
        if self._feeds():
            self._report(destination, ranges)

    def _look(
        self, destination: Destination, watch: _Watch, ranges: list[Range], how: int, *, fresh: bool = False
    ) -> None:
        """Tell what of a watch is answered now. `fresh`: somebody has just confirmed these."""
        answered: list[tuple[int, int, int]] = []
        for first, end in ranges:
            for piece_first, piece_end, _ in watch.open.overlap(first, end):
                runs = (
                    [(piece_first, piece_end)]
                    if fresh and watch.until != UNTIL_EVERY
                    else self._answered(destination, watch, piece_first, piece_end)
                )
                for run_first, run_end in runs:
                    watch.open.take(run_first, run_end)
                    answered.append((watch.producer_first + run_first - watch.first, run_end - run_first, how))
        if answered:
            self._tell(watch.session, answered)
        if not watch.open:
            watches = self._watches.get(destination.identity, {})
            if watches.get(watch.first) is watch:
                del watches[watch.first]

    @staticmethod
    def _answered(destination: Destination, watch: _Watch, first: int, end: int) -> list[Range]:
        """The runs of [first, end) that as many subscriptions have confirmed as the producer waits for."""
        owing = Spans()
        if watch.until == UNTIL_EVERY:
            for gap_first, gap_end in destination.unconfirmed(first, end):
                owing.put(gap_first, gap_end)
        else:
            owing.put(first, end)
            for subscription in destination.subscriptions.values():
                at = first
                for gap_first, gap_end in [*subscription.confirmed.gaps(first, end), (end, end)]:
                    owing.take(at, gap_first)
                    at = gap_end
        return [(f, e) for f, e, owed in owing.pieces(first, end, -1) if owed == -1]

    def _tell(self, session: int, answered: list[tuple[int, int, int]]) -> None:
        self._host.send(session, frames.Type.DELIVERED, [b"".join(frames.SETTLED.pack(*row) for row in answered)])

    def ended(self, session: int) -> None:
        """A session is over: nobody there to tell."""
        for first_id in [first_id for first_id, known in self._expected.items() if known == session]:
            del self._expected[first_id]
        for watches in self._watches.values():
            for first in [first for first, watch in watches.items() if watch.session == session]:
                del watches[first]

    # --- the feed -------------------------------------------------------------------------------------

    def _feeds(self) -> bool:
        feed = self._host.state.find(CONFIRMATIONS)
        if feed is not None and feed.subscriptions:
            return True
        if self._stored:
            self._stored.clear()
            self._delivered.clear()
        return False

    def stored(self, destination: Destination, first: int, end: int, time_ms: int) -> None:
        """Messages became visible."""
        if destination.name != CONFIRMATIONS and self._feeds():
            self._stored.setdefault(destination.identity, Spans()).put(first, end, time_ms)

    def delivered(self, destination: Destination, slices: list[DeliverySlice], time_ms: int) -> None:
        """Messages leave for a consumer."""
        if destination.name == CONFIRMATIONS or not self._feeds():
            return
        times = self._delivered.setdefault(destination.identity, Spans())
        for first, _count, _redelivered, parts in slices:
            end = first + int(wire.HEADER.unpack_from(parts[0])[_COUNT])
            for piece_first, piece_end, known in list(times.pieces(first, end, -1)):
                if known == -1:
                    times.put(piece_first, piece_end, time_ms)

    def _report(self, destination: Destination, ranges: list[Range]) -> None:
        """One record per run of messages with the same times: stored, first delivered, confirmed by all."""
        if destination.name == CONFIRMATIONS:
            return
        now_ms = self._host.now_ms()
        records: list[bytes] = []
        for first, end in ranges:
            at = first
            for gap_first, gap_end in [*destination.unconfirmed(first, end), (end, end)]:
                records += self._records(destination, at, gap_first, now_ms)
                at = gap_end
        for at in range(0, len(records), _FEED_RECORDS_MAX):
            self._publish(records[at : at + _FEED_RECORDS_MAX], now_ms)

    def _records(self, destination: Destination, first: int, end: int, now_ms: int) -> list[bytes]:
        if first >= end:
            return []
        stored = self._stored.setdefault(destination.identity, Spans())
        delivered = self._delivered.setdefault(destination.identity, Spans())
        records: list[bytes] = []
        for stored_first, stored_end, stored_ms in list(stored.pieces(first, end)):
            for piece_first, piece_end, delivered_ms in list(delivered.pieces(stored_first, stored_end)):
                page = destination.pages.find(piece_first)
                record = {
                    "destination": str(destination),
                    "first": piece_first,
                    "end": piece_end,
                    "stored_ms": stored_ms or (page.stored_ms if page is not None else 0) or None,
                    "delivered_ms": delivered_ms or None,
                    "confirmed_ms": now_ms,
                }
                records.append(msgspec.json.encode(record))
        stored.take(first, end)
        delivered.take(first, end)
        return records

    def _publish(self, records: list[bytes], now_ms: int) -> None:
        feed = self._host.naming.system(CONFIRMATIONS)
        encoded = wire.encode(str(feed).encode(), self._host.own_ids(len(records)), records, created_ms=now_ms)
        entry = Transfer(feed.identity, feed.tail, len(records), now_ms, 4, 0, 0, 0, 0, 0, [])
        try:
            self._host.transfer(entry, encoded)
        except JournalFull:
            pass  # a feed for statistics must not take the room of messages
