"""The native protocol engine: the handshake, what is refused in each state, heartbeats, the end."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion import limits
from clarion.errors import (
    AuthenticationFailed,
    BadFrame,
    ClarionError,
    ConnectionLost,
    FrameTooLarge,
    HandshakeTimeout,
    HeartbeatMissed,
    ProtocolError,
    TooManyConnections,
    UnknownFrame,
    VersionMismatch,
)
from clarion.protocols.greetings import HANDSHAKE_BYTES_MAX, Hello
from clarion.protocols.native import ClientConnection, ServerConnection, State
from clarion.wire import frames
from clarion.wire.frames import Type


def accept(authentication: dict[str, Any]) -> None:
    if authentication.get("mechanism") != "none":
        raise AuthenticationFailed(detail="there are no users")


def server(heartbeat_ms: int = 10_000) -> ServerConnection:
    return ServerConnection(
        server="one",
        batch_bytes_max=limits.BATCH_BYTES_MAX,
        producer_window_bytes=limits.PRODUCER_WINDOW_BYTES,
        heartbeat_ms=heartbeat_ms,
        authenticate=accept,
    )


def written(engine: ServerConnection | ClientConnection) -> bytes:
    return b"".join(engine.take_outgoing())


def ready(heartbeat_ms: int = 10_000) -> tuple[ClientConnection, ServerConnection]:
    client, other = ClientConnection(), server()
    client.hello(name="me", software="tests", heartbeat_ms=heartbeat_ms)
    assert other.receive(written(client), 0) == []
    assert client.receive(written(other), 0) == []
    return client, other


def one(kind: int, channel: int, payload: bytes = b"") -> bytes:
    return b"".join(frames.frame(kind, channel, [payload]))


def hello(**changes: Any) -> bytes:
    said = {"versions": [1, 1], "authentication": {"mechanism": "none"}, **changes}
    return one(Type.HELLO, 0, frames.pack(said))


def test_b01_handshake_agrees_on_version_bounds_and_heartbeat() -> None:
    client, other = ready(heartbeat_ms=3_000)
    assert client.state is other.state is State.READY
    assert client.welcome is not None
    assert (client.welcome.version, client.welcome.server) == (1, "one")
    assert client.welcome.producer_window_bytes == limits.PRODUCER_WINDOW_BYTES
    assert client.heartbeat_ms == other.heartbeat_ms == 3_000
    assert (other.client_name, other.client_software, other.version) == ("me", "tests", 1)


def test_b01_the_highest_common_version_is_taken() -> None:
    engine = server()
    engine.receive(hello(versions=[0, 9], unknown="ignored"), 0)
    assert engine.version == frames.PROTOCOL_VERSION_MAX


@pytest.mark.parametrize("versions", [[2, 9], [0, 0]])
def test_b01_no_common_version_is_refused(versions: list[int]) -> None:
    engine = server()
    with pytest.raises(VersionMismatch) as refused:
        engine.receive(hello(versions=versions), 0)
    engine.goodbye(refused.value)
    client = ClientConnection()
    with pytest.raises(VersionMismatch) as told:
        client.receive(written(engine), 0)
    assert told.value.facts == refused.value.facts


def test_b01_a_client_refuses_a_version_that_it_did_not_offer() -> None:
    said = {"version": 7, "server": "x", "heartbeat_ms": 1, "batch_bytes_max": 1, "producer_window_bytes": 1}
    with pytest.raises(VersionMismatch):
        ClientConnection().receive(one(Type.WELCOME, 0, frames.pack(said)), 0)


def test_b01_authentication_is_asked_before_anything_else() -> None:
    engine = server()
    with pytest.raises(AuthenticationFailed):
        engine.receive(hello(authentication={"mechanism": "password"}), 0)
    assert engine.state is State.NEW
    assert engine.take_outgoing() == []


@pytest.mark.parametrize(
    "data",
    [
        one(Type.HEARTBEAT, 0),
        one(Type.OPEN, 1, frames.pack({"producer": None})),
        one(Type.WELCOME, 0, frames.pack({})),
        one(99, 0),
        one(Type.HELLO, 1, frames.pack({"versions": [1, 1]})),
        one(Type.HELLO, 0, b"\xc1"),
        one(Type.HELLO, 0, frames.pack({"versions": "x"})),
        one(Type.HELLO, 0, frames.pack({})),
        one(Type.HELLO, 0, frames.pack([1, 2])),
        one(Type.GOODBYE, 0, b""),
        frames.HEADER.pack(HANDSHAKE_BYTES_MAX + 1, Type.HELLO, 0, 0, 0) + bytes(HANDSHAKE_BYTES_MAX + 1),
        frames.HEADER.pack(limits.FRAME_BYTES_MAX, Type.HELLO, 0, 0, 0) + bytes(HANDSHAKE_BYTES_MAX),
        frames.HEADER.pack(limits.FRAME_BYTES_MAX + 1, Type.HELLO, 0, 0, 0),
    ],
)
def test_b01_before_the_handshake_only_a_sound_hello_is_taken(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        server().receive(data, 0)


PRODUCER = frames.pack({"producer": None})


@pytest.mark.parametrize(
    "data",
    [
        hello(),
        one(Type.OPENED, 1, PRODUCER),
        one(Type.DELIVER, 1, bytes(8)),
        one(0, 1),
        one(255, 1),
        one(Type.HEARTBEAT, 1),
        one(Type.GOODBYE, 1, frames.pack({})),
        one(Type.OPEN, 0, PRODUCER),
        one(Type.OPEN, 1, b""),
        one(Type.REQUEST, 1, b"x"),
        one(Type.OPEN, 1, PRODUCER) + one(Type.OPEN, 1, PRODUCER),
        one(Type.OPEN, 1, PRODUCER) + one(Type.PUBLISH, 2, bytes(200)),
        one(Type.OPEN, 1, PRODUCER) + one(Type.PUBLISH, 1, bytes(95)),
        one(Type.OPEN, 1, PRODUCER) + one(Type.CREDIT, 1, bytes(15)),
        one(Type.OPEN, 1, PRODUCER) + one(Type.CONFIRM, 1, bytes(17)),
        one(Type.OPEN, 1, PRODUCER) + one(Type.CONFIRM, 1, bytes(16 + 16 * (limits.RANGES_PER_FRAME_MAX + 1))),
        one(Type.OPEN, 1, PRODUCER) + one(Type.CLOSE, 1, b"x"),
        one(Type.OPEN, 1, PRODUCER) + one(Type.CLOSE, 1) + one(Type.REQUEST, 1, b"x"),
        one(Type.OPEN, 1, PRODUCER) + one(Type.CLOSE, 1) + one(Type.OPEN, 1, PRODUCER),
    ],
)
def test_b01_a_ready_server_refuses_what_the_protocol_does_not_allow(data: bytes) -> None:
    _, other = ready()
    with pytest.raises((UnknownFrame, BadFrame)):
        other.receive(data, 0)


def test_b01_a_channel_is_free_again_after_closed() -> None:
    _, other = ready()
    other.receive(one(Type.OPEN, 1, PRODUCER) + one(Type.CLOSE, 1), 0)
    assert other.channels == [1]
    other.send(Type.CLOSED, 1)
    assert other.channels == []
    assert [frame.type for frame in other.receive(one(Type.OPEN, 1, PRODUCER), 0)] == [Type.OPEN]


def test_b01_sessions_of_one_connection_are_bounded() -> None:
    _, other = ready()
    for channel in range(1, limits.SESSIONS_PER_CONNECTION_MAX + 1):
        other.receive(one(Type.OPEN, channel, PRODUCER), 0)
    with pytest.raises(BadFrame, match="sessions"):
        other.receive(one(Type.OPEN, 9999, PRODUCER), 0)


@pytest.mark.parametrize(
    "data",
    [
        one(Type.WELCOME, 0, frames.pack({})),
        one(Type.OPEN, 1, PRODUCER),
        one(Type.REPLY, 0, b"x"),
        one(Type.PUBLISHED, 1, bytes(17)),
        one(Type.PUBLISHED, 1),
        one(Type.REFUSED, 1, bytes(8)),
        one(Type.CLOSED, 1, b"x"),
        one(200, 0),
    ],
)
def test_b01_a_ready_client_refuses_what_the_protocol_does_not_allow(data: bytes) -> None:
    client, _ = ready()
    with pytest.raises((UnknownFrame, BadFrame)):
        client.receive(data, 0)


@given(st.lists(st.binary(max_size=200), max_size=8), st.booleans())
def test_b01_noise_raises_nothing_but_protocol_errors(noise: list[bytes], greeted: bool) -> None:
    client, other = ready() if greeted else (ClientConnection(), server())
    for engine in (client, other):
        try:
            for data in noise:
                engine.receive(data, 0)
        except ProtocolError:
            pass


@given(
    st.integers(0, 50),
    st.integers(0, 3),
    st.recursive(
        st.none() | st.integers(-5, 5) | st.text(max_size=3) | st.binary(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["code", "facts", "self"]), inner),
    ),
    st.booleans(),
)
def test_b01_well_formed_frames_with_strange_content_raise_clarion_errors_only(
    kind: int, channel: int, content: Any, greeted: bool
) -> None:
    client, other = ready() if greeted else (ClientConnection(), server())
    for engine in (client, other):
        try:
            engine.receive(one(kind, channel, frames.pack(content)), 0)
        except ClarionError:
            pass


@given(st.data())
def test_b01_frames_come_out_the_same_however_bytes_are_cut(data: st.DataObject) -> None:
    stream = hello() + one(Type.OPEN, 7, PRODUCER) + one(Type.REQUEST, 7, b"abc") + one(Type.HEARTBEAT, 0)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    engine, received = server(), []
    for first, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += [(frame.type, bytes(frame.payload)) for frame in engine.receive(stream[first:end], 0)]
    assert received == [(Type.OPEN, PRODUCER), (Type.REQUEST, b"abc")]


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=8), st.data())
def test_b01_a_frame_that_comes_alone_is_the_same_frame(requests: list[tuple[int, bool]], data: st.DataObject) -> None:
    """Whole frames take a way of their own; a frame that was cut off before them must not be forgotten."""
    engine, reader = server(), frames.FrameReader()
    engine.receive(hello(), 0)
    engine.receive(one(Type.OPEN, 7, PRODUCER), 0)
    received: list[frames.Frame] = []
    expected: list[frames.Frame] = []
    for size, whole in requests:
        said = b"".join(frames.frame(Type.REQUEST, 7, [b"x" * (size + 1)], flags=size))
        cut = len(said) if whole else data.draw(st.integers(0, len(said)))
        for part in (said[:cut], said[cut:]):
            received += engine.receive(part, 0)
            expected += reader.feed(part)
    assert received == expected and len(received) == len(requests)


def test_b01_handshake_has_a_time_limit_that_noise_does_not_prolong() -> None:
    engine = server()
    engine.tick(1_000)
    engine.receive(hello()[:5], 1_000 + limits.HANDSHAKE_MS_MAX)
    engine.tick(1_000 + limits.HANDSHAKE_MS_MAX)
    with pytest.raises(HandshakeTimeout):
        engine.tick(1_001 + limits.HANDSHAKE_MS_MAX)


def test_b01_heartbeats_are_sent_when_silent_and_missed_after_three() -> None:
    client, other = ready(heartbeat_ms=1_000)
    for now_ms in range(0, 10_000, 500):  # both tick: both stay
        for engine, peer in ((client, other), (other, client)):
            engine.tick(now_ms)
            assert peer.receive(written(engine), now_ms) == []
    heartbeats = 0
    with pytest.raises(HeartbeatMissed) as missed:
        for now_ms in range(10_000, 20_000, 500):
            other.tick(now_ms)
            heartbeats += len(other.take_outgoing())
    assert missed.value.facts["silent_ms"] == 3_500
    assert heartbeats == 3


def test_b01_a_host_that_was_stopped_does_not_blame_its_peer() -> None:
    _, other = ready(heartbeat_ms=1_000)
    other.tick(100)
    other.tick(60_000)
    other.tick(62_000)
    with pytest.raises(HeartbeatMissed):
        other.tick(63_001)


def test_b01_goodbye_is_the_last_frame_and_carries_the_error() -> None:
    client, other = ready()
    other.goodbye(TooManyConnections(limit=3))
    other.goodbye(None)
    assert other.state is State.CLOSING
    assert other.receive(hello(), 0) == []
    other.tick(10**9)
    with pytest.raises(TooManyConnections):
        client.receive(written(other), 0)


def test_b01_answers_that_came_with_goodbye_are_handed_out_first() -> None:
    client, other = ready()
    other.send(Type.PUBLISHED, 1, (frames.SETTLED.pack(1, 1, 0),))
    other.goodbye(None)
    assert [frame.type for frame in client.receive(written(other), 0)] == [Type.PUBLISHED]
    with pytest.raises(ConnectionLost):
        client.receive(b"", 0)


def test_b01_a_clients_goodbye_ends_it_quietly() -> None:
    client, other = ready()
    client.goodbye(BadFrame(detail="x"))
    assert other.receive(written(client) + b"whatever follows", 0) == []
    assert other.state is State.CLOSING
    assert isinstance(other.peer_error, BadFrame)


def test_b01_an_idle_connection_is_small() -> None:
    _, other = ready()
    other.take_outgoing()
    parts = [getattr(other, name) for name in ("_reader", "outgoing", "_channels")]
    assert sys.getsizeof(other) + sum(map(sys.getsizeof, parts)) < 1_500
    assert not hasattr(other, "__dict__")


def test_b01_a_frame_beyond_the_limit_is_refused_from_its_header() -> None:
    _, other = ready()
    with pytest.raises(FrameTooLarge):
        other.receive(frames.HEADER.pack(limits.FRAME_BYTES_MAX + 1, Type.REQUEST, 0, 0, 1), 0)


def test_b01_hello_knows_its_own_defaults() -> None:
    assert Hello((1, 1)).heartbeat_ms == limits.HEARTBEAT_MS_DEFAULT
