"""Messages that die on purpose, at a real broker, and what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from clarion import sync
from clarion.message import PropertyValue
from clarion.pipelines.deadletters import DEAD

WAIT_S = 60.0
IDLE_S = 0.5
"""How long a consumer waits before a test believes that nothing comes."""


def until(condition: Callable[[], bool], what: str) -> None:
    """Ask again until it holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.02)


def dead_count(session: sync.Session) -> int:
    return int(session.command("status")["dead_messages"])


def expire(
    session: sync.Session,
    destination: str,
    bodies: Iterable[bytes],
    properties: dict[str, PropertyValue] | None = None,
    subscriptions: int = 1,
) -> None:
    """Send messages that nobody takes in time; return when they are dead, in each subscription."""
    sent = list(bodies)
    after = dead_count(session) + len(sent) * subscriptions
    session.send_many(destination, sent, ttl=0.001, properties=properties)
    until(lambda: dead_count(session) == after, "they are dead")


def reject(session: sync.Session, destination: str, count: int, reason: str) -> None:
    """Receive messages and give them back once too often; return when they are dead."""
    before = dead_count(session)
    session.command("set_policy", {"pattern": destination.partition(":")[2], "policy": {"deliveries_max": 1}})
    with session.receive(destination) as consumer:
        for _ in range(count):
            message = consumer.receive(timeout=WAIT_S)
            assert message is not None
            message.reject(reason)
    until(lambda: dead_count(session) == before + count, "they are dead")


def drain(session: sync.Session, destination: str) -> list[bytes]:
    """Everything that is there, confirmed."""
    found = []
    with session.receive(destination) as consumer:
        while (message := consumer.receive(timeout=IDLE_S)) is not None:
            found.append(message.body)
            message.confirm()
    return found


def dead(session: sync.Session) -> list[bytes]:
    """The bodies of what is dead."""
    return [message.body for message in session.browse(DEAD)]
