"""For whom the events of a section are, as feeds ask: by the rules of the epoch in which they were recorded."""

from __future__ import annotations

from clarion.events.ledger import Ledger
from clarion.events.routing import Route, Routes


class Decisions:
    """What the ledger knows of recipients, epoch by epoch; what was looked up once is kept."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._by_epoch: dict[int, Routes] = {}
        self._valid: dict[int, int] = {}
        self.routes = Routes()
        """Of now."""

    def renew(self) -> Routes:
        """The recipients have changed: their routes from now on."""
        self._by_epoch.clear()
        self._valid.clear()
        rows = self._ledger.recipients()
        self.routes = Routes(self._ledger.epoch, [Route(row.slot, row.name, row.filter) for row in rows])
        return self.routes

    def valid(self, epoch: int) -> int:
        """The bits whose holders were there in this epoch, and still are."""
        bits = self._valid.get(epoch)
        if bits is None:
            bits = sum(1 << row.slot for row in self._ledger.recipients() if row.since <= epoch)
            self._valid[epoch] = bits
        return bits

    def routes_of(self, epoch: int) -> Routes:
        """Of a record's epoch; one that was recorded when nothing was known is decided by what is known now."""
        routes = self._by_epoch.get(epoch)
        if routes is None:
            found = self._ledger.routing(epoch) if epoch else []
            routes = Routes(epoch, [(slot, str(slot), text) for slot, text in found]) if found else self.routes
            self._by_epoch[epoch] = routes
        return routes

    def decided(self, section: int, first: int, end: int) -> list[tuple[int, int, int]]:
        """What was decided for a range before, and is durable."""
        return self._ledger.decided(section, first, end)

    async def decide(self, section: int, runs: list[tuple[int, int, int]]) -> None:
        """Decide, durably: runs of (first, end, bits)."""
        await self._ledger.decide(section, runs)
