"""What a message manager knows of a session: soft state, gone with the session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from clarion.core.consumer import Consumer, Credit
from clarion.core.destination import Destination

if TYPE_CHECKING:
    from clarion.nodes.message_manager.readers import Reader


class Session:
    """One session of some client manager."""

    __slots__ = (
        "connection",
        "consumers",
        "identity",
        "merging",
        "paused",
        "producer",
        "published",
        "readers",
        "refusing",
        "sender",
        "transactions",
    )

    def __init__(self, identity: int) -> None:
        self.identity = identity
        self.producer = 0
        self.sender = b""
        """Tells senders apart that have ids of their own, and may have the same; empty for a usual session."""
        self.connection = 0
        """Equal for all sessions of one connection; 0 until its client manager has introduced it."""
        self.consumers: dict[int, tuple[Destination, Consumer]] = {}
        self.merging: dict[int, Credit] = {}
        """Consumers of patterns: what all their destinations share."""
        self.readers: dict[int, Reader] = {}
        """What it reads by sequences."""
        self.paused = False
        self.published: set[int] = set()
        """Destinations that this session's producer has stored something in."""
        self.refusing: dict[int, int] = {}
        """Per destination: the producer sequence that was refused and must come again first."""
        self.transactions: set[bytes] = set()
        """Open ones, that end with it."""


class Sessions:
    """All sessions that have said something."""

    def __init__(self) -> None:
        self._known: dict[int, Session] = {}
        self._connections: dict[int, set[int]] = {}
        self._producers: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        """Sessions whose producer another sender has taken over, until their client managers end them: producer."""

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._known.values())

    def get(self, identity: int) -> Session:
        """The session, made on first use."""
        session = self._known.get(identity)
        if session is None:
            session = self._known[identity] = Session(identity)
        return session

    def introduce(
        self, identity: int, producer: int, connection: int, sender: bytes = b"", resumed: bool = False
    ) -> int:
        """Its client manager says whose it is: the earlier session of the same producer, 0 if there is none.

        Of two senders with the same producer the one that began last has it: one that only comes back after a
        lost connection does not take it from another that began meanwhile. The other one is `taken`.
        """
        session = self.get(identity)
        session.producer, session.connection, session.sender = producer, connection, sender
        self._connections.setdefault(connection, set()).add(identity)
        earlier = self._producers.get(producer, 0)
        before = self._known.get(earlier)
        if earlier != identity and before is not None and before.sender:
            if resumed and before.sender != sender:
                self.taken[identity] = producer
                return 0
            self.taken[earlier] = producer
        self._producers[producer] = identity
        return 0 if earlier == identity else earlier

    def connection_of(self, producer: int) -> int:
        """The connection that a producer sends by; 0 if it is not known."""
        session = self._known.get(self._producers.get(producer, 0))
        return 0 if session is None else session.connection

    def find(self, identity: int) -> Session | None:
        """The session if it is known."""
        return self._known.get(identity)

    def pop(self, identity: int) -> Session | None:
        """The session is over."""
        session = self._known.pop(identity, None)
        if session is not None and session.connection:
            mates = self._connections.get(session.connection)
            if mates is not None:
                mates.discard(identity)
                if not mates:
                    del self._connections[session.connection]
            if self._producers.get(session.producer) == identity:
                del self._producers[session.producer]
        return session

    def is_connected(self, connection: int) -> bool:
        """Does a connection still have a session?"""
        return connection in self._connections

    def forget_taken(self, upper_half: int) -> None:
        """A client manager is gone: nothing comes of its sessions any more."""
        self.taken = {identity: producer for identity, producer in self.taken.items() if identity >> 64 != upper_half}

    def of_manager(self, upper_half: int) -> list[int]:
        """The sessions of one client manager, by the upper half of their ids."""
        return [identity for identity in self._known if identity >> 64 == upper_half]
