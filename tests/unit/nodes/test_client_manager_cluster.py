"""Client manager and message manager as processes of their own, on the Zenoh bus (B-02, B-05)."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from clarion.errors import NotReady
from clarion.wire import frames
from clarion.wire.frames import Type

from .test_client_manager_harness import RawClient

pytest.importorskip("zenoh")

NODE = """
import os, sys
from clarion.nodes.node import run_node
from clarion.settings import load
def ready(info):
    print(info.port if info else "ready", flush=True)
sys.exit(run_node(sys.argv[1], load(None, os.environ, data=sys.argv[2], listen="127.0.0.1:0"), ready=ready))
"""


def free_endpoint() -> str:
    """Below the ports that the kernel gives away, so that nobody takes it while a node is restarted."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.randrange(15_000, 32_000)))
            except OSError:
                continue
            return f"tcp/127.0.0.1:{probe.getsockname()[1]}"


class Cluster:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.endpoint = free_endpoint()
        self.processes: list[asyncio.subprocess.Process] = []

    async def node(self, kind: str, number: int = 0) -> tuple[asyncio.subprocess.Process, str]:
        """Start a node; its process and what it says when it is ready."""
        environment = {
            "CLARION_JOURNAL_BYTES_MAX": "32 MiB",
            "CLARION_BUS_KIND": "zenoh",
            "CLARION_NODE_NODE": str(number),
            ("CLARION_BUS_LISTEN" if kind == "mm" else "CLARION_BUS_CONNECT"): self.endpoint,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            NODE,
            kind,
            str(self.path / f"{kind}{number}"),
            env={**os.environ, **environment},
            stdout=asyncio.subprocess.PIPE,
        )
        self.processes.append(process)
        assert process.stdout is not None
        return process, (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()

    async def end(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def connected(port: str) -> tuple[RawClient, int]:
    client = RawClient(*await asyncio.open_connection("127.0.0.1", int(port)))
    await client.hello()
    return client, await client.open()


async def answered(port: str) -> RawClient:
    """A client that has had an answer: what was lost before the nodes found each other is tried again."""
    while True:
        client, _ = await connected(port)
        client.say(Type.REQUEST, 1, request=1, verb="status", arguments={})
        frame = await client.frame()
        if frame is not None and frame.type == Type.REPLY:
            return client
        await client.close()


def test_b02_nodes_find_each_other_and_notice_when_one_is_killed(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        try:
            _, port = await cluster.node("cm", 1)  # first: the order does not matter
            manager, ready = await cluster.node("mm")
            assert ready == "ready"
            client = await answered(port)
            producer = await client.open(2)
            encoded: Any = frames.FLOOR.pack(1) + _batch(producer)
            client.send(Type.PUBLISH, 2, encoded)
            assert frames.SETTLED.unpack(await client.next(Type.PUBLISHED)) == (1, 1, 0)
            manager.kill()
            await manager.wait()
            client.send(Type.PUBLISH, 2, frames.FLOOR.pack(2) + _batch(producer, 2))  # nobody hears this
            manager, _ = await cluster.node("mm")
            assert isinstance(await client.goodbye(), NotReady)  # so that it is sent again
            await client.close()
            client = await answered(port)
            await client.open(2, producer.to_bytes(16, "big"))
            client.send(Type.PUBLISH, 2, frames.FLOOR.pack(2) + _batch(producer, 2), flags=frames.RESEND)
            assert frames.SETTLED.unpack(await client.next(Type.PUBLISHED)) == (2, 1, 0)
            await client.close()
            manager.terminate()
            assert await asyncio.wait_for(manager.wait(), 20) == 0
        finally:
            await cluster.end()

    asyncio.run(main())


def test_b02_the_messages_of_a_killed_client_manager_come_again_through_another(tmp_path: Path) -> None:
    async def main() -> None:
        cluster = Cluster(tmp_path)
        try:
            await cluster.node("mm")
            first, port = await cluster.node("cm", 1)
            _, other_port = await cluster.node("cm", 2)
            client, other = await answered(port), await answered(other_port)
            producer = await client.open(2)
            client.send(Type.PUBLISH, 2, frames.FLOOR.pack(1) + _batch(producer))
            await client.next(Type.PUBLISHED)
            for subscriber in (client, other):
                subscriber.say(Type.SUBSCRIBE, 1, **_subscribe())
                await subscriber.next(Type.REPLY)
                if subscriber is client:
                    await client.next(Type.DELIVER)
            first.kill()
            _, slices = frames.unpack_deliver(await other.next(Type.DELIVER))
            assert slices[0].redelivered
            await client.close()
            await other.close()
        finally:
            await cluster.end()

    asyncio.run(main())


def _batch(producer: int, first: int = 1) -> bytes:
    from clarion.wire.batch import encode

    return bytes(encode(b"queue:orders", producer + first, [b"body"]))


def _subscribe() -> dict[str, Any]:
    return {
        "request": 5,
        "consumer": 1,
        "destination": "queue:orders",
        "credit_messages": 10,
        "credit_bytes": 1_000_000,
        "unconfirmed_max": 10,
    }
