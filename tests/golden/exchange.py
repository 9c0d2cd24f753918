"""A scripted session of protocol version 1: what the client says, and how to tell two answers apart.

The script is used only to make the recording; tests read the recording. Everything in it is fixed: the client
names its own producer id, and batches carry fixed times.
"""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

from clarion import ids
from clarion.message import Headers, encode_headers
from clarion.wire import batch, frames
from clarion.wire.batch import Batch
from clarion.wire.frames import Frame, Type

PRODUCER = ids.IdGenerator.begin(3, 7, ids.EPOCH_MS + 1_000_000).next_producer()
CREATED_MS = 1_767_225_600_000
_TEXTS = frozenset({"reason", "detail", "text"})
"""Facts that are prose, and so no interface."""


class Step(NamedTuple):
    """What the client sends, and how many frames it then waits for."""

    name: str
    sent: bytes
    answers: int


def _frame(kind: Type, channel: int, *parts: bytes, flags: int = 0) -> bytes:
    return b"".join(frames.frame(kind, channel, parts, flags))


def _control(kind: Type, channel: int, **said: object) -> bytes:
    return _frame(kind, channel, frames.pack(said))


def _publish(
    destination: str, first: int, bodies: list[bytes], flags: int = 0, headers: list[bytes] | None = None
) -> bytes:
    times = list(range(len(bodies)))
    encoded = batch.encode(
        destination.encode(), PRODUCER + first, bodies, headers, time_deltas_ms=times, created_ms=CREATED_MS
    )
    return _frame(Type.PUBLISH, 1, frames.FLOOR.pack(first), bytes(encoded), flags=flags)


def _subscribe(request: int, destination: str, **said: object) -> bytes:
    wanted: dict[str, object] = {
        "request": request,
        "consumer": 1,
        "destination": destination,
        "subscription": None,
        "durable": False,
        "shared": False,
        "credit_messages": 100,
        "credit_bytes": 100_000,
        "unconfirmed_max": 50,
        "held": [],
    }
    return _control(Type.SUBSCRIBE, 1, **{**wanted, **said})


def script() -> list[Step]:
    """The whole session."""
    headers = [
        encode_headers(Headers("queue:answers", "c-1", None, "order", "text/plain", 0, {"n": 1, "t": "é", "b": b"\0"})),
        b"",
        encode_headers(Headers(correlation_id="c-2")),
    ]
    first = _publish("queue:golden", 1, [b"one", b"two", b"three"], headers=headers)
    again = _publish("queue:golden", 1, [b"one", b"two", b"three"], flags=frames.RESEND, headers=headers)
    hello: dict[str, object] = {
        "versions": [1, 1],
        "name": "golden",
        "software": "golden 1",
        "heartbeat_ms": 60_000,
        "authentication": {"mechanism": "none"},
    }
    create = {"destination": "queue:golden-small", "quota_bytes": 1_000}
    browse = {"destination": "golden", "from": 0, "messages": 10, "bytes": 10_000}
    purge = {"destination": "golden-small"}
    return [
        Step("handshake", _control(Type.HELLO, 0, **hello), 1),
        Step("heartbeat", _frame(Type.HEARTBEAT, 0), 0),
        Step("open", _control(Type.OPEN, 1, producer=PRODUCER.to_bytes(16, "big")), 1),
        Step("create", _control(Type.REQUEST, 1, request=1, verb="create", arguments=create), 1),
        Step("publish", first, 1),
        Step("publish again", again, 1),
        Step("wrong kind", _publish("topic:golden", 4, [b"x"]), 1),
        Step("browse", _control(Type.REQUEST, 1, request=2, verb="browse", arguments=browse), 1),
        Step("subscribe", _subscribe(3, "queue:golden"), 2),
        Step("confirm", _frame(Type.CONFIRM, 1, frames.pack_ack(1, 4, [(1, 2), (2, 3)])), 1),
        Step("reject", _frame(Type.REJECT, 1, frames.pack_ack(1, 5, [(3, 4)])), 2),
        Step("credit", _frame(Type.CREDIT, 1, frames.CREDIT.pack(1, 4, 1_000)), 0),
        Step("deliver", _publish("golden", 5, [b"five"]), 2),
        Step("unsubscribe", _control(Type.UNSUBSCRIBE, 1, request=6, consumer=1, unseen=[[4, 5]], delete=False), 1),
        Step("confirm late", _frame(Type.CONFIRM, 1, frames.pack_ack(1, 7, [(3, 4)])), 1),
        Step("durable", _subscribe(8, "topic:golden-t", consumer=2, subscription="kept", durable=True, shared=True), 1),
        Step("bad name", _subscribe(9, "queue:a b", consumer=3), 1),
        Step("unknown verb", _control(Type.REQUEST, 1, request=10, verb="explode", arguments={}), 1),
        Step("fill", _publish("queue:golden-small", 6, [bytes(500)]), 1),
        Step("refused", _publish("queue:golden-small", 7, [bytes(500)]), 1),
        Step("resume", _control(Type.REQUEST, 1, request=11, verb="purge", arguments=purge), 2),
        Step("send again", _publish("queue:golden-small", 7, [bytes(500)]), 1),
        Step("close", _frame(Type.CLOSE, 1), 1),
        Step("goodbye", _control(Type.GOODBYE, 0, code="", facts={}), 0),
    ]


def replay(port: int, steps: list[Step]) -> list[list[bytes]]:
    """Say each step and gather its answers, whole frames without heartbeats; the server closes at the end."""
    answers: list[list[bytes]] = []
    reader = frames.FrameReader()
    with socket.create_connection(("127.0.0.1", port), timeout=15) as connected:
        for step in steps:
            connected.sendall(step.sent)
            got: list[bytes] = []
            while len(got) < step.answers:
                data = connected.recv(1 << 16)
                assert data, f"the server ended the connection in step {step.name!r}"
                got += [_whole(frame) for frame in reader.feed(data) if frame.type != Type.HEARTBEAT]
            assert len(got) == step.answers, f"{step.name}: {[decode(frame) for frame in got]}"
            answers.append(sorted(got, key=lambda frame: frame[4]))
        assert connected.recv(1) == b"", "the server said something after GOODBYE"
    return answers


def _whole(frame: Frame) -> bytes:
    return b"".join(frames.frame(frame.type, frame.channel, [frame.payload], frame.flags))


def decode(whole: bytes) -> dict[str, Any]:
    """What a server's frame says, without the bytes it says it in."""
    (frame,) = frames.FrameReader().feed(whole)
    kind, payload = Type(frame.type), frame.payload
    said: dict[str, Any] = {"type": kind.name, "channel": frame.channel}
    match kind:
        case Type.PUBLISHED:
            said["settled"] = list(frames.SETTLED.iter_unpack(payload))
        case Type.PUBLISH_FAILED:
            said["settled"] = frames.SETTLED.unpack_from(payload)
            said.update(frames.unpack(payload[frames.SETTLED.size :]))
        case Type.REFUSED:
            said["first"] = frames.FLOOR.unpack_from(payload)[0]
            said.update(frames.unpack(payload[frames.FLOOR.size :]))
        case Type.RESUME:
            said["first"] = frames.FLOOR.unpack_from(payload)[0]
            said["destination"] = bytes(payload[frames.FLOOR.size :])
        case Type.DELIVER:
            consumer, slices = frames.unpack_deliver(payload)
            said["consumer"] = consumer
            said["slices"] = [(*piece[:3], _records(piece.batch)) for piece in slices]
        case Type.CLOSED:
            pass
        case _:
            said.update(frames.unpack(payload))
    result = said.get("result")
    if isinstance(result, dict) and "slices" in result:
        result["slices"] = [[*piece[:3], _records(piece[3])] for piece in result["slices"]]
    return said


def _records(data: bytes | memoryview) -> dict[str, object]:
    sound = Batch.parse(bytes(data))
    return {
        "destination": sound.destination,
        "first_id": sound.first_id,
        "priority": sound.priority,
        "records": [tuple(map(bytes, sound.record(index))) for index in range(sound.count)],
        "times_ms": [sound.time_ms(index) for index in range(sound.count)],
    }


def differences(recorded: Any, present: Any, path: str = "") -> list[str]:
    """What of the recorded answer is not in the present one. More keys than recorded are no difference."""
    if isinstance(recorded, dict) and isinstance(present, dict):
        found: list[str] = []
        for key, value in recorded.items():
            if key in _TEXTS:
                continue
            if key not in present:
                found.append(f"{path}.{key} is missing")
            else:
                found += differences(value, present[key], f"{path}.{key}")
        return found
    if isinstance(recorded, list | tuple) and isinstance(present, list | tuple) and len(recorded) == len(present):
        return [
            difference
            for number, (one, other) in enumerate(zip(recorded, present, strict=True))
            for difference in differences(one, other, f"{path}[{number}]")
        ]
    return [] if recorded == present else [f"{path}: {recorded!r} is now {present!r}"]
