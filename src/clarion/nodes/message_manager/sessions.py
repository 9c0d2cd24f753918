"""What a message manager knows of a session: soft state, gone with the session."""

from __future__ import annotations

from clarion.core.destination import Destination
from clarion.core.subscription import Consumer


class Session:
    """One session of some client manager."""

    __slots__ = ("consumers", "identity", "paused", "published", "refusing")

    def __init__(self, identity: int) -> None:
        self.identity = identity
        self.consumers: dict[int, tuple[Destination, Consumer]] = {}
        self.paused = False
        self.published: set[int] = set()
        """Destinations that this session's producer has stored something in."""
        self.refusing: dict[int, int] = {}
        """Per destination: the producer sequence that was refused and must come again first."""


class Sessions:
    """All sessions that have said something."""

    def __init__(self) -> None:
        self._known: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, identity: int) -> Session:
        """The session, made on first use."""
        session = self._known.get(identity)
        if session is None:
            session = self._known[identity] = Session(identity)
        return session

    def find(self, identity: int) -> Session | None:
        """The session if it is known."""
        return self._known.get(identity)

    def pop(self, identity: int) -> Session | None:
        """The session is over."""
        return self._known.pop(identity, None)

    def of_manager(self, upper_half: int) -> list[int]:
        """The sessions of one client manager, by the upper half of their ids."""
        return [identity for identity in self._known if identity >> 64 == upper_half]
