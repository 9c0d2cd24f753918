"""A connection for the length of one command.

The blocking client: its loop has a thread of its own, so heartbeats go on while a command waits for a slow reader
of its output, and Ctrl-C comes at once.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clarion.sync import Connection, ConnectionState

CONNECT_S = 3.0
"""A server that is just starting is waited for; one that is not there is said soon."""
RECONNECT_S = 60.0


def connected(url: str, *, patient: bool = False) -> Connection:
    """An open connection. A patient command waits for a server that went away to come back."""
    from clarion.sync import connect

    return connect(
        url,
        name="clarion-cli",
        connect_timeout=CONNECT_S,
        reconnect_timeout=RECONNECT_S if patient else CONNECT_S,
        on_state=_Reporter().report,
    )


class _Reporter:
    """Says on stderr that the connection was lost, and that it is back."""

    def __init__(self) -> None:
        self._is_lost = False

    def report(self, state: ConnectionState) -> None:
        if state == "reconnecting":
            self._is_lost = True
            note("the connection was lost; trying again")
        elif state == "connected" and self._is_lost:
            self._is_lost = False
            note("connected again")


def note(text: str) -> None:
    """One line on stderr that is no error."""
    try:
        sys.stderr.write(f"clarion: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
