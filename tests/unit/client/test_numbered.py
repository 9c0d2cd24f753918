"""Sending under ids of one's own: floors that are true, order, resends, and batches cut from lists (A-08)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion import ids, limits
from clarion.client.cutting import Messages
from clarion.client.numbered import NumberedSender
from clarion.errors import BadArgument, Blocked, ClarionError, MessageTooLarge, ProducerTaken, SessionClosed
from clarion.protocols.greetings import Welcome
from clarion.wire import frames
from clarion.wire.batch import Batch, Buffer
from clarion.wire.frames import Frame, Type

PRODUCER = 7 << ids.SEQUENCE_BITS


class Broker:
    """A connection that keeps what is sent; the test answers."""

    def __init__(self, window_bytes: int = limits.PRODUCER_WINDOW_BYTES, settled_below: int = 1) -> None:
        self.loop = asyncio.get_running_loop()
        self.welcome = Welcome(1, "test", 10_000, limits.BATCH_BYTES_MAX, window_bytes)
        self.writable = True
        self.scheduled = False
        self.failure: ClarionError | None = None
        self.opened: list[dict[str, Any]] = []
        self.sent: list[tuple[int, Batch]] = []
        """Floor and batch."""
        self.closes = 0
        self.sender = NumberedSender(self, 1, PRODUCER, limits.CLIENT_BUFFER_BYTES, settled_below)

    def write(self) -> None: ...

    def wake(self) -> None:
        self.loop.call_soon(self.sender._turn)

    def send(self, kind: int, channel: int, parts: Iterable[Buffer] = (), flags: int = 0) -> None:
        payload = b"".join(parts)
        if kind == Type.OPEN:
            self.opened.append(frames.unpack(payload))
        elif kind == Type.CLOSE:
            self.closes += 1
            self.loop.call_soon(self.say, Type.CLOSED, b"")
        else:
            assert (kind, flags) == (Type.PUBLISH, 0)
            floor, batch = frames.FLOOR.unpack_from(payload)[0], Batch.parse(payload[frames.FLOOR.size :])
            assert floor <= ids.sequence_of(batch.first_id)  # a gateway ends the connection for less
            self.sent.append((floor, batch))

    def register(self, session: Any) -> None:
        self.connect()

    def forget(self, channel: int) -> None: ...

    def say(self, kind: int, payload: bytes) -> None:
        self.sender._handle(Frame(kind, 0, 1, memoryview(payload)))
        self.sender._turn()

    def connect(self) -> None:
        self.sender._connect()
        self.say(Type.OPENED, frames.pack({"producer": PRODUCER.to_bytes(16, "big")}))

    def reconnect(self) -> None:
        self.sender._detach()
        self.connect()

    @property
    def ranges(self) -> list[tuple[int, int]]:
        firsts = [ids.sequence_of(batch.first_id) for _, batch in self.sent]
        return [(first, first + batch.count) for first, (_, batch) in zip(firsts, self.sent, strict=True)]

    @property
    def floors(self) -> list[int]:
        return [floor for floor, _ in self.sent]

    def published(self, *ranges: tuple[int, int]) -> None:
        self.say(Type.PUBLISHED, b"".join(frames.SETTLED.pack(first, end - first, 0) for first, end in ranges))

    def failed(self, first: int, end: int, error: ClarionError) -> None:
        facts = frames.pack(frames.error_facts(error))
        self.say(Type.PUBLISH_FAILED, frames.SETTLED.pack(first, end - first, 0) + facts)

    def start(self, first: int, end: int, destination: str = "queue:q", body: bytes = b"x") -> asyncio.Task[None]:
        count = end - first
        return self.loop.create_task(self.sender.send(destination, first, [body] * count, [b""] * count))


def scenario(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


async def settle() -> None:
    """A few turns of the loop."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a08_the_floor_rises_only_over_what_is_stored_without_a_gap() -> None:
    async def test() -> None:
        broker = Broker()
        for first, end in ((1, 11), (11, 21), (31, 41)):
            broker.start(first, end, f"queue:{first}")
        await settle()
        assert broker.floors == [1, 1, 1]
        broker.published((11, 21), (31, 41))
        assert broker.sender.floor == 1  # the first ten are under way
        broker.published((1, 11))
        assert broker.sender.floor == 21  # and what is between may come tomorrow
        broker.sender.forget_below(25)
        assert broker.sender.floor == 25
        broker.sender.forget_below(31)
        assert broker.sender.floor == 41
        again = broker.start(15, 45)
        await settle()
        again.cancel()
        with pytest.raises(BadArgument, match="given up"):
            await broker.start(15, 45)

    scenario(test)


def test_a08_a_later_life_never_settles_what_an_earlier_one_left_out() -> None:
    """[60, 80) is stored; a sender that begins with it must not say that [50, 60) is."""

    async def test() -> None:
        for settled_below, wanted in ((1, 1), (50, 50)):
            broker = Broker(settled_below=settled_below)
            broker.start(60, 80)
            await settle()
            broker.published((60, 80))
            broker.start(80, 90)
            await settle()
            broker.published((80, 90))
            broker.start(50, 60)
            await settle()
            assert broker.floors == [wanted] * 3
            broker.published((50, 60))
            assert broker.sender.floor == (90 if settled_below == 50 else 1)

    scenario(test)


def test_a08_what_was_seen_stored_may_be_sent_again() -> None:
    async def test() -> None:
        broker = Broker()
        broker.start(1, 21)
        await settle()
        broker.published((1, 21))
        broker.start(11, 31)
        await settle()
        assert (broker.ranges[-1], broker.floors[-1], broker.sender.floor) == ((11, 31), 11, 21)

    scenario(test)


def test_a08_failures_keep_the_floor_and_are_raised_when_all_is_answered() -> None:
    async def test() -> None:
        broker = Broker()
        body = bytes(limits.BATCH_BYTES_TARGET)
        task = broker.start(1, 4, body=body)
        await settle()
        assert broker.ranges == [(1, 2), (2, 3), (3, 4)]
        broker.failed(1, 2, Blocked(destination="queue:q", detail="full"))
        broker.published((2, 3))
        await settle()
        assert not task.done()
        broker.published((3, 4))
        with pytest.raises(Blocked):
            await task
        assert broker.sender.floor == 1
        retried = broker.start(1, 2, body=body)
        await settle()
        broker.published((1, 2))
        await retried
        assert broker.sender.floor == 4

    scenario(test)


def test_a08_unanswered_batches_are_sent_again_in_order_and_without_the_flag() -> None:
    async def test() -> None:
        broker = Broker()
        tasks = [broker.start(first, first + 10) for first in (1, 11, 31)]
        await settle()
        broker.published((11, 21))
        broker.reconnect()
        assert broker.ranges == [(1, 11), (11, 21), (31, 41), (1, 11), (31, 41)]
        assert [opened["resumed"] for opened in broker.opened] == [False, True]
        assert broker.opened[0]["sender"] == broker.opened[1]["sender"]
        broker.published((1, 11), (31, 41))
        await asyncio.gather(*tasks)

    scenario(test)


def test_a08_calls_keep_their_order_while_one_waits_for_room() -> None:
    async def test() -> None:
        broker = Broker(window_bytes=limits.BATCH_BYTES_TARGET)
        body = bytes(limits.BATCH_BYTES_TARGET // 2 - 100)
        tasks = [broker.start(first, first + 20, body=body) for first in (1, 41, 21)]
        answered = 0
        while not all(task.done() for task in tasks):
            await settle()
            assert len(broker.sent) <= answered + 1  # the window
            pending = broker.ranges[answered:]
            answered += len(pending)
            broker.published(*pending)
        sequences = [sequence for first, end in broker.ranges for sequence in range(first, end)]
        assert sequences == [*range(1, 21), *range(41, 61), *range(21, 41)]
        assert broker.sender.floor == 61

    scenario(test)


def test_a08_a_message_is_never_on_its_way_twice() -> None:
    async def test() -> None:
        broker = Broker()
        first = broker.start(1, 11)
        await settle()
        first.cancel()
        tasks = [broker.start(5, 15), broker.start(8, 9, "queue:other")]
        await settle()
        assert broker.ranges == [(1, 11)]
        broker.published((1, 11))
        assert broker.ranges == [(1, 11), (5, 15)]
        broker.published((5, 15))
        assert broker.ranges[2:] == [(8, 9)]
        broker.published((8, 9))
        await asyncio.gather(*tasks)

    scenario(test)


def test_a08_a_refused_destination_waits_and_goes_on_in_order() -> None:
    async def test() -> None:
        broker = Broker()
        tasks = [broker.start(first, first + 1) for first in (1, 2, 3)] + [broker.start(9, 10, "queue:other")]
        await settle()
        said = frames.pack({"destination": "queue:q", "reason": "full"})
        broker.published((1, 2))
        broker.say(Type.REFUSED, frames.FLOOR.pack(2) + said)
        broker.published((9, 10))
        tasks.append(broker.start(4, 5))
        await settle()
        assert broker.ranges == [(1, 2), (2, 3), (3, 4), (9, 10)]
        broker.say(Type.RESUME, frames.FLOOR.pack(2) + b"queue:q")
        assert broker.ranges[4:] == [(2, 3), (3, 4), (4, 5)]
        broker.published((2, 3), (3, 4), (4, 5))
        await asyncio.gather(*tasks)

    scenario(test)


def test_a08_who_loses_the_producer_id_is_told_and_over() -> None:
    async def test() -> None:
        broker = Broker()
        tasks = [broker.start(1, 2), broker.start(2, 3, "queue:other")]
        await settle()
        broker.failed(1, 2, ProducerTaken(producer="x"))
        for task in tasks:
            with pytest.raises(ProducerTaken):
                await task
        with pytest.raises(ProducerTaken):
            await broker.start(3, 4)
        assert broker.closes == 1 and broker.sender.closed
        await broker.sender.close()

    scenario(test)


def test_a08_close_waits_for_answers() -> None:
    async def test() -> None:
        broker = Broker()
        task = broker.start(1, 2)
        await settle()
        closing = asyncio.create_task(broker.sender.close())
        await settle()
        assert not closing.done()
        with pytest.raises(SessionClosed):
            await broker.start(2, 3)
        broker.published((1, 2))
        await closing
        await task
        assert broker.closes == 1

    scenario(test)


def test_a08_wrong_arguments_change_nothing() -> None:
    async def test() -> None:
        broker = Broker()
        send = broker.sender.send
        wrong: list[tuple[Any, ...]] = [
            ("queue:q", 0, [b"x"], [b""]),
            ("queue:q", ids.SEQUENCE_MAX, [b"x"] * 2, [b""] * 2),
            ("queue:q", [0, 2], [b"x"] * 2, [b""] * 2),
            ("queue:q", [1, ids.SEQUENCE_MAX + 1], [b"x"] * 2, [b""] * 2),
            ("queue:q", [2, 2], [b"x"] * 2, [b""] * 2),
            ("queue:q", [1, 5, 4, 9], [b"x"] * 4, [b""] * 4),
            ("queue:q", range(9, 1, -4), [b"x"] * 2, [b""] * 2),
            ("queue:q", [1, 3], [b"x"] * 3, [b""] * 3),
            ("queue:q", [], [b"x"], [b""]),
            ("queue:q", [1.0, 3.0], [b"x"] * 2, [b""] * 2),
            ("queue:q", ["1", "3"], [b"x"] * 2, [b""] * 2),
            ("queue:q", None, [b"x"], [b""]),
            ("queue:q", 1, [b"x"], []),
            ("queue:q", 1, ["x"], [b""]),
            ("queue:q", 1, [b"x"], [b""], [-1]),
            ("queue:q", 1, [b"x"], [b""], [1, 2]),
        ]
        for arguments in wrong:
            with pytest.raises(BadArgument):
                await send(*arguments)
        for bodies, headers in (
            ([bytes(limits.BATCH_BYTES_MAX)], [b""]),
            ([b""], [bytes(limits.HEADERS_BYTES_MAX + 1)]),
        ):
            with pytest.raises(MessageTooLarge):
                await send("queue:q", 1, bodies, headers)
        for producer in (0, PRODUCER + 1, 1 << 128, -PRODUCER):
            with pytest.raises(BadArgument):
                NumberedSender(broker, 2, producer, 1)
        await send("queue:q", 1, [], [])
        await send("queue:q", [], [], [])
        assert broker.sent == [] and not broker.sender._buffered

    scenario(test)


SIZES = st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 300), st.integers(0, 1 << 33)), max_size=60)


@given(SIZES, st.booleans(), st.integers(4_000, 40_000))
def test_a08_lists_are_cut_into_batches_that_hold_them(
    sizes: list[tuple[int, int, int]], timed: bool, batch_bytes_max: int
) -> None:
    bodies = [bytes([number % 251]) * body for number, (body, _, _) in enumerate(sizes)]
    headers = [bytes([number % 241]) * header for number, (_, header, _) in enumerate(sizes)]
    times_ms = [time_ms for _, _, time_ms in sizes] if timed else None
    messages = Messages(b"queue:q", bodies, headers, times_ms, batch_bytes_max)
    assert [low for low, _ in messages.cuts] == [0, *(high for _, high in messages.cuts)][: len(messages.cuts)]
    found: list[tuple[bytes, bytes, int]] = []
    for low, high in messages.cuts:
        batch = Batch.parse(bytes(messages.encode(low, high, PRODUCER, 5)))
        assert batch.size <= batch_bytes_max and batch.first_id == PRODUCER + 1 + len(found)
        for index in range(batch.count):
            header, body = batch.record(index)
            found.append((bytes(header), bytes(body), batch.time_ms(index)))
    assert found == list(zip(headers, bodies, times_ms or [5] * len(bodies), strict=True))
