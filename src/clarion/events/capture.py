"""Events that nobody has to emit: log records, exceptions that end a program or thread, and last words.

    logging.getLogger().addHandler(EventHandler(events, level=logging.WARNING))
    install_excepthook(events)
    install_faulthandler(events, directory)         # see `clarion.events.last_words`

Guarantees
    1. Nothing here raises into the application, whatever the record, the exception or the event system does. What
       could not be emitted is counted, and the first of a row is said on stderr, as `logging` does.
    2. Texts are bounded; if the event is still too large it is made again with less. Beginning and end of a
       traceback are kept.
    3. The event system's own log records, and those made within `quiet()`, become no events: no event leads to another.
    4. A log record from a signal handler that interrupted the handler in the same thread becomes an event at once.

Rule: anything with `emit` is an event system here; nothing is known of persistent memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any

from clarion import limits
from clarion.errors import EventTooLarge, MessageTooLarge
from clarion.events.event import Severity
from clarion.events.last_words import (
    TYPE_CRASHED,
    Emitter,
    collect_last_words,
    install_faulthandler,
    report_last_words,
)
from clarion.events.texts import bounded, plain, printable

__all__ = [
    "TYPE_CRASHED",
    "TYPE_EXCEPTION",
    "TYPE_LOG",
    "Emitter",
    "EventHandler",
    "collect_last_words",
    "install_excepthook",
    "install_faulthandler",
    "quiet",
    "report_last_words",
]

TYPE_LOG = "log"
TYPE_EXCEPTION = "process.exception"
OWN_LOGGER = "clarion.events"
_NESTED_MAX = 1
"""How often a handler may interrupt itself in one thread: a signal handler may, an emitter that logs must not go on."""
_SIZES = (limits.EVENT_TEXT_BYTES_MAX, limits.EVENT_TEXT_BYTES_MAX // 8, 64)
"""Bytes of a text, until the event fits."""
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Fields that every record has; all others are what the application added."""

_is_quiet: ContextVar[bool] = ContextVar("clarion_events_quiet", default=False)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Log records made here, in this thread or task, become no events: for whoever delivers events and may log."""
    token = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(token)


def _emit(events: Emitter, type_: str, source: str, severity: Severity, data_of: Callable[[int], Any]) -> None:
    """Emit what `data_of` makes with texts of so many bytes: less, while it is too large."""
    for size in _SIZES:
        try:
            events.emit(type_, source=source, severity=severity, data=data_of(size))
        except (EventTooLarge, MessageTooLarge):
            if size == _SIZES[-1]:
                raise
        else:
            return


# --- logging --------------------------------------------------------------------------------------


class EventHandler(logging.Handler):
    """Emits an event of type `log` for each record: its level is the severity, its logger the source."""

    def __init__(self, events: Emitter, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._events = events
        self._nested = threading.local()
        self._is_failing = False
        self.failures = 0
        """Records that became no event although they should."""

    def handle(self, record: logging.LogRecord) -> bool:
        """As that of `logging`, but without its lock: threads that log at the same time share a group commit."""
        passed: Any = self.filter(record)
        if isinstance(passed, logging.LogRecord):  # filters replace records from Python 3.12 on
            record = passed
        if passed:
            self.emit(record)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises, except what is meant for the thread: KeyboardInterrupt, SystemExit."""
        try:
            if record.name == OWN_LOGGER or record.name.startswith(OWN_LOGGER + ".") or _is_quiet.get():
                return
            depth: int = getattr(self._nested, "depth", 0)
            if depth > _NESTED_MAX:
                self.failures += 1
                return
            self._nested.depth = depth + 1
            try:
                source = printable(record.name, limits.EVENT_SOURCE_BYTES_MAX)
                severity = Severity.at_most(record.levelno)
                _emit(self._events, TYPE_LOG, source, severity, lambda size: self._data(record, size))
                self._is_failing = False
            finally:
                self._nested.depth = depth
        except Exception:  # also for want of memory
            self._failed(record)

    def _data(self, record: logging.LogRecord, size: int) -> dict[str, Any]:
        data: dict[str, Any] = {
            "message": bounded(_message(record), size),
            "level": plain(record.levelname, 64),
            "file": plain(record.pathname, 256),
            "line": plain(record.lineno, 64),
            "function": plain(record.funcName, 256),
            "thread": plain(record.threadName, 64),
            "process": plain(record.process, 64),
        }
        if record.exc_info and record.exc_info[1] is not None:
            data["exception"] = bounded(_traceback(record.exc_info[1], record.exc_info[2]), size)
        elif record.exc_text:
            data["exception"] = bounded(record.exc_text, size)
        if record.stack_info:
            data["stack"] = bounded(record.stack_info, size // 4)
        extras = [name for name in vars(record) if name not in _USUAL]
        if extras and size == _SIZES[0]:
            kept = extras[: limits.EVENT_EXTRAS_MAX]
            data["extra"] = {bounded(name, 64): plain(vars(record)[name], 256) for name in kept}
        return data

    def _failed(self, record: logging.LogRecord) -> None:
        """Count it; say the first of a row on stderr, and not every one while persistent memory is full."""
        self.failures += 1
        was_failing, self._is_failing = self._is_failing, True
        if not was_failing:
            with contextlib.suppress(Exception):
                self.handleError(record)


def _message(record: logging.LogRecord) -> str:
    """The message; of one whose arguments do not fit, the pieces."""
    try:
        return str(record.getMessage())
    except Exception as error:
        return f"{plain(record.msg, 1024)} % {plain(record.args, 1024)} ({type(error).__name__})"


# --- exceptions -----------------------------------------------------------------------------------


def install_excepthook(events: Emitter, *, source: str = "") -> Callable[[], None]:
    """Emit an event for every exception that nobody handles, in any thread, and for those that Python can only report.

    The hooks that were there before are called afterwards. The source is the program unless another is given.
    Returns a function that takes the hooks away again.
    """
    hooks = _Hooks(events, printable(source or _program(), limits.EVENT_SOURCE_BYTES_MAX))
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks.uncaught, hooks.in_thread, hooks.unraisable
    return hooks.remove


class _Hooks:
    def __init__(self, events: Emitter, source: str) -> None:
        self._events: Emitter | None = events
        self._source = source
        self._before = (sys.excepthook, threading.excepthook, sys.unraisablehook)

    def remove(self) -> None:
        """Hooks that others put before ours go on calling ours, which then only pass on."""
        self._events = None
        if sys.excepthook == self.uncaught:
            sys.excepthook = self._before[0]
        if threading.excepthook == self.in_thread:
            threading.excepthook = self._before[1]
        if sys.unraisablehook == self.unraisable:
            sys.unraisablehook = self._before[2]

    def uncaught(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):  # an operator's wish, not a fault
            self._emit("main", kind, value, trace, threading.current_thread().name)
        self._before[0](kind, value, trace)

    def in_thread(self, arguments: threading.ExceptHookArgs) -> None:
        if not issubclass(arguments.exc_type, SystemExit):  # a thread may end itself so
            thread = arguments.thread.name if arguments.thread else ""
            self._emit("thread", arguments.exc_type, arguments.exc_value, arguments.exc_traceback, thread)
        self._before[1](arguments)

    def unraisable(self, arguments: sys.UnraisableHookArgs) -> None:
        detail = f"{arguments.err_msg or 'exception ignored in'}: {plain(arguments.object, 256)}"
        value, trace = arguments.exc_value, arguments.exc_traceback
        self._emit("unraisable", arguments.exc_type, value, trace, threading.current_thread().name, detail)
        self._before[2](arguments)

    def _emit(
        self,
        where: str,
        kind: type[BaseException],
        value: BaseException | None,
        trace: TracebackType | None,
        thread: str,
        detail: str = "",
    ) -> None:
        def data_of(size: int) -> dict[str, Any]:
            data = {
                "exception": bounded(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."), 256),
                "message": bounded(_safely(str, value) if value is not None else "", size),
                "traceback": bounded(_traceback(value, trace), size),
                "where": where,
                "thread": bounded(thread, 64),
                "process": os.getpid(),
            }
            return {**data, "detail": bounded(detail, 512)} if detail else data

        events = self._events
        if events is not None:
            with contextlib.suppress(Exception):
                _emit(events, TYPE_EXCEPTION, self._source, Severity.CRITICAL, data_of)


def _traceback(value: BaseException | None, trace: TracebackType | None) -> str:
    """The traceback as Python prints it; as much as can be had of it, without memory or with strange exceptions."""
    if value is None:
        return ""
    try:
        return "".join(traceback.format_exception(type(value), value, trace))
    except Exception:
        return type(value).__name__


def _safely(read: Callable[[Any], str], value: object) -> str:
    try:
        return read(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _program() -> str:
    """What this process runs, as the source of its events."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
