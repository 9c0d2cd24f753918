"""The command `clarion` run in the process of a test, and what its tests do with a server by a connection."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from clarion import sync
from clarion.cli.main import main

WAIT_S = 20.0
DEAD = "queue:_DMQ"


class Clarion:
    """The command `clarion`, run in this process: the same code, without the start of an interpreter."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture
        self.error = ""
        """What the last command said on stderr."""

    def run(self, *arguments: str, status: int = 0) -> str:
        """What it printed; checks its exit status."""
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        said = self._capture.readouterr()
        self.error = said.err.decode()
        assert ended.value.code == status, (said.out, said.err)
        return said.out.decode()

    def json(self, *arguments: str, status: int = 0) -> Any:
        return msgspec.json.decode(self.run(*arguments, "--json", status=status))

    def lines(self, *arguments: str) -> list[Any]:
        return [msgspec.json.decode(line) for line in self.run(*arguments, "--json").splitlines()]

    def fails(self, status: int, text: str, *arguments: str) -> None:
        """It ends with one line of error."""
        assert self.run(*arguments, status=status) == ""
        assert self.error.startswith("error: ") and self.error.count("\n") == 1 and text in self.error, self.error


def until(condition: Callable[[], bool], what: str) -> None:
    """Ask again until it holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.01)


def dead_count(connection: sync.Connection) -> int:
    return int(connection.command("status")["dead_messages"])


def die(connection: sync.Connection, destination: str, *bodies: str, reason: str | None = "no good") -> None:
    """Send messages, and reject them until they are dead."""
    name = destination.rpartition(":")[2]
    connection.command("set_policy", {"pattern": name, "policy": {"deliveries_max": 2}})
    before = dead_count(connection)
    with connection.session() as session:
        for body in bodies:
            session.send(destination, body.encode(), properties={"text": body}, type="order")
        with session.receive(destination) as consumer:
            for _ in range(2 * len(bodies)):
                message = consumer.receive(timeout=WAIT_S)
                assert message is not None
                message.reject(reason)
    connection.command("remove_policy", {"pattern": name})
    until(lambda: dead_count(connection) == before + len(bodies), f"{destination} has dead messages")


def bodies(connection: sync.Connection, destination: str) -> list[bytes]:
    with connection.session() as session:
        return [message.body for message in session.browse(destination)]
