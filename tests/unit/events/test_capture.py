"""Log records and exceptions as events: nothing raises into the application, nothing goes round in circles."""

from __future__ import annotations

import gc
import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion import limits
from clarion.errors import Blocked, EventTooLarge
from clarion.events.capture import EventHandler, install_excepthook, quiet
from clarion.events.event import Event, Severity, check_source
from clarion.events.texts import bounded, plain, printable


class Kept:
    """Keeps what is emitted, checked as an event system checks it."""

    def __init__(self, bytes_max: int = limits.EVENT_BYTES_MAX_DEFAULT) -> None:
        self.events: list[Event] = []
        self.bytes_max = bytes_max
        self.before: Callable[[], None] = lambda: None

    def emit(self, type: str, /, *, source: str, severity: Severity, data: Any) -> str:
        self.before()
        event = Event(str(len(self.events) + 1), 0, source, type, severity, data)
        if len(event.body) + 500 > self.bytes_max:
            raise EventTooLarge(size=len(event.body), limit=self.bytes_max)
        self.events.append(event)
        return event.id


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def logger(kept: Kept) -> Iterator[logging.Logger]:
    """A logger of the test's own, whose records become events."""
    one = logging.getLogger("shop.orders")
    one.propagate, one.level = False, logging.DEBUG
    handler = EventHandler(kept)
    one.addHandler(handler)
    yield one
    one.removeHandler(handler)


def handler_of(logger: logging.Logger) -> EventHandler:
    (handler,) = (each for each in logger.handlers if isinstance(each, EventHandler))  # pytest has its own there
    return handler


def test_a02_a_log_record_is_an_event(kept: Kept, logger: logging.Logger) -> None:
    logger.warning("%d orders wait", 7, extra={"shop": "eu", "ids": [1, 2]})
    (event,) = kept.events
    assert (event.type, event.source, event.severity) == ("log", "shop.orders", Severity.WARNING)
    assert event.data["message"] == "7 orders wait" and event.data["level"] == "WARNING"
    assert event.data["file"].endswith("test_capture.py") and event.data["line"] > 0
    assert event.data["function"] == "test_a02_a_log_record_is_an_event"
    assert event.data["thread"] == threading.current_thread().name
    assert event.data["extra"] == {"shop": "eu", "ids": "[1, 2]"}
    assert "exception" not in event.data


@pytest.mark.parametrize(
    ("level", "severity"),
    [
        (5, "debug"),
        (10, "debug"),
        (20, "info"),
        (25, "notice"),
        (35, "warning"),
        (40, "error"),
        (50, "critical"),
        (99, "emergency"),
    ],
)
def test_a02_the_level_is_the_severity(kept: Kept, logger: logging.Logger, level: int, severity: str) -> None:
    logger.setLevel(1)
    logger.log(level, "x")
    assert kept.events[0].severity.text == severity


def test_a02_an_exception_is_told_from_begin_to_end(kept: Kept, logger: logging.Logger) -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("the reason" + "!" * 100_000)
        deep(n - 1)

    try:
        deep(200)
    except ValueError:
        logger.exception("it failed", stack_info=True)
    text = kept.events[0].data["exception"]
    assert text.startswith("Traceback") and text.endswith("!\n") and "left out" in text
    assert len(text.encode()) < limits.EVENT_TEXT_BYTES_MAX + 100
    assert "test_capture" in kept.events[0].data["stack"]


def test_a02_what_is_too_large_is_made_smaller(logger: logging.Logger) -> None:
    small = Kept(bytes_max=1500)
    handler_of(logger)._events = small
    logger.error("\x01" * 100_000, extra={f"x{n}": "y" * 1000 for n in range(100)})
    (event,) = small.events
    assert event.data["message"].startswith("\x01") and "left out" in event.data["message"]
    assert handler_of(logger).failures == 0


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("%d", ("x",)),
        ("%s", (Hostile(),)),
        (Hostile(), ()),
        ("%s %s", (1,)),
        ("\ud800", ()),
        ("x", (1,)),
        ("%s", (1 << 20_000,)),
    ],
)
def test_a02_a_record_that_cannot_be_formatted_is_an_event(
    kept: Kept, logger: logging.Logger, message: Any, arguments: tuple[object, ...]
) -> None:
    extra = {"odd": Hostile(), "nan": float("nan"), "big": 1 << 80, "\ud800": "\ud800"}
    record = logger.makeRecord("shop", logging.ERROR, "file", 1, message, arguments, None, extra=extra)
    handler_of(logger).handle(record)  # not by the logger: pytest's handler raises for such a record
    (event,) = kept.events
    assert event.data["message"]
    assert event.data["extra"]["odd"] == "<Hostile>" and event.data["extra"]["nan"] == "nan"
    assert handler_of(logger).failures == 0


def test_a02_any_name_of_a_logger_becomes_a_source(kept: Kept) -> None:
    for name in ("a\nb", "\ud800", "é" * 200, ""):
        EventHandler(kept).handle(logging.LogRecord(name, 20, "f", 1, "m", None, None))
    assert [event.source for event in kept.events] == ["a?b", "?", "é" * 127, "?"]


@pytest.mark.parametrize(
    "failure", [Blocked(destination="events", detail="full"), MemoryError(), RecursionError(), OSError(28, "x")]
)
def test_a03_a_failure_is_counted_and_said_once(
    kept: Kept, logger: logging.Logger, capsys: pytest.CaptureFixture[str], failure: Exception
) -> None:
    def fail() -> None:
        raise failure

    kept.before = fail
    for n in range(5):
        logger.error("lost %d", n)
    kept.before = lambda: None
    logger.error("kept")
    kept.before = fail
    logger.error("lost again")
    assert handler_of(logger).failures == 6
    assert [event.data["message"] for event in kept.events] == ["kept"]
    assert capsys.readouterr().err.count("--- Logging error ---") == 2


def test_a02_the_event_system_s_own_records_are_no_events(kept: Kept, logger: logging.Logger) -> None:
    own = logging.getLogger("clarion.events.engine")
    own.addHandler(handler_of(logger))
    try:
        kept.before = lambda: own.error("within emit")
        logger.error("outer")
        own.error("of itself")
    finally:
        own.removeHandler(handler_of(logger))
    assert [event.data["message"] for event in kept.events] == ["outer"]
    assert handler_of(logger).failures == 0


def test_a02_an_emitter_that_logs_elsewhere_does_not_go_on_for_ever(kept: Kept, logger: logging.Logger) -> None:
    kept.before = lambda: logger.error("within emit")
    logger.error("outer")
    assert [event.data["message"] for event in kept.events] == ["within emit", "outer"]
    kept.before = lambda: None
    logger.error("later")
    assert kept.events[-1].data["message"] == "later"


def test_a02_whoever_delivers_events_may_log_quietly(kept: Kept, logger: logging.Logger) -> None:
    with quiet():
        logger.error("delivering")
        other = threading.Thread(target=logger.error, args=("of another thread",))
        other.start()
        other.join()
    logger.error("done")
    assert [event.data["message"] for event in kept.events] == ["of another thread", "done"]


def test_a02_a_signal_handler_that_interrupts_the_handler_is_heard(kept: Kept, logger: logging.Logger) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: logger.critical("signal"))

    def interrupted() -> None:
        kept.before = lambda: None
        signal.raise_signal(signal.SIGUSR1)

    try:
        kept.before = interrupted
        logger.error("interrupted")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [event.data["message"] for event in kept.events] == ["signal", "interrupted"]


def test_a02_threads_that_log_do_not_wait_for_each_other(kept: Kept, logger: logging.Logger) -> None:
    """Two are in `emit` at the same time: with the usual lock of a handler the barrier would break."""
    barrier = threading.Barrier(2)
    kept.before = lambda: (barrier.wait(20), None)[1]
    threads = [threading.Thread(target=logger.error, args=("x",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept.events) == 2 and not barrier.broken


def test_a02_filters_of_the_handler_are_asked(kept: Kept, logger: logging.Logger) -> None:
    handler_of(logger).addFilter(lambda record: "secret" not in record.getMessage())
    logger.error("secret")
    logger.error("open")
    assert [event.data["message"] for event in kept.events] == ["open"]


# --- exceptions -----------------------------------------------------------------------------------


@pytest.fixture
def hooks() -> Iterator[list[str]]:
    """Hooks of the test's own below ours, which note what is passed on."""
    before = (sys.excepthook, threading.excepthook, sys.unraisablehook)
    passed: list[str] = []
    sys.excepthook = lambda kind, value, trace: passed.append(f"main {kind.__name__}")
    threading.excepthook = lambda arguments: passed.append(f"thread {arguments.exc_type.__name__}")
    sys.unraisablehook = lambda arguments: passed.append(f"unraisable {arguments.exc_type.__name__}")
    yield passed
    sys.excepthook, threading.excepthook, sys.unraisablehook = before


def _raise(error: BaseException) -> None:
    raise error


def test_a02_exceptions_that_nobody_handles_are_events(kept: Kept, hooks: list[str]) -> None:
    remove = install_excepthook(kept, source="shop")
    try:
        _raise(KeyError("k"))
    except KeyError as error:
        sys.excepthook(KeyError, error, error.__traceback__)
    thread = threading.Thread(target=_raise, args=(ValueError("v"),), name="worker")
    thread.start()
    thread.join()

    class Odd:
        def __del__(self) -> None:
            raise TypeError("t")

    Odd()
    gc.collect()
    remove()
    assert hooks == ["main KeyError", "thread ValueError", "unraisable TypeError"]
    assert [event.data["where"] for event in kept.events] == ["main", "thread", "unraisable"]
    assert {(event.type, event.source, event.severity) for event in kept.events} == {
        ("process.exception", "shop", Severity.CRITICAL)
    }
    assert [event.data["exception"] for event in kept.events] == ["KeyError", "ValueError", "TypeError"]
    assert all(
        "Traceback" in event.data["traceback"] and "_raise" in event.data["traceback"] for event in kept.events[:2]
    )
    assert kept.events[1].data["thread"] == "worker" and "__del__" in kept.events[2].data["detail"]


def test_a02_what_is_no_fault_is_only_passed_on(kept: Kept, hooks: list[str]) -> None:
    install_excepthook(kept)
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    thread = threading.Thread(target=_raise, args=(SystemExit(),))
    thread.start()
    thread.join()
    assert kept.events == [] and hooks[0] == "main KeyboardInterrupt"


def test_a02_a_hook_never_fails(kept: Kept, hooks: list[str]) -> None:
    class HostileError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    install_excepthook(kept)
    error = HostileError()
    sys.excepthook(HostileError, error, None)
    assert "HostileError" in kept.events[0].data["exception"] and "HostileError" in kept.events[0].data["message"]
    kept.before = lambda: _raise(MemoryError())
    sys.excepthook(HostileError, error, None)
    assert hooks == ["main HostileError"] * 2 and len(kept.events) == 1


def test_a02_hooks_are_taken_away_also_from_below_others(kept: Kept, hooks: list[str]) -> None:
    remove = install_excepthook(kept)
    ours = sys.excepthook
    sys.excepthook = lambda *arguments: ours(*arguments)
    remove()
    sys.excepthook(ValueError, ValueError(), None)
    threading.excepthook(threading.ExceptHookArgs((ValueError, ValueError(), None, None)))
    assert hooks == ["main ValueError", "thread ValueError"] and kept.events == []


PROGRAM = """
import json, sys
from clarion.events.capture import install_excepthook
class Printed:
    def emit(self, type, /, *, source, severity, data):
        print(json.dumps([type, source, severity.text, data["message"]]), flush=True)
install_excepthook(Printed())
raise ValueError("at the end")
"""


def test_a02_a_real_program_that_ends_so() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(done.stdout) == ["process.exception", "-c", "critical", "at the end"]
    assert done.returncode == 1 and "ValueError: at the end" in done.stderr


# --- texts ----------------------------------------------------------------------------------------


@given(st.text(st.characters(codec=None), max_size=300), st.integers(8, 200))
def test_a03_texts_are_bounded_and_valid(text: str, bytes_max: int) -> None:
    cut = bounded(text, bytes_max)
    assert len(cut.encode()) <= bytes_max + 40
    if len(text.encode("utf-8", "backslashreplace")) <= bytes_max:
        assert cut.encode() == text.encode("utf-8", "backslashreplace")
    assert check_source(printable(text, 255))


@given(st.one_of(st.integers(), st.floats(), st.text(), st.binary(), st.none(), st.lists(st.integers()), st.booleans()))
def test_a03_values_are_what_json_has(value: object) -> None:
    assert msgspec.json.decode(msgspec.json.encode(plain(value, 100))) == plain(value, 100)
