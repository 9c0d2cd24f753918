"""Who the recipients of the partner are, and since when each slot is theirs.

Theory of operation
    An event has its recipients as slots. A slot is used again by another recipient when nothing at its origin is owed
    to the one of before; but the partner, who has not heard that yet, may still hold such an event. It came after the
    note that told of its epoch, and before the note that told of the new recipient. So when a note names somebody else
    for a slot, events up to the epoch of the note before it were not for that one.

Guarantee: nobody gets an event that was for somebody else, and nobody misses one.

Rule: pure, and unchangeable.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import msgspec

from clarion.errors import EventError
from clarion.events.routing import Routes

_MAGIC = b"CLNESNC1"
# bytes of what is before it: (slot, first epoch) each, as MessagePack
_END = struct.Struct("<I8s")
_decode = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode


@dataclass(frozen=True, slots=True)
class PartnerRoutes:
    """See the module."""

    routes: Routes = field(default_factory=Routes)
    since: dict[int, int] = field(default_factory=dict)
    """By slot: the first epoch whose events are for who has it now. Of others: all."""

    def followed_by(self, routes: Routes) -> PartnerRoutes:
        """The partner tells that they are these now."""
        before = self.routes
        if not before.epoch or routes.epoch < before.epoch:  # nothing is held of it, or it has a new memory
            return PartnerRoutes(routes)
        names = {route.slot: route.name for route in before.routes}
        since = {
            route.slot: self.since.get(route.slot, 0) if names.get(route.slot) == route.name else before.epoch + 1
            for route in routes.routes
        }
        return PartnerRoutes(routes, {slot: epoch for slot, epoch in since.items() if epoch})

    def names(self, bits: int, epoch: int) -> list[str]:
        """Who an event of this epoch is for, of those that are there now."""
        return [
            route.name
            for route in self.routes.routes
            if bits >> route.slot & 1 and epoch >= self.since.get(route.slot, 0)
        ]

    def dump(self) -> bytes:
        """As the file keeps it: the note, and behind it what it does not say."""
        note = self.routes.dump()
        if not self.since:
            return note
        more = msgspec.msgpack.encode(sorted(self.since.items()))
        return b"".join((note, more, _END.pack(len(more), _MAGIC)))

    @classmethod
    def load(cls, kept: bytes) -> PartnerRoutes:
        """The inverse of `dump`; a note alone is understood too. Raises as `Routes.load` does."""
        if not kept.endswith(_MAGIC):
            return cls(Routes.load(kept))
        more_at = len(kept) - _END.size - _END.unpack_from(kept, len(kept) - _END.size)[0]
        try:
            since = dict(_decode(kept[max(more_at, 0) : -_END.size]))
        except msgspec.MsgspecError as error:
            raise EventError(detail=f"the routes of the partner cannot be read: {error}") from None
        return cls(Routes.load(kept[:more_at]), since)
