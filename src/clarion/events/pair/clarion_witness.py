"""A Clarion server as the witness: leases are entries of its log, so they survive its crash.

Guarantee: every call ends within about `timeout_s`. The connection is made when it is first needed, and again when it
was lost. A request whose answer did not come is not repeated here: the pair asks again by itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from clarion.client import Connection, connect
from clarion.client.runner import Runner
from clarion.errors import ClarionError

from .witness import Grant


class ClarionWitness:
    """Asks by the requests `lease_acquire` and `lease_release`."""

    def __init__(self, url: str, *, timeout_s: float = 1.0) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._runner: Runner | None = None
        self._connection: Connection | None = None

    def acquire(self, name: str, holder: str, ttl_ms: int) -> Grant:
        found = self._ask("lease_acquire", {"name": name, "holder": holder, "ttl_ms": ttl_ms})
        return Grant(bool(found["granted"]), int(found["epoch"]), int(found["expires_in_ms"]))

    def release(self, name: str, holder: str, epoch: int) -> None:
        self._ask("lease_release", {"name": name, "holder": holder, "epoch": epoch})

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            self._disconnect(runner)
            runner.stop()

    def _ask(self, verb: str, arguments: dict[str, Any]) -> Any:
        runner = self._runner
        if runner is None:
            runner = self._runner = Runner()
        try:
            if self._connection is None:
                self._connection = runner.call(self._connect(), self._timeout_s)
            return runner.call(self._connection.command(verb, arguments), self._timeout_s)
        except BaseException:
            self._disconnect(runner)
            raise

    async def _connect(self) -> Connection:
        return await connect(self._url, connect_timeout=self._timeout_s, reconnect=False)

    def _disconnect(self, runner: Runner) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(ClarionError):
                runner.call(connection.close(), self._timeout_s)
