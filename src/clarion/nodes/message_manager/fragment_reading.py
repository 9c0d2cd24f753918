"""Large bodies for those who read them: the verb `fragment`, off the event loop, sessions in turn.

Rules
    1. A session whose connection is full is passed over until it has drained, so nothing piles up for a slow reader.
    2. So many reads at a time over all sessions, each of one fragment's size: neither memory nor other reads suffer.
    3. A fragment that compaction moved while it was read is read again where it is now.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
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

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

READERS = 2
_BUS_WAITING_BYTES_MAX = 8 * limits.MIB
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
        self._queues: OrderedDict[int, deque[_Wanted]] = OrderedDict()
        """By session: the first has its turn next."""
        self._reading = 0

    def ask(self, session: Session, request: int, arguments: dict[str, Any]) -> None:
        """The verb `fragment`: answered when it is its turn. Raises what is wrong with the arguments."""
        destination = find(self._host.state, arguments)
        sequence, offset = (counted(name, arguments[name]) for name in ("sequence", "offset"))
        size = number(arguments, "bytes", limits.FRAGMENT_BYTES_MAX)
        wanted = _Wanted(request, destination, sequence, offset, min(size, limits.FRAGMENT_BYTES_MAX))
        self._queues.setdefault(session.identity, deque()).append(wanted)
        self.pump()

    def pump(self) -> None:
        """Begin what may be begun now."""
        sessions, bus = self._host.sessions, self._host.bus
        passed = 0
        while passed < len(self._queues) and self._reading < limits.FRAGMENT_READS_MAX:
            if bus.waiting_bytes > _BUS_WAITING_BYTES_MAX:
                return  # upkeep comes again
            identity, queue = next(iter(self._queues.items()))
            self._queues.move_to_end(identity)
            session = sessions.find(identity)
            if session is None or not queue:
                del self._queues[identity]
            elif session.paused:
                passed += 1
            else:
                passed = 0
                self._reading += 1
                self._host.spawn(self._serve(identity, queue.popleft()))

    def ended(self, session: Session) -> None:
        """Nobody waits for its answers any more."""
        self._queues.pop(session.identity, None)

    async def _serve(self, session: int, wanted: _Wanted) -> None:
        try:
            data, size = await self._read(wanted)
        except ClarionError as error:
            self._host.fail(session, wanted.request, error)
        else:
            self._host.reply(session, wanted.request, {"data": data, "size": size})
        finally:
            self._reading -= 1
        self.pump()

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
        for record in self._host.journal.read(piece.position, piece.span):
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
