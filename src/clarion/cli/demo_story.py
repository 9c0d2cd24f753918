"""What happens in `clarion demo`, in order.

    a server starts; a producer sends numbered messages to a queue and to a topic
    the queue's consumer works on them here; the topic's durable subscriber is a process of its own
    the subscriber is killed after a quarter of the events, the server after half of all messages
    both come back; everything that was confirmed to the producer arrives, once

Rule: every step waits for what happened, never for a time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from typing import Any

import msgspec
import typer

from clarion.cli.own_server import OwnServer
from clarion.client import Connection, connect
from clarion.errors import InternalFault, Timeout

QUEUE = "queue:demo.orders"
TOPIC = "topic:demo.events"
SUBSCRIPTION = "audit"
CHUNK = 100
"""Messages between two confirmations: so the producer is at work when the server dies."""
LIMIT_S = 60.0


class Tally:
    """What was sent and what came, of one destination. Messages are told apart by the number in their body."""

    def __init__(self, name: str, messages: int) -> None:
        self.name = name
        self.sent = messages
        self.confirmed = 0
        self.stored = 0
        self.came: Counter[int] = Counter()
        self.flagged = 0
        self.doubled = 0

    def add(self, number: int, redelivered: bool) -> None:
        """A message came."""
        if self.came[number]:
            self.flagged += redelivered
            self.doubled += not redelivered
        self.came[number] += 1

    def facts(self) -> dict[str, int]:
        return {
            "sent": self.sent,
            "confirmed_to_the_producer": self.confirmed,
            "stored": self.stored,
            "received": len(self.came),
            "lost": self.sent - len(self.came),
            "delivered_twice": self.doubled,
            "delivered_again_and_flagged": self.flagged,
        }

    @property
    def is_right(self) -> bool:
        return self.sent == self.confirmed == self.stored == len(self.came) and not self.doubled


class Story:
    """One run."""

    def __init__(self, messages: int, quiet: bool = False) -> None:
        self._messages = messages
        self._quiet = quiet
        self._orders = Tally("queue", messages)
        self._events = Tally("topic", messages)
        self._subscriber_is_dead = asyncio.Event()
        self._half = asyncio.Event()
        self._server_is_back = asyncio.Event()

    def _say(self, who: str, what: str) -> None:
        if not self._quiet:
            typer.echo(f"{who:<10}  {what}")

    async def run(self) -> list[Tally]:
        # The settings of whoever runs this are not those of the demonstration.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}
        try:
            async with asyncio.timeout(LIMIT_S):
                with OwnServer(environment) as server:
                    self._say("server", f"{server.url} (process {server.pid}) is ready")
                    async with connect(server.url, name="demo") as connection:
                        await self._tell(server, connection)
        except TimeoutError:
            raise Timeout(limit_ms=int(LIMIT_S * 1000), detail="the demonstration did not come to its end") from None
        return [self._orders, self._events]

    async def _tell(self, server: OwnServer, connection: Connection) -> None:
        async with connection.session() as session:
            async with session.receive(TOPIC, durable=SUBSCRIPTION):
                pass  # now the subscription exists: whatever is sent from here on is kept for it
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._consume(connection))
                tasks.create_task(self._produce(connection))
                tasks.create_task(self._subscribe(server))
                await self._half.wait()
                await self._crash(server)
            for found in await session.command("destinations"):
                tally = self._orders if found["kind"] == "queue" else self._events
                tally.stored = found["next_sequence"] - 1

    async def _crash(self, server: OwnServer) -> None:
        confirmed = self._orders.confirmed + self._events.confirmed
        await asyncio.to_thread(server.kill)
        self._say("server", f"killed with SIGKILL after {confirmed:,} confirmed messages")
        took_s = await asyncio.to_thread(server.start)
        self._say("server", f"back with the same data (process {server.pid}), ready after {took_s:.2f} s")
        self._server_is_back.set()

    async def _produce(self, connection: Connection) -> None:
        self._say("producer", f"sends {self._messages:,} orders to a queue and {self._messages:,} events to a topic")
        async with connection.session() as session:
            for start in range(0, self._messages, CHUNK):
                numbers = range(start, min(start + CHUNK, self._messages))
                for number in numbers:
                    session.send_nowait(QUEUE, b"%d" % number)
                    session.send_nowait(TOPIC, b"%d" % number)
                await session.flush()
                self._orders.confirmed += len(numbers)
                self._events.confirmed += len(numbers)
                if not self._half.is_set() and 2 * self._orders.confirmed >= self._messages:
                    await self._subscriber_is_dead.wait()
                    self._half.set()  # the server dies now, and we go on sending
        self._say("producer", "has every message confirmed")

    async def _consume(self, connection: Connection) -> None:
        async with connection.session() as session:
            async for batch in session.receive_batches(QUEUE):
                for message in batch:
                    self._orders.add(int(message.body), message.redelivered)
                batch.confirm_nowait()
                if len(self._orders.came) == self._messages:
                    break

    async def _subscribe(self, server: OwnServer) -> None:
        """A quarter of the events in a first life, the rest in a second one."""
        first = await self._run_subscriber(server, self._messages // 4)
        self._say("subscriber", f"(process {first}) killed with SIGKILL after {len(self._events.came):,} events")
        self._subscriber_is_dead.set()
        await self._server_is_back.wait()
        second = await self._run_subscriber(server, self._messages)
        self._say("subscriber", f"(process {second}) came back and has the rest")

    async def _run_subscriber(self, server: OwnServer, until: int) -> int:
        """`clarion receive`, until so many different events came; then it is killed, wherever it is."""
        command = ["-m", "clarion", "receive", TOPIC, "--durable", SUBSCRIPTION, "--json", "--url", server.url]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, limit=1 << 20,
        )  # fmt: skip
        assert process.stdout is not None
        is_killed = False
        try:
            async for line in process.stdout:
                if line.endswith(b"\n"):  # what the kill cut off was not confirmed
                    self._event(msgspec.json.decode(line))
                if len(self._events.came) >= until and not is_killed:
                    is_killed = True
                    process.send_signal(signal.SIGKILL)
        finally:
            if process.returncode is None and not is_killed:
                process.kill()
            status = await process.wait()
        if not is_killed:
            raise InternalFault(detail=f"the subscriber ended by itself, with status {status}")
        return process.pid

    def _event(self, message: dict[str, Any]) -> None:
        self._events.add(int(message["body"]), message["redelivered"])
