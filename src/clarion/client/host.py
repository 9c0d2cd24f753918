"""What a session needs of its connection: a narrow interface, so that each half can be tested alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from clarion.errors import ClarionError
from clarion.protocols.greetings import Welcome
from clarion.wire.batch import Buffer
from clarion.wire.frames import Frame


class Resumable(Protocol):
    """A session, as its connection sees it."""

    _channel: int

    def _connect(self) -> None:
        """There is a link."""

    def _detach(self) -> None:
        """The link is lost."""

    def _turn(self) -> None:
        """Send what has gathered."""

    def _handle(self, frame: Frame) -> bool:
        """A frame of its channel. True if something may have become ready to be sent."""

    def _finish(self, error: ClarionError) -> None:
        """There will be no further link."""


class Host(Protocol):
    """The connection, as its sessions see it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def welcome(self) -> Welcome:
        """Bounds of the server of now, or of the last one."""
        ...

    @property
    def writable(self) -> bool:
        """There is a link and it takes more."""
        ...

    @property
    def failure(self) -> ClarionError | None:
        """Why the connection is over for good; None while it is not."""
        ...

    @property
    def scheduled(self) -> bool:
        """`wake` was called, and the turn has not come yet."""
        ...

    def wake(self) -> None:
        """Let every session send what it has, soon; cheap when already asked for."""
        ...

    def send(self, kind: int, channel: int, parts: Iterable[Buffer] = (), flags: int = 0) -> None:
        """Queue one frame. Only while there is a link."""
        ...

    def write(self) -> None:
        """Write what is queued now, instead of at the end of the turn: for whoever has nothing to follow."""
        ...

    def register(self, session: Resumable) -> None:
        """A session opens: from now on it gets its frames, turns, and links. Raises `LimitReached`."""
        ...

    def forget(self, channel: int) -> None:
        """A session is closed: its channel is free."""
        ...
