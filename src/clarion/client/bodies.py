"""Large bodies for the receiver: read from the broker little by little, a few requests ahead.

Guarantees
    1. What is in memory is bounded: a few fragments for each reader, whatever the body's size.
    2. After a lost connection reading goes on where it was. A body is there until its message is confirmed.
    3. Who reads from the first byte to the last gets exactly what was sent, or an error: the checksum is the sender's.

An ordinary message reads the same way; nothing is asked for it.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from crc32c import crc32c

from clarion import limits
from clarion.client.commands import Call
from clarion.client.runner import Runner
from clarion.errors import BadArgument, BadBatch, ClarionError, NotReady
from clarion.message import Message

if TYPE_CHECKING:
    from clarion.client.channel import Channel
    from clarion.client.inbox import Inbox
    from clarion.client.receiver import Receiver

PART_SUFFIX = ".part"
_SAVE_BYTES = 4 * limits.FRAGMENT_BYTES_MAX
ASK_AGAIN_S = 0.2


class _Asked(Call):
    """A request for bytes of a body; forgotten when it is answered, awaited or not."""

    __slots__ = ("_session", "offset", "size")

    def __init__(self, session: Channel, arguments: dict[str, Any]) -> None:
        super().__init__("fragment", arguments)
        self._session = session
        self.offset: int = arguments["offset"]
        self.size: int = arguments["bytes"]

    def answered(self, result: Any, error: ClarionError | None) -> None:
        self._session._calls.pop(self, None)
        super().answered(result, error)


class BodyReader:
    """A body to be read: `await read(n)`, or `async for chunk in reader`."""

    def __init__(self, session: Channel, destination: str, message: Message, offset: int) -> None:
        large = message.headers.large
        self.size: int = message.size
        """Bytes of the whole body."""
        if not isinstance(offset, int) or not 0 <= offset <= self.size:
            raise BadArgument(argument="offset", detail=f"{offset!r} is not between 0 and {self.size}")
        self.offset = offset
        """Where the next byte is read."""
        self._session = session
        self._where = {"destination": destination, "sequence": message.sequence}
        self._asked: deque[_Asked] = deque()
        self._ask_at = offset
        self._rest = memoryview(b"")
        self._wanted = None if large is None else large[2]
        self._checksum: int | None = None if offset else 0
        if large is None:
            self._rest = message.body_view[offset:]
            self._ask_at = self.size

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self.chunk()
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def chunk(self) -> bytes:
        """The next bytes, as many as there are at hand; none at the end."""
        return bytes(await self._chunk())

    async def read(self, count: int = -1) -> bytes:
        """At most `count` bytes, all that are left if it is negative; none at the end."""
        parts: list[memoryview] = []
        left = self.size - self.offset if count < 0 else min(count, self.size - self.offset)
        while left:
            chunk = await self._chunk(left)
            parts.append(chunk)
            left -= len(chunk)
        return b"".join(parts)

    async def _chunk(self, most: int | None = None) -> memoryview:
        """The next bytes, as many as are at hand; none at the end."""
        if not len(self._rest) and self.offset < self.size:
            self._rest = await self._next()
            if self._checksum is not None and self._wanted is not None:
                self._checksum = crc32c(self._rest, self._checksum)
                if self.offset + len(self._rest) == self.size and self._checksum != self._wanted:
                    raise BadBatch(detail=f"the large body of message {self._where['sequence']} has another checksum")
        chunk, self._rest = (self._rest, memoryview(b"")) if most is None else (self._rest[:most], self._rest[most:])
        self.offset += len(chunk)
        return chunk

    async def _next(self) -> memoryview:
        """The answer to the oldest request; meanwhile others are on their way."""
        while len(self._asked) < limits.FRAGMENTS_UNANSWERED_MAX and self._ask_at < self.size:
            size = min(limits.FRAGMENT_BYTES_MAX, self.size - self._ask_at)
            self._asked.append(self._ask(self._ask_at, size))
            self._ask_at += size
        asked = self._asked[0]
        while True:
            try:
                await asked.wait()
                break
            except NotReady:
                await asyncio.sleep(ASK_AGAIN_S)
                asked = self._asked[0] = self._ask(asked.offset, asked.size)
        self._asked.popleft()
        data = memoryview(asked.result["data"])
        if not len(data) or asked.result["size"] != self.size:
            raise BadBatch(detail=f"the large body has {asked.result['size']} bytes, its message says {self.size}")
        if len(data) < asked.size:
            self._asked.appendleft(self._ask(asked.offset + len(data), asked.size - len(data)))
        return data

    def _ask(self, offset: int, size: int) -> _Asked:
        session = self._session
        session._check_open()
        asked = _Asked(session, {**self._where, "offset": offset, "bytes": size})
        session._calls[asked] = None
        session._send_call(asked)
        return asked


class BlockingReader:
    """The same for callers that block: `read(n)`, or `for chunk in reader`."""

    def __init__(self, runner: Runner, reader: BodyReader) -> None:
        self._runner = runner
        self._reader = reader

    @property
    def size(self) -> int:
        """Bytes of the whole body."""
        return self._reader.size

    @property
    def offset(self) -> int:
        """Where the next byte is read."""
        return self._reader.offset

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._runner.call(self._reader.chunk()):
            yield chunk

    def read(self, count: int = -1) -> bytes:
        """At most `count` bytes, all that are left if it is negative; none at the end."""
        return self._runner.call(self._reader.read(count))


def session_of(inbox: Inbox) -> Channel:
    """The session of a received message."""
    return cast("Receiver", inbox._owner)._session


async def save(session: Channel, destination: str, message: Message, path: str | os.PathLike[str]) -> Path:
    """`ReceivedMessage.save`."""
    target = Path(path)
    unfinished = target.with_name(target.name + PART_SUFFIX)
    large = message.headers.large
    offset, checksum = 0, 0
    if large is not None:
        offset, checksum = await asyncio.to_thread(_begun, unfinished, message.size)
    for begin in (offset, 0):
        reader = BodyReader(session, destination, message, begin)
        reader._checksum = checksum if begin else 0
        try:
            await _pour(reader, unfinished, begin)
        except BadBatch:
            if not begin or large is None:
                raise
        else:
            break  # else what was begun is not the beginning of this body
    await asyncio.to_thread(_finish, unfinished, target)
    return target


async def _pour(reader: BodyReader, path: Path, offset: int) -> None:
    file = await asyncio.to_thread(_open, path, offset)
    try:
        while block := await reader.read(_SAVE_BYTES):
            await asyncio.to_thread(file.write, block)
        await asyncio.to_thread(_sync, file)
    finally:
        file.close()
    if reader._wanted is not None and reader._checksum != reader._wanted:  # all of it was there before
        raise BadBatch(detail=f"{path} does not hold the large body of this message")


def _begun(path: Path, size: int) -> tuple[int, int]:
    """How much of a body a file holds, and the checksum of that."""
    checksum, offset = 0, 0
    if path.exists() and path.stat().st_size <= size:
        with path.open("rb") as file:
            while block := file.read(_SAVE_BYTES):
                checksum = crc32c(block, checksum)
                offset += len(block)
    return offset, checksum


def _open(path: Path, offset: int) -> Any:
    """A file, cut off at `offset`, to be written from there."""
    file = path.open("r+b" if offset else "wb")
    file.truncate(offset)
    file.seek(offset)
    return file


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _finish(unfinished: Path, target: Path) -> None:
    unfinished.replace(target)
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
