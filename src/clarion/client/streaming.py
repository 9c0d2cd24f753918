"""Large bodies from the sender: a source is read little by little, its fragments are kept until they are stored.

Theory of operation
    An `Upload` asks the broker how much of its body is there (`stream`), sends fragments from that point on, a few
    ahead of the answers, one in each turn of the loop, so that everything else on the connection goes between them.
    When all are stored it sends the message (PUBLISH_LARGE), which is then like any other.

    state        stimulus                       next
    LOCATING     the broker says how much is there   SENDING, behind that
    SENDING      STORED                         the fragment is forgotten
    SENDING      WAIT, or stored elsewhere      nothing more is sent; when all is answered, again from what is stored
    SENDING      GO, or 10 s after WAIT         goes on
    any          the connection is lost         LOCATING on the next one

Guarantees
    1. What is not stored is kept: fragments on their way and the next few, less than 2 MiB for each body.
    2. After a lost connection, of either end, it goes on where the broker is; what was stored is not sent again.
    3. With a key another process can go on: it reads its source from the beginning, compares what is stored by its
       checksum, and sends the rest. A body that is different begins anew.
    4. The message is stored only if size and checksum of what the broker has are those of what was read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import msgspec
from crc32c import crc32c

from clarion import limits
from clarion.client.options import Choice, SendOptions
from clarion.client.outbox import Ticket
from clarion.client.outcome import again, error_of
from clarion.client.sender import REFUSED_S_MAX
from clarion.client.sources import Block, Source, source_of
from clarion.core.streams import keyed_id, stream_id
from clarion.errors import BadArgument, Blocked, ClarionError, NoSuchStream, NotReady
from clarion.message import Headers, decode_headers, encode_headers, parse_destination
from clarion.wire import frames
from clarion.wire.frames import Type

if TYPE_CHECKING:
    from clarion.client.channel import Channel

ASK_AGAIN_S = 0.2
_Chunk = tuple[int, memoryview]


class Upload:
    """One body on its way to the broker."""

    def __init__(self, uploads: Uploads, identity: bytes, destination: str, size: int | None) -> None:
        self._uploads = uploads
        self.identity = identity
        self.destination = destination
        self.name = destination.encode()
        self.size = size
        self.stored = 0
        """What the broker has for certain."""
        self.checksum = 0
        """Of what it had when it was asked last."""
        self.message_id: str | None = None
        """It has the message already."""
        self.located = False
        self.error: ClarionError | None = None
        self._unsent: deque[_Chunk] = deque()
        self._sent: deque[_Chunk] = deque()
        self._kept_bytes = 0
        self._unanswered = 0
        self._rewinding = False
        self._waiting = False
        self._changed = asyncio.Event()
        self._failed = asyncio.Event()

    # --- the sender's side ------------------------------------------------------------------------------

    def put(self, offset: int, data: memoryview) -> None:
        """One more fragment; what the broker has of it is left out."""
        if offset + len(data) > self.stored:
            data = data[max(0, self.stored - offset) :]
            self._unsent.append((max(offset, self.stored), data))
            self._kept_bytes += len(data)
            self._uploads.wake()

    async def until(self, kept_bytes: int) -> None:
        """Return when no more than this is kept. Raises what it failed with."""
        while not self.located or self._kept_bytes > kept_bytes:
            self._check()
            self._changed.clear()
            await self._changed.wait()
        self._check()

    async def during(self, work: Coroutine[Any, Any, Block]) -> Block:
        """The result of `work`, which is given up when sending fails meanwhile."""
        task = asyncio.ensure_future(work)
        failed = asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait((task, failed), return_when=asyncio.FIRST_COMPLETED)
            self._check()
            return await task
        finally:
            failed.cancel()
            task.cancel()

    def _check(self) -> None:
        if self.error is not None:
            raise again(self.error)

    def fail(self, error: ClarionError) -> None:
        """It cannot go on."""
        self.error = self.error or error
        self._changed.set()
        self._failed.set()

    # --- the connection's side --------------------------------------------------------------------------

    def locate(self) -> None:
        """Ask how much is there."""
        arguments = {"destination": self.destination, "stream": self.identity, "size": self.size}
        self._uploads.session._ask(Type.REQUEST, {"verb": "stream", "arguments": arguments}, self._located)

    def _located(self, result: Any, error: ClarionError | None) -> None:
        if isinstance(error, NotReady):
            self._uploads.session._host.loop.call_later(ASK_AGAIN_S, self._uploads.locate, self)
        elif error is not None:
            self.fail(error)
        elif result["offset"] < self.stored:
            self._lost()
        else:
            self.message_id, self.checksum = result["id"], result["checksum"]
            self._advance(result["offset"])
            self._rewind()
            self.located = True
            self._changed.set()
            self._uploads.wake()

    def _lost(self) -> None:
        """The broker has given up what it had stored: nothing came for too long, or it had no room to finish it."""
        self.fail(NoSuchStream(stream=self.identity.hex(), destination=self.destination))

    def next(self) -> _Chunk | None:
        """What may be sent now."""
        if not self.located or self._rewinding or self._waiting or self.error is not None or not self._unsent:
            return None
        size = len(self._unsent[0][1])
        limit = limits.FRAGMENTS_UNANSWERED_MAX * limits.FRAGMENT_BYTES_MAX
        return None if self._unanswered and self._unanswered + size > limit else self._unsent[0]

    def transmit(self) -> None:
        """Send it."""
        offset, data = chunk = self._unsent.popleft()
        self._sent.append(chunk)
        self._unanswered += len(data)
        session = self._uploads.session
        parts = frames.fragment_parts(self.identity, offset, self.name, data)
        session._host.send(Type.FRAGMENT, session._channel, parts)

    def answered(self, stored: int, size: int, how: int, said: memoryview) -> None:
        """FRAGMENT_STORED."""
        self._unanswered = max(0, self._unanswered - size)
        match how:
            case frames.STORED_ALL:
                self._advance(stored)
            case frames.STORED_ELSE if stored < self.stored:
                self._lost()
            case frames.STORED_ELSE:
                self._advance(stored)
                self._rewinding = True
            case frames.STORED_WAIT:
                self._rewinding = self._waiting = True
                self._uploads.session._host.loop.call_later(REFUSED_S_MAX, self._go_on)
            case frames.STORED_GO:
                self._go_on()
            case _:
                self.fail(error_of(frames.unpack(said)))
        if self._rewinding and not self._unanswered:
            self._rewind()
        self._changed.set()

    def _go_on(self) -> None:
        self._waiting = False
        self._uploads.wake()

    def _advance(self, stored: int) -> None:
        self.stored = max(self.stored, stored)
        for chunks in (self._sent, self._unsent):
            while chunks and chunks[0][0] + len(chunks[0][1]) <= self.stored:
                self._kept_bytes -= len(chunks.popleft()[1])
            if chunks and chunks[0][0] < self.stored:
                offset, data = chunks[0]
                chunks[0] = (self.stored, data[self.stored - offset :])
                self._kept_bytes -= self.stored - offset

    def _rewind(self) -> None:
        """Begin again with what is not stored."""
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        self._rewinding = False

    def detach(self) -> None:
        """The connection is lost."""
        self.located = self._waiting = False
        self._unanswered = 0
        self._rewind()


class Uploads:
    """The bodies that a session is sending."""

    def __init__(self, session: Channel) -> None:
        self.session = session
        self._known: OrderedDict[bytes, Upload] = OrderedDict()
        self._unanswered = 0
        self._numbers = 0

    def wake(self) -> None:
        """Something may be sent."""
        self.session._host.wake()

    def turn(self) -> None:
        """Send a fragment of each body that may; the rest in the next turn, when others had theirs."""
        if not self._known:
            return
        host, more = self.session._host, False
        window = host.welcome.producer_window_bytes
        for upload in list(self._known.values()):
            chunk = upload.next()
            if chunk is None:
                continue
            size = len(chunk[1])
            if not host.writable or (self._unanswered and self._unanswered + size > window):
                return
            self._known.move_to_end(upload.identity)
            self._unanswered += size
            upload.transmit()
            more = True
        if more:
            host.wake()

    def stored(self, payload: memoryview) -> None:
        """FRAGMENT_STORED."""
        identity, stored, size, how = frames.STORED.unpack_from(payload)
        self._unanswered = max(0, self._unanswered - size)
        upload = self._known.get(identity)
        if upload is not None:
            upload.answered(stored, size, how, payload[frames.STORED.size :])

    def locate(self, upload: Upload) -> None:
        """Ask for it, if there is a connection and it is still wanted."""
        if self.session._attached and self._known.get(upload.identity) is upload:
            upload.locate()

    def attach(self) -> None:
        """There is a connection again."""
        self._unanswered = 0
        for upload in list(self._known.values()):
            upload.locate()

    def detach(self) -> None:
        """The connection is lost."""
        for upload in self._known.values():
            upload.detach()

    def end(self, error: ClarionError) -> None:
        """The session is over."""
        for upload in self._known.values():
            upload.fail(error)

    # --- one body, from the first byte to its message ---------------------------------------------------

    async def send(
        self, destination: str, reader: object, size: int | None, key: str | None, chunk: int, options: SendOptions
    ) -> str:
        """`Session.send_stream`."""
        session = self.session
        session._check_open()
        name = parse_destination(destination, system=True).name
        if not isinstance(chunk, int) or not 1 <= chunk <= limits.FRAGMENT_BYTES_MAX:
            raise BadArgument(argument="chunk", detail=f"{chunk!r} is not between 1 and {limits.FRAGMENT_BYTES_MAX}")
        session._chosen(options)
        source = await source_of(reader, limits.FRAGMENTS_UNANSWERED_MAX * chunk)
        size = await source.size(size)
        begin = await _begin(source, 0 if key is not None else chunk)
        if begin is not None:
            _check_size(size, len(begin))
            return await session.send(destination, begin, **options)
        if key is None:
            self._numbers += 1
            identity = stream_id(session._producer, self._numbers)
        else:
            identity = keyed_id(name, _checked_key(key))
        if identity in self._known:
            raise BadArgument(argument="key", detail="a body with this key is being sent in this session")
        upload = self._known[identity] = Upload(self, identity, destination, size)
        source.is_large()
        try:
            return await self._send(upload, source, chunk, options)
        except BaseException:
            if key is None and session._attached and not session._closing:
                session._ask(
                    Type.REQUEST, {"verb": "drop_stream", "arguments": {"stream": identity}}, lambda _, __: None
                )
            raise
        finally:
            source.close()
            del self._known[identity]

    async def _send(self, upload: Upload, source: Source, chunk: int, options: SendOptions) -> str:
        self.locate(upload)
        await upload.until(1 << 62)
        if upload.message_id is not None:
            return upload.message_id
        checksum = 0
        if upload.stored:
            checksum = await self._skip(upload, source)
        checksum, size = await self._pour(upload, source, chunk, checksum)
        _check_size(upload.size, size)
        await upload.until(0)
        return await self._publish(upload, size, checksum, options)

    async def _skip(self, upload: Upload, source: Source) -> int:
        """Read what is stored already, and compare; the checksum of it. A body that is different begins anew."""
        checksum, left = 0, upload.stored
        while left:
            block = memoryview(await upload.during(source.read()))
            if not block:
                break
            checksum = crc32c(block[:left], checksum)
            if len(block) > left:
                source.unread(block[left:])
            left -= min(left, len(block))
        if not left and checksum == upload.checksum:
            return checksum
        await self.session.command("drop_stream", {"stream": upload.identity})
        if not await source.rewind():
            detail = "what is stored under it does not begin this body, which cannot be read again from its beginning"
            raise BadArgument(argument="key", detail=detail)
        upload.stored, upload.located = 0, False
        self.locate(upload)
        await upload.until(1 << 62)
        return 0

    async def _pour(self, upload: Upload, source: Source, chunk: int, checksum: int) -> tuple[int, int]:
        """Read to the end and hand fragments over; the checksum of all, and how many bytes there are."""
        kept_max = limits.FRAGMENTS_UNANSWERED_MAX * chunk
        offset, rest = upload.stored, b""
        while True:
            await upload.until(kept_max)
            block = await upload.during(source.read())
            if not block:
                break
            checksum = crc32c(block, checksum)
            data = memoryview(b"".join((rest, block)) if rest else block)
            whole = len(data) - len(data) % chunk
            for at in range(0, whole, chunk):
                upload.put(offset + at, data[at : at + chunk])
            offset, rest = offset + whole, bytes(data[whole:])
            _check_size(upload.size, offset + len(rest), at_most=True)
        if rest:
            upload.put(offset, memoryview(rest))
        return checksum, offset + len(rest)

    async def _publish(self, upload: Upload, size: int, checksum: int, options: SendOptions) -> str:
        """The message: alone in its batch, with an empty body and headers that say where the large one is."""
        session = self.session
        while True:
            with session.lock:
                choice = session._chosen(options)
                headers = decode_headers(choice.headers)
                headers = msgspec.structs.replace(headers, large=(upload.identity, size, checksum))
                try:
                    ticket = self._put(upload, choice, headers)
                    break
                except Blocked:
                    pass
            await session.writable()
        return await ticket

    def _put(self, upload: Upload, choice: Choice, headers: Headers) -> Ticket:
        session = self.session
        choice = msgspec.structs.replace(choice, headers=encode_headers(headers))
        lane = session._lane(upload.destination)
        session._check_room(lane)
        if lane.open is not None:
            session._seal(lane)
        batch = session._begin(lane, choice.terms)
        batch.stream = upload.identity
        batch.add(b"", len(choice.headers), choice)
        session._seal(lane)
        session._host.wake()
        return Ticket(batch, 0)


async def _begin(source: Source, most: int) -> bytes | None:
    """The whole body, if it has at most so many bytes; it is sent like any other. Otherwise nothing is taken."""
    blocks: list[Block] = []
    size = 0
    while block := await source.read():
        blocks.append(block)
        size += len(block)
        if size > most:
            source.unread(block if len(blocks) == 1 else b"".join(blocks))
            return None
    return b"".join(blocks)


def _checked_key(key: object) -> str:
    if not isinstance(key, str) or not 0 < len(key.encode("utf-8", "replace")) <= limits.STREAM_KEY_BYTES_MAX:
        raise BadArgument(argument="key", detail=f"it is text of 1 to {limits.STREAM_KEY_BYTES_MAX} bytes")
    return key


def _check_size(said: int | None, found: int, *, at_most: bool = False) -> None:
    if said is not None and (found > said or (found < said and not at_most)):
        more = "at least " if at_most else ""
        raise BadArgument(argument="size", detail=f"it is said to be {said} bytes, and is {more}{found}")
