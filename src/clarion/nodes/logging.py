"""Log lines: one event each, with named facts, written by a thread of their own.

    log = logging.getLogger("clarion.cm")
    event(log, INFO, "connection_ended", peer="127.0.0.1:5", code="CLN-108")

    2025-01-01T00:00:00.000Z WARNING connection_ended peer=127.0.0.1:5 code=CLN-108

Guarantees
    1. `event` never blocks and never raises: lines wait in a bounded queue; when it is full they are dropped, and
       the next line that fits is preceded by one that says how many.
    2. A line is one line, whatever is in the facts.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import time
from logging.handlers import QueueHandler, QueueListener
from typing import Any, TextIO

import msgspec

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
LINES_WAITING_MAX = 10_000
_ROOT = "clarion"


def event(logger: logging.Logger, level: int, name: str, **facts: object) -> None:
    """Log that `name` happened."""
    if logger.isEnabledFor(level):
        logger.log(level, name, extra={"facts": facts})


class LineFormatter(logging.Formatter):
    """`time level event key=value …`; values with spaces or quotes are quoted."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [f"{_time(record)} {record.levelname} {_one_line(record.getMessage())}"]
        parts += [f"{key}={_value(value)}" for key, value in _facts(record).items()]
        return " ".join(parts)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {key: _plain(value) for key, value in _facts(record).items()}
        line = {"time": _time(record), "level": record.levelname, "event": record.getMessage(), **facts}
        return msgspec.json.encode(line).decode("utf-8", "replace")


class _Handler(QueueHandler):
    """Takes lines without ever waiting, and counts those that found no room."""

    def __init__(self, lines: queue.Queue[logging.LogRecord]) -> None:
        super().__init__(lines)
        self._dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Turn everything into text here: facts may change before the other thread looks."""
        facts = {key: _plain(value) for key, value in _facts(record).items()}
        record = logging.makeLogRecord(record.__dict__)
        record.msg, record.args, record.exc_info, record.exc_text = record.getMessage(), None, None, None
        record.__dict__["facts"] = facts
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        lines: queue.Queue[logging.LogRecord] = self.queue  # type: ignore[assignment]
        try:
            if self._dropped:
                notice = {"name": _ROOT, "levelno": WARNING, "levelname": "WARNING", "msg": "log_lines_dropped"}
                lines.put_nowait(logging.makeLogRecord({**notice, "facts": {"count": self._dropped}}))
                self._dropped = 0
            lines.put_nowait(record)
        except queue.Full:
            self._dropped += 1


class Logging:
    """The log of a process, from `start` to `stop`."""

    def __init__(self, style: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
        self._logger = logging.getLogger(_ROOT)
        lines: queue.Queue[logging.LogRecord] = queue.Queue(LINES_WAITING_MAX)
        self._handler = _Handler(lines)
        writer = logging.StreamHandler(stream or sys.stderr)
        writer.setFormatter(JsonFormatter() if style == "json" else LineFormatter())
        self._listener = QueueListener(lines, writer)
        self._level = level.upper()

    def start(self) -> None:
        self._logger.addHandler(self._handler)
        self._logger.setLevel(self._level)
        self._logger.propagate = False
        self._listener.start()

    def stop(self) -> None:
        """Write what waits, and end."""
        self._logger.removeHandler(self._handler)
        self._logger.propagate = True
        self._logger.setLevel(logging.NOTSET)
        self._listener.stop()


def last_words(style: str, name: str, **facts: object) -> None:
    """One error line, written at once and by this thread: for a process that is about to end itself."""
    record = logging.LogRecord(_ROOT, ERROR, __file__, 0, name, None, None)
    record.__dict__["facts"] = facts
    line = (JsonFormatter() if style == "json" else LineFormatter()).format(record)
    try:
        os.write(2, line.encode("utf-8", "replace") + b"\n")
    except OSError:
        pass


def place(error: BaseException | None) -> str:
    """Where an error was raised."""
    trace = error.__traceback__ if error is not None else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "?"


def _time(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    facts: dict[str, Any] = dict(getattr(record, "facts", {}))
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        facts["at"] = place(error)
        facts["error"] = f"{type(error).__name__}: {error}"
    return facts


def _plain(value: object) -> bool | int | float | str | None:
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _one_line(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _value(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and not any(character in text for character in " \"'="):
        return text
    return msgspec.json.encode(text).decode("utf-8", "replace")
