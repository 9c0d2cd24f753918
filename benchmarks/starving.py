"""The child side of `never_mute`: a process that has no memory, no descriptor and no disk, and has something to say.

Each function is a worker (`benchmarks.worker`): it connects, sends one event to see that all is well, is "ready", and
when told to go puts itself under pressure and sends `count` events of `BODY_BYTES`, once each, one after the other, as
the client library's documentation shows. Then it says "pressed" and waits, still under pressure: it is killed there, or
told to go on, ends the pressure, and gives its client time to deliver what that still holds.

What came of each event is written into a file that is mapped into memory before: it needs nothing, and survives.
Runs in the interpreter of the client library, so nothing but the standard library is imported before it is needed.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import resource
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.eater import Eater
from benchmarks.worker import Gate

HOST = "127.0.0.1"
BODY_BYTES = 1_000
DESCRIPTORS = 64
SETTLE_S = 20.0
SWITCH_S = 0.0005
"""Threads take turns this often, so that the one that eats comes between any two steps of a client."""
ACCEPTED, FAILED = 1, 2
WARM = 999_999_999
"""The number of the event that is sent before anything is wrong."""


class Pressure:
    """Everything is used up from `begin` to `end`, if `pressed`. What becomes of each event is noted by number."""

    def __init__(self, gate: Gate, outcomes: str, count: int, pressed: bool) -> None:
        self._gate = gate
        self._pressed = pressed
        with Path(outcomes).open("r+b") as file:
            self.outcomes = mmap.mmap(file.fileno(), count)
        self.numbers = list(range(count))
        self.errors: list[type | None] = [None] * count
        self._eater = Eater()
        self._taken: list[int] = []
        self._limits = [(name, resource.getrlimit(name)) for name in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE)]

    def begin(self) -> None:
        if not self._pressed:
            return
        sys.setswitchinterval(SWITCH_S)
        self._eater.start()  # its stack is part of what there is when the limit is set
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, self._limits[1][1][1]))
        try:
            while True:
                self._taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE"), self._limits[0][1][1]))
        self._eater.begin = True
        while not self._eater.full:  # a lock or an event would need memory
            os.sched_yield()

    def end(self) -> None:
        """Still under pressure until the parent says go; it may kill us instead."""
        os.write(self._gate.channel, b"pressed\n")
        os.read(0, 3)
        if not self._pressed:
            return
        for name, limits in self._limits:
            resource.setrlimit(name, limits)
        self._eater.end()
        for descriptor in self._taken:
            os.close(descriptor)

    def told(self) -> dict[str, Any]:
        names = Counter(error.__name__ for error in self.errors if error is not None)
        return {"errors": dict(names.most_common(3)), "rounds": self._eater.rounds}


def _bodies(count: int) -> list[bytes]:
    return [body_of(number) for number in range(count)]


def body_of(number: int) -> bytes:
    return json.dumps({"number": number, "text": "x" * (BODY_BYTES - 36)}).encode()


# --- Clarion ---------------------------------------------------------------------------------------------------------


def _system(directory: str, port: int, count: int) -> Any:
    from clarion.events import EventSystem, RetryPolicy
    from clarion.events.recipients import ClarionServer

    return EventSystem.open(
        directory,
        recipients=[ClarionServer(f"clarion://{HOST}:{port}", destination="queue:muted")],
        capacity=count + 100,
        event_bytes=2 * BODY_BYTES,
        event_bytes_max=4_096,
        retry=RetryPolicy(max_ms=1_000),
    )


def clarion(
    gate: Gate, *, directory: str, port: int, queue: str, count: int, outcomes: str, pressed: bool
) -> dict[str, Any]:
    events = _system(f"{directory}/events", port, count)
    events.ready()
    data = [json.loads(body) for body in _bodies(count)]
    events.emit("disk.full", source="volume/7", severity="error", data={"number": WARM})
    assert events.wait_until_delivered(30)
    pressure = Pressure(gate, outcomes, count, pressed)
    gate.wait()
    pressure.begin()
    emit, outcome, errors = events.emit, pressure.outcomes, pressure.errors
    for number in pressure.numbers:
        try:
            emit("disk.full", source="volume/7", severity="error", data=data[number])
            outcome[number] = ACCEPTED
        except BaseException as error:
            outcome[number] = FAILED
            errors[number] = type(error)
    pressure.end()
    gate.wait()
    events.wait_until_delivered(3 * SETTLE_S)
    events.close()
    return pressure.told()


def clarion_again(gate: Gate, *, directory: str, port: int, count: int) -> dict[str, Any]:
    """The next start of a program that was killed."""
    gate.wait()
    with _system(f"{directory}/events", port, count) as events:
        events.ready()
        return {"delivered": events.wait_until_delivered(3 * SETTLE_S)}


def clarion_stored(gate: Gate, *, port: int, queue: str) -> dict[str, Any]:
    import clarion

    gate.wait()
    numbers = []
    with clarion.sync.connect(f"clarion://{HOST}:{port}") as connection, connection.session() as session:
        for message in session.receive("queue:muted", timeout=1.0):
            numbers.append(json.loads(message.body)["number"])
            message.confirm()
    return {"numbers": numbers}


# --- RabbitMQ --------------------------------------------------------------------------------------------------------


def _channel(port: int, queue: str) -> tuple[Any, Any]:
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port, heartbeat=0, socket_timeout=2))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    channel.confirm_delivery()
    return connection, channel


def rabbitmq(
    gate: Gate, *, directory: str, port: int, queue: str, count: int, outcomes: str, pressed: bool
) -> dict[str, Any]:
    """Publisher confirms, persistent messages; a connection that is lost is made again for the next event."""
    import pika

    properties = pika.BasicProperties(delivery_mode=2)
    bodies, (connection, channel) = _bodies(count), _channel(port, queue)
    channel.basic_publish("", queue, body_of(WARM), properties, mandatory=True)
    pressure = Pressure(gate, outcomes, count, pressed)
    gate.wait()
    pressure.begin()
    outcome, errors = pressure.outcomes, pressure.errors
    for number in pressure.numbers:
        try:
            if connection.is_closed or channel.is_closed:
                connection, channel = _channel(port, queue)
            channel.basic_publish("", queue, bodies[number], properties, mandatory=True)
            outcome[number] = ACCEPTED
        except BaseException as error:
            outcome[number] = FAILED
            errors[number] = type(error)
    pressure.end()
    gate.wait()
    try:
        connection.process_data_events(time_limit=1)
    except Exception:
        pass
    return pressure.told()


def rabbitmq_stored(gate: Gate, *, port: int, queue: str) -> dict[str, Any]:
    gate.wait()
    connection, channel = _channel(port, queue)
    numbers = []
    for method, _properties, body in channel.consume(queue, inactivity_timeout=2.0):
        if method is None:
            break
        numbers.append(json.loads(body)["number"])
        channel.basic_ack(method.delivery_tag)
    connection.close()
    return {"numbers": numbers}


# --- Redis -----------------------------------------------------------------------------------------------------------


def _redis(port: int) -> Any:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis(host=HOST, port=port, retry=Retry(NoBackoff(), 1))


def redis(
    gate: Gate, *, directory: str, port: int, queue: str, count: int, outcomes: str, pressed: bool
) -> dict[str, Any]:
    """XADD, whose reply comes after the server's fsync; a lost connection is made again at once, without a pause."""
    client, entries = _redis(port), [{"b": body} for body in _bodies(count)]
    client.xadd(queue, {"b": body_of(WARM)})
    pressure = Pressure(gate, outcomes, count, pressed)
    gate.wait()
    pressure.begin()
    outcome, errors = pressure.outcomes, pressure.errors
    for number in pressure.numbers:
        try:
            client.xadd(queue, entries[number])
            outcome[number] = ACCEPTED
        except BaseException as error:
            outcome[number] = FAILED
            errors[number] = type(error)
    pressure.end()
    gate.wait()
    return pressure.told()


def redis_stored(gate: Gate, *, port: int, queue: str) -> dict[str, Any]:
    gate.wait()
    return {"numbers": [json.loads(entry[b"b"])["number"] for _, entry in _redis(port).xrange(queue)]}


# --- NATS ------------------------------------------------------------------------------------------------------------


async def _stream(port: int, queue: str, in_flight: int) -> tuple[Any, Any]:
    import nats
    from nats.js.api import StorageType

    connection = await nats.connect(
        f"nats://{HOST}:{port}", pending_size=64 << 20, max_reconnect_attempts=-1, reconnect_time_wait=0.2
    )
    stream = connection.jetstream(publish_async_max_pending=in_flight)
    await stream.add_stream(name=queue, subjects=[queue], storage=StorageType.FILE)
    return connection, stream


async def _nats(gate: Gate, port: int, queue: str, count: int, outcomes: str, pressed: bool) -> dict[str, Any]:
    _connection, stream = await _stream(port, queue, count + 1)
    bodies = _bodies(count)
    await stream.publish(queue, body_of(WARM))
    pressure = Pressure(gate, outcomes, count, pressed)
    answers: list[Any] = [None] * count
    gate.wait()
    pressure.begin()
    for number in pressure.numbers:
        try:
            answers[number] = await stream.publish_async(queue, bodies[number], wait_stall=1.0)
            await asyncio.sleep(0)
        except BaseException as error:
            pressure.outcomes[number] = FAILED
            pressure.errors[number] = type(error)
    for _ in range(100):  # acknowledgements that are on their way
        try:
            await asyncio.sleep(0.02)
        except BaseException:
            pass
    for number in pressure.numbers:
        answer = answers[number]
        if answer is not None and answer.done() and not answer.cancelled() and answer.exception() is None:
            pressure.outcomes[number] = ACCEPTED
    pressure.end()
    gate.wait()
    unanswered = [one for one in answers if one is not None and not one.done()]
    if unanswered:
        await asyncio.wait(unanswered, timeout=SETTLE_S)
    return pressure.told()


def nats(
    gate: Gate, *, directory: str, port: int, queue: str, count: int, outcomes: str, pressed: bool
) -> dict[str, Any]:
    """JetStream, `publish_async` with acknowledgements; while it reconnects the client buffers in memory."""
    return asyncio.run(_nats(gate, port, queue, count, outcomes, pressed))


def nats_stored(gate: Gate, *, port: int, queue: str) -> dict[str, Any]:
    async def read() -> list[int]:
        connection, stream = await _stream(port, queue, 256)
        subscription = await stream.pull_subscribe(queue, "reader")
        numbers: list[int] = []
        waiting = (await stream.stream_info(queue)).state.messages
        while len(numbers) < waiting:
            for message in await subscription.fetch(min(256, waiting - len(numbers)), timeout=5):
                numbers.append(json.loads(message.data)["number"])
                await message.ack()
        await connection.close()
        return numbers

    gate.wait()
    return {"numbers": asyncio.run(read())}
