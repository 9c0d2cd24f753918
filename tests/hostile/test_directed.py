"""Clients that break one rule each: the documented code, at the cost of that connection only (B-01)."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clarion import ids, limits, sync
from clarion.errors import (
    AuthenticationFailed,
    BadBatch,
    BadFrame,
    ClarionError,
    CreditExceeded,
    FrameTooLarge,
    HandshakeTimeout,
    HeartbeatMissed,
    ProtocolError,
    TooManyConnections,
    UnknownFrame,
    VersionMismatch,
)
from clarion.wire import batch, frames
from clarion.wire.frames import Type
from tests.hostile.mutator import raw_frame
from tests.hostile.raw import Disconnected, RawClient
from tests.integration.topologies import Single, Topology


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topology]:
    """A server with small bounds."""
    environment = {
        "CLARION_CLIENT_MANAGER_HEARTBEAT_MS": "200",
        "CLARION_CLIENT_MANAGER_WAITING_BYTES_MAX": str(limits.FRAME_BYTES_MAX),
        "CLARION_CLIENT_MANAGER_PRODUCER_WINDOW_BYTES": "100000",
        "CLARION_CLIENT_MANAGER_CONNECTIONS_MAX": "20",
    }
    topology = Single(tmp_path_factory.mktemp("narrow"), environment)
    try:
        topology.start()
        yield topology
    finally:
        topology.kill()


@pytest.fixture(autouse=True)
def bystander(request: pytest.FixtureRequest) -> Iterator[None]:
    """Somebody else, on the same server, who must not notice."""
    server: Topology = request.getfixturevalue("narrow" if "narrow" in request.fixturenames else "server")
    with sync.connect(server.url) as connection, connection.session() as session:
        states: list[object] = []
        connection._connection.on_state = states.append
        session.send("queue:bystander", b"before")
        yield
        session.send("queue:bystander", b"after")
        with session.receive("queue:bystander") as consumer:
            for body in (b"before", b"after"):
                message = consumer.receive(timeout=10)
                assert message is not None and message.body == body
                message.confirm()
        assert states == []
    server.check_alive()


# --- before and in the handshake ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", FrameTooLarge),
        (bytes(12), UnknownFrame),
        (raw_frame(Type.PUBLISH, 1, bytes(200)), UnknownFrame),
        (raw_frame(Type.HEARTBEAT, 0, b""), UnknownFrame),
        (raw_frame(Type.HELLO, 1, frames.pack({"versions": [1, 1]})), UnknownFrame),
        (raw_frame(Type.HELLO, 0, b""), BadFrame),
        (raw_frame(Type.HELLO, 0, b"\xff" * 50), BadFrame),
        (raw_frame(Type.HELLO, 0, b"\x91" * 60_000 + b"\xc0"), BadFrame),
        (raw_frame(Type.HELLO, 0, frames.pack({"versions": 1})), BadFrame),
        (raw_frame(Type.HELLO, 0, frames.pack({"versions": [1, 1], "name": "x" * 70_000})), FrameTooLarge),
        (raw_frame(Type.HELLO, 0, frames.pack({"versions": [2, 9]})), VersionMismatch),
        (raw_frame(Type.HELLO, 0, frames.pack({"versions": [0, 0]})), VersionMismatch),
        (
            raw_frame(Type.HELLO, 0, frames.pack({"versions": [1, 1], "authentication": {"mechanism": "plain"}})),
            AuthenticationFailed,
        ),
    ],
    ids=[
        "http", "zeros", "publish", "heartbeat", "channel", "empty", "noise", "deep", "types", "large", "newer",
        "older", "mechanism",
    ],
)  # fmt: skip
def test_b01_a_wrong_beginning(server: Topology, sent: bytes, error: type[ClarionError]) -> None:
    with RawClient(server.port) as raw:
        raw.write(sent)
        assert type(raw.goodbye()) is error


def test_b01_a_wider_range_of_versions_is_welcome(server: Topology) -> None:
    with RawClient(server.port) as raw:
        welcome = raw.hello(versions=[0, 99], something_new=[1, 2])
        assert welcome["version"] == 1
        assert welcome.keys() >= {"version", "server", "heartbeat_ms", "batch_bytes_max", "producer_window_bytes"}


def test_b01_a_handshake_that_never_comes(narrow: Topology) -> None:
    with RawClient(narrow.port, wait_s=20) as silent, RawClient(narrow.port, wait_s=20) as slow:
        began = time.monotonic()
        hello = raw_frame(Type.HELLO, 0, frames.pack({"versions": [1, 1], "name": "x" * 100}))
        for at in range(20):  # a byte now and then does not prolong it
            slow.write(hello[at : at + 1])
            select.select([slow.socket], [], [], 0.2)
        assert isinstance(silent.goodbye(), HandshakeTimeout)
        assert isinstance(slow.goodbye(), HandshakeTimeout)
        assert time.monotonic() - began < limits.HANDSHAKE_MS_MAX / 1000 + 5


# --- in a connection ----------------------------------------------------------------------------------

OWN_PRODUCER = 77 << ids.SEQUENCE_BITS


def _sparse(deltas: list[int], first: int = 1, *, floor: int = 0, producer: int = OWN_PRODUCER) -> bytes:
    """A batch that says its ids, rightly or wrongly."""
    encoded = batch.encode(b"queue:sparse", producer + first, [b"x"] * len(deltas), id_deltas=deltas)
    return raw_frame(Type.PUBLISH, 1, frames.FLOOR.pack(floor) + encoded)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (raw_frame(Type.HELLO, 0, frames.pack({"versions": [1, 1]})), UnknownFrame),
        (raw_frame(Type.WELCOME, 0, b""), UnknownFrame),
        (raw_frame(Type.PUBLISHED, 1, bytes(16)), UnknownFrame),
        (raw_frame(77, 1, b""), UnknownFrame),
        (raw_frame(Type.OPEN, 1, frames.pack({"producer": None})), BadFrame),
        (raw_frame(Type.OPEN, 0, frames.pack({"producer": None})), BadFrame),
        (raw_frame(Type.OPEN, 2, frames.pack({"producer": b"short"})), ProtocolError),
        (raw_frame(Type.CLOSE, 9, b""), BadFrame),
        (raw_frame(Type.CLOSE, 1, b"x"), BadFrame),
        (raw_frame(Type.REQUEST, 1, b"\xc1"), BadFrame),
        (raw_frame(Type.REQUEST, 1, frames.pack({"verb": "status"})), BadFrame),
        (raw_frame(Type.CONFIRM, 1, frames.pack_ack(1, 1, [(5, 5)])), BadFrame),
        (raw_frame(Type.CONFIRM, 1, bytes(17)), BadFrame),
        (raw_frame(Type.CREDIT, 1, frames.CREDIT.pack(1, (1 << 32) - 1, 0)), BadFrame),
        (raw_frame(Type.PUBLISH, 1, bytes(200)), BadBatch),
        (_sparse([0, 5, 5]), BadBatch),
        (_sparse([0, 9, 7]), BadBatch),
        (_sparse([1, 2, 3]), BadBatch),
        (_sparse([0, 1, 2], ids.SEQUENCE_MAX - 1), BadBatch),
        (_sparse([0, 4], 0), ProtocolError),
        (_sparse([0, 4], 5, floor=6), ProtocolError),
        (_sparse([0, 4], producer=78 << ids.SEQUENCE_BITS), ProtocolError),
        (frames.HEADER.pack(limits.FRAME_BYTES_MAX + 1, Type.PUBLISH, 0, 0, 1), FrameTooLarge),
    ],
)
def test_b01_a_wrong_frame(server: Topology, sent: bytes, error: type[ClarionError]) -> None:
    with RawClient(server.port) as raw:
        raw.hello()
        raw.open(producer=OWN_PRODUCER.to_bytes(16, "big"))
        raw.write(sent)
        assert type(raw.goodbye()) is error


def test_b01_frames_after_goodbye_and_on_a_closed_session_do_nothing(server: Topology, name: str) -> None:
    with RawClient(server.port) as raw:
        raw.hello()
        producer = raw.open()
        body = frames.FLOOR.pack(1) + batch.encode(f"queue:{name}".encode(), producer + 1, [b"late"])
        raw.write(raw_frame(Type.GOODBYE, 0, frames.pack({"code": "", "facts": {}})) + raw_frame(Type.PUBLISH, 1, body))
        with pytest.raises(Disconnected):
            raw.frame()
    with RawClient(server.port) as raw:
        raw.hello()
        producer = raw.open()
        body = frames.FLOOR.pack(1) + batch.encode(f"queue:{name}".encode(), producer + 1, [b"late"])
        raw.write(raw_frame(Type.CLOSE, 1, b"") + raw_frame(Type.PUBLISH, 1, body))
        assert isinstance(raw.goodbye(), BadFrame)
    with sync.connect(server.url) as connection:
        assert name not in [found["name"] for found in connection.command("destinations")]


def test_b13_sending_without_credit(narrow: Topology, name: str) -> None:
    with sync.connect(narrow.url) as connection:
        connection.command("create", {"destination": f"queue:{name}", "quota_bytes": 1})
    with RawClient(narrow.port) as raw:
        welcome = raw.hello()
        producer = raw.open()
        size = welcome["producer_window_bytes"] // 2
        frame = [
            raw_frame(
                Type.PUBLISH, 1, frames.FLOOR.pack(1) + batch.encode(b"queue:free", producer + first, [bytes(size)])
            )
            for first in (1, 2, 3)
        ]
        raw.write(b"".join(frame))
        error = raw.goodbye()
        assert isinstance(error, CreditExceeded) and error.facts["window"] == welcome["producer_window_bytes"]


def test_b13_a_client_that_never_reads_loses_its_connection(narrow: Topology, name: str) -> None:
    with sync.connect(narrow.url) as connection, connection.session() as session:
        for _ in range(300):
            session.send_nowait(f"queue:{name}", bytes(100_000))
        session.flush()
        with RawClient(narrow.port, receive_bytes=4_096) as raw:
            raw.hello(heartbeat_ms=60_000)
            raw.open()
            raw.subscribe(f"queue:{name}", credit_messages=1_000_000, credit_bytes=64 << 20, unconfirmed_max=1_000_000)
            deadline = time.monotonic() + 15
            while "CLN-108" not in narrow.log():
                assert time.monotonic() < deadline, "a client that does not read keeps its connection"
                raw.send(Type.HEARTBEAT, 0)
                select.select([], [], [], 0.05)
        received = 0
        for message in session.receive(f"queue:{name}", timeout=10):
            message.confirm_nowait()
            received += 1
            if received == 300:
                break
        assert received == 300


def test_b01_a_peer_without_heartbeats_is_given_up(narrow: Topology, name: str) -> None:
    with RawClient(narrow.port) as raw:
        assert raw.hello(heartbeat_ms=60_000)["heartbeat_ms"] == 200
        began = time.monotonic()
        assert isinstance(raw.goodbye(), HeartbeatMissed)
        assert 0.5 < time.monotonic() - began < 3
        assert raw.heartbeats >= 2


STOPPED_CLIENT = """
import sys
from clarion import sync
with sync.connect(sys.argv[1]) as connection, connection.session() as session:
    messages = iter(session.receive(sys.argv[2]))
    next(messages)
    print("holding", flush=True)
    next(messages)
"""


def test_b02_messages_of_a_stopped_client_come_back(narrow: Topology, name: str, tmp_path: Path) -> None:
    with sync.connect(narrow.url) as connection, connection.session() as session:
        session.send(f"queue:{name}", b"x")
        command = [sys.executable, "-c", STOPPED_CLIENT, narrow.url, f"queue:{name}"]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            assert client.stdout is not None and client.stdout.readline() == b"holding\n"
            os.kill(client.pid, signal.SIGSTOP)
            with session.receive(f"queue:{name}") as consumer:
                message = consumer.receive(timeout=10)
                assert message is not None and message.redelivered and message.delivery_count == 2
                message.confirm()
        finally:
            client.kill()
            client.wait()
            if client.stdout is not None:
                client.stdout.close()


def test_b01_too_many_connections_are_told_so(narrow: Topology) -> None:
    connected = [RawClient(narrow.port) for _ in range(25)]
    try:
        told, _, _ = select.select([raw.socket for raw in connected], [], [], 5)
        while len(told) < 5:
            more, _, _ = select.select([raw.socket for raw in connected if raw.socket not in told], [], [], 5)
            assert more, f"only {len(told)} were told"
            told += more
        refused = [raw.goodbye() for raw in connected if raw.socket in told]
        assert all(isinstance(error, TooManyConnections) for error in refused)
    finally:
        for raw in connected:
            raw.socket.close()


def vanish(raw: RawClient) -> None:
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    raw.socket.close()


def half_close(raw: RawClient) -> None:
    raw.socket.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("leave", [vanish, half_close])
def test_b02_whatever_a_vanished_client_held_comes_back(
    server: Topology, name: str, leave: Callable[[RawClient], None]
) -> None:
    with RawClient(server.port) as raw, sync.connect(server.url) as connection, connection.session() as session:
        session.send(f"queue:{name}", b"x")
        raw.hello()
        raw.open()
        raw.subscribe(f"queue:{name}")
        raw.next(Type.DELIVER)
        leave(raw)
        with session.receive(f"queue:{name}") as consumer:
            message = consumer.receive(timeout=10)
            assert message is not None and message.redelivered and message.delivery_count == 2
            message.confirm()
