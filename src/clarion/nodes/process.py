"""What every server process does besides its nodes: limits, log, signals, exit codes.

Exit codes: 0 after SIGTERM or SIGINT, when everything was stopped in order; 70 when persistent memory
failed, or a thread died of a fault: then the process ends at once, because nothing that it would still do
could be relied on.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clarion.errors import ClarionError, InternalFault
from clarion.instruments import Registry
from clarion.nodes.logging import ERROR, INFO, WARNING, Logging, event, last_words, place
from clarion.nodes.memory import keep_freed
from clarion.scheduling import PROMPT_NS, USUAL_NS, set_turns
from clarion.settings import Settings

EXIT_FAILED = 70
GC_THRESHOLD = (50_000, 20, 50)
"""Nearly everything here is freed by counting references; a full search over 25,000 destinations takes a second."""
SWITCH_INTERVAL_S = 0.0005
"""How long a thread of the journal may wait for the interpreter while the loop computes."""
DESCRIPTORS_OWN = 256
"""File descriptors that are not connections."""

_log = logging.getLogger("clarion.node")


class Process:
    """The running process, while it serves."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.registry = Registry()
        self._stop = asyncio.Event()

    def stop(self, reason: str = "asked") -> None:
        """End in order."""
        event(_log, INFO, "stopping", reason=reason)
        self._stop.set()

    async def stopped(self) -> None:
        """Until somebody wants the process to end."""
        await self._stop.wait()

    def failed(self, error: ClarionError, **facts: object) -> None:
        """Persistent memory failed: end now, without any further effect. For any thread."""
        last_words(self.settings.node.log_format, "failed", code=error.code, error=error, **facts)
        os._exit(EXIT_FAILED)

    def thread_died(self, dead: threading.ExceptHookArgs) -> None:
        """A thread ended by an error that nobody expected: what others wait for will never come."""
        error = (
            dead.exc_value if isinstance(dead.exc_value, ClarionError) else InternalFault(detail=repr(dead.exc_value))
        )
        self.failed(error, thread=dead.thread.name if dead.thread else "?", at=place(dead.exc_value))


@contextmanager
def running(settings: Settings) -> Iterator[Process]:
    """Set the process up to serve; put back what others in it could notice."""
    loop = asyncio.get_running_loop()
    log = Logging(settings.node.log_format, settings.node.log_level)
    log.start()
    interval_s, hook, collecting = sys.getswitchinterval(), threading.excepthook, gc.get_threshold()
    process = Process(settings)
    signals: list[signal.Signals] = []
    try:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.set_threshold(*GC_THRESHOLD)
        keep_freed()
        set_turns(PROMPT_NS)
        threading.excepthook = process.thread_died
        _raise_descriptors(settings.client_manager.connections_max)
        loop.set_exception_handler(_log_loop_error)
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, process.stop, number.name)
                signals.append(number)
            except (ValueError, RuntimeError):  # not the main thread: somebody else has the signals
                break
        process.registry.arm_all(settings.instruments.arm, file=settings.file)
        process.registry.arm_from(os.environ)
        yield process
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        loop.set_exception_handler(None)
        sys.setswitchinterval(interval_s)
        set_turns(USUAL_NS)
        gc.set_threshold(*collecting)
        threading.excepthook = hook
        log.stop()


def _raise_descriptors(connections_max: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError) as error:
            event(_log, WARNING, "descriptors_not_raised", limit=soft, error=error)
    if soft != resource.RLIM_INFINITY and soft < connections_max + DESCRIPTORS_OWN:
        event(_log, INFO, "few_descriptors", limit=soft, connections_max=connections_max)


def _log_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, BaseException):
        _log.error("loop_error", exc_info=error, extra={"facts": {"what": context.get("message", "")}})
    else:
        event(_log, ERROR, "loop_error", what=context.get("message", ""))
