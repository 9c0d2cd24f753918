"""The server of the bare batch path: `python -m benchmarks.bare_server PORT JOURNAL`.

The loop receives and forwards; one thread writes and syncs. A batch is confirmed and forwarded only after the sync
that covers it. There is at most one consumer; without one, batches are confirmed and forgotten.

Bounded: a slow consumer stops the reading from the producer, and the journal is a ring of `JOURNAL_SIZE`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import uvloop

from benchmarks.bare import CONFIRM, CONSUMER, HEADER, PRODUCER
from benchmarks.processes import HOST

JOURNAL_SIZE = 128 << 20
RECEIVE_SIZE = 1 << 20
FORWARD_SIZE_MAX = 8 << 20
VECTORS_MAX = 512
"""Below the system's limit of buffers per vectored write."""

Batch = tuple["Connection", memoryview, int]
"""Who sent it, its bytes with the header, messages in it."""


class Journal:
    """Group commit: whatever waits is one write and one sync; meanwhile the next group gathers."""

    def __init__(self, path: Path, on_durable: Callable[[list[Batch]], None]) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        for offset in range(0, JOURNAL_SIZE, 1 << 20):
            os.pwrite(self._file, bytes(1 << 20), offset)
        os.fsync(self._file)
        self._on_durable = on_durable
        self._waiting: list[Batch] = []
        self._wake = threading.Condition()
        self._position = 0
        threading.Thread(target=self._write, daemon=True).start()

    def append(self, batches: list[Batch]) -> None:
        with self._wake:
            self._waiting += batches
            self._wake.notify()

    def _write(self) -> None:
        while True:
            with self._wake:
                while not self._waiting:
                    self._wake.wait()
                group, self._waiting = self._waiting[:VECTORS_MAX], self._waiting[VECTORS_MAX:]
            size = sum(len(view) for _, view, _ in group)
            if self._position + size > JOURNAL_SIZE:
                self._position = 0
            written = os.pwritev(self._file, [view for _, view, _ in group], self._position)
            if written != size:
                os._exit(3)  # a short write would make the figure a lie
            os.fdatasync(self._file)
            self._position += size
            self._on_durable(group)


class Connection(asyncio.BufferedProtocol):
    """A producer or the consumer; which one, its first byte says."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._buffer = memoryview(bytearray(RECEIVE_SIZE))
        self._start = self._end = 0
        self._role = b""
        self.confirmed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Batches are cut as views, so a used-up buffer is replaced, and only a cut-off batch is copied."""
        if self._end == len(self._buffer):
            rest = self._buffer[self._start : self._end]
            self._buffer = memoryview(bytearray(max(RECEIVE_SIZE, 2 * len(rest))))
            self._buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        if not self._role:
            self._role = bytes(self._buffer[:1])
            self._start = 1
            if self._role == CONSUMER:
                self._hub.set_consumer(self)
        if self._role == PRODUCER and (batches := self._cut()):
            self._hub.received(self, batches)

    def _cut(self) -> list[Batch]:
        batches: list[Batch] = []
        while self._end - self._start >= HEADER.size:
            length, count = HEADER.unpack_from(self._buffer, self._start)
            end = self._start + HEADER.size + length
            if end > self._end:
                break
            batches.append((self, self._buffer[self._start : end], count))
            self._start = end
        return batches

    def pause_writing(self) -> None:
        self._hub.set_flow(False)

    def resume_writing(self) -> None:
        self._hub.set_flow(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._hub.gone(self)


class Hub:
    """Joins producers, journal and consumer on the loop."""

    def __init__(self, journal: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._producers: set[Connection] = set()
        self._consumer: Connection | None = None
        self._journal = Journal(journal, lambda group: self._call(group))

    def _call(self, group: list[Batch]) -> None:
        self._loop.call_soon_threadsafe(self._durable, group)

    def received(self, producer: Connection, batches: list[Batch]) -> None:
        self._producers.add(producer)
        self._journal.append(batches)

    def _durable(self, group: list[Batch]) -> None:
        for producer, _, count in group:
            producer.confirmed += count
        for producer in {producer for producer, _, _ in group} & self._producers:
            producer.transport.write(CONFIRM.pack(producer.confirmed))
        if self._consumer is not None:
            self._consumer.transport.writelines([view for _, view, _ in group])

    def set_consumer(self, consumer: Connection) -> None:
        consumer.transport.set_write_buffer_limits(FORWARD_SIZE_MAX)
        self._consumer = consumer

    def set_flow(self, flows: bool) -> None:
        for producer in self._producers:
            if flows:
                producer.transport.resume_reading()
            else:
                producer.transport.pause_reading()

    def gone(self, connection: Connection) -> None:
        self._producers.discard(connection)
        if self._consumer is connection:
            self._consumer = None
            self.set_flow(True)


async def serve(port: int, journal: Path) -> None:
    hub = Hub(journal)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(hub), HOST, port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
