"""Leases: the right to act for somebody, held by one at a time, with a number that tells the holders apart.

Rules
    1. The epoch of a lease grows with every change of its holder and is never used again, of any lease: one counter for
       all, so that nothing need be remembered of a lease that is over.
    2. A holder that asks again before anybody else has got the lease has it still, under its epoch.
    3. A lease ends its time to live after it was granted or last renewed, by the clock of whoever asks here: one that
       never goes back, and need not survive. After a start all leases count as just renewed, so that nobody gets
       one while its holder may think that he has it. So a renewal changes nothing that must survive.

Holders and epochs change only while log entries are applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clarion import limits
from clarion.core.entries import SetLease
from clarion.errors import LimitReached


class Lease:
    """One lease, also one whose time is over."""

    __slots__ = ("epoch", "holder", "name", "renewed_ms", "ttl_ms")

    def __init__(self, name: str, holder: str, epoch: int, ttl_ms: int, renewed_ms: int) -> None:
        self.name = name
        self.holder = holder
        self.epoch = epoch
        self.ttl_ms = ttl_ms
        self.renewed_ms = renewed_ms

    def expires_in_ms(self, now_ms: int) -> int:
        """How long it holds; 0 when its time is over."""
        return max(0, self.renewed_ms + self.ttl_ms - now_ms)


class Leases:
    """All leases of one log, by name."""

    __slots__ = ("_leases", "last_epoch")

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self.last_epoch = 0

    def __len__(self) -> int:
        return len(self._leases)

    def find(self, name: str) -> Lease | None:
        """The lease, unless it was given up."""
        return self._leases.get(name)

    def names(self) -> list[str]:
        """In order."""
        return sorted(self._leases)

    # --- asking: nothing changes ----------------------------------------------------------------------

    def granted(self, name: str, holder: str, ttl_ms: int, now_ms: int) -> list[SetLease] | None:
        """The entries by which this holder gets a lease; none of them for a renewal. None: somebody else has it.

        Raises `LimitReached`. When there are too many, the oldest one whose time is over is given up for it.
        """
        lease = self._leases.get(name)
        if lease is not None:
            if lease.holder == holder:
                return [] if lease.ttl_ms == ttl_ms else [SetLease(name, holder, lease.epoch, ttl_ms, now_ms)]
            if lease.expires_in_ms(now_ms):
                return None
        wanted = [SetLease(name, holder, self.last_epoch + 1, ttl_ms, now_ms)]
        if lease is None and len(self._leases) >= limits.LEASES_MAX:
            over = next((one for one in self._leases.values() if not one.expires_in_ms(now_ms)), None)
            if over is None:
                raise LimitReached(what="leases", limit=limits.LEASES_MAX)
            wanted.insert(0, self.given_up(over, now_ms))
        return wanted

    @staticmethod
    def given_up(lease: Lease, now_ms: int) -> SetLease:
        """The entry by which a lease is over."""
        return SetLease(lease.name, "", lease.epoch, lease.ttl_ms, now_ms)

    # --- changing -------------------------------------------------------------------------------------

    def apply(self, entry: SetLease) -> None:
        """A lease has a holder, or none any more."""
        self.last_epoch = max(self.last_epoch, entry.epoch)
        self._leases.pop(entry.name, None)  # it goes to the end: whose time is over is looked for from the oldest on
        if entry.holder:
            self._leases[entry.name] = Lease(entry.name, entry.holder, entry.epoch, entry.ttl_ms, entry.time_ms)

    def renew(self, name: str, now_ms: int) -> None:
        """Its holder has asked again: it begins anew."""
        self._leases[name].renewed_ms = now_ms

    def recovered(self, now_ms: int) -> None:
        """A new life: every lease begins anew, also one whose time was over."""
        for lease in self._leases.values():
            lease.renewed_ms = now_ms

    # --- checkpoints ----------------------------------------------------------------------------------

    def dump(self) -> list[object]:
        """For a checkpoint. Times are left out: they are those of one life."""
        leases = [(lease.name, lease.holder, lease.epoch, lease.ttl_ms) for lease in self._leases.values()]
        return [self.last_epoch, leases]

    @classmethod
    def load(cls, dumped: Sequence[Any]) -> Leases:
        """The inverse of `dump`."""
        table = cls()
        table.last_epoch, leases = dumped
        for name, holder, epoch, ttl_ms in leases:
            table._leases[name] = Lease(name, holder, epoch, ttl_ms, 0)
        return table
