"""The sender's side of a multiplexer: what is awaited, what a broken or hostile one does to it (A-11)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.errors import BadArgument, ClarionError, ConnectionFailed, NotDelivered, Timeout
from clarion.events.link import frames
from clarion.events.link.confirmations import pack_confirmations, unpack_confirmations
from clarion.events.link.frames import Frame, Hello, Incoming, Role, Type
from clarion.events.memory import Recorded
from clarion.events.multiplex import signals
from clarion.events.recipients import Later, Multiplexing, Partly, from_table
from clarion.events.recipients.awaited import Awaited

A, B = 7 << 64, 9 << 64


def event(producer: int, sequence: int, size: int = 10) -> Recorded:
    return Recorded(producer, sequence, 1 << 60, 20, 1, 1, 0, b"", b"x" * size, sequence)


# --- what is awaited ----------------------------------------------------------------------------------

_origins = st.tuples(st.sampled_from((A, B)), st.integers(1, 30))


@given(
    st.lists(st.lists(_origins, unique=True, min_size=1, max_size=12), max_size=6),
    st.lists(st.tuples(st.sampled_from((A, B)), st.integers(1, 30), st.integers(1, 10)), max_size=10),
    st.integers(0, 5),
)
def test_a11_every_event_is_answered_to_the_last_delivery_it_was_in(
    deliveries: list[list[tuple[int, int]]], answers: list[tuple[int, int, int]], dropped: int
) -> None:
    awaited = Awaited()
    laters = [Later() for _ in deliveries]
    model: dict[tuple[int, int], tuple[Later, int]] = {}
    for later, origins in zip(laters, deliveries, strict=True):
        awaited.add([event(*origin) for origin in origins], later)
        model.update({origin: (later, index) for index, origin in enumerate(origins)})
    if dropped < len(laters):
        awaited.drop(laters[dropped])
        model = {origin: found for origin, found in model.items() if found[0] is not laters[dropped]}
    for producer, first, count in answers:
        taken = awaited.take(producer, first, first + count)
        found = [(later, index) for later, runs in taken for begin, end in runs for index in range(begin, end)]
        gone = [model.pop((producer, at)) for at in range(first, first + count) if (producer, at) in model]
        assert found == gone
    assert awaited.count == len(model)
    left = {(producer, at) for producer, first, end in awaited.ranges() for at in range(first, end)}
    assert left == set(model)


# --- a multiplexer that does what a test wants ----------------------------------------------------------


class Scripted:
    """Answers frames as it is told; `sent` is what came."""

    def __init__(self, answer: Callable[[Frame, int], list[bytes]], switches: int) -> None:
        self._answer = answer
        self._switches = switches
        self.sent: list[tuple[int, bytes]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.connections += 1
        incoming = Incoming(1 << 18)
        try:
            while data := await reader.read(1 << 16):
                while data:
                    room = incoming.room()
                    taken = min(len(room), len(data))
                    room[:taken] = data[:taken]
                    incoming.received(taken)
                    data = data[taken:]
                    while (frame := incoming.peek()) is not None:
                        self._handle(frame, writer)
                        incoming.drop()
        except (OSError, ClarionError):
            pass
        finally:
            writer.close()

    def _handle(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        self.sent.append((frame.type, bytes(frame.payload)))
        if frame.type == Type.HELLO:
            hello = frames.pack_hello(Hello("m", Role.MULTIPLEX, self._switches))
            writer.write(frames.frame(Type.HELLO, hello, frame.number))
            return
        for one in self._answer(frame, self.connections):
            writer.write(one)

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()


def stored(frame: Frame) -> bytes:
    count = len(frames.unpack_put(frame.payload)[1])
    return frames.frame(Type.STORED, frames.STORED.pack(count, 0, 1), frame.number)


def said(token: int, recipient: str, *ranges: tuple[int, int, int]) -> bytes:
    return frames.frame(Type.CONFIRMED, pack_confirmations([(recipient, list(ranges))], 0, token))


async def _with(
    answer: Callable[[Frame, int], list[bytes]],
    work: Callable[[Multiplexing, Scripted], Awaitable[None]],
    switches: int = signals.CONFIRMS_EARLY,
    timeout_s: float = 10.0,
) -> None:
    scripted = Scripted(answer, switches)
    server = await asyncio.start_server(scripted, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        async with Multiplexing(f"{host}:{port}", timeout_s=timeout_s) as recipient:
            await work(recipient, scripted)
    finally:
        server.close()
        await scripted.close()


def test_a11_early_a_delivery_is_confirmed_when_it_is_stored() -> None:
    async def work(recipient: Multiplexing, scripted: Scripted) -> None:
        assert await recipient.deliver([event(A, 1), event(B, 4)]) is None
        recipient.settled(A, 2)
        assert await recipient.deliver([event(A, 2)]) is None
        puts = [frames.unpack_put(memoryview(payload))[1] for kind, payload in scripted.sent if kind == Type.PUT]
        assert [[frames.origin_of(record) for record in records] for records in puts] == [[(A, 1), (B, 4)], [(A, 2)]]
        floors = [
            frames.unpack_released(memoryview(payload)) for kind, payload in scripted.sent if kind == Type.RELEASED
        ]
        assert floors == [(A, 2)]

    asyncio.run(_with(lambda frame, _: [stored(frame)] if frame.type == Type.PUT else [], work))


def test_a11_late_a_delivery_is_confirmed_event_by_event() -> None:
    """Also what is said before it is known that the events are stored; strangers are passed over."""

    def answer(frame: Frame, _: int) -> list[bytes]:
        if frame.type != Type.PUT:
            return []
        early = said(signals.OF_ALL, "x", (A, 2, 3), (B, 1, 99))
        return [early, stored(frame), said(signals.OF_ALL, "x", (A, 1, 2), (A, 3, 9))]

    async def work(recipient: Multiplexing, _: Scripted) -> None:
        later = await recipient.deliver([event(A, number) for number in (1, 2, 3)])
        assert later is not None
        confirmed: list[tuple[int, int]] = []
        complete = asyncio.Event()

        def confirm(ranges: list[tuple[int, int]]) -> None:
            confirmed.extend(ranges)
            if sum(end - first for first, end in confirmed) == 3:
                complete.set()

        later.listen(confirm, lambda _: None)
        await asyncio.wait_for(complete.wait(), 10)
        assert sorted(confirmed) == [(0, 1), (1, 2), (2, 3)]

    asyncio.run(_with(answer, work, switches=0))


def test_a11_late_what_was_missed_is_asked_for_on_the_next_connection() -> None:
    """The first connection breaks after storing; the second one knows one event, and has lost the other."""

    def answer(frame: Frame, connection: int) -> list[bytes]:
        if frame.type == Type.PUT:
            return [stored(frame), b"\xff" * 32]  # what makes no sense ends the connection
        if frame.type == Type.NOTE and connection == 2:
            ((_, ranges),) = unpack_confirmations(frame.payload)[2]
            assert ranges == [(A, 1, 3)]
            return [said(signals.OF_ALL, "x", (A, 1, 2)), said(signals.UNKNOWN, "x", (A, 2, 3))]
        return []

    async def work(recipient: Multiplexing, scripted: Scripted) -> None:
        later = await recipient.deliver([event(A, 1), event(A, 2)])
        assert later is not None
        said_: dict[str, list[tuple[int, int]]] = {}
        both = asyncio.Event()

        def note(kind: str, ranges: list[tuple[int, int]]) -> None:
            said_[kind] = ranges
            if len(said_) == 2:
                both.set()

        later.listen(lambda ranges: note("confirmed", ranges), lambda ranges: note("again", ranges))
        await asyncio.wait_for(both.wait(), 10)
        assert said_ == {"confirmed": [(0, 1)], "again": [(1, 2)]}
        assert scripted.connections == 2

    asyncio.run(_with(answer, work, switches=0))


def test_a11_forwarded_confirmations_are_counted_and_told() -> None:
    heard: list[tuple[str, list[tuple[int, int, int]]]] = []

    def hear(recipient: str, ranges: list[tuple[int, int, int]]) -> None:
        heard.append((recipient, ranges))
        raise ValueError("somebody's code")

    def answer(frame: Frame, _: int) -> list[bytes]:
        return [said(signals.OF_RECIPIENT, "log", (A, 1, 3)), stored(frame)] if frame.type == Type.PUT else []

    async def work(recipient: Multiplexing, _: Scripted) -> None:
        recipient.on_confirmation = hear
        await recipient.deliver([event(A, 1), event(A, 2)])
        await recipient.deliver([event(A, 1), event(A, 2)])
        assert heard == [("log", [(A, 1, 3)])], "the same again is no news"
        assert recipient.confirmations_by_recipient == {"log": 2}

    asyncio.run(_with(answer, work))


def test_a11_a_full_multiplexer_is_waited_for_and_then_part_is_confirmed() -> None:
    from clarion.errors import Blocked

    refusals = 0

    def answer(frame: Frame, _: int) -> list[bytes]:
        nonlocal refusals
        if frame.type != Type.PUT:
            return []
        first = frames.origin_of(frames.unpack_put(frame.payload)[1][0])[1]
        if first == 1 and refusals:
            return [stored(frame)]
        refusals += 1
        return [frames.frame(Type.ERROR, frames.pack_error(Blocked(destination="m", detail="full")), frame.number)]

    async def work(recipient: Multiplexing, _: Scripted) -> None:
        assert await recipient.deliver([event(A, 1)]) is None
        assert refusals == 1
        large = [event(A, number, 100_000) for number in (1, 2, 3)]  # two of them fit one frame
        with pytest.raises(Partly) as partly:
            await recipient.deliver(large)
        assert partly.value.done == {0, 1}
        assert isinstance(partly.value.error, Blocked)

    asyncio.run(_with(answer, work, timeout_s=0.5))


def test_a11_an_event_that_is_too_large_for_it_fails_for_good() -> None:
    async def work(recipient: Multiplexing, _: Scripted) -> None:
        with pytest.raises(Partly) as partly:
            await recipient.deliver([event(A, 1), event(A, 2, 1 << 19)])
        assert partly.value.done == {0}
        with pytest.raises(NotDelivered) as refused:
            await recipient.deliver([event(A, 2, 1 << 19)])
        assert refused.value.facts["permanent"]

    asyncio.run(_with(lambda frame, _: [stored(frame)] if frame.type == Type.PUT else [], work))


def test_a11_one_that_does_not_answer_fails_in_time() -> None:
    async def work(recipient: Multiplexing, _: Scripted) -> None:
        with pytest.raises(Timeout):
            await recipient.deliver([event(A, 1)])

    asyncio.run(_with(lambda *_: [], work, timeout_s=0.2))


def test_a11_nobody_there_or_somebody_else() -> None:
    async def nobody() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        server.close()
        await server.wait_closed()
        async with Multiplexing(f"{host}:{port}") as recipient:
            with pytest.raises(ConnectionFailed):
                await recipient.deliver([event(A, 1)])

    async def somebody_else() -> None:
        async def web(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(web, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with Multiplexing(f"{host}:{port}") as recipient:
            with pytest.raises(ConnectionFailed):
                await recipient.deliver([event(A, 1)])
        server.close()

    asyncio.run(nobody())
    asyncio.run(somebody_else())


@pytest.mark.parametrize("address", ["", "host", "host:", "host:x", "host:0", "host:99999", ":1"])
def test_a11_addresses_that_are_none(address: str) -> None:
    with pytest.raises(BadArgument):
        Multiplexing(address)


def test_a11_from_a_table() -> None:
    made = from_table({"type": "multiplexer", "address": "collector:7790", "timeout_ms": "5 s", "filter": "a = 1"})
    assert isinstance(made, Multiplexing)
    assert (made.name, made.filter, made._timeout_s) == ("multiplexer", "a = 1", 5.0)
