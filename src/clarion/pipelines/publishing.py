"""The status of a pipeline as messages of Clarion: JSON to `topic:pipelines.<name>`, type `pipeline.status`.

Guarantees
    1. A server that is away, slow or full never delays the pipeline: a thread of its own sends, and only the newest.
    2. The last status of a run is sent before `close` returns, if the server takes it within `CLOSE_S`.
    3. A message that nobody read is gone after `TTL_S`.
    4. A pipeline that reads all topics reads its own status too. So what is no news is sent once in `QUIET_S` only, and
       a pipeline that has nothing else to do does not keep itself busy.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec

from clarion.errors import ClarionError

CLOSE_S = 3.0
TTL_S = 3_600.0
QUIET_S = 60.0
NEWS = 10
"""Rows, or messages of lag, that are news."""
_PAUSE_S = 5.0
"""After an error, before the next attempt."""
_SEND_S = 5.0


def topic(name: str) -> str:
    """Where the status of a pipeline is sent."""
    return f"topic:pipelines.{name}"


def is_news(last: dict[str, Any], status: dict[str, Any]) -> bool:
    """Whether a status says more than that a few messages came. Pure."""
    if any(last.get(key) != status.get(key) for key in ("state", "error", "master")):
        return True
    return any(abs((status.get(key) or 0) - (last.get(key) or 0)) > NEWS for key in ("rows", "lag"))


class Publisher:
    """Sends the newest status, at most one every `interval_s`."""

    def __init__(self, url: str, name: str, interval_s: float) -> None:
        self._url = url
        self._topic = topic(name)
        self._interval_s = interval_s
        self._newest: bytes | None = None
        self._last: dict[str, Any] = {}
        self._last_at = 0.0
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="pipeline-status", daemon=True)
        self._thread.start()

    def send(self, status: dict[str, Any]) -> None:
        """Send it when its turn comes, if it is news; one that waits is replaced."""
        now = time.monotonic()
        if not is_news(self._last, status) and now - self._last_at < QUIET_S:
            return
        self._last, self._last_at = status, now
        with self._changed:
            self._newest = msgspec.json.encode(status)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while not self._is_over():
            try:
                self._serve()
            except ClarionError:
                if self._is_closing:
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closing, _PAUSE_S)

    def _serve(self) -> None:
        """One connection, until it breaks or all is sent."""
        from clarion.sync import connect

        with (
            connect(
                self._url, name="clarion-pipeline", connect_timeout=CLOSE_S, reconnect_timeout=CLOSE_S
            ) as connection,
            connection.session() as session,
        ):
            while (body := self._next()) is not None:
                sent = time.monotonic()
                ticket = session.send_nowait(
                    self._topic, body, type="pipeline.status", content_type="application/json", ttl=TTL_S
                )
                ticket.result(_SEND_S)
                with self._changed:
                    if self._newest is body:
                        self._newest = None
                    pause = self._interval_s - (time.monotonic() - sent)
                    self._changed.wait_for(lambda: self._is_closing, max(0.0, pause))

    def _next(self) -> bytes | None:
        """The newest, when there is one; None: no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._is_closing)
            return self._newest

    def _is_over(self) -> bool:
        with self._changed:
            return self._is_closing and self._newest is None
