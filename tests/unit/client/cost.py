"""What the client costs per message, without a server: run it by hand.

    python tests/unit/client/cost.py

Not a test (machines differ): the figures in docstrings of `clarion.client` come from here. It is processor time, so
that whatever else runs disturbs it little.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from clarion import limits
from clarion.client.consumer import BatchConsumer, Consumer
from clarion.client.options import SendOptions
from clarion.client.session import Session
from clarion.errors import SessionClosed
from clarion.protocols.greetings import Welcome
from clarion.wire import frames
from clarion.wire.batch import Buffer, encode
from clarion.wire.frames import Frame, Type

MESSAGES = 200_000
BODY = b"x" * 100


class Nowhere:
    """A host whose link swallows everything."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.welcome = Welcome(1, "nowhere", 10_000, limits.BATCH_BYTES_MAX, limits.PRODUCER_WINDOW_BYTES)
        self.writable = True
        self.scheduled = False
        self.failure = None
        self.sent: list[tuple[int, list[Buffer]]] = []

    def write(self) -> None: ...

    def wake(self) -> None: ...

    def send(self, kind: int, channel: int, parts: Iterable[Buffer] = (), flags: int = 0) -> None:
        self.sent.append((kind, list(parts)))

    def register(self, session: Any) -> None: ...

    def forget(self, channel: int) -> None: ...


def opened(host: Nowhere) -> Session:
    session = Session(host, 1, limits.CLIENT_BUFFER_BYTES)
    session._handle(Frame(Type.OPENED, 0, 1, memoryview(frames.pack({"producer": (1 << 60).to_bytes(16, "big")}))))
    return session


def say(what: str, began: float, messages: int) -> None:
    print(f"{what:42} {(time.process_time() - began) / messages * 1e6:6.2f} µs a message")


def sending(host: Nowhere) -> None:
    session = opened(host)
    send_nowait = session.send_nowait
    began = time.process_time()
    for _ in range(MESSAGES):
        send_nowait("orders", BODY)
    say("send_nowait, sealing included", began, MESSAGES)
    session = opened(host)
    began = time.process_time()
    for _ in range(MESSAGES):
        session.send_nowait("orders", BODY, properties={"region": "eu"})
    say("send_nowait with a property", began, MESSAGES)
    session = opened(host)
    began = time.process_time()
    for _ in range(MESSAGES):
        session.send_nowait("orders", BODY, priority=7)
    say("send_nowait with a priority", began, MESSAGES)
    session = opened(host)
    began = time.process_time()
    for _ in range(MESSAGES):
        session.send_nowait("orders", BODY, ttl=60, delay=5)
    say("send_nowait with ttl and delay", began, MESSAGES)
    session = opened(host)
    began = time.process_time()
    for number in range(MESSAGES // 10):
        session.send_nowait("orders", BODY, priority=number % 2)
    say("send_nowait, priorities in turn", began, MESSAGES // 10)
    session = opened(host)
    began = time.process_time()
    for _ in range(MESSAGES):
        with session.lock:
            session.send_nowait("orders", BODY)
    say("send_nowait under the lock", began, MESSAGES)


def sending_lists(host: Nowhere) -> None:
    """Answered as they go, so that the memory of batches is used again, as with a broker."""
    bodies = [bytes(100) for _ in range(MESSAGES)]
    property_: SendOptions = {"properties": {"region": "eu"}}
    for what, step, options in (
        ("send_many_nowait, lists of 10000", 10_000, SendOptions()),
        ("send_many_nowait, lists of 1000", 1_000, SendOptions()),
        ("send_many_nowait, lists of 10", 10, SendOptions()),
        ("send_many_nowait with a property, of 10000", 10_000, property_),
    ):
        session = opened(host)
        lists = [bodies[at : at + step] for at in range(0, MESSAGES, step)]
        began = time.process_time()
        for number, some in enumerate(lists):
            session.send_many_nowait("orders", some, **options)
            if session.buffered_bytes > limits.MIB or number == len(lists) - 1:
                session._turn()
                for first, batch in list(session._by_first.items()):
                    payload = frames.SETTLED.pack(first, batch.count, 0)
                    session._handle(Frame(Type.PUBLISHED, 0, 1, memoryview(payload)))
                host.sent.clear()
        say(what, began, MESSAGES)


def delivery(first: int, count: int) -> Frame:
    batch = encode(b"orders", 1 << 60, [BODY] * count)
    payload = b"".join(frames.deliver_parts(1, [(first, 1, False, [batch])]))
    return Frame(Type.DELIVER, 0, 1, memoryview(payload))


async def receiving(host: Nowhere, slice_messages: int) -> None:
    total = MESSAGES
    delivered = [delivery(at, slice_messages) for at in range(0, total, slice_messages)]
    for kind in ("bodies of receive_batches", "messages of receive", "messages of receive, confirm_nowait"):
        session = opened(host)
        consumer: Any = session.receive_batches("orders") if "batches" in kind else session.receive("orders")
        consumer._state = 1
        consumer._subscribed(None, None)
        began = time.process_time()
        for frame in delivered:
            session._handle(frame)
        seen = 0
        if isinstance(consumer, BatchConsumer):
            async for batch in consumer:
                seen += len(batch.bodies())
                if seen == total:
                    break
        elif isinstance(consumer, Consumer):
            confirm = "confirm" in kind
            async for message in consumer:
                seen += 1
                if confirm:
                    message.confirm_nowait()
                if seen == total:
                    break
        say(f"{kind}, slices of {slice_messages}", began, total)
        session._finish(SessionClosed())


async def lone(host: Nowhere) -> None:
    """Everything the client does for one awaited message, but for the transport and the loop."""
    session = opened(host)
    rounds = 20_000
    began = time.process_time()
    for sequence in range(1, rounds + 1):
        session.send_nowait("orders", BODY)
        session._turn()
        payload = frames.SETTLED.pack(sequence, 1, 0)
        session._handle(Frame(Type.PUBLISHED, 0, 1, memoryview(payload)))
    say("one at a time: send, seal, answer", began, rounds)
    consumer = session.receive("orders")
    consumer._state = 1  # type: ignore[assignment]
    consumer._subscribed(None, None)
    delivered = [delivery(at, 1) for at in range(rounds)]
    began = time.process_time()
    for frame in delivered:
        session._handle(frame)
        message = await consumer.receive()
        assert message is not None
        message.confirm_nowait()
        session._turn()
        request = session._requests
        session._handle(Frame(Type.REPLY, 0, 1, memoryview(frames.pack({"request": request, "result": None}))))
    say("one at a time: deliver, receive, confirm", began, rounds)


async def main() -> None:
    host = Nowhere(asyncio.get_running_loop())
    for _ in range(2):
        sending(host)
        sending_lists(host)
        host.sent.clear()
    for size in (1_000, 1):
        await receiving(host, size)
    await lone(host)


if __name__ == "__main__":
    asyncio.run(main())
