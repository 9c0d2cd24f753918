"""One process that is everything: a client manager and a message manager on the loopback bus.

    exit_code = run(settings, ready=lambda info: print(info.url))

Guarantees
    1. What can go wrong at the start is a `ClarionError`, and nothing stays behind.
    2. `ready` is called when clients are served, with the port that was really bound.
    3. The end is in order: no new clients, GOODBYE to those there are, then the message manager, which
       makes everything durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

import uvloop
from msgspec.structs import replace

from clarion.bus import Bus, LoopbackHub
from clarion.instruments import Registry
from clarion.nodes.client_manager import ClientManager
from clarion.nodes.identity import Identity
from clarion.nodes.listener import bind
from clarion.nodes.process import Process, running
from clarion.settings import Settings, check_secure, parse_address


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a started server says of itself."""

    url: str
    host: str
    port: int
    name: str
    data: str
    durability: str
    pid: int


Ready = Callable[[ServerInfo], None]


class MessageManagerPart(Protocol):
    """What a process needs of a message manager."""

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that its journal takes; known once it has started."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def make_message_manager(bus: Bus, process: Process) -> MessageManagerPart:
    """The message manager of a process; imported late, a client manager does without."""
    from clarion.nodes.message_manager import MessageManager

    return MessageManager(bus, process.settings, process.registry, on_failed=process.failed)


async def serve(settings: Settings, *, insecure: bool = False, ready: Ready | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. Raises a `ClarionError` if it cannot start."""
    check_secure(settings, insecure)
    with running(settings) as process:
        async with AsyncExitStack() as stack:
            sockets = bind(parse_address(settings.client_manager.listen))
            for listening in sockets:
                stack.callback(listening.close)
            hub = LoopbackHub()
            manager_bus = hub.endpoint()
            stack.callback(manager_bus.close)
            message_manager = make_message_manager(manager_bus, process)
            stack.push_async_callback(message_manager.stop)
            await message_manager.start()
            settings = _lowered(settings, message_manager.batch_bytes_max)
            client_manager = make_client_manager(hub.endpoint(), settings, process.registry)
            stack.push_async_callback(client_manager.stop)
            await client_manager.start(sockets)
            process.registry.check_all_armed()
            if ready is not None:
                ready(describe(client_manager, settings))
            await process.stopped()
    return 0


def make_client_manager(bus: Bus, settings: Settings, registry: Registry) -> ClientManager:
    """The client manager of a process, under the identity that its data directory keeps."""
    node = settings.node
    identity = Identity.begin(node.name, node.site, node.node, node.data_path)
    return ClientManager(bus, settings, identity, registry)


def _lowered(settings: Settings, batch_bytes_max: int) -> Settings:
    """Take no larger batches from clients than can be stored."""
    lowest = min(settings.client_manager.batch_bytes_max, batch_bytes_max)
    return replace(settings, client_manager=replace(settings.client_manager, batch_bytes_max=lowest))


def describe(client_manager: ClientManager, settings: Settings) -> ServerInfo:
    """What to tell whoever started it."""
    address = client_manager.address
    return ServerInfo(
        url=f"clarion://{address}",
        host=address.host,
        port=address.port,
        name=settings.node.name,
        data=str(settings.node.data_path.absolute()),
        durability=settings.journal.durability,
        pid=os.getpid(),
    )


def run(settings: Settings, *, insecure: bool = False, ready: Ready | None = None) -> int:
    """`serve` on a loop of its own; the exit code."""
    return uvloop.run(serve(settings, insecure=insecure, ready=ready))
