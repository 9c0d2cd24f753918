"""Connections of Spark's Python processes: one for each address and process, used again by the next task.

Spark keeps its Python workers for the next tasks, and ends those that were idle for a minute, so a connection that is
kept saves a handshake a task and lasts no longer than its worker. A process that was forked never uses what its parent
has opened.
"""

from __future__ import annotations

import os
import threading

from clarion import limits, sync
from clarion.errors import ConnectionFailed

BUFFER_BYTES = 32 * limits.MIB
"""Rows that a task has sent and the broker has not stored: then it waits."""

_lock = threading.Lock()
_open: dict[tuple[int, str, float], sync.Connection] = {}


def connection(url: str, reconnect_s: float) -> sync.Connection:
    """A connection that is open, and comes back by itself within `reconnect_s`. Raises `ConnectionFailed`."""
    key = (os.getpid(), url, reconnect_s)
    with _lock:
        found = _open.get(key)
        if found is None or found.closed:
            found = _open[key] = connect(url, reconnect_s, "spark task")
        return found


def connect(url: str, reconnect_s: float, name: str) -> sync.Connection:
    """A connection of one's own. A server that is just starting again is waited for, as long as for a lost one."""
    try:
        return sync.connect(
            url,
            name=name,
            connect_timeout=reconnect_s,
            reconnect_timeout=reconnect_s,
            buffer_bytes=BUFFER_BYTES,
        )
    except ConnectionFailed as error:
        detail = f"{error.facts.get('detail')}, for {reconnect_s:g} s (option reconnectTimeout)"
        raise ConnectionFailed(url=error.facts.get("url"), detail=detail) from None
