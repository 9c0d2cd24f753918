"""One node of a cluster as a process: `clarion node cm` or `clarion node mm`, on the Zenoh bus.

The same parts as `single`, each alone. A message manager is the member `mm/<group>` of the bus from when it
has recovered and listens, a client manager the member `cm/<upper half of its ids>`: each sees the other go.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Literal

import uvloop

from clarion.bus.zenoh import ZenohBus
from clarion.errors import BadSetting
from clarion.nodes.process import Process, running
from clarion.nodes.single import ServerInfo, describe, make_client_manager, make_message_manager
from clarion.settings import Settings, check_secure

NodeKind = Literal["cm", "mm"]
NodeReady = Callable[[ServerInfo | None], None]
"""Called when a node serves; with what it serves for a client manager, with None for a message manager."""


async def serve_node(
    kind: NodeKind, settings: Settings, *, insecure: bool = False, ready: NodeReady | None = None
) -> int:
    """Be one node until SIGTERM or SIGINT; the exit code. Raises a `ClarionError` if it cannot start."""
    check_secure(settings, insecure)
    if settings.bus.kind != "zenoh":
        raise BadSetting(file=settings.file, detail='[bus] kind: a node of a cluster needs "zenoh"')
    with running(settings) as process:
        async with AsyncExitStack() as stack:
            bus = await ZenohBus.open(settings.bus.listen, settings.bus.connect)
            stack.push_async_callback(bus.closed)
            stack.callback(bus.close)
            info = await _start(kind, bus, process, stack)
            process.registry.check_all_armed()
            if ready is not None:
                ready(info)
            await process.stopped()
    return 0


async def _start(kind: NodeKind, bus: ZenohBus, process: Process, stack: AsyncExitStack) -> ServerInfo | None:
    if kind == "mm":
        message_manager = make_message_manager(bus, process)
        stack.push_async_callback(message_manager.stop)
        await message_manager.start()
        return None
    client_manager = make_client_manager(bus, process.settings, process.registry)
    stack.push_async_callback(client_manager.stop)
    await client_manager.start()
    return describe(client_manager, process.settings)


def run_node(kind: NodeKind, settings: Settings, *, insecure: bool = False, ready: NodeReady | None = None) -> int:
    """`serve_node` on a loop of its own; the exit code."""
    return uvloop.run(serve_node(kind, settings, insecure=insecure, ready=ready))
