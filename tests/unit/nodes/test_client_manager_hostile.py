"""Client manager: clients that break rules, lag, lie or vanish cost themselves and nobody else (B-13, B-21)."""

from __future__ import annotations

import asyncio
import random
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from clarion import ids, limits
from clarion.errors import (
    AuthenticationFailed,
    BadBatch,
    BadFrame,
    BadName,
    ClarionError,
    CreditExceeded,
    FrameTooLarge,
    HandshakeTimeout,
    HeartbeatMissed,
    MessageTooLarge,
    ProtocolError,
    TooManyConnections,
    UnknownFrame,
    from_code,
)
from clarion.nodes.connection import FRAMES_PER_TURN
from clarion.wire import batch, commands, frames
from clarion.wire.frames import Type

from .test_client_manager_harness import RawClient, Setup, run


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000

    def __call__(self) -> int:
        return self.ms


async def serves(setup: Setup) -> None:
    """The manager still serves somebody else."""
    client, producer = await setup.ready()
    client.publish(producer, 1, b"x")
    while (command := await asyncio.wait_for(setup.scripted._commands.get(), 10)).type != Type.PUBLISH:
        pass
    setup.scripted.say(command.session, Type.PUBLISHED, frames.SETTLED.pack(1, 1, 0))
    await client.next(Type.PUBLISHED)
    await client.close()


# --- batches ----------------------------------------------------------------------------------------


def damaged(producer: int) -> bytes:
    encoded = batch.encode(b"queue:a", producer + 1, [b"body"])
    encoded[-1] ^= 1
    return bytes(encoded)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda producer: frames.FLOOR.pack(0) + damaged(producer), BadBatch),
        (lambda producer: frames.FLOOR.pack(0) + bytes(200), BadBatch),
        (lambda producer: frames.FLOOR.pack(0), BadFrame),
        (lambda producer: frames.FLOOR.pack(0) + batch.encode(b"queue:a", 5, [b"x"]), ProtocolError),
        (lambda producer: frames.FLOOR.pack(0) + batch.encode(b"queue:a", producer, [b"x"]), ProtocolError),
        (
            lambda producer: frames.FLOOR.pack(0) + batch.encode(b"queue:a", producer + ids.SEQUENCE_MAX, [b"x"] * 2),
            ProtocolError,
        ),
        (lambda producer: frames.FLOOR.pack(9) + batch.encode(b"queue:a", producer + 8, [b"x"]), ProtocolError),
        (lambda producer: frames.FLOOR.pack(0) + bytes(limits.BATCH_BYTES_MAX + 100), BadBatch),
    ],
    ids=["checksum", "zeros", "empty", "foreign", "sequence-0", "overflow", "floor", "huge"],
)
def test_b01_a_batch_that_is_not_sound_costs_the_connection(
    make: Callable[[int], bytes], error: type[ClarionError]
) -> None:
    async def scenario(setup: Setup) -> None:
        client, producer = await setup.ready()
        client.send(Type.PUBLISH, 1, make(producer))
        assert type(await client.goodbye()) is error
        assert setup.read(f"cm.protocol_errors.{error.code.lower().replace('-', '_')}") == 1
        await serves(setup)

    run(scenario)


def test_b01_a_batch_that_cannot_be_taken_fails_alone() -> None:
    async def scenario(setup: Setup) -> None:
        client, producer = await setup.ready()
        for first, destination, body, error in (
            (1, b"exchange:a", b"x", BadName),
            (2, b"queue:a b", b"x", BadName),
            (3, b"\xff\xfe", b"x", BadName),
            (4, b"queue:_system", b"x", BadName),
            (5, b"queue:a", bytes(70_000), MessageTooLarge),
        ):
            client.publish(producer, first, body, to=destination)
            payload = await client.next(Type.PUBLISH_FAILED)
            said = frames.unpack(payload[frames.SETTLED.size :])
            assert frames.SETTLED.unpack_from(payload) == (first, 1, 0)
            assert type(from_code(said["code"], said["facts"])) is error
        client.publish(producer, 6, b"x")
        await setup.scripted.next(Type.PUBLISH)

    run(scenario, batch_bytes_max=65_536)


# --- credit -----------------------------------------------------------------------------------------


def test_b13_more_than_the_window_costs_the_connection() -> None:
    async def scenario(setup: Setup) -> None:
        client, producer = await setup.ready()
        client.publish(producer, 1, bytes(9_000))
        client.publish(producer, 2, bytes(9_000), to=b"queue:b")  # another destination has its own window
        client.publish(producer, 3, bytes(900), to=b"a")  # the same one, written otherwise
        client.publish(producer, 4, bytes(900))
        error = await client.goodbye()
        assert isinstance(error, CreditExceeded)
        assert error.facts["window"] == 10_000

    run(scenario, producer_window_bytes=10_000)


def test_b13_one_batch_alone_may_be_larger_and_answers_give_the_bytes_back() -> None:
    async def scenario(setup: Setup) -> None:
        client, producer = await setup.ready()
        scripted = setup.scripted
        for first in range(1, 4):
            client.publish(producer, first, bytes(50_000))
            session = (await scripted.next(Type.PUBLISH)).session
            if first == 2:
                error = frames.pack(frames.error_facts(BadName(name="x", detail="y")))
                scripted.say(session, Type.PUBLISH_FAILED, frames.SETTLED.pack(first, 1, 0), error)
                await client.next(Type.PUBLISH_FAILED)
            else:
                scripted.say(session, Type.PUBLISHED, frames.SETTLED.pack(first, 1, 0))
                await client.next(Type.PUBLISHED)
        client.publish(producer, 4, bytes(100))
        client.publish(producer, 5, bytes(50_000))
        assert isinstance(await client.goodbye(), CreditExceeded)

    run(scenario, producer_window_bytes=10_000)


def test_b13_a_refused_destination_gives_its_window_back_and_stops_no_other() -> None:
    async def scenario(setup: Setup) -> None:
        client, producer = await setup.ready()
        scripted = setup.scripted
        for first in (1, 2, 3):
            client.publish(producer, first, bytes(3_000))
        for _ in range(3):
            session = (await scripted.next(Type.PUBLISH)).session
        scripted.say(
            session, Type.REFUSED, frames.FLOOR.pack(2), frames.pack({"destination": "queue:a", "reason": "full"})
        )
        await client.next(Type.REFUSED)
        for first in (4, 5, 6, 7):  # were under way: dropped here, as the message manager would, and not counted
            client.publish(producer, first, bytes(3_000))
        client.publish(producer, 8, b"x", to=b"queue:b")
        assert batch.Batch((await scripted.next(Type.PUBLISH)).payload[8:]).destination == b"queue:b"
        scripted.say(session, Type.RESUME, frames.FLOOR.pack(2), b"queue:a")
        await client.next(Type.RESUME)
        for first in (2, 3):
            client.publish(producer, first, bytes(3_000))
        for first in (2, 3):
            again = batch.Batch((await scripted.next(Type.PUBLISH)).payload[8:])
            assert ids.sequence_of(again.first_id) == first

    run(scenario, producer_window_bytes=10_000)


# --- frames -----------------------------------------------------------------------------------------


def test_b01_a_frame_over_the_limit_is_refused_by_its_header() -> None:
    async def scenario(setup: Setup) -> None:
        client, _ = await setup.ready()
        client.writer.write(frames.HEADER.pack(limits.FRAME_BYTES_MAX + 1, Type.PUBLISH, 0, 0, 1))
        assert isinstance(await client.goodbye(), FrameTooLarge)
        await serves(setup)

    run(scenario)


@pytest.mark.parametrize(
    ("kind", "channel", "payload", "error"),
    [
        (99, 1, b"", UnknownFrame),
        (Type.DELIVER, 1, bytes(8), UnknownFrame),
        (Type.HELLO, 0, b"\x80", UnknownFrame),
        (Type.PUBLISH, 7, bytes(200), BadFrame),
        (Type.OPEN, 2, b"\x01", BadFrame),
        (Type.OPEN, 2, frames.pack({"producer": b"short"}), ProtocolError),
        (Type.OPEN, 2, frames.pack({"producer": (5).to_bytes(16, "big")}), ProtocolError),
        (Type.CREDIT, 1, frames.CREDIT.pack(1, 1, 1 << 60), BadFrame),
        (Type.CONFIRM, 1, frames.pack_ack(1, 0, [(5, 5)]), BadFrame),
        (Type.SUBSCRIBE, 1, b"\xc1", BadFrame),
        (Type.SUBSCRIBE, 1, frames.pack([1]), BadFrame),
        (Type.REQUEST, 1, frames.pack({"request": "x", "verb": "status"}), BadFrame),
        (Type.REQUEST, 1, b"\x91" * 5_000 + b"\x01", BadFrame),
        (Type.REQUEST, 1, frames.pack({"request": 1, "verb": "x", "arguments": {"x": bytes(600_000)}}), BadFrame),
    ],
)
def test_b01_a_frame_that_cannot_be_read_costs_the_connection(
    kind: int, channel: int, payload: bytes, error: type[ClarionError]
) -> None:
    async def scenario(setup: Setup) -> None:
        client, _ = await setup.ready()
        client.send(kind, channel, payload)
        assert type(await client.goodbye()) is error

    run(scenario)


def test_b01_random_bytes_cost_only_their_own_connection() -> None:
    async def scenario(setup: Setup) -> None:
        for seed in range(60):
            generator = random.Random(seed)
            if seed % 2:
                client = await setup.connect()
            else:
                client, _ = await setup.ready()
                kind, size = generator.choice(list(Type)), generator.randrange(300)
                client.writer.write(frames.HEADER.pack(size, kind, 0, 0, generator.randrange(3)))
            client.writer.write(generator.randbytes(2_000))
            client.writer.write_eof()
            while await client.frame() is not None:
                pass
        await serves(setup)
        assert setup.read("cm.faults") == 0

    run(scenario)


def test_b01_credentials_are_refused_while_there_are_no_users() -> None:
    async def scenario(setup: Setup) -> None:
        client = await setup.connect()
        client.say(Type.HELLO, 0, versions=[1, 1], authentication={"mechanism": "password", "password": "x"})
        assert isinstance(await client.goodbye(), AuthenticationFailed)

    run(scenario)


# --- time, memory, numbers --------------------------------------------------------------------------


def test_b01_silence_before_the_handshake_and_dribble_are_cut_off() -> None:
    clock = Clock()

    async def scenario(setup: Setup) -> None:
        silent, dribbling = await setup.connect(), await setup.connect()
        await serves(setup)  # so both are accepted
        clock.ms += limits.HANDSHAKE_MS_MAX - 1
        dribbling.writer.write(b"\x01")
        await serves(setup)
        clock.ms += 2_000
        assert isinstance(await silent.goodbye(), HandshakeTimeout)
        assert isinstance(await dribbling.goodbye(), HandshakeTimeout)

    run(scenario, clock=clock)


def test_b01_a_half_open_connection_ends_by_heartbeats_and_a_live_one_gets_them() -> None:
    clock = Clock()

    async def scenario(setup: Setup) -> None:
        client, _ = await setup.ready()
        kinds: list[int] = []
        while not kinds or kinds[-1] == Type.HEARTBEAT:
            clock.ms += 5_000  # the client is silent, the manager is not
            header = await asyncio.wait_for(client.reader.readexactly(frames.HEADER_BYTES), 10)
            kinds.append(header[4])
        assert kinds[0] == Type.HEARTBEAT
        assert len(kinds) <= 5
        said = frames.unpack(await client.reader.readexactly(frames.HEADER.unpack(header)[0]))
        assert said["code"] == HeartbeatMissed.code
        assert not frames.unpack((await setup.scripted.next(commands.SESSION_ENDED)).payload)["clean"]

    run(scenario, clock=clock, heartbeat_ms=5_000)


def test_b13_a_client_that_never_reads_is_cut_off_and_delays_nobody() -> None:
    async def scenario(setup: Setup) -> None:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", setup.manager.address.port))
        client = RawClient(*await asyncio.open_connection(sock=raw, limit=1_000))
        setup.clients.append(client)
        await client.hello()
        await client.open()
        client.say(Type.REQUEST, 1, request=1, verb="status", arguments={})
        session = (await setup.scripted.next(Type.REQUEST)).session
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        delivered = 0
        while setup.read("cm.sessions"):
            setup.scripted.say(session, Type.DELIVER, frames.DELIVER.pack(1, 0), bytes(1 << 20))
            delivered += 1 << 20
            await asyncio.sleep(0)
            assert delivered < 64 << 20
        assert frames.unpack((await setup.scripted.next(commands.SESSION_FLOW)).payload)["paused"]
        assert not frames.unpack((await setup.scripted.next(commands.SESSION_ENDED)).payload)["clean"]
        assert setup.read("cm.protocol_errors.cln_108") == 1
        assert delivered > 16 << 20
        await serves(setup)

    run(scenario, waiting_bytes_max=16 << 20)


def test_b21_a_flood_of_small_frames_gives_way_to_others() -> None:
    async def scenario(setup: Setup) -> None:
        flooding, producer = await setup.ready()
        other, _ = await setup.ready()
        count = 20 * FRAMES_PER_TURN
        flood = b"".join(
            b"".join(frames.frame(Type.PUBLISH, 1, [frames.FLOOR.pack(0), batch.encode(b"a", producer + n, [b"x"])]))
            for n in range(1, count + 1)
        )
        flooding.writer.write(flood)
        await setup.scripted.next(Type.PUBLISH)
        other.say(Type.REQUEST, 1, request=1, verb="status", arguments={})
        before = 0
        while (await asyncio.wait_for(setup.scripted._commands.get(), 10)).type != Type.REQUEST:
            before += 1
        for _ in range(count - before - 1):
            await setup.scripted.next(Type.PUBLISH)
        assert before < count - 1

    run(scenario)


def test_b01_connections_beyond_the_limit_are_told_so() -> None:
    async def scenario(setup: Setup) -> None:
        first, _ = await setup.ready()
        await setup.ready()
        third = await setup.connect()
        assert isinstance(await third.goodbye(), TooManyConnections)
        await third.close()
        await first.close()
        await setup.scripted.next(commands.SESSION_ENDED)
        while setup.read("cm.connections") != 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await setup.ready()

    run(scenario, connections_max=2)


def test_b21_an_idle_connection_costs_less_than_40_kb() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4_096), hard))
    hello = b"".join(frames.frame(Type.HELLO, 0, [frames.pack({"versions": [1, 1]})]))
    opening = hello + b"".join(frames.frame(Type.OPEN, 1, [frames.pack({"producer": None})]))

    async def scenario(setup: Setup) -> None:
        address = ("127.0.0.1", setup.manager.address.port)
        clients: list[socket.socket] = []

        async def more(count: int) -> None:
            loop = asyncio.get_running_loop()
            for _ in range(count):
                client = socket.socket()
                client.setblocking(False)
                await loop.sock_connect(client, address)
                await loop.sock_sendall(client, opening)
                clients.append(client)
            while setup.read("cm.sessions") != len(clients):  # noqa: ASYNC110
                await asyncio.sleep(0)

        await more(50)
        before = resident()
        await more(1_000)
        each = (resident() - before) / 1_000
        for client in clients:
            client.close()
        assert each < 40_000

    run(scenario)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
