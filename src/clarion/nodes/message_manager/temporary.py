"""Temporary destinations: everybody may send to them, their connection alone consumes, and they end with it.

A name carries the id of its owner's producer, so nobody can take another's, and a client that reconnects makes its own
again under the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from clarion import ids, limits
from clarion.core.destination import QUEUE, TOPIC, Destination
from clarion.core.wellknown import TEMPORARY, is_temporary
from clarion.errors import BadArgument, JournalFull, LimitReached
from clarion.message import check_name
from clarion.nodes.message_manager.sessions import Session

if TYPE_CHECKING:
    from clarion.nodes.message_manager.host import MessageManager


class Temporary:
    """The temporary destinations of a message manager."""

    def __init__(self, host: MessageManager) -> None:
        self._host = host
        self._owners: dict[int, int] = {}
        """Destination → connection."""
        self._of: dict[int, set[int]] = {}

    def make(self, session: Session, arguments: dict[str, Any]) -> object:
        """The verb `temporary`. Asked again, it gives the same destination."""
        name, kind = arguments["name"], arguments.get("kind") or QUEUE
        if not isinstance(name, str) or kind not in (QUEUE, TOPIC):
            raise BadArgument(argument="kind", detail="it is queue or topic")
        check_name(name)
        owner = f"{TEMPORARY}{ids.format_id(session.producer)}."
        if not name.startswith(owner) or not session.connection:
            raise BadArgument(argument="name", detail=f"the names of this session begin with {owner}")
        theirs = self._of.setdefault(session.connection, set())
        found = self._host.state.find(name)
        if found is None:
            if len(theirs) >= limits.TEMPORARY_PER_CONNECTION_MAX:
                raise LimitReached(what="temporary destinations", limit=limits.TEMPORARY_PER_CONNECTION_MAX)
            found = self._host.naming.create(kind, name)
        previous = self._owners.get(found.identity)
        if previous is not None and previous != session.connection:
            self._of.get(previous, set()).discard(found.identity)  # its earlier life: this end is yet to be heard of
        self._owners[found.identity] = session.connection
        theirs.add(found.identity)
        return {"destination": str(found)}

    def is_owner(self, destination: Destination, session: Session) -> bool:
        """May this session consume from it?"""
        return self._owners.get(destination.identity) == session.connection != 0

    def ended(self, session: Session) -> None:
        """A session is over; with the last one of its connection go its destinations."""
        if session.connection and not self._host.sessions.is_connected(session.connection):
            for identity in sorted(self._of.pop(session.connection, ())):
                self._drop(identity)

    def dropped(self, destination: Destination) -> None:
        """Somebody has removed one before its connection ended."""
        owner = self._owners.pop(destination.identity, None)
        if owner is not None:
            self._of.get(owner, set()).discard(destination.identity)

    def recovered(self) -> list[Callable[[], None]]:
        """After a start no connection of before is there: what is to be done, and needs room in the log."""
        gone = [known for known in self._host.state.destinations.values() if is_temporary(known.name)]
        return [partial(self._host.naming.drop, destination) for destination in gone]

    def _drop(self, identity: int) -> None:
        self._owners.pop(identity, None)
        destination = self._host.state.destinations.get(identity)
        if destination is not None:
            try:
                self._host.naming.drop(destination)
            except JournalFull:
                pass  # the next start drops it
