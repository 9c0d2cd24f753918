"""A connection that records what a session's sending half sends, and says what the test lets a broker say."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from clarion import ids, limits
from clarion.client.publisher import Publisher
from clarion.errors import ClarionError
from clarion.message import Headers, decode_headers
from clarion.protocols.greetings import Welcome
from clarion.wire import frames
from clarion.wire.batch import GROUPS, Batch, Buffer
from clarion.wire.frames import Type

PRODUCER = 7 << ids.SEQUENCE_MAX.bit_length()


@dataclass
class Sent:
    """A PUBLISH or STAGE as it would arrive."""

    kind: int
    flags: int
    transaction: int
    floor: int
    batch: Batch

    @property
    def first(self) -> int:
        return ids.sequence_of(self.batch.first_id)

    @property
    def count(self) -> int:
        return self.batch.count

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def resend(self) -> bool:
        return bool(self.flags & frames.RESEND)

    @property
    def destination(self) -> str:
        return self.batch.destination.decode()

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(self.batch.record(index)[1]) for index in range(self.count)]

    @property
    def headers(self) -> list[Headers]:
        return [decode_headers(self.batch.record(index)[0]) for index in range(self.count)]

    @property
    def groups(self) -> list[int] | None:
        """The column of group hashes, found by hand: the last column but the times, which nobody sends."""
        if not self.batch.flags & GROUPS:
            return None
        at = self.batch.size - len(self.batch.data) - 4 * self.count
        return list(struct.unpack_from(f"<{self.count}I", self.batch.buffer, at))


class StillLoop:
    """A loop in which no time passes: timers are kept for the test to call."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], object]] = []

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: Any) -> None:
        self.timers.append(lambda: callback(*arguments))

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


class RecordingHost:
    """What `Publisher` needs of a connection; `turn` is the connection's."""

    def __init__(
        self,
        *,
        buffer_bytes: int = limits.CLIENT_BUFFER_BYTES,
        batch_bytes_max: int = limits.BATCH_BYTES_MAX,
        window: int = limits.PRODUCER_WINDOW_BYTES,
        answering: bool = False,
    ) -> None:
        self.still = StillLoop()
        self.loop: Any = self.still
        self.welcome = Welcome(1, "recording", 10_000, batch_bytes_max, window)
        self.writable = True
        self.scheduled = False
        self.failure: ClarionError | None = None
        self.answering = answering
        """Answer at once, in turns of the running loop."""
        self.sent: list[Sent] = []
        self.on_sent: Callable[[Sent], None] = lambda sent: None
        self.publisher = Publisher(self, 1, buffer_bytes)
        self.publisher._attach_sends(PRODUCER)

    def wake(self) -> None:
        if self.answering:
            asyncio.get_running_loop().call_soon(self.turn)

    def send(self, kind: int, channel: int, parts: Iterable[Buffer] = (), flags: int = 0) -> None:
        payload = b"".join(parts)
        transaction, head = 0, frames.FLOOR
        if kind == Type.STAGE:
            transaction, floor = frames.STAGED.unpack_from(payload)
            head = frames.STAGED
        else:
            assert kind == Type.PUBLISH
            (floor,) = frames.FLOOR.unpack_from(payload)
        sent = Sent(kind, flags, transaction, floor, Batch.parse(payload[head.size :]))
        assert sent.floor <= sent.first  # a gateway ends the connection for less
        self.sent.append(sent)
        self.on_sent(sent)
        if self.answering:
            asyncio.get_running_loop().call_soon(self._answer, sent)

    def write(self) -> None: ...

    def register(self, session: object) -> None: ...

    def forget(self, channel: int) -> None: ...

    def turn(self) -> None:
        self.publisher._pump()

    def flush(self) -> list[Sent]:
        """Also send what would wait for more; everything that was sent so far."""
        self.publisher._seal_all()
        self.turn()
        return self.sent

    def _answer(self, sent: Sent) -> None:
        if self.published(sent):
            self.turn()

    # --- what a broker says ---------------------------------------------------------------------------

    def published(self, *sent: Sent) -> bool:
        entries = b"".join(frames.SETTLED.pack(one.first, one.count, 0) for one in sent)
        return self.publisher._published(memoryview(entries))

    def failed(self, sent: Sent, error: ClarionError) -> None:
        said = frames.SETTLED.pack(sent.first, sent.count, 0) + frames.pack(frames.error_facts(error))
        self.publisher._publish_failed(memoryview(said))

    def delivered(self, *entries: tuple[int, int, int]) -> None:
        """(first, end, how) …"""
        said = b"".join(frames.SETTLED.pack(first, end - first, how) for first, end, how in entries)
        self.publisher._delivered(memoryview(said))

    def refused(self, first: int) -> None:
        said = frames.FLOOR.pack(first) + frames.pack({"destination": "x", "reason": "full"})
        self.publisher._refused(memoryview(said))

    def resume(self, first: int) -> None:
        self.publisher._resume(memoryview(frames.FLOOR.pack(first) + b"x"))

    def reconnect(self, producer: int = PRODUCER) -> None:
        """The link is lost, and there is another."""
        self.publisher._detach_sends()
        self.publisher._attach_sends(producer)
