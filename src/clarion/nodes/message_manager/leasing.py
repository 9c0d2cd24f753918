"""Leases for whoever asks: a witness by which two programs that cannot hear each other agree who of them acts.

Rules
    1. An answer leaves when what it says is durable: who was told that he has a lease has it after a crash, too.
    2. Nobody gets a lease before the time of its holder is over, counted from when he was last granted it; after a
       start of this process, from the start.
    3. Time is what this process has lived, not what the clock on the wall says: setting that changes no lease.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from clarion import limits
from clarion.core.entries import Kind, SetLease
from clarion.core.leases import Lease
from clarion.errors import BadArgument
from clarion.message import check_name
from clarion.nodes.message_manager.arguments import Arguments, counted, text

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager

_LISTED_BYTES = 2 * limits.NAME_BYTES_MAX + 128
"""What a lease takes in an answer at most."""


class Leasing:
    """The verbs of leases; each answers with a result or an error."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._began_ms = host.now_ms() - time.monotonic_ns() // 1_000_000
        self.verbs: dict[str, Callable[[Arguments], Awaitable[object]]] = {
            "lease_acquire": self._acquire,
            "lease_release": self._release,
            "lease_look": self._look,
            "leases": self._list,
        }
        registry = host.registry
        self._before = registry.test_point("mm.before_lease", meaning="a change of a lease is about to be logged")
        self._durable = registry.test_point("mm.before_leased", meaning="a change of a lease is durable, not answered")

    def recovered(self) -> None:
        """Replay is over: holders have all of their time again."""
        self._host.state.leases.recovered(self._now_ms())

    def _now_ms(self) -> int:
        return self._began_ms + time.monotonic_ns() // 1_000_000

    async def _acquire(self, arguments: Arguments) -> object:
        name, holder = _name(arguments), _holder(arguments)
        ttl_ms = counted("ttl_ms", arguments["ttl_ms"])
        if not limits.LEASE_MS_MIN <= ttl_ms <= limits.LEASE_MS_MAX:
            detail = f"{ttl_ms} is not between {limits.LEASE_MS_MIN} and {limits.LEASE_MS_MAX}"
            raise BadArgument(argument="ttl_ms", detail=detail)
        leases, now_ms = self._host.state.leases, self._now_ms()
        entries = leases.granted(name, holder, ttl_ms, now_ms)
        if entries is not None:
            for entry in entries:
                self._write(entry)
            leases.renew(name, now_ms)
        lease = leases.find(name)
        assert lease is not None
        return {
            "granted": entries is not None,
            "epoch": lease.epoch,
            "holder": lease.holder,
            "expires_in_ms": lease.expires_in_ms(now_ms),
        }

    async def _release(self, arguments: Arguments) -> object:
        name, holder = _name(arguments), _holder(arguments)
        epoch = counted("epoch", arguments["epoch"])
        lease = self._host.state.leases.find(name)
        if lease is None or (lease.holder, lease.epoch) != (holder, epoch):
            return {"released": False}
        self._write(self._host.state.leases.given_up(lease, self._now_ms()))
        return {"released": True}

    async def _look(self, arguments: Arguments) -> object:
        name = _name(arguments)
        return self._describe(name, self._host.state.leases.find(name))

    async def _list(self, arguments: Arguments) -> object:
        """As many as an answer holds, in the order of their names, after the one that is named."""
        after = arguments.get("after") or ""
        leases = self._host.state.leases
        names = [name for name in leases.names() if name > after]
        return [
            self._describe(name, leases.find(name)) for name in names[: limits.FRAME_BYTES_MAX // 2 // _LISTED_BYTES]
        ]

    def _describe(self, name: str, lease: Lease | None) -> object:
        if lease is None:
            return {"name": name, "held": False, "holder": None, "epoch": 0, "ttl_ms": 0, "expires_in_ms": 0}
        expires_in_ms = lease.expires_in_ms(self._now_ms())
        return {
            "name": name,
            "held": expires_in_ms > 0,
            "holder": lease.holder,
            "epoch": lease.epoch,
            "ttl_ms": lease.ttl_ms,
            "expires_in_ms": expires_in_ms,
        }

    def _write(self, entry: SetLease) -> None:
        self._before()
        self._host.log.write(Kind.LEASE, entry.encode())
        self._host.log.after(self._written)

    def _written(self) -> None:
        self._durable()


def _name(arguments: Arguments) -> str:
    name = text(arguments, "name")
    check_name(name)
    return name


def _holder(arguments: Arguments) -> str:
    holder = text(arguments, "holder")
    if not 1 <= len(holder.encode()) <= limits.NAME_BYTES_MAX:
        raise BadArgument(argument="holder", detail=f"it has 1 to {limits.NAME_BYTES_MAX} bytes in UTF-8")
    return holder
