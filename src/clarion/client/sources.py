"""Where a large body comes from: anything that gives bytes, read in blocks and never on the event loop's thread.

Guarantees: `read` gives what there is, about a block at a time, and nothing at the end; what was given back by
`unread` comes first again. `rewind` says whether it could go back to where it began.

What blocks, or computes, happens in a thread. Of a large body it is one of its own, which makes way for other threads:
whoever has only a small message is not to wait for a core until a block is read (see `clarion.scheduling`).
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, BinaryIO, TypeVar

from clarion.errors import BadArgument
from clarion.scheduling import be_patient

Block = bytes | bytearray | memoryview
StreamSource = Block | Iterable[Block] | AsyncIterable[Block] | BinaryIO | Any
"""What `send_stream` takes: bytes, iterables of them, and whatever has a `read` that gives them."""
_T = TypeVar("_T")


class Source(ABC):
    """What all kinds share."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._unread: Block = b""
        self._thread: ThreadPoolExecutor | None = None

    def is_large(self) -> None:
        """There is much to read: from now on in a thread of its own, until `close`."""
        self._thread = ThreadPoolExecutor(1, "clarion-source", initializer=be_patient)

    def close(self) -> None:
        """Nothing more is read."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def _apart(self, work: Callable[..., _T], *arguments: object) -> _T:
        """What blocks, in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, copy_context().run, work, *arguments)

    async def read(self) -> Block:
        """The next bytes; none at the end."""
        if len(self._unread):
            block, self._unread = self._unread, b""
            return block
        return _checked(await self._read())

    def unread(self, block: Block) -> None:
        """These come first again."""
        self._unread = block

    async def size(self, said: int | None) -> int | None:
        """How many bytes there are, if that can be known."""
        if said is not None and (not isinstance(said, int) or isinstance(said, bool) or said < 0):
            raise BadArgument(argument="size", detail=f"{said!r} is not a number of bytes")
        return said

    async def rewind(self) -> bool:
        """Back to where it began, if it can."""
        return False

    @abstractmethod
    async def _read(self) -> object:
        """A block, without what was given back."""


class _Whole(Source):
    """Bytes that are in memory already."""

    def __init__(self, data: Block, block_bytes: int) -> None:
        super().__init__(block_bytes)
        self._data = memoryview(data).cast("B")
        self._at = 0

    async def size(self, said: int | None) -> int | None:
        return len(self._data) if said is None else await super().size(said)

    async def rewind(self) -> bool:
        self._at, self._unread = 0, b""
        return True

    async def _read(self) -> object:
        block = self._data[self._at : self._at + self._block_bytes]
        self._at += len(block)
        return block


class _File(Source):
    """A binary file object; its `read` blocks, so it runs in a thread."""

    def __init__(self, file: Any, block_bytes: int) -> None:
        super().__init__(block_bytes)
        self._file = file
        self._start = 0

    async def size(self, said: int | None) -> int | None:
        said = await super().size(said)
        seekable = getattr(self._file, "seekable", None)
        if seekable is None or not seekable():
            self._start = -1
            return said
        return await self._apart(self._measure, said)

    def _measure(self, said: int | None) -> int:
        self._start = self._file.tell()
        end = self._file.seek(0, 2)
        self._file.seek(self._start)
        return int(end - self._start) if said is None else said

    async def rewind(self) -> bool:
        if self._start < 0:
            return False
        await self._apart(self._file.seek, self._start)
        self._unread = b""
        return True

    async def _read(self) -> object:
        return await self._apart(self._file.read, self._block_bytes)


class _AsyncFile(Source):
    """A reader whose `read` is awaited: a stream of asyncio."""

    def __init__(self, reader: Any, block_bytes: int) -> None:
        super().__init__(block_bytes)
        self._reader = reader

    async def _read(self) -> object:
        return await self._reader.read(self._block_bytes)


class _Iteration(Source):
    """Any iterable of bytes; taking the next may block, so it happens in a thread, some at a time."""

    def __init__(self, parts: Iterator[object], block_bytes: int) -> None:
        super().__init__(block_bytes)
        self._parts = parts

    async def _read(self) -> object:
        return await self._apart(self._gather)

    def _gather(self) -> object:
        gathered, size = [], 0
        for part in self._parts:
            block = _checked(part)
            gathered.append(block)
            size += len(block)
            if size >= self._block_bytes:
                break
        return gathered[0] if len(gathered) == 1 else b"".join(gathered)


class _AsyncIteration(Source):
    """Any asynchronous iterable of bytes."""

    def __init__(self, parts: AsyncIterator[object], block_bytes: int) -> None:
        super().__init__(block_bytes)
        self._parts = parts

    async def _read(self) -> object:
        async for part in self._parts:
            block = _checked(part)
            if len(block):
                return block
        return b""


async def source_of(reader: object, block_bytes: int) -> Source:
    """A source of what a caller gave. Raises `BadArgument` for what gives no bytes."""
    if isinstance(reader, bytes | bytearray | memoryview):
        return _Whole(reader, block_bytes)
    read = getattr(reader, "read", None)
    if read is not None:
        return _AsyncFile(reader, block_bytes) if inspect.iscoroutinefunction(read) else _File(reader, block_bytes)
    if hasattr(reader, "__aiter__"):
        return _AsyncIteration(aiter(reader), block_bytes)
    if isinstance(reader, Iterable) and not isinstance(reader, str):
        return _Iteration(iter(reader), block_bytes)
    detail = f"it is a {type(reader).__name__}, not a binary file, bytes, or an iterable of bytes"
    raise BadArgument(argument="reader", detail=detail)


def _checked(block: object) -> Block:
    if isinstance(block, bytes | bytearray | memoryview):
        return block
    raise BadArgument(argument="reader", detail=f"it gave a {type(block).__name__}, not bytes")
