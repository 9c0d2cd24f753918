"""Data and conversations of earlier versions are understood by this one (format version 1, protocol version 1)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clarion import sync
from clarion.protocols.native import ClientConnection, ServerConnection
from clarion.testing.server import ServerProcess
from clarion.wire import frames
from clarion.wire.frames import SETTLED, Type
from tests.golden.archives import unpack
from tests.golden.exchange import Step, decode, differences, replay
from tests.golden.make import ENVIRONMENT, FOLDER, body_of
from tests.hostile.raw import RawClient


def _read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text("utf-8"))


# --- the journal --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    listed: dict[str, Any] = _read("journal-v1.json")
    return listed


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of now on the directory of then."""
    data = tmp_path_factory.mktemp("golden") / "data"
    unpack(FOLDER / "journal-v1.tar.xz", data)
    with ServerProcess(data) as server:  # its sizes come from the directory
        yield server


def test_a05_an_old_journal_has_its_destinations(opened: ServerProcess, content: dict[str, Any]) -> None:
    with sync.connect(opened.url) as connection:
        found = {known["name"]: known for known in connection.command("destinations")}
        status = connection.command("status")
    assert found.keys() == content["destinations"].keys()
    for name, listed in content["destinations"].items():
        assert {key: found[name][key] for key in listed} == listed
        assert found[name]["lost_messages"] == 0
    listed_subscriptions = {(one["destination"], one["name"], one["shared"]) for one in content["subscriptions"]}
    assert listed_subscriptions == {
        (name, one["name"], one["shared"]) for name in ("orders", "news") for one in found[name]["subscriptions"]
    }
    assert status["warnings"] == [] and status["lost_messages"] == 0


def test_a05_an_old_journal_remembers_what_producers_sent(opened: ServerProcess, content: dict[str, Any]) -> None:
    with RawClient(opened.port) as raw:
        raw.hello()
        producer = raw.open(producer=bytes.fromhex(content["producer"]))
        raw.publish(producer, 1, "queue:doubles", body_of("doubles", 1), body_of("doubles", 2), flags=frames.RESEND)
        assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (1, 2, 0)
        raw.publish(producer, 3, "queue:doubles", body_of("doubles", 3), flags=frames.RESEND)
        assert SETTLED.unpack(raw.next(Type.PUBLISHED)) == (3, 1, 0)
    with sync.connect(opened.url) as connection, connection.session() as session:
        bodies = [message.body for message in session.browse("doubles")]
    assert bodies == [body_of("doubles", number) for number in (1, 2, 3)]


def test_a05_an_old_journal_has_every_unconfirmed_message_and_no_other(
    opened: ServerProcess, content: dict[str, Any]
) -> None:
    for life in range(2):
        with sync.connect(opened.url) as connection, connection.session() as session:
            for listed in content["subscriptions"]:
                name, unconfirmed = listed["destination"], listed["unconfirmed"]
                durable = listed["name"]
                with session.receive(name, durable=durable, shared=bool(durable) and listed["shared"]) as consumer:
                    messages: list[sync.ReceivedMessage] = []
                    for _ in unconfirmed:
                        message = consumer.receive(timeout=10)
                        assert message is not None, f"{len(messages)} of {len(unconfirmed)} of {name} {durable}"
                        messages.append(message)
                    assert consumer.receive(timeout=0.2) is None
                assert sorted(message.sequence for message in messages) == unconfirmed
                for message in messages:
                    assert message.body == body_of(name, message.sequence)
                    if name == "orders":
                        assert message.properties == {"n": message.sequence, "odd": message.sequence % 2}
                counts = {message.sequence: message.delivery_count for message in messages}
                assert all(counts[sequence] >= 2 for sequence in listed.get("returned", ()))
        if life == 0:  # what was not confirmed is there again after a restart by the code of now
            assert opened.stop() == 0
            opened.start()


# --- the protocol -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = _read("exchange-v1.json")
    return steps


def test_b01_an_old_client_gets_the_same_answers(tmp_path: Path, recorded: list[dict[str, Any]]) -> None:
    steps = [Step(step["step"], bytes.fromhex(step["client"]), len(step["server"])) for step in recorded]
    with ServerProcess(tmp_path / "data", environment=ENVIRONMENT) as server:
        answers = replay(server.port, steps)
    for step, got in zip(recorded, answers, strict=True):
        then = [decode(bytes.fromhex(frame)) for frame in step["server"]]
        assert differences(then, [decode(frame) for frame in got], step["step"]) == []


def test_b01_an_old_exchange_passes_the_state_machines_of_now(recorded: list[dict[str, Any]]) -> None:
    client, connection = ClientConnection(), _server()
    for number, step in enumerate(recorded):
        heard = connection.receive(bytes.fromhex(step["client"]), number)
        assert len(heard) == (step["step"] not in ("handshake", "heartbeat", "goodbye"))
        frames_back = b"".join(bytes.fromhex(frame) for frame in step["server"])
        got = client.receive(frames_back, number)
        assert len(got) == (0 if step["step"] == "handshake" else len(step["server"]))
    assert client.welcome is not None and client.welcome.version == 1


def _server() -> ServerConnection:
    return ServerConnection(
        server="golden",
        batch_bytes_max=1 << 20,
        producer_window_bytes=1 << 20,
        heartbeat_ms=10_000,
        authenticate=lambda authentication: None,
    )


ORDINARY = {
    Type.HELLO,
    Type.WELCOME,
    Type.HEARTBEAT,
    Type.GOODBYE,
    Type.OPEN,
    Type.OPENED,
    Type.CLOSE,
    Type.CLOSED,
    Type.PUBLISH,
    Type.PUBLISHED,
    Type.REFUSED,
    Type.RESUME,
    Type.PUBLISH_FAILED,
    Type.SUBSCRIBE,
    Type.CREDIT,
    Type.DELIVER,
    Type.CONFIRM,
    Type.REJECT,
    Type.UNSUBSCRIBE,
    Type.REQUEST,
    Type.REPLY,
    Type.ERROR,
}
"""The frames of an ordinary session when the recording was made."""
NOT_ORDINARY = {Type.CONSUMER_CLOSED}
"""Known then, and only said when something goes wrong."""
NEWER = {
    Type.STAGE,
    Type.DELIVERED,
    Type.FRAGMENT,
    Type.FRAGMENT_STORED,
    Type.PUBLISH_LARGE,
    Type.RETURN,
    Type.MERGED,
}
"""Added since then. An old client never says them, and never asks for anything that they answer."""


def test_b01_the_recording_has_every_frame_of_an_ordinary_session(recorded: list[dict[str, Any]]) -> None:
    said = {frame.type for step in recorded for frame in frames.FrameReader().feed(bytes.fromhex(step["client"]))}
    heard = {bytes.fromhex(frame)[4] for step in recorded for frame in step["server"]}
    assert said | heard == ORDINARY


def test_b01_every_other_frame_is_newer_than_the_recording() -> None:
    assert set(Type) - ORDINARY - NOT_ORDINARY == NEWER
