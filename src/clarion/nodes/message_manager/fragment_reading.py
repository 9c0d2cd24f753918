"""Large bodies for those who read them: the verb `fragment`, off the event loop, sessions in turn.

Rules
    1. One answer is of one fragment's size; `Turns` bounds how many are made at a time, and for whom.
    2. A fragment that compaction moved while it was read is read again where it is now.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from clarion import limits
from clarion.core.destination import Destination
from clarion.core.entries import Fragment, Kind, decode_moved_fragment
from clarion.core.streams import Piece, Stream
from clarion.errors import BadArgument, ClarionError, NoSuchStream, RecordDamaged
from clarion.journal import Kind as JournalKind
from clarion.nodes.message_manager.arguments import counted, find, number
from clarion.nodes.message_manager.sessions import Session
from clarion.nodes.message_manager.turns import Turns

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

READERS = 2
_PIECES_MAX = 16
"""Fragments that one answer is put together from: they are usually as large as it, or begin elsewhere."""


class _Wanted(NamedTuple):
    request: int
    destination: Destination
    sequence: int
    offset: int
    size: int


class FragmentReading:
    """Reads of all sessions."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="clarion-fragment")
        self._turns = Turns(host, limits.FRAGMENT_READS_MAX)
        self.pump = self._turns.pump
        self.ended = self._turns.ended

    def ask(self, session: Session, request: int, arguments: dict[str, Any]) -> None:
        """The verb `fragment`: answered when it is its turn. Raises what is wrong with the arguments."""
        destination = find(self._host.state, arguments)
        sequence, offset = (counted(name, arguments[name]) for name in ("sequence", "offset"))
        size = number(arguments, "bytes", limits.FRAGMENT_BYTES_MAX)
        wanted = _Wanted(request, destination, sequence, offset, min(size, limits.FRAGMENT_BYTES_MAX))
        self._turns.add(session, lambda: self._serve(session.identity, wanted))

    async def _serve(self, session: int, wanted: _Wanted) -> None:
        pacing = self._host.streaming.pacing
        await pacing.begin_read()
        try:
            data, size = await self._read(wanted)
        except ClarionError as error:
            self._host.fail(session, wanted.request, error)
        else:
            self._host.reply(session, wanted.request, {"data": data, "size": size})
        finally:
            pacing.end_read()

    async def _read(self, wanted: _Wanted) -> tuple[bytes, int]:
        """Bytes of a body, at most as many as are wanted, and how many there are in all."""
        parts: list[memoryview] = []
        left, offset = wanted.size, wanted.offset
        while True:
            stream = self._find(wanted)
            if offset > stream.size:
                raise BadArgument(argument="offset", detail=f"the body has {stream.size} bytes")
            piece = stream.find(offset)
            if piece is None or not left or len(parts) == _PIECES_MAX:
                return b"".join(parts), stream.size
            data = await self.load(stream, piece)
            if data is None:
                if stream.find(offset) != piece or self._find(wanted) is not stream:
                    continue
                raise RecordDamaged(position=piece.position, detail=f"a fragment of {wanted.destination}")
            part = data[offset - piece.first :][:left]
            parts.append(part)
            offset, left = offset + len(part), left - len(part)

    def _find(self, wanted: _Wanted) -> Stream:
        number = wanted.destination.large.get(wanted.sequence)
        stream = None if number is None else self._host.state.streams.get(number)
        if stream is None:
            raise NoSuchStream(stream=f"of message {wanted.sequence}", destination=str(wanted.destination))
        return stream

    async def load(self, stream: Stream, piece: Piece) -> memoryview | None:
        """The bytes of one fragment, straight from the journal; None if they are not there, or damaged."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._load, stream.number, piece)

    def _load(self, number: int, piece: Piece) -> memoryview | None:
        """On a reader thread."""
        for record in self._host.journal.read(piece.position, piece.span, alone=True):
            if record.position != piece.position or record.body is None:
                continue
            found: tuple[int, int] | None = None
            if record.kind == Kind.FRAGMENT:
                entry = Fragment.decode(record.head)
                found = (entry.number, entry.offset)
            elif record.kind == JournalKind.MOVED:
                found = decode_moved_fragment(record.head)
            if found == (number, piece.first) and len(record.body) == piece.end - piece.first:
                return record.body
        return None

    def close(self) -> None:
        """No read is under way afterwards. Blocks."""
        self._pool.shutdown(wait=True)
