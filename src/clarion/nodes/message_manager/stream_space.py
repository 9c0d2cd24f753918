"""The space of large bodies: it lives as long as a message needs it, moves with compaction, and is freed once.

Rules
    1. A body is held by the destinations that have its message, and freed when the last of them lets it go.
    2. One without a message is freed when the entry that gives it up is durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from clarion.core.destination import Destination
from clarion.core.entries import Kind, Ranges, StreamDropped, Transfer, encode_moved_fragment
from clarion.core.pages import Page
from clarion.core.streams import Piece, Stream
from clarion.journal import Kind as JournalKind
from clarion.journal import Victim
from clarion.nodes.logging import ERROR, INFO, event
from clarion.nodes.message_manager.fragment_reading import FragmentReading

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_log = logging.getLogger("clarion.mm")


class StreamSpace:
    """What the bodies of a message manager take of its journal."""

    def __init__(self, host: MessageManager, reading: FragmentReading, forget: Callable[[bytes], object]) -> None:
        """`forget` is told the ids of bodies that were given up."""
        self._host = host
        self._reading = reading
        self._forget = forget
        self._given_up = host.registry.counter(
            "mm.streams_dropped", unit="streams", meaning="large bodies that were given up"
        )

    # --- with messages --------------------------------------------------------------------------------

    def hold(self, destination: Destination, transfer: Transfer) -> None:
        """Messages came from another destination, with their large bodies."""
        for _, number in transfer.streams:
            stream = self._host.state.streams.get(number)
            if stream is not None:
                stream.held[destination.identity] += 1
                destination.bytes_streamed += stream.bytes_live

    def let_go(self, destination: Destination, numbers: Iterable[int]) -> None:
        """Messages of a destination need their large bodies no more."""
        for number in numbers:
            stream = self._host.state.streams.get(number)
            if stream is not None:
                destination.bytes_streamed -= stream.bytes_live
                if self._host.state.streams.let_go(number, destination.identity) is not None:
                    self._free(stream)

    def bytes_of(self, destination: Destination, page: Page) -> int:
        """What the large bodies of a page's messages take of the journal."""
        if not destination.large:
            return 0
        numbers = [number for sequence, number in destination.large.items() if page.first <= sequence < page.end]
        found = [self._host.state.streams.get(number) for number in numbers]
        return sum(stream.bytes_live for stream in found if stream is not None)

    # --- without ----------------------------------------------------------------------------------------

    def drop(self, streams: list[Stream], reason: str) -> None:
        """These will have no message. Raises `JournalFull`."""
        self._host.log.write(Kind.STREAM_DROPPED, StreamDropped([stream.number for stream in streams]).encode())
        self._given_up.add(len(streams))
        for stream in streams:
            event(_log, INFO, "stream_dropped", stream=stream.identity.hex(), bytes=stream.size, reason=reason)
        self.free_dropped()

    def free_dropped(self) -> None:
        """An entry was written that gave streams up: release their space when it is durable."""
        streams = self._host.state.streams
        dropped, streams.dropped = streams.dropped, []
        for stream in dropped:
            self._forget(stream.identity)
        if dropped:
            self._host.log.after(lambda: self._free_all(dropped))

    def _free_all(self, streams: list[Stream]) -> None:
        for stream in streams:
            home = self._host.state.destinations.get(stream.destination)
            if home is not None:
                home.bytes_streamed -= stream.bytes_live
            self._free(stream)
        self._host.freeing.room_came()

    def _free(self, stream: Stream) -> None:
        for position, size in stream.spaces(self._host.state.segment_bytes):
            self._host.journal.release(position, size)

    # --- recovery and compaction ----------------------------------------------------------------------

    def recovered(self) -> None:
        """After a start: a message whose large body was damaged before it was complete is lost, and that is said."""
        streams = self._host.state.streams
        for destination in self._host.state.destinations.values():
            for sequence, number in list(destination.large.items()):
                stream = streams.get(number)
                if stream is not None and stream.size == stream.wanted:
                    continue
                lost = [(sequence, sequence + 1)]
                self._host.log.write(Kind.DISCARD, Ranges(destination.identity, 0, lost).encode())
                destination.lost_messages += 1
                event(_log, ERROR, "messages_lost", destination=str(destination), first=sequence, count=1)
                self._host.log.after(lambda found=destination, ranges=lost: self._host.freeing.release(found, ranges))  # type: ignore[misc]

    async def compact(self, victim: Victim) -> None:
        """Copy the fragments that lie in a segment to the tail. Raises `JournalFull`."""
        for stream in list(self._host.state.streams):
            for piece in stream.in_segment(victim.position_from, victim.position_to):
                await self._move(stream, piece)

    async def _move(self, stream: Stream, piece: Piece) -> None:
        """One fragment; one that went meanwhile, or cannot be read, is left alone."""
        host = self._host
        if piece.position + piece.span > host.journal.durable:
            return
        data = await self._reading.load(stream, piece)
        if data is None or host.state.streams.get(stream.number) is not stream or stream.find(piece.first) != piece:
            return
        head = encode_moved_fragment(stream.number, piece.first)
        location = host.journal.append(JournalKind.MOVED, head, data, reserve=True)
        host.journal.retain(location.position, location.span)
        stream.move(piece.first, location.position, location.span)  # at once, as in a replay: see `Upkeep._move`
        for identity, times in stream.held.items():
            destination = host.state.destinations.get(identity)
            if destination is not None:
                destination.bytes_streamed += times * (location.span - piece.span)
        await host.upkeep.moved_away(piece.position, piece.span, location)
