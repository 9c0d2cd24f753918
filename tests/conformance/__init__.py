"""The rules of JMS 2.0, one test for each that applies here; docs/reference/jms.md lists them by section.

A test is an `async def` over a `World`: a connection and a session of its own at the one broker that all share, and
names that no other test uses. It is called `test_b04_jms_<section>_<what>`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

import clarion
from tests.integration.helpers import run, take
from tests.integration.topologies import Topology


@dataclass(frozen=True)
class World:
    """What a test has."""

    broker: Topology
    name: str
    connection: clarion.Connection
    session: clarion.Session

    @property
    def queue(self) -> str:
        return f"queue:{self.name}"

    @property
    def topic(self) -> str:
        return f"topic:{self.name}-t"

    def connect(self, **options: Any) -> clarion.Connection:
        """One more client."""
        return clarion.connect(self.broker.url, **options)

    async def waiting(self, destination: str | None = None, selector: str | None = None) -> list[bytes]:
        """What somebody has not confirmed yet, in flight or not."""
        return [message.body async for message in self.session.browse(destination or self.queue, selector=selector)]

    async def one(self, body: bytes = b"x", **options: Any) -> clarion.ReceivedMessage:
        """A message that went through the queue and was confirmed."""
        await self.session.send(self.queue, body, **options)
        async with self.session.receive(self.queue) as consumer:
            (message,) = await take(consumer, 1)
            await message.confirm()
        return message


differs = pytest.mark.xfail(strict=True, reason="docs/reference/jms.md says so, where Clarion differs")
"""For a rule that Clarion does not keep to the letter: the page lists it. Whoever changes that is told to say so."""


def scenario(test: Callable[[World], Awaitable[None]]) -> Callable[[Topology, str], None]:
    """A test for pytest."""

    def runs(broker: Topology, name: str) -> None:
        async def main() -> None:
            async with clarion.connect(broker.url) as connection, connection.session() as session:
                await test(World(broker, name, connection, session))

        run(main())

    # Not `functools.wraps`: pytest would look for a fixture called `world`.
    runs.__name__, runs.__qualname__, runs.__doc__ = test.__name__, test.__qualname__, test.__doc__
    runs.__module__ = test.__module__
    return runs
