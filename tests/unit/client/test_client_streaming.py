"""Large bodies in the client, against a broker that says no, moves on and vanishes as a seed wants it (B-12)."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from random import Random
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion import ids, limits
from clarion.client.session import Session
from clarion.client.sources import source_of
from clarion.core.streams import keyed_id
from clarion.errors import BadArgument, ClarionError, MessageTooLarge, NoSuchStream
from clarion.message import decode_headers
from clarion.protocols.greetings import Welcome
from clarion.scheduling import PATIENT_NICE
from clarion.wire import frames
from clarion.wire.batch import Batch, Buffer
from clarion.wire.frames import Frame, Type
from tests.unit.client import scripted_broker

CHUNK = 10
PRODUCER = ids.IdGenerator.begin(0, 1, ids.EPOCH_MS + 1).next_producer()


class Broker:
    """A connection and the broker behind it in one: the rules of fragments, and a will of its own."""

    def __init__(self, seed: int, *, moody: bool = True, window: int = 35) -> None:
        self.rng = Random(seed)
        self.moody = moody
        self.welcome = Welcome(1, "fake", 10_000, limits.BATCH_BYTES_MAX, window)
        self.failure: ClarionError | None = None
        self.loop = asyncio.get_running_loop()
        self.session: Session | None = None
        self.linked = False
        self.stored: dict[bytes, bytearray] = {}
        self.finished: dict[bytes, str] = {}
        self.messages: list[tuple[bytes, Batch]] = []
        self.unanswered = 0
        self.sent_bytes = 0
        self.dropped: list[bytes] = []
        self._waits: set[bytes] = set()
        self.scheduled = False
        self._inbox: list[tuple[int, bytes]] = []
        """What the client sent that is not answered."""

    # --- Host -----------------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        return self.linked

    def write(self) -> None: ...

    def wake(self) -> None:
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.scheduled = False
        if self.session is not None and self.linked:
            self.session._turn()
        self.loop.call_soon(self._live)

    def send(self, kind: int, _channel: int, parts: Iterable[Buffer] = (), _flags: int = 0) -> None:
        if self.linked:
            self._inbox.append((kind, b"".join(parts)))
            if kind == Type.FRAGMENT:
                self.unanswered += len(frames.unpack_fragment(memoryview(self._inbox[-1][1])).data)
                assert self.unanswered <= max(self.welcome.producer_window_bytes, CHUNK), "the window is exceeded"

    def register(self, session: Any) -> None:
        self.session = session
        self._link()

    def forget(self, _channel: int) -> None:
        self.linked = False

    # --- the broker -----------------------------------------------------------------------------------

    def _link(self) -> None:
        assert self.session is not None
        self.linked = True
        self.session._connect()
        self.wake()

    def _live(self) -> None:
        """Answer some of what is here, or lose the connection."""
        if not self.linked or not (self._inbox or self._waits):
            return
        if self.moody and self.rng.random() < 0.04:
            self._lose()
            return
        for _ in range(self.rng.randint(1, 4) if self.moody else 100):
            if self._inbox:
                self._answer(*self._inbox.pop(0))
        for identity in [one for one in self._waits if self.rng.random() < 0.5]:
            self._waits.discard(identity)
            self._say(identity, 0, 0, frames.STORED_GO)
        self.wake()

    def _lose(self) -> None:
        """Some of what was on its way was still taken."""
        assert self.session is not None
        for kind, payload in self._inbox[: self.rng.randint(0, len(self._inbox))]:
            if kind == Type.FRAGMENT:
                fragment = frames.unpack_fragment(memoryview(payload))
                self._take(fragment)
        self._inbox.clear()
        self._waits.clear()
        self.unanswered = 0
        self.linked = False
        self.session._detach()
        self.loop.call_soon(self._link)

    def _tell(self, kind: int, *parts: Buffer) -> None:
        assert self.session is not None
        self.session._handle(Frame(kind, 0, 1, memoryview(b"".join(parts))))

    def _say(self, stream: bytes, stored: int, answered: int, how: int, said: object = None) -> None:
        tail = b"" if said is None else frames.pack(said)
        self._tell(Type.FRAGMENT_STORED, frames.STORED.pack(stream, stored, answered, how), tail)

    def _take(self, fragment: frames.Fragment) -> bool:
        body = self.stored.setdefault(fragment.stream, bytearray())
        if fragment.offset != len(body):
            return False
        body += fragment.data
        return True

    def _answer(self, kind: int, payload: bytes) -> None:
        if kind == Type.OPEN:
            self._tell(Type.OPENED, frames.pack({"producer": PRODUCER.to_bytes(16, "big")}))
        elif kind == Type.CLOSE:
            self._tell(Type.CLOSED)
        elif kind == Type.REQUEST:
            self._request(frames.unpack(payload))
        elif kind == Type.PUBLISH_LARGE:
            stream, _transaction, _floor = frames.LARGE.unpack_from(payload)
            batch = Batch.parse(payload[frames.LARGE.size :])
            self.messages.append((stream, batch))
            first = ids.sequence_of(batch.first_id)
            self._tell(Type.PUBLISHED, frames.SETTLED.pack(first, batch.count, 0))
        elif kind == Type.PUBLISH:
            batch = Batch.parse(payload[frames.FLOOR.size :])
            self.messages.append((b"", batch))
            self._tell(Type.PUBLISHED, frames.SETTLED.pack(ids.sequence_of(batch.first_id), batch.count, 0))
        elif kind == Type.FRAGMENT:
            self._fragment(frames.unpack_fragment(memoryview(payload)))

    def _fragment(self, fragment: frames.Fragment) -> None:
        size = len(fragment.data)
        self.unanswered -= size
        self.sent_bytes += size
        if self.moody and self.rng.random() < 0.1:
            self._waits.add(fragment.stream)
            self._say(fragment.stream, 0, size, frames.STORED_WAIT, {"reason": "moody"})
        elif self._take(fragment):
            self._say(fragment.stream, len(self.stored[fragment.stream]), size, frames.STORED_ALL)
        else:
            self._say(fragment.stream, len(self.stored[fragment.stream]), size, frames.STORED_ELSE)

    def _request(self, asked: dict[str, Any]) -> None:
        arguments, result = asked["arguments"], {}
        identity = arguments["stream"]
        if asked["verb"] == "stream":
            if (arguments["size"] or 0) > 10**6:
                error = frames.error_facts(MessageTooLarge(size=arguments["size"], limit=10**6))
                self._tell(Type.ERROR, frames.pack({"request": asked["request"], **error}))
                return
            body = self.stored.get(identity, bytearray())
            result = {"offset": len(body), "checksum": crc32c(body), "id": self.finished.get(identity)}
        elif asked["verb"] == "drop_stream":
            self.dropped.append(identity)
            self.stored.pop(identity, None)
        self._tell(Type.REPLY, frames.pack({"request": asked["request"], "result": result}))


async def opened(broker: Broker) -> Session:
    return await Session(broker, 1, limits.CLIENT_BUFFER_BYTES)


def bounded(work: Any) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(20):
            return await work

    with asyncio.Runner(loop_factory=scripted_broker.loop_factory) as runner:
        return runner.run(limited())


# --- sending ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.integers(0, 40), max_size=12), st.booleans())
def test_b12_every_byte_arrives_once_whatever_the_broker_does(seed: int, sizes: list[int], keyed: bool) -> None:
    rng = Random(seed)
    parts = [rng.randbytes(size) for size in sizes]
    body = b"".join(parts)

    async def scenario() -> None:
        broker = Broker(seed)
        session = await opened(broker)
        await session.send_stream("q", iter(parts), key="k" if keyed else None, chunk=CHUNK)
        streams = [(stream, batch) for stream, batch in broker.messages if stream]
        if len(body) <= (0 if keyed else CHUNK):
            assert not streams
            assert {bytes(batch.record(0)[1]) for _, batch in broker.messages} == {body}
            return
        stream = streams[0][0]
        assert broker.stored[stream] == body
        large = decode_headers(streams[0][1].record(0)[0]).large
        assert large == (stream, len(body), crc32c(body))
        assert (stream == keyed_id("q", "k")) == keyed

    bounded(scenario())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 3))
def test_b12_several_bodies_share_the_window_of_their_session(seed: int, count: int) -> None:
    bodies = [Random(seed + number).randbytes(50 * number + 11) for number in range(count)]

    async def scenario() -> None:
        broker = Broker(seed)
        session = await opened(broker)
        await asyncio.gather(*(session.send_stream("q", body, chunk=CHUNK) for body in bodies))
        assert sorted(map(bytes, broker.stored.values())) == sorted(bodies)

    bounded(scenario())


@pytest.mark.parametrize("stored", [0, 1, 10, 25, 99, 100])
def test_b12_with_a_key_another_process_sends_only_what_is_missing(stored: int) -> None:
    body = bytes(range(100))

    async def scenario() -> None:
        broker = Broker(1, moody=False)
        broker.stored[keyed_id("q", "k")] = bytearray(body[:stored])
        session = await opened(broker)
        await session.send_stream("queue:q", io.BytesIO(body), key="k", chunk=CHUNK)
        assert broker.stored[keyed_id("q", "k")] == body
        assert broker.sent_bytes == 100 - stored
        assert not broker.dropped

    bounded(scenario())


@pytest.mark.parametrize("stored", [b"x" * 50, b"y" * 300])
def test_b12_a_body_that_is_different_begins_anew(stored: bytes) -> None:
    body = bytes(range(100))

    async def scenario() -> None:
        broker = Broker(1, moody=False)
        broker.stored[keyed_id("q", "k")] = bytearray(stored)
        session = await opened(broker)
        with pytest.raises(BadArgument, match="does not begin this body"):
            await session.send_stream("q", iter([body]), key="k", chunk=CHUNK)
        broker.stored[keyed_id("q", "k")] = bytearray(stored)
        await session.send_stream("q", io.BytesIO(b"before" + body), key="k", chunk=CHUNK)
        assert broker.stored[keyed_id("q", "k")] == b"before" + body

    bounded(scenario())


def test_b12_a_key_whose_message_is_stored_sends_nothing() -> None:
    async def scenario() -> None:
        broker = Broker(1, moody=False)
        broker.finished[keyed_id("q", "k")] = "the id"
        session = await opened(broker)
        assert await session.send_stream("q", b"z" * 100, key="k", chunk=CHUNK) == "the id"
        assert broker.sent_bytes == 0 and not broker.messages

    bounded(scenario())


async def _failing() -> AsyncIterator[bytes]:
    for _ in range(5):
        yield b"0123456789" * 3
    raise RuntimeError("the source broke")


def test_b12_a_source_that_fails_gives_its_body_up_unless_it_has_a_key() -> None:
    async def scenario() -> None:
        broker = Broker(1, moody=False)
        session = await opened(broker)
        with pytest.raises(RuntimeError, match="broke"):
            await session.send_stream("q", _failing(), chunk=CHUNK)
        with pytest.raises(RuntimeError, match="broke"):
            await session.send_stream("q", _failing(), chunk=CHUNK, key="k")
        for _ in range(10):
            await asyncio.sleep(0)  # a few turns, in which the broker hears of it
        assert len(broker.dropped) == 1
        assert broker.dropped != [keyed_id("q", "k")]
        assert not broker.messages

    bounded(scenario())


@pytest.mark.parametrize(
    ("reader", "options", "error"),
    [
        ("text", {}, "not a binary file"),
        (7, {}, "not a binary file"),
        (["text"], {}, "gave a str"),
        (io.StringIO("text"), {}, "gave a str"),
        (b"x" * 50, {"size": 51}, "said to be 51 bytes, and is 50"),
        ([b"x" * 50], {"size": 49}, "said to be 49 bytes, and is at least 50"),
        (b"x" * 50, {"size": -1}, "not a number of bytes"),
        (b"x" * 50, {"chunk": 0}, "not between 1"),
        (b"x" * 50, {"key": ""}, "text of 1"),
        (b"x" * 50, {"priority": 11}, "not between 0 and 9"),
    ],
)
def test_b12_wrong_arguments_are_told(reader: Any, options: dict[str, Any], error: str) -> None:
    async def scenario() -> None:
        broker = Broker(1, moody=False)
        session = await opened(broker)
        with pytest.raises(BadArgument, match=error):
            await session.send_stream("q", reader, **{"chunk": CHUNK, **options})
        assert not broker.messages

    bounded(scenario())


def test_b12_a_body_that_is_too_large_fails_before_anything_is_sent() -> None:
    async def scenario() -> None:
        broker = Broker(1, moody=False)
        session = await opened(broker)
        with pytest.raises(MessageTooLarge):
            await session.send_stream("q", iter([b"x" * 50]), size=10**7, chunk=CHUNK)
        assert not broker.sent_bytes

    bounded(scenario())


@pytest.mark.parametrize("connection_lost", [False, True])
def test_b12_a_broker_that_has_given_up_what_it_stored_is_believed(connection_lost: bool) -> None:
    async def scenario() -> None:
        broker = Broker(1, moody=False)
        session = await opened(broker)

        async def body() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"0123456789"
                await asyncio.sleep(0)
            assert any(broker.stored.values())
            broker.stored.clear()
            if connection_lost:
                broker._lose()
            yield b"x" * 100

        with pytest.raises(NoSuchStream):
            await session.send_stream("q", body(), chunk=CHUNK)

    bounded(scenario())


# --- sources ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "rewinds"), [("bytes", True), ("file", True), ("iterable", False), ("async", False), ("reader", False)]
)
def test_b12_sources_give_everything_in_order(kind: str, rewinds: bool) -> None:
    body = Random(3).randbytes(1000)

    async def drip() -> AsyncIterator[bytes]:
        for at in range(0, 1000, 7):
            yield body[at : at + 7]

    async def scenario() -> None:
        stream = asyncio.StreamReader()
        stream.feed_data(body)
        stream.feed_eof()
        readers = {
            "bytes": bytearray(body),
            "file": io.BytesIO(body),
            "iterable": (body[at : at + 7] for at in range(0, 1000, 7)),
            "async": drip(),
            "reader": stream,
        }
        source = await source_of(readers[kind], 100)
        assert await source.size(None) == (1000 if rewinds else None)
        first = bytes(await source.read())
        source.unread(first)
        got = b""
        while block := await source.read():
            got += bytes(block)
        assert got == body
        assert await source.rewind() is rewinds
        assert bytes(await source.read())[:1] == (body[:1] if rewinds else b"")

    bounded(scenario())


def test_b13_a_large_body_is_read_in_a_thread_that_makes_way_for_others() -> None:
    seen: list[tuple[str, bool]] = []

    def parts() -> Iterator[bytes]:
        for _ in range(3):
            name = threading.current_thread().name
            seen.append((name, os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) >= PATIENT_NICE))
            yield bytes(100)

    async def scenario() -> None:
        source = await source_of(parts(), 100)
        await source.read()
        source.is_large()
        while await source.read():
            pass
        source.close()

    bounded(scenario())
    (first, _), *rest = seen
    assert not first.startswith("clarion-source"), "whether it is large is not known yet"
    assert len(rest) == 2 and all(name.startswith("clarion-source") and patient for name, patient in rest)
