"""Destinations by their names: found, created on first use, dropped.

Rules
    1. A destination has the kind it was made with; whoever wants another kind of that name is told so.
    2. Dropping frees what is in it only when the drop is durable: a crash before that brings it all back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clarion import limits
from clarion.core.destination import QUEUE, Destination
from clarion.core.entries import Create, Drop, Kind
from clarion.core.wellknown import KINDS, is_temporary, receivable, sendable
from clarion.errors import BadArgument, LimitReached, NoSuchDestination, WrongKind
from clarion.message import DestinationName
from clarion.nodes.message_manager.sessions import Session

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager


class Naming:
    """See the module."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._resolved: dict[str, Destination] = {}
        """Texts that were checked before: parsing a name costs more than storing a small batch."""

    def resolve(self, text: str) -> Destination:
        """The destination that a client sends to, created on first use.

        Raises `WrongKind`, `BadName`, `LimitReached`, and `NoSuchDestination` for a temporary one that is gone.
        """
        known = self._resolved.get(text)
        if known is not None and self._host.state.destinations.get(known.identity) is known:
            return known
        found = self._resolve(sendable(text))
        if len(self._resolved) >= limits.DESTINATIONS_MAX:
            self._resolved.clear()
        self._resolved[text] = found
        return found

    def resolve_source(self, text: str, session: Session) -> Destination:
        """The destination that a client consumes from: its own temporary ones, and some of the system's, too."""
        found = self._resolve(receivable(text))
        if is_temporary(found.name) and not self._host.temporary.is_owner(found, session):
            raise BadArgument(argument="destination", detail=f"{found} is another connection's")
        return found

    def _resolve(self, wanted: DestinationName) -> Destination:
        kind, name = wanted
        found = self._host.state.find(name)
        if found is None:
            if is_temporary(name):
                raise NoSuchDestination(destination=name)
            found = self.create(kind or QUEUE, name)
        if kind is not None and kind != found.kind:
            raise WrongKind(destination=name, kind=found.kind, wanted=kind)
        return found

    def system(self, name: str) -> Destination:
        """One of the destinations that always exist."""
        found = self._host.state.find(name)
        return self.create(KINDS[name], name) if found is None else found

    def create(self, kind: str, name: str, quota_bytes: int | None = None) -> Destination:
        """A new destination. Raises `LimitReached`, `JournalFull`."""
        host = self._host
        if len(host.state.destinations) >= limits.DESTINATIONS_MAX + len(KINDS):
            raise LimitReached(what="destinations", limit=limits.DESTINATIONS_MAX)
        identity = host.state.next_destination
        quota = quota_bytes or host.settings.destinations.quota_bytes or 0
        patterns = host.merging.durable_for(name) if kind != QUEUE else []
        host.log.write(Kind.CREATE, Create(identity, kind, name, quota, patterns).encode())
        made = host.state.destinations[identity]
        host.retention.look(made)
        host.merging.created(made)
        host.readers.created(made)
        return made

    def drop(self, destination: Destination) -> None:
        """Remove a destination with all that is in it; its consumers are told. Raises `JournalFull`."""
        host = self._host
        host.log.write(Kind.DROP, Drop(destination.identity).encode())
        host.consuming.dropped(destination)
        host.streaming.space.free_dropped()

        def durable() -> None:
            # What there is now: effects of entries before this one have freed pages meanwhile, or moved them.
            for page in list(destination.pages):
                destination.pages.free(page)
                host.journal.release(page.position, page.live)
                host.cache.drop(destination.identity, page.first)
            for staged in list(destination.stages):
                host.journal.release(staged.position, staged.span)
            streams = [*destination.large.values(), *(staged.stream for staged in destination.stages)]
            destination.large.clear()
            host.streaming.space.let_go(destination, streams)
            host.freeing.release_dropped(destination)  # of an outcome whose effects found it gone

        host.log.after(durable)
