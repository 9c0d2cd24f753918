"""Frames and requests of large bodies that no honest client sends: an answer, or the connection (B-01, B-12)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from crc32c import crc32c

from clarion import limits
from clarion.core.streams import keyed_id, stream_id
from clarion.errors import (
    BadArgument,
    BadFrame,
    BadName,
    ClarionError,
    CreditExceeded,
    NoSuchDestination,
    NoSuchStream,
    ProtocolError,
    WrongKind,
    from_code,
)
from clarion.message import Headers, encode_headers
from clarion.nodes.sessions import FragmentWindow
from clarion.wire import batch, frames
from clarion.wire.frames import Type
from tests.hostile.raw import RawClient
from tests.integration.topologies import Topology

KEYED = keyed_id("hostile", "k")


@pytest.fixture
def client(server: Topology) -> Iterator[RawClient]:
    with RawClient(server.port) as connected:
        connected.hello()
        yield connected


def large_message(
    producer: int, name: str, stream: bytes, large: Any, *, bodies: tuple[bytes, ...] = (b"",), first: int = 1
) -> bytes:
    headers = [encode_headers(Headers(large=large))] * len(bodies) if large is not None else None
    encoded = batch.encode(name.encode(), producer + first, bodies, headers)
    return frames.LARGE.pack(stream, 0, first) + encoded


def answer(client: RawClient) -> tuple[int, int, int, ClarionError | None]:
    """(stored, answered bytes, how, error) of the next answer to a fragment."""
    payload = client.next(Type.FRAGMENT_STORED)
    _stream, stored, size, how = frames.STORED.unpack_from(payload)
    said = frames.unpack(payload[frames.STORED.size :]) if how == frames.STORED_FAILED else None
    return stored, size, how, from_code(said["code"], said["facts"]) if said else None


def send_fragment(client: RawClient, name: str, data: bytes, offset: int = 0, stream: bytes = KEYED) -> None:
    client.send(Type.FRAGMENT, 1, *frames.fragment_parts(stream, offset, name.encode(), data))


# --- what costs the connection ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (bytes(34), BadFrame),
        (frames.FRAGMENT.pack(KEYED, 0, 1) + b"q", BadFrame),
        (frames.FRAGMENT.pack(KEYED, 0, 65_535) + b"q" * 100, BadFrame),
        (frames.FRAGMENT.pack(KEYED, 0, 1) + b"q" + bytes(limits.FRAGMENT_BYTES_MAX + 1), BadFrame),
        (frames.FRAGMENT.pack(KEYED, 0, 1) + bytes(limits.FRAGMENT_BYTES_MAX + 300), BadFrame),
        (frames.FRAGMENT.pack(KEYED, (1 << 64) - 1, 1) + b"qx", BadFrame),
        (frames.FRAGMENT.pack(stream_id(1 << 100, 1), 0, 1) + b"qx", ProtocolError),
    ],
)
def test_b01_a_fragment_that_is_wrong_in_itself(client: RawClient, payload: bytes, error: type[ClarionError]) -> None:
    client.open()
    client.send(Type.FRAGMENT, 1, payload)
    assert isinstance(client.goodbye(), error)


@pytest.mark.parametrize(
    ("stream", "large", "bodies"),
    [
        (KEYED, None, (b"",)),
        (KEYED, (KEYED, 5, 0), (b"body",)),
        (KEYED, (KEYED, 5, 0), (b"", b"")),
        (KEYED, (keyed_id("hostile", "other"), 5, 0), (b"",)),
        (stream_id(1 << 100, 1), (stream_id(1 << 100, 1), 5, 0), (b"",)),
    ],
)
def test_b01_a_message_that_is_not_of_its_large_body(
    client: RawClient, stream: bytes, large: Any, bodies: tuple[bytes, ...]
) -> None:
    producer = client.open()
    client.send(Type.PUBLISH_LARGE, 1, large_message(producer, "queue:hostile", stream, large, bodies=bodies))
    assert isinstance(client.goodbye(), ProtocolError)


def test_b01_more_fragments_than_the_window_holds() -> None:
    window = FragmentWindow(100)
    window.take(250)  # one of any legal size
    with pytest.raises(CreditExceeded):
        window.take(1)
    window.settle(250)
    for _ in range(4):
        window.take(25)
    with pytest.raises(CreditExceeded):
        window.take(1)
    window.settle(1_000)
    assert window.unanswered_bytes == 0


# --- what is answered ---------------------------------------------------------------------------------


def test_b12_fragments_are_answered_one_by_one(client: RawClient, name: str) -> None:
    client.open()
    stream = keyed_id(name, "k")
    send_fragment(client, name, b"0123456789", 5, stream)
    assert answer(client) == (0, 10, frames.STORED_ELSE, None)
    send_fragment(client, name, b"0123456789", 0, stream)
    assert answer(client) == (10, 10, frames.STORED_ALL, None)
    for offset in (0, 9, 11):
        send_fragment(client, name, b"abc", offset, stream)
        assert answer(client) == (10, 3, frames.STORED_ELSE, None)
    assert client.request("stream", destination=name, stream=stream) == {
        "offset": 10, "checksum": crc32c(b"0123456789"), "id": None,
    }  # fmt: skip
    send_fragment(client, f"{name}-other", b"abc", 10, stream)
    assert isinstance(answer(client)[3], BadArgument)
    send_fragment(client, f"topic:{name}", b"abc", 10, stream)
    assert isinstance(answer(client)[3], WrongKind)
    for bad in ("", "a b", "_SYSTEM", "x" * 256):
        send_fragment(client, bad, b"abc", 10, stream)
        stored, size, how, error = answer(client)
        assert (stored, size, how) == (0, 3, frames.STORED_FAILED) and isinstance(error, BadName)
    client.request("drop_stream", stream=stream)
    assert client.request("stream", destination=name, stream=stream)["offset"] == 0


def test_b12_a_message_whose_body_is_not_here_is_not_stored(client: RawClient, name: str) -> None:
    producer = client.open()
    stream = keyed_id(name, "k")
    good = (stream, 10, crc32c(b"0123456789"))

    def failed(large: Any, first: int) -> ClarionError | None:
        client.send(Type.PUBLISH_LARGE, 1, large_message(producer, name, stream, large, first=first))
        payload = client.next(Type.PUBLISH_FAILED)
        assert frames.SETTLED.unpack_from(payload)[:2] == (first, 1)
        said = frames.unpack(payload[frames.SETTLED.size :])
        return from_code(said["code"], said["facts"])

    assert isinstance(failed(good, 1), NoSuchStream)
    send_fragment(client, name, b"0123456789", 0, stream)
    assert answer(client)[2] == frames.STORED_ALL
    assert isinstance(failed((stream, 11, good[2]), 2), BadArgument)
    assert isinstance(failed((stream, 10, 77), 3), BadArgument)
    client.send(Type.PUBLISH_LARGE, 1, large_message(producer, name, stream, good, first=4))
    assert frames.SETTLED.unpack(client.next(Type.PUBLISHED))[:2] == (4, 1)
    assert isinstance(failed(good, 5), BadArgument), "its message is stored"
    send_fragment(client, name, b"more", 10, stream)
    assert isinstance(answer(client)[3], BadArgument)
    assert client.request("fragment", destination=name, sequence=1, offset=3) == {"data": b"3456789", "size": 10}
    assert client.request("fragment", destination=name, sequence=1, offset=10) == {"data": b"", "size": 10}


@pytest.mark.parametrize(
    ("verb", "arguments", "error"),
    [
        ("stream", {"destination": "q"}, BadArgument),
        ("stream", {"stream": KEYED}, BadArgument),
        ("stream", {"destination": 7, "stream": KEYED}, BadArgument),
        ("stream", {"destination": "a b", "stream": KEYED}, BadName),
        ("stream", {"destination": "q", "stream": b"short"}, BadArgument),
        ("stream", {"destination": "q", "stream": "text"}, BadArgument),
        ("stream", {"destination": "q", "stream": stream_id(1 << 100, 1)}, BadArgument),
        ("stream", {"destination": "q", "stream": KEYED, "size": -1}, BadArgument),
        ("stream", {"destination": "q", "stream": KEYED, "size": "x"}, BadArgument),
        ("drop_stream", {"stream": stream_id(1 << 100, 1)}, BadArgument),
        ("drop_stream", {}, BadArgument),
        ("fragment", {"destination": "q", "sequence": 1}, BadArgument),
        ("fragment", {"destination": "not-there", "sequence": 1, "offset": 0}, NoSuchDestination),
        ("fragment", {"destination": "_DMQ", "sequence": 10**9, "offset": 0}, NoSuchStream),
        ("fragment", {"destination": "_DMQ", "sequence": "x", "offset": 0}, BadArgument),
        ("fragment", {"destination": "_DMQ", "sequence": 1, "offset": -1}, BadArgument),
        ("fragment", {"destination": 7, "sequence": 1, "offset": 0}, BadArgument),
    ],
)
def test_b12_wrong_requests_are_told(
    client: RawClient, verb: str, arguments: dict[str, Any], error: type[ClarionError]
) -> None:
    client.open()
    with pytest.raises(error):
        client.request(verb, **arguments)
    assert client.request("drop_stream", request=2, stream=keyed_id("q", "nothing")) == {}
