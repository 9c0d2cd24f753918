"""A blocking socket that speaks frames, rightly or wrongly."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Self

from clarion.errors import ClarionError, from_code
from clarion.wire import batch, frames
from clarion.wire.batch import Buffer
from clarion.wire.frames import Frame, Type

WAIT_S = 15.0


class Disconnected(Exception):
    """The server closed the connection."""


class RawClient:
    """One connection. Heartbeats of the server are passed over."""

    def __init__(self, port: int, wait_s: float = WAIT_S, receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(wait_s)
        self.socket.connect(("127.0.0.1", port))
        self._reader = frames.FrameReader()
        self._received: list[Frame] = []
        self.heartbeats = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    # --- sending --------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, kind: int, channel: int, *parts: Buffer, flags: int = 0) -> None:
        self.write(b"".join(frames.frame(kind, channel, parts, flags)))

    def say(self, kind: int, channel: int, **said: object) -> None:
        self.send(kind, channel, frames.pack(said))

    # --- receiving ------------------------------------------------------------------------------------

    def frame(self) -> Frame:
        """The next frame but heartbeats. Raises `Disconnected` at the end, `TimeoutError`."""
        while True:
            while self._received:
                frame = self._received.pop(0)
                if frame.type != Type.HEARTBEAT:
                    return frame
                self.heartbeats += 1
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionResetError:
                raise Disconnected from None
            if not data:
                raise Disconnected
            self._received += list(self._reader.feed(data))

    def next(self, kind: int) -> memoryview:
        """The payload of the next frame, which must be of this type."""
        frame = self.frame()
        assert frame.type == kind, f"{Type(frame.type).name} {bytes(frame.payload)[:200]!r}, not {Type(kind).name}"
        return frame.payload

    def goodbye(self) -> ClarionError | None:
        """The error of GOODBYE, which must be the last frame; frames before it are passed over."""
        while (frame := self.frame()).type != Type.GOODBYE:
            pass
        said = frames.unpack(frame.payload)
        try:
            late = self.frame()
        except Disconnected:
            return from_code(said["code"], said["facts"]) if said["code"] else None
        raise AssertionError(f"{late} after GOODBYE")

    # --- the usual course -----------------------------------------------------------------------------

    def hello(self, heartbeat_ms: int = 10_000, **said: object) -> dict[str, Any]:
        usual = {"versions": [1, 1], "heartbeat_ms": heartbeat_ms, "authentication": {"mechanism": "none"}}
        self.say(Type.HELLO, 0, **{**usual, **said})
        welcome: dict[str, Any] = frames.unpack(self.next(Type.WELCOME))
        return welcome

    def open(self, channel: int = 1, producer: bytes | None = None) -> int:
        """Open a session; its producer id."""
        self.say(Type.OPEN, channel, producer=producer)
        return int.from_bytes(frames.unpack(self.next(Type.OPENED))["producer"], "big")

    def publish(self, producer: int, first: int, destination: str, *bodies: bytes, flags: int = 0) -> None:
        """Publish one batch on channel 1."""
        encoded = batch.encode(destination.encode(), producer + first, bodies)
        self.send(Type.PUBLISH, 1, frames.FLOOR.pack(first), encoded, flags=flags)

    def subscribe(self, destination: str, *, consumer: int = 1, request: int = 1, **said: object) -> dict[str, Any]:
        """Subscribe on channel 1, with credit for everything; the result."""
        usual: dict[str, object] = {"credit_messages": 10_000, "credit_bytes": 1 << 20, "unconfirmed_max": 10_000}
        wanted = {"request": request, "consumer": consumer, "destination": destination, **usual, **said}
        self.send(Type.SUBSCRIBE, 1, frames.pack(wanted))
        result: dict[str, Any] = self._answer(request)
        return result

    def request(self, verb: str, *, request: int = 1, **arguments: object) -> Any:
        """Ask on channel 1; the result. Raises what the answer says."""
        self.say(Type.REQUEST, 1, request=request, verb=verb, arguments=arguments)
        return self._answer(request)

    def _answer(self, request: int) -> Any:
        frame = self.frame()
        assert frame.type in (Type.REPLY, Type.ERROR), Type(frame.type).name
        answer = frames.unpack(frame.payload)
        assert answer["request"] == request
        if frame.type == Type.ERROR:
            raise from_code(answer["code"], answer["facts"])
        return answer["result"]
