"""Stopping a pipeline from outside: SIGINT and SIGTERM, or the file `stop` in its folder.

Theory of operation
    The first signal asks: the pipeline ends after the micro-batch under way. The second one insists: the process ends
    at once, and its Java process with it. Either way nothing is lost or doubled, only the second one costs a
    micro-batch that is done again.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from clarion.pipelines.folder import Folder

_LOOK_S = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether, and by what, the pipeline was asked to stop."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._before: dict[int, Any] = {}
        self._looked = 0.0
        self.cause: str | None = None
        self.signal: int | None = None

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def listen(self) -> None:
        """Take the signals; again after somebody else took them, as Spark does with SIGINT."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            before = signal.signal(number, self._signalled)
            self._before.setdefault(number, before)

    def is_wanted(self) -> bool:
        """Asked often: looks at the folder now and then."""
        if self.cause is None and time.monotonic() - self._looked >= _LOOK_S:
            self._looked = time.monotonic()
            if self._folder.is_stop_wanted():
                self.cause = "clarion pipeline stop"
        return self.cause is not None

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            os._exit(128 + number)
        self.signal = number
        self.cause = signal.Signals(number).name
