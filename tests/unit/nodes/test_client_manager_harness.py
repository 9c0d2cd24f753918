"""What the tests of the client manager share: a raw client, and a message manager that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import uvloop
from msgspec.structs import replace

from clarion import ids
from clarion.bus import LoopbackBus, LoopbackHub
from clarion.errors import ClarionError, from_code
from clarion.instruments import Registry
from clarion.nodes.client_manager import ClientManager
from clarion.nodes.identity import Identity
from clarion.settings import Settings
from clarion.wire import batch, commands, frames
from clarion.wire.batch import Buffer
from clarion.wire.frames import Type

WAIT_S = 10.0


class Scripted:
    """Stands where a message manager is: keeps commands, and says what a test wants."""

    def __init__(self, bus: LoopbackBus) -> None:
        self.bus = bus
        self._commands: asyncio.Queue[commands.Command] = asyncio.Queue()
        self.introduced: dict[int, tuple[int, int]] = {}
        """Session → producer and connection, as SESSION_OPENED said."""
        bus.subscribe(commands.group_channel(0), self._heard)

    def _heard(self, data: bytes) -> None:
        command = commands.decode(data)
        if command.type == commands.SESSION_OPENED:
            facts = frames.unpack(command.payload)
            assert command.session not in self.introduced, "a session is introduced once"
            producer, connection = (int.from_bytes(facts[key], "big") for key in ("producer", "connection"))
            self.introduced[command.session] = (producer, connection)
            return
        if command.type not in (commands.SESSION_ENDED, commands.SESSION_FLOW):
            assert command.session in self.introduced, "nothing comes before the introduction"
        self._commands.put_nowait(command)

    async def next(self, kind: int) -> commands.Command:
        """The next command, which must be of this type."""
        command = await asyncio.wait_for(self._commands.get(), WAIT_S)
        assert command.type == kind, f"{command.type} instead of {kind}"
        return command

    def say(self, session: int, kind: int, *parts: Buffer) -> None:
        self.bus.publish(commands.session_channel(session), commands.encode(kind, session, list(parts)))

    @property
    def waiting(self) -> int:
        return self._commands.qsize()


class RawClient:
    """A socket that speaks frames, rightly or wrongly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = frames.FrameReader()
        self._received: list[frames.Frame] = []

    def send(self, kind: int, channel: int, *parts: Buffer, flags: int = 0) -> None:
        self.writer.writelines(frames.frame(kind, channel, parts, flags))

    def say(self, kind: int, channel: int, **said: object) -> None:
        self.send(kind, channel, frames.pack(said))

    async def frame(self) -> frames.Frame | None:
        """The next frame but heartbeats; None at the end of the connection."""
        while True:
            while self._received:
                frame = self._received.pop(0)
                if frame.type != Type.HEARTBEAT:
                    return frame
            data = await asyncio.wait_for(self.reader.read(1 << 18), WAIT_S)
            if not data:
                return None
            self._received += list(self._frames.feed(data))

    async def next(self, kind: int) -> memoryview:
        """The payload of the next frame, which must be of this type."""
        frame = await self.frame()
        assert frame is not None and frame.type == kind, f"{frame} instead of {Type(kind).name}"
        return frame.payload

    async def goodbye(self) -> ClarionError | None:
        """The error of GOODBYE, which must be the last frame."""
        said = frames.unpack(await self.next(Type.GOODBYE))
        assert await self.frame() is None
        return from_code(said["code"], said["facts"]) if said["code"] else None

    async def hello(self, heartbeat_ms: int = 10_000) -> dict[str, Any]:
        authentication = {"mechanism": "none"}
        self.say(Type.HELLO, 0, versions=[1, 1], heartbeat_ms=heartbeat_ms, authentication=authentication)
        welcome: dict[str, Any] = frames.unpack(await self.next(Type.WELCOME))
        return welcome

    async def open(self, channel: int = 1, producer: bytes | None = None) -> int:
        """Open a session; its producer id."""
        self.say(Type.OPEN, channel, producer=producer)
        return int.from_bytes(frames.unpack(await self.next(Type.OPENED))["producer"], "big")

    def publish(self, producer: int, first: int, *bodies: bytes, to: bytes = b"queue:a", floor: int = 0) -> int:
        """Publish one batch on channel 1; its size."""
        encoded = batch.encode(to, producer + first, bodies)
        self.send(Type.PUBLISH, 1, frames.FLOOR.pack(floor), encoded)
        return len(encoded)

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass


@dataclass
class Setup:
    """A started client manager, its scripted message manager, and clients by demand."""

    manager: ClientManager
    scripted: Scripted
    registry: Registry
    hub: LoopbackHub
    clients: list[RawClient] = field(default_factory=list)

    async def connect(self) -> RawClient:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.manager.address.port))
        self.clients.append(client)
        return client

    async def ready(self) -> tuple[RawClient, int]:
        """A client with a session on channel 1, and its producer id."""
        client = await self.connect()
        await client.hello()
        return client, await client.open()

    def read(self, name: str) -> object:
        return self.registry.sense(name)[name].value


def run(
    scenario: Callable[[Setup], Coroutine[Any, Any, None]],
    *,
    clock: Callable[[], int] | None = None,
    identity: Identity | None = None,
    **client_manager: Any,
) -> None:
    """Run `scenario` against a client manager with these settings, on the product's own loop."""

    async def main() -> None:
        hub = LoopbackHub()
        registry = Registry()
        defaults = Settings()
        tables = replace(defaults.client_manager, listen="127.0.0.1:0", **client_manager)
        settings = replace(defaults, client_manager=tables)
        who = identity or Identity("test", ids.IdGenerator.begin(1, 2, ids.EPOCH_MS + 1_000))
        scripted = Scripted(hub.endpoint())
        manager = ClientManager(hub.endpoint(), settings, who, registry, clock=clock)
        await manager.start()
        setup = Setup(manager, scripted, registry, hub)
        try:
            await scenario(setup)
        finally:
            for client in setup.clients:
                await client.close()
            await manager.stop()

    uvloop.run(main())
